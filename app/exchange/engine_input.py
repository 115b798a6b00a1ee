"""What may pass to an engine: `check_input`, before the main request of whichever dialect.

- Parameters that only an operator opens to callers.
- Token ids, and the JSON texts of tool calls, that an engine reads in a moment.
- Parameters and texts that cost an engine no more than it bears beside its other requests (`check_costs`).
- A stream's tokens at which it is to go on (`check_resumed`).
- What an engine has rejected all the same (`name_rejected_field`).

Errors name the field as the client does.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.aio import until
from app.config.schema import ENGINE_PARAMS, ContentFilter, Endpoint
from app.dialects.base import Call, EngineRequest
from app.dialects.bodies import nested_json, value_at
from app.engine.errors import (
    NOT_FETCHED,
    TOO_COSTLY,
    field_named_in,
    media_refused,
    with_own_field,
    with_public_name,
)
from app.engine.expected import count_of
from app.engine.model import Model
from app.engine.output import max_tokens
from app.engine.pieces import MOST_CHARACTERS
from app.engine.texts import REPEATING, Text, fitting, texts_of, too_long
from app.errors import BadRequest, ContextExceeded, Rejected, TooLarge
from app.exchange.exchange import Exchange
from app.exchange.request import refused_field
from app.long_json import LONG_BODY, cost_of
from app.routing.content_filter import check_content
from app.upstream.target import Target

_SHORT_BODY = 1024
"""Bytes in which there are neither many values nor many levels."""

_LONGEST_COUNTED = 128 * 1024
"""Characters. An engine takes a third of a second to count them, after it has counted to the context's end."""


async def check_input(exchange: Exchange, target: Target, request: EngineRequest) -> None:
    """Raises BadRequest if a main request for the target's engine has what may not pass to one."""
    check_engine_params(request.body, exchange.record.endpoint, exchange.endpoint)
    check_token_ids(exchange.call, request.body)
    if exchange.size > _SHORT_BODY:
        await _check_arguments(exchange, request.body)
    await check_costs(exchange, target, [request])


async def check_costs(exchange: Exchange, target: Target, requests: Sequence[EngineRequest]) -> None:
    """Raises BadRequest for requests that cost the engine too much: by their parameters, or by texts that are too
    long. Which of these a server elsewhere takes is not known."""
    for request in requests:
        check_costly_params(exchange.call, request.body, exchange.size)
    if exchange.snapshot.config.deployments[target.name].url is not None:
        return
    for request in requests:
        if has_many_vectors(request):
            with until(exchange.deadline):
                model = await exchange.state.upstream.model(target, exchange.snapshot.config.timeouts)
            check_vectors(request.body, model.hidden_size)
    if exchange.size <= MOST_CHARACTERS and REPEATING.isdisjoint([request.path for request in requests]):
        return
    texts = [text for request in requests for text in await _texts(exchange, request)]
    if sum(text.length for text in texts) <= MOST_CHARACTERS:
        return
    with until(exchange.deadline):
        model = await exchange.state.upstream.model(target, exchange.snapshot.config.timeouts)
    if (refused := too_long(texts, model.max_len)) is not None:
        raise refused_field(exchange.call.field_names, *refused)


def name_rejected_field(error: Rejected, exchange: Exchange, target: Target) -> None:
    """Finds the field that the engine rejects, and gives it and the model the names that the client knows."""
    call, endpoint = exchange.call, exchange.record.endpoint
    if (part := media_refused(error.message, call.body)) is not None:
        error.message = f"{part}: endpoint '{endpoint}' has a model for texts only"
        error.param = part
    error.message, param = with_own_field(error.message, error.param, call.body)
    param = param or field_named_in(error.message, call.body)
    error.message = with_public_name(error.message, target.model, call.model or endpoint)
    error.param, error.value = param, value_at(call.body, param)
    if param is None:
        return
    own = call.field_names.get(param, param)
    if isinstance(error, ContextExceeded):
        error.named(own)
        return
    if error.message.startswith((NOT_FETCHED, TOO_COSTLY)):
        error.message = f"{own}: {error.message}"  # some dialects have no other place for the field
    elif error.message.startswith(f"{param}:"):
        error.message = own + error.message.removeprefix(param)
    error.param = own


async def is_long_to_count(exchange: Exchange, counting: EngineRequest, context: int) -> bool:
    """Whether an engine with this context would delay others if it counted the whole prompt."""
    if exchange.size <= _LONGEST_COUNTED:
        return False
    return sum(text.length for text in await _texts(exchange, counting)) > max(_LONGEST_COUNTED, fitting(context))


async def _texts(exchange: Exchange, request: EngineRequest) -> Sequence[Text]:
    return await exchange.state.access.bodies.work(exchange.size, texts_of, request.path, request.body)


# What reaches beyond the request that has it, so that the operator allows it for each endpoint. `kv_transfer_params`
# and `ec_transfer_params` name hosts that an engine with a connector contacts, `priority` moves a request ahead of
# others, `logprob_token_ids` replaces the log-probabilities of a whole batch (vLLM's sampler has one tensor for it),
# and the readers of media make an image as large as `mm_processor_kwargs` and `media_io_kwargs` say.
# Contract: vLLM 0.29, which takes them as fields, and some as members of `vllm_xargs`.

_EXTRA = "vllm_xargs"
_PARAMS = frozenset(ENGINE_PARAMS)


def check_engine_params(body: Mapping[str, Any], name: str, endpoint: Endpoint | None) -> None:
    """Raises BadRequest if a body in vLLM's fields has a parameter that the endpoint `name` does not allow.

    `endpoint` is None for a deployment that no endpoint lists.
    """
    extra = body.get(_EXTRA)
    if extra is None and _PARAMS.isdisjoint(body):  # nearly always
        return
    allowed = endpoint.allow_engine_params if endpoint is not None else ()
    for parameter in ENGINE_PARAMS:
        if parameter in allowed:
            continue
        path = f"{_EXTRA}.{parameter}" if isinstance(extra, Mapping) and parameter in extra else parameter
        if parameter in body or path != parameter:
            raise BadRequest(
                f"{path}: not allowed here; the operator may allow it (`allow_engine_params` of '{name}')",
                param=path,
                code="unsupported_parameter",
            )


# Contract: vLLM 0.29, which puts these ids into sets and dictionaries. Python's hash of an integer is its value modulo
# 2**61 - 1, so that a few thousand longer ones of one hash hold an engine, and all that it serves, for minutes.

_TOKEN_IDS: Mapping[str, int] = {
    "allowed_token_ids": 2**18,  # no vocabulary has more
    "logit_bias": 4096,
    "logprob_token_ids": 4096,
    "stop_token_ids": 4096,
}
"""vLLM's fields that hold token ids, `logit_bias` as names, and the most of them."""

_HOLD_TOKEN_IDS = frozenset(_TOKEN_IDS)
_MOST_TOKEN_ID = 2**31 - 1
_INTEGER = frozenset({int})
_TOKEN_ID = re.compile(r"[0-9]{1,10}")


def check_token_ids(call: Call, body: Mapping[str, Any]) -> None:
    """Raises BadRequest, under the client's name for the field, if a field of the vLLM request `body` holds too many
    token ids, or a value that is none."""
    if _HOLD_TOKEN_IDS.isdisjoint(body):  # nearly always
        return
    for field in _HOLD_TOKEN_IDS.intersection(body):
        ids, most, name = body[field], _TOKEN_IDS[field], call.field_names.get(field, field)
        if not isinstance(ids, list | dict):  # None, or vLLM rejects it
            continue
        if len(ids) > most:
            raise BadRequest(f"{name}: has {len(ids)} token ids, at most {most} are allowed", param=name)
        if not (all(map(_is_spelt_token_id, ids)) if isinstance(ids, dict) else _are_token_ids(ids)):
            raise BadRequest(f"{name}: a token id is an integer from 0 to {_MOST_TOKEN_ID}", param=name)


def _are_token_ids(values: Sequence[Any]) -> bool:
    """For hundreds of thousands of them: without a step of Python for each."""
    return not values or (_INTEGER.issuperset(map(type, values)) and min(values) >= 0 and max(values) <= _MOST_TOKEN_ID)


def _is_spelt_token_id(name: str) -> bool:
    return _TOKEN_ID.fullmatch(name) is not None and int(name) <= _MOST_TOKEN_ID


# Contract: vLLM 0.29.
# - With each token that it makes, it compares up to size times count tokens for each size of a pattern, while all its
#   answers wait: 0.8 s at 8,000 tokens.
# - It passes the variables of a chat's template on to the tokenizer that renders it, which pads a prompt to any
#   `max_length`: 100 GB for a thousand million tokens. Inputs of a batch are padded to the context.
# - Each of `n` choices has all parameters for itself: 0.3 us for each allowed token, 0.5 us for each biased one, and as
#   much memory as they take.

_REPETITION, _TEMPLATE_KWARGS, _PADDING = "repetition_detection", "chat_template_kwargs", "padding"
_COSTLY = frozenset({_REPETITION, _TEMPLATE_KWARGS, _PADDING, "n"})
_MOST_REPEATED = 512
_MOST_PADDED = 64
_MOST_COPIED: Mapping[str, int] = {"allowed_token_ids": 2**18, "logit_bias": 2**16}
_MOST_COPIED_BYTES = 64 * 1024 * 1024

TOKENIZER_ARGUMENTS = frozenset(
    "chat_template conversation max_length messages padding return_assistant_tokens_mask return_dict return_tensors "
    "sanitize_control_tokens tokenize tokenizer_kwargs truncation".split()
)
"""The arguments of a tokenizer's `apply_chat_template` that are no variables of a template."""


def check_costly_params(call: Call, body: Mapping[str, Any], size: int) -> None:
    """Raises BadRequest for parameters of a vLLM request by which it would hold an engine, or take all its memory.

    `size`: of the client's body, in bytes."""
    if _COSTLY.isdisjoint(body):  # nearly always
        return
    _check_copies(call, body, size)
    if body.get(_PADDING) == "max_length" and isinstance(body.get("input"), list) and len(body["input"]) > _MOST_PADDED:
        name = call.field_names.get(_PADDING, _PADDING)
        raise BadRequest(f"{name}: a batch of more than {_MOST_PADDED} inputs is not padded", param=name)
    if isinstance(wanted := body.get(_REPETITION), Mapping):
        name = call.field_names.get(_REPETITION, _REPETITION)
        numbers = {field: wanted.get(field) or 0 for field in ("max_pattern_size", "min_count")}
        for field, number in numbers.items():
            if type(number) is not int:
                raise BadRequest(f"{name}.{field}: must be an integer", param=f"{name}.{field}")
        if math.prod(numbers.values()) > _MOST_REPEATED:
            raise BadRequest(f"{name}: max_pattern_size times min_count is at most {_MOST_REPEATED}", param=name)
    if isinstance(variables := body.get(_TEMPLATE_KWARGS), Mapping):
        for field in sorted(TOKENIZER_ARGUMENTS & variables.keys()):
            name = f"{call.field_names.get(_TEMPLATE_KWARGS, _TEMPLATE_KWARGS)}.{field}"
            raise BadRequest(f"{name}: is no variable of a template, but the tokenizer's", param=name)


def _check_copies(call: Call, body: Mapping[str, Any], size: int) -> None:
    n, name = body.get("n"), call.field_names.get("n", "n")
    if not isinstance(n, int) or n < 2:
        return
    for field, most in _MOST_COPIED.items():
        if isinstance(items := body.get(field), list | dict) and n * len(items) > most:
            what = call.field_names.get(field, field)
            message = (
                f"{name}: {n} choices have {n * len(items)} entries of {what} together, at most {most} are allowed"
            )
            raise BadRequest(message, param=name)
    if n * size > _MOST_COPIED_BYTES:
        message = f"{name}: {n} choices of a body of {size} bytes are more than {_MOST_COPIED_BYTES} bytes"
        raise BadRequest(message, param=name)


_POOLING, _MANY, _MOST_FLOATS = "/pooling", 16, 2**17


def has_many_vectors(request: EngineRequest) -> bool:
    """Whether the answer to a vLLM request may be too many numbers as text: see `check_vectors`."""
    is_text = request.path == _POOLING and request.body.get("encoding_format") in (None, "float")
    return is_text and (count_of(_POOLING, request.body) or 0) > _MANY


def check_vectors(body: Mapping[str, Any], hidden_size: int | None) -> None:
    """Raises BadRequest if vLLM's `/pooling` is to write too many numbers as text: it takes 2 us for each, and no other
    answer goes on meanwhile."""
    count = count_of(_POOLING, body) or 0
    if count * (hidden_size or 0) > _MOST_FLOATS:
        message = f"input: {count} vectors of {hidden_size} numbers are more than {_MOST_FLOATS} numbers as text"
        raise BadRequest(
            f"{message}; ask for fewer, for `encoding_format: base64`, or at /v1/embeddings", param="input"
        )


async def _check_arguments(exchange: Exchange, body: Mapping[str, Any]) -> None:
    """Raises what `check_arguments` raises, of all arguments in the vLLM request `body`."""
    bodies, call = exchange.state.access.bodies, exchange.call
    if cost_of(exchange.request.body) > LONG_BODY:  # only to look for them takes a while among many values
        await bodies.work(exchange.size, lambda: check_arguments(call, _arguments(body)))
    elif arguments := _arguments(body):
        await bodies.work(sum(len(text) for _, text, _ in arguments), check_arguments, call, arguments)


def check_arguments(call: Call, arguments: Sequence["_Argument"]) -> None:
    """Raises BadRequest, under the client's name for the field, if the arguments of a tool's call, JSON in a text, have
    more values or levels than an engine reads in a moment. That they are JSON, it checks itself."""
    for field, text, where in arguments:
        try:
            nested_json(text)
        except TooLarge:
            raise _of_arguments(call, field, where, "has too many values, or too many digits") from None
        except ValueError as error:
            if "recursion" in str(error):
                raise _of_arguments(call, field, where, "has too many levels") from None
            if "out of range" in str(error):
                raise _of_arguments(call, field, where, "has a number with too many digits") from None


_Argument = tuple[str, str, str]
"""The field of a vLLM request, the arguments of a tool's call there, and where they are in it."""


def _arguments(body: Mapping[str, Any]) -> Sequence[_Argument]:
    return [
        (field, text, where)
        for field, found in (("messages", _arguments_of_chat), ("input", _arguments_of_responses))
        if isinstance(items := body.get(field), list)
        for text, where in found(items)
    ]


def _of_arguments(call: Call, field: str, where: str, reason: str) -> BadRequest:
    name = call.field_names.get(field, field) + where
    return BadRequest(f"{name}: {reason}", param=name)


def _arguments_of_chat(messages: Sequence[Any]) -> Iterator[tuple[str, str]]:
    for number, message in enumerate(messages):
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        for index, made in enumerate(calls if isinstance(calls, list) else ()):
            function = made.get("function") if isinstance(made, dict) else None
            if isinstance(function, dict) and isinstance(text := function.get("arguments"), str):
                yield text, f"[{number}].tool_calls[{index}].function.arguments"


def _arguments_of_responses(items: Sequence[Any]) -> Iterator[tuple[str, str]]:
    for number, item in enumerate(items):
        if isinstance(item, dict) and isinstance(text := item.get("arguments"), str):
            yield text, f"[{number}].arguments"


def check_resumed(call: Call, model: Model, content_filter: ContentFilter | None) -> None:
    """Raises BadRequest if the model's deployment cannot continue the call's stream after the tokens that its client
    has, or their text is blocked."""
    tokens = call.translation.resumed
    if not model.continues:
        raise BadRequest("resume: this deployment does not continue streams", param="resume")
    if (at := next((at for at, token in enumerate(tokens) if token >= model.vocab_size), None)) is not None:
        path = f"resume.token_ids[{at}]"
        raise BadRequest(f"{path}: the model has {model.vocab_size} tokens, and none is {tokens[at]}", param=path)
    most = max_tokens(call.body)
    if most is not None and len(tokens) >= most:
        path = "resume.token_ids"
        raise BadRequest(f"{path}: these {len(tokens)} tokens leave none of the {most} to be generated", param=path)
    if content_filter is not None:
        check_content(content_filter, {"resume": model.decode(tokens)})
