"""Reads and checks a request: its id, headers, body and constraints.

- Decompresses request bodies: `Content-Encoding` gzip and deflate (RFC 9110, 8.4.1).
- Fields of vLLM's that are not the caller's alone to set.
"""

import asyncio
import hashlib
import math
import random
import re
import secrets
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol

from pydantic_core import from_json

from app.aio import ClientDisconnected, Receive, result_within
from app.config.schema import ENGINE_PARAMS, Config, ContentFilter, Endpoint, Timeouts
from app.dialects.base import Call, EngineRequest
from app.dialects.bodies import members, nested_json
from app.engine.constraints import refused_constraint
from app.engine.expected import count_of, prompts_of
from app.engine.model import Model
from app.engine.output import max_tokens
from app.errors import BadRequest, HeadersTooLarge, TooLarge, TooSlow, UnsupportedMediaType
from app.exchange.response import REQUEST_ID_HEADER
from app.internal_keys import listed
from app.limits.bodies import BYTES_PER_VALUE, Bodies, Room
from app.long_json import check_size, has_only_numbers, outlined, weight
from app.routing.content_filter import check_content
from app.upstream.target import Target

_GZIP, _ZLIB, _RAW = 31, 15, -15  # zlib's window bits

STEP = 256 * 1024
"""Bytes that are decompressed at a time."""

_MOST_MEMBERS = 1000
"""Of a gzip file: each takes as long as some kilobytes."""


class BodyDecoder(Protocol):
    """Decodes a body part by part, as it arrives. A part may become several pieces of at most `STEP` bytes."""

    def feed(self, part: bytes) -> Iterable[bytes]: ...

    def close(self) -> None: ...


class Identity:
    """A body without a content coding."""

    def feed(self, part: bytes) -> Iterable[bytes]:
        """The part itself."""
        return (part,)

    def close(self) -> None:
        """Does nothing: such a body may end anywhere."""


_IDENTITY = Identity()


class Inflater:
    """A gzip or deflate body. Never produces more than `limit` bytes, however small its input is."""

    def __init__(self, coding: str, limit: int) -> None:
        self._coding, self._limit, self._size, self._members = coding, limit, 0, 1
        self._stream = zlib.decompressobj(_GZIP) if coding == "gzip" else None
        self._unsure = b""

    def feed(self, part: bytes) -> Iterator[bytes]:
        """Raises TooLarge above the limit, and BadRequest on data that is not of this coding."""
        if self._stream is None and part:
            # Some clients send raw deflate data, without the zlib header that RFC 9110 requires.
            self._stream = zlib.decompressobj(_ZLIB if part[0] & 0x0F == 8 else _RAW)
        if self._coding == "deflate" and not self._size:
            self._keep(part)
        is_full = False  # zlib may hold more of what it has read
        while (part or is_full) and self._stream is not None:
            most = min(STEP, self._limit - self._size + 1)
            try:
                piece = self._stream.decompress(part, most)
            except zlib.error:
                if not self._unsure:
                    raise self._malformed() from None
                # It only looked like the header.
                part, self._unsure, self._stream = self._unsure, b"", zlib.decompressobj(_RAW)
                continue
            self._size += len(piece)
            if piece:
                self._unsure = b""
            is_full = len(piece) == most
            if self._size > self._limit:
                raise TooLarge(f"The body is larger than {self._limit} bytes once it is decompressed")
            yield piece
            part = self._stream.unconsumed_tail
            is_full = is_full and not self._stream.eof
            if self._stream.eof and (part := self._stream.unused_data):
                self._members += 1
                if self._coding != "gzip" or self._members > _MOST_MEMBERS:
                    raise self._malformed()
                self._stream = zlib.decompressobj(_GZIP)  # a gzip file may have several members

    def _keep(self, part: bytes) -> None:
        if len(self._unsure) > STEP:  # nothing but empty blocks
            raise self._malformed()
        self._unsure += part

    def close(self) -> None:
        """Raises BadRequest if the data ended early."""
        if self._stream is not None and not self._stream.eof:
            raise self._malformed()

    def _malformed(self) -> BadRequest:
        return BadRequest(f"The body is not valid {self._coding} data", param="content-encoding")


def body_decoder(coding: str | None, limit: int) -> BodyDecoder:
    """The decoder for a value of `Content-Encoding`. Raises UnsupportedMediaType."""
    if coding is None:
        return _IDENTITY
    name = coding.strip().lower()
    if name in ("identity", ""):
        return _IDENTITY
    if name in ("gzip", "x-gzip", "deflate"):
        return Inflater(name.removeprefix("x-"), limit)
    raise UnsupportedMediaType(f"Content-Encoding '{name}' is not supported; send gzip, deflate or none")


def check_constraints(call: Call, size: int) -> None:
    """Raises BadRequest if a schema, expression or grammar in the request admits no answer, or is too long. `size`: the
    body's, in bytes.
    """
    if (refused := refused_constraint(call.body, size)) is not None:
        raise refused_field(call.field_names, *refused)


def refused_field(field_names: Mapping[str, str], field: str, reason: str) -> BadRequest:
    """The error for a field of a vLLM request, under the client's name for it."""
    name = field_names.get(field.partition(".")[0], field)
    return BadRequest(f"{name}: {reason}", param=name)


_USABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")


def headers_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """The headers by lower-case name. Different values of one header are joined (RFC 9110, 5.3), so that of two keys
    neither is valid: a proxy in front may have checked the other one. The same value twice is one."""
    decoded = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    headers = dict(decoded)
    if len(headers) < len(decoded):
        headers = {}
        for name, value in decoded:
            if headers.setdefault(name, value) != value:
                headers[name] = f"{headers[name]}, {value}"
    return headers


def check_headers(scope: Mapping[str, Any], limit: int) -> None:
    """Raises HeadersTooLarge above `limit` bytes."""
    if sum(map(len, chain.from_iterable(scope["headers"]))) > limit:
        raise HeadersTooLarge(f"The headers are larger than {limit} bytes")


def check_body_size(size: int, limit: int) -> None:
    """Raises TooLarge for a body of more than `limit` bytes."""
    if size > limit:
        raise TooLarge(f"The body is larger than {limit} bytes")


async def read_body(receive: Receive, headers: Mapping[str, str], timeouts: Timeouts, limit: int, room: Room) -> bytes:
    """The whole body of at most `limit` bytes, decompressed; `room` holds its memory.

    Raises TooLarge, TooSlow, UnsupportedMediaType, BadRequest, Unavailable, ClientDisconnected.
    """
    decoder = body_decoder(headers.get("content-encoding"), limit)
    try:
        return await result_within(timeouts.body_s, _arriving(receive, decoder, limit, room))
    except TimeoutError:
        raise TooSlow(f"The request body did not arrive within {timeouts.body_s:g} s") from None


async def _arriving(receive: Receive, decoder: BodyDecoder, limit: int, room: Room) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        size += len(part)
        check_body_size(size, limit)
        for piece in decoder.feed(part):
            room.take(len(piece))
            parts.append(piece)
            if len(piece) >= STEP:  # a few bytes may become megabytes
                await asyncio.sleep(0)
        if not message.get("more_body", False):
            decoder.close()
            return parts[0] if len(parts) == 1 else await _joined(parts)


async def read_json(
    receive: Receive, headers: Mapping[str, str], config: Config, limit: int, bodies: Bodies, room: Room
) -> bytes:
    """Like `read_body`: the body, or its outline, is cheap to parse if it is JSON at all. Raises TooLarge, too."""
    body = await read_body(receive, headers, config.timeouts, limit, room)
    if len(body) > _SHORT_BODY:
        outline, values = await bodies.work(len(body), _outlined, body, config.max_json_values)
        room.take(BYTES_PER_VALUE * values)
        return outline
    check_size(body, config.max_json_values)
    room.take(len(body) * 8)
    return body


_SHORT_BODY = 4096
_LONG_BODY = 1024 * 1024


def _outlined(body: bytes, most: int) -> tuple[bytes, int]:
    """The body's outline, and its values for the memory that they take. Raises TooLarge for more than `most`."""
    outline = outlined(body, most)
    return outline, min(weight(outline), most)  # what `weight` finds in texts is none


async def _joined(parts: Sequence[bytes]) -> bytes:
    """`bytes.join` lets other threads run while it copies megabytes."""
    return await asyncio.to_thread(b"".join, parts) if sum(map(len, parts)) > _LONG_BODY else b"".join(parts)


def request_id(headers: Mapping[str, str]) -> str:
    """The client's own id if it is safe in a header and a log line, else a new one."""
    given = headers.get(REQUEST_ID_HEADER)
    return given if given is not None and _USABLE_ID.fullmatch(given) else f"{random.getrandbits(128):032x}"


def check_length(body: Mapping[str, Any], limit: int) -> None:
    """Raises BadRequest if a conversation has more than `limit` messages, or a batch more inputs.

    A list of token ids is one input: `max_json_values` bounds it.
    """
    for name in _LISTS.intersection(body):
        items = body[name]
        if isinstance(items, list) and len(items) > limit and not _has_only_integers(items):
            raise BadRequest(f"{name}: has {len(items)} items, at most {limit} are allowed", param=name)


def check_lists(text: bytes, limit: int) -> None:
    """`check_length` of a JSON text, whatever else is wrong with it. Lists of numbers are not even read."""
    with suppress(ValueError, RecursionError):  # those are `parse`'s to describe
        lists = {name: bytes(value) for name, value in members(text).items() if name in _LISTS}
        check_length({name: from_json(value) for name, value in lists.items() if not has_only_numbers(value)}, limit)


def _has_only_integers(items: Sequence[Any]) -> bool:
    """For millions of items: in pieces, between which other threads can run."""
    pieces = (items[start : start + _ITEMS] for start in range(0, len(items), _ITEMS))
    return all(_INTEGER.issuperset(map(type, piece)) for piece in pieces)


_INTEGER, _ITEMS = frozenset({int}), 16 * 1024


def check_choices(call: Call, limit: int) -> None:
    """Raises BadRequest if several prompts have more than `limit` choices together. Those of one are bounded alone."""
    if call.task != "completions":
        return
    n = call.body.get("n", 1)
    if not isinstance(n, int) or n < 2:  # vLLM rejects the unchecked `n` of an extra
        return
    if (prompts := prompts_of(call.body)) > 1 and n * prompts > limit:
        name = call.field_names.get("n", "n")
        raise BadRequest(
            f"{name}: {n} choices for each of {prompts} prompts; at most {limit} together are allowed", param=name
        )


_LISTS = frozenset({"messages", "input", "prompt", "queries", "documents"})


# `check_engine_params`: what reaches beyond the request that has it, so that the operator allows it for each endpoint.
# `kv_transfer_params` and `ec_transfer_params` name hosts that an engine with a connector contacts, `priority` moves a
# request ahead of others, `logprob_token_ids` replaces the log-probabilities of a whole batch (vLLM's sampler has one
# tensor for it), and the readers of media make an image as large as `mm_processor_kwargs` and `media_io_kwargs` say.
# Contract: vLLM 0.29, which takes them as fields, and some as members of `vllm_xargs`.
#
# `CacheSalts`: the time to the first token tells a caller whether a prompt's beginning is cached, so that a prefix
# cache which callers share answers the question whether someone has sent a text. vLLM mixes a request's `cache_salt`
# into the hash of the prompt's first block, and so into all of them: requests with different salts share nothing. The
# router sets a salt that no caller can know, whatever the client's dialect; a client's own salt divides its caller's
# share further.

_EXTRA = "vllm_xargs"
_PARAMS = frozenset(ENGINE_PARAMS)
_SALT = "cache_salt"
_LONGEST_SALT = 1024
"""Characters that vLLM takes."""

UNSALTED = frozenset({"/tokenize", "/detokenize", "/v1/chat/completions/render", "/v1/messages/count_tokens", "/ping"})
"""The engines' routes that compute nothing: vLLM has no such field there."""


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

_MOST_TOKEN_ID = 2**31 - 1
_TOKEN_ID = re.compile(r"[0-9]{1,10}")


def check_token_ids(call: Call, body: Mapping[str, Any]) -> None:
    """Raises BadRequest, under the client's name for the field, if a field of the vLLM request `body` holds too many
    token ids, or a value that is none."""
    for field in _TOKEN_IDS.keys() & body.keys():
        ids, most, name = body[field], _TOKEN_IDS[field], call.field_names.get(field, field)
        if not isinstance(ids, list | dict):  # None, or vLLM rejects it
            continue
        if len(ids) > most:
            raise BadRequest(f"{name}: has {len(ids)} token ids, at most {most} are allowed", param=name)
        if not (all(map(_is_spelt_token_id, ids)) if isinstance(ids, dict) else _are_token_ids(ids)):
            raise BadRequest(f"{name}: a token id is an integer from 0 to {_MOST_TOKEN_ID}", param=name)


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


SHORT_BODY = 1024
"""Bytes in which there are neither many values nor many levels."""


def check_arguments(call: Call, body: Mapping[str, Any]) -> None:
    """Raises BadRequest, under the client's name for the field, if the vLLM request `body` holds the arguments of a
    tool's call, JSON in a text, with more values or levels than an engine reads in a moment. That they are JSON, it
    checks itself."""
    for field, texts in (("messages", _arguments_of_chat), ("input", _arguments_of_responses)):
        items = body.get(field)
        for text, where in texts(items) if isinstance(items, list) else ():
            try:
                nested_json(text)
            except TooLarge:
                raise _of_arguments(call, field, where, "has too many values, or too many digits") from None
            except ValueError as error:
                if "recursion" in str(error):
                    raise _of_arguments(call, field, where, "has too many levels") from None
                if "out of range" in str(error):
                    raise _of_arguments(call, field, where, "has a number with too many digits") from None


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


def _are_token_ids(values: Sequence[Any]) -> bool:
    """For hundreds of thousands of them: without a step of Python for each."""
    return not values or (_INTEGER.issuperset(map(type, values)) and min(values) >= 0 and max(values) <= _MOST_TOKEN_ID)


def _is_spelt_token_id(name: str) -> bool:
    return _TOKEN_ID.fullmatch(name) is not None and int(name) <= _MOST_TOKEN_ID


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


def cache_scope(config: Config, endpoint: str, caller: str) -> str:
    """Names the requests that may share cached prompts with this one, "" for all. `caller` is the caller's id,
    `endpoint` the endpoint's name, or that of a deployment which no endpoint lists."""
    section = config.endpoints.get(endpoint)
    isolate = section.isolate_cache if section is not None else None
    match isolate or ("caller" if config.access.knows_callers else "none"):
        case "caller":
            return f"caller {caller}"
        case "endpoint":
            return f"endpoint {endpoint}"
        case _:
            return ""


class CacheSalts:
    """Makes salts under one secret: that of all routers with the same first key among `internal_keys`. Without one it
    is this process's own: a router's callers find nothing cached after its restart, nor what another router sent."""

    def __init__(self, internal_keys: str) -> None:
        first = next(iter(listed(internal_keys)), "")
        secret = first.encode("utf-8", "surrogatepass") or secrets.token_bytes(32)
        key = hashlib.blake2b(secret, person=b"cache secret", digest_size=32).digest()
        self._hash = hashlib.blake2b(key=key, person=b"cache salt", digest_size=32)
        self._salt = lru_cache(maxsize=4096)(self._salt_of)

    def salted(self, request: EngineRequest, target: Target, scope: str) -> EngineRequest:
        """The request with the salt of its `cache_scope`, if the target takes one."""
        if not scope or not target.takes_salt or request.path in UNSALTED:
            return request
        own = request.body.get(_SALT)
        salt = self._salt(scope) if own is None else self._salt_of(scope, repr(own))
        return EngineRequest(request.path, {**request.body, _SALT: salt})

    def _salt_of(self, scope: str, own: str = "") -> str:
        digest = self._hash.copy()
        digest.update(f"{len(scope)}:{scope}{own}".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def check_salt(body: Mapping[str, Any]) -> None:
    """Raises BadRequest for a client's salt that vLLM would reject: it cannot see it once another takes its place."""
    own = body.get(_SALT)
    if own is not None and not (isinstance(own, str) and 1 <= len(own) <= _LONGEST_SALT):
        raise BadRequest(f"{_SALT}: must be a string of 1 to {_LONGEST_SALT} characters", param=_SALT)
