"""Engine requests where vLLM accepts less than the dialects promise: seeds, temperatures, greedy decoding, and more.

- Requests that are known in full before a deployment is chosen.
- The tokens of prompts before the main request: from the router's copy of the tokenizer, else from the engine.
- `best_of` of the completions API, which vLLM does not have: generate more candidates, keep the likeliest.
- `parallel_tool_calls` false, for Responses: vLLM repeats the field in its answer and may call several functions.
- OpenAI's list of models, as several dialects have it: the endpoints and the deployments.
- The bound on texts of a request that are written several times: once for each choice.
- The encodings of embeddings, computed from the floats that vLLM returns.
"""

import base64
import re
import struct
from array import array
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Self, TypeVar

from app.config.meant import nearest
from app.config.schema import Config
from app.dialects.base import EngineRequest, Flow, ServingContext, Translation, immutable, no_lookups
from app.dialects.bodies import dump
from app.engine.context import PromptTokens
from app.engine.model import Model
from app.engine.pieces import MOST_TOKENS, Piece, Unsplittable
from app.engine.texts import most_characters
from app.errors import BadRequest
from app.internal_api import Xarg
from app.routing.traffic import Random

_LARGEST_DRAWN_SEED = 2**53 - 2**10  # a number that JavaScript can hold, and some more for the choices after the first
_MAX_TEMPERATURE = 2.0


def draw_seed(random: Random) -> int:
    """A seed for a request that has none."""
    return 1 + int(random.random() * (_LARGEST_DRAWN_SEED - 1))


def temperature(value: float) -> dict[str, Any]:
    """The fields for a temperature: above vLLM's limit, a logits processor scales by the rest (`vllm_xargs`)."""
    if value <= _MAX_TEMPERATURE:
        return {"temperature": value}
    return {"temperature": _MAX_TEMPERATURE, "vllm_xargs": {Xarg.TEMPERATURE: value}}


_EXTENSION_FIELDS = ("seeds", "beam", "replace_embeddings")  # of completions; vLLM's own route does not have them


def engine_extensions(body: Mapping[str, Any]) -> list[str]:
    """The parts of an engine request that only this project's model applications support.

    A plain vLLM server ignores them, so it must not get the request.
    """
    return [*body.get("vllm_xargs", {}), *(name for name in _EXTENSION_FIELDS if name in body)]


def missing_capability(body: Mapping[str, Any], serving: ServingContext) -> tuple[str, str] | None:
    """The first of the request's `engine_extensions` that the deployment does not support, and the reason."""
    model = serving.known_model
    for name in engine_extensions(body):
        if not model.is_extended:
            return name, f"deployment '{serving.deployment}' is a plain vLLM server, which cannot do this"
        if name not in _EXTENSION_FIELDS and name not in model.processors:
            return name, f"deployment '{serving.deployment}' runs without the logits processor that does this"
    return None


def greedy(body: dict[str, Any]) -> None:
    """Rewrites the two forms of greedy decoding that vLLM rejects: `top_p` 0, and temperature 0 with `n` > 1.

    For the latter, `top_k` 1 at any other temperature gives the same tokens.
    """
    if body.get("top_p") == 0:
        body["top_p"] = 1.0
        body["temperature"] = 0.0
    n = body.get("n", 1)
    if body.get("temperature") == 0 and isinstance(n, int) and n > 1:
        body.update(temperature=1.0, top_k=1)


def ask_for_usage(body: dict[str, Any]) -> bool:
    """Makes a streamed answer report its usage; returns whether the client asked for it."""
    if not body.get("stream"):
        return False
    options = body.get("stream_options", {})
    if not isinstance(options, dict):  # unchecked where Azure's clients pass extra parameters: vLLM rejects it
        return False
    body["stream_options"] = {**options, "include_usage": True}
    return bool(options.get("include_usage"))


def settle_functions(
    body: dict[str, Any], complete: Callable[[dict[str, Any], str], dict[str, Any]] | None = None
) -> None:
    """Completes the tools of a checked chat body (`with_parameters`), or of another that has `complete` for one and its
    path.

    Removes `tools` and `tool_choice` if there are no tools: vLLM rejects an empty list, and a choice without one.
    """
    if not (tools := body.get("tools")):
        body.pop("tools", None)
        body.pop("tool_choice", None)
        return
    complete = complete or _completed_tool
    body["tools"] = [complete(tool, f"tools[{number}]") for number, tool in enumerate(tools)]


def _completed_tool(tool: dict[str, Any], path: str) -> dict[str, Any]:
    return {**tool, "function": with_parameters(tool["function"], f"{path}.function")}


_OBJECT: Mapping[str, Any] = {"type": "object", "properties": {}}
_COMBINED = frozenset("$ref allOf anyOf const enum if not oneOf type".split())
"""Words of a schema that may say what its values are."""


_NAME = re.compile(r"[\w.:/-]{1,256}")
"""OpenAI's names have no dots, colons and slashes, and 64 characters; those of MCP's tools may."""


def check_function(function: Mapping[str, Any], path: str, field: str = "parameters") -> None:
    """Raises BadRequest for a name or parameters with which no function can be called. vLLM would refuse them without
    their place, and only where a call is forced."""
    name, parameters = function.get("name"), function.get(field)
    if isinstance(name, str) and not _NAME.fullmatch(name):
        message = f"{path}.name: has 1 to 256 letters, digits, and characters of '_-.:/'"
        raise BadRequest(message, param=f"{path}.name")
    kind = parameters.get("type") if isinstance(parameters, Mapping) else None
    if kind not in (None, "object") and not (isinstance(kind, list) and "object" in kind):
        where = f"{path}.{field}.type"
        raise BadRequest(f"{where}: must be 'object', as arguments are", param=where)


def with_parameters(function: Mapping[str, Any], path: str, field: str = "parameters") -> dict[str, Any]:
    """A function's definition whose arguments are an object: it takes none if it says nothing about them (OpenAI:
    "Omitting `parameters` defines a function with an empty parameter list"). A call that vLLM forces could be any JSON.
    Raises BadRequest (`check_function`).
    """
    check_function(function, path, field)
    parameters = function.get(field, {})
    if not isinstance(parameters, Mapping) or parameters.keys() & _COMBINED:
        return {**function}
    return {**function, field: {**_OBJECT, **parameters}}


def drop_unasked(body: dict[str, Any], refused: Container[str]) -> None:
    """Removes fields of what is refused that are empty lists: they ask for nothing."""
    for name in [name for name, value in body.items() if name in refused and value == []]:
        del body[name]


CONTINUED: Mapping[str, bool] = {"continue_final_message": True, "add_generation_prompt": False}
"""The fields of a chat whose answer continues its last message."""


def settle_messages(body: dict[str, Any]) -> None:
    """Replaces what vLLM would ignore in the messages of a checked chat body. Raises BadRequest, naming the field.

    `prefix: true` on the model's last message, as DeepSeek's and Mistral's servers and LiteLLM have it, means that the
    answer continues that message. The model's `refusal` is a part of its message.
    """
    messages = body["messages"]
    names = set().union(*messages)
    if "tool_calls" in names:
        for number, message in enumerate(messages):
            if "tool_calls" in message:
                _check_calls(message["tool_calls"], f"messages[{number}].tool_calls")
    if names.isdisjoint(("prefix", "refusal")):  # nearly always
        return
    if prefix_of(messages):
        body |= CONTINUED
    body["messages"] = [_settled(message) for message in messages]


def _check_calls(calls: Any, path: str) -> None:
    """Raises BadRequest for calls of which vLLM says what is wrong without saying where."""
    if not isinstance(calls, list):
        raise BadRequest(f"{path}: must be a list", param=path)
    for number, call in enumerate(calls):
        where = f"{path}[{number}]"
        _check_strings(call, where, "id", "type")
        if call["type"] != "function":
            raise BadRequest(f"{where}.type: must be 'function'", param=f"{where}.type")
        _check_strings(call.get("function"), f"{where}.function", "name", "arguments")


def _check_strings(value: Any, path: str, *names: str) -> None:
    if not isinstance(value, Mapping):
        raise BadRequest(f"{path}: must be an object", param=path)
    for name in names:
        if name not in value:
            raise required(f"{path}.{name}")
        if not isinstance(value[name], str):
            raise BadRequest(f"{path}.{name}: must be a string", param=f"{path}.{name}")


def prefix_of(messages: Sequence[Any]) -> str | None:
    """The path of the last message's `prefix`, if that is true. Raises BadRequest for any other one but false."""
    last = len(messages) - 1
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or (prefix := message.get("prefix", False)) is False:
            continue
        path = f"messages[{number}].prefix"
        if prefix is not True:
            raise BadRequest(f"{path}: must be true or false", param=path)
        if number < last or message.get("role") != "assistant":
            raise BadRequest(f"{path}: only the last message is continued, if it is the assistant's", param=path)
        return path
    return None


def _settled(message: Mapping[str, Any]) -> dict[str, Any]:
    settled = {name: value for name, value in message.items() if name != "prefix"}
    if message.get("role") == "assistant" and (refusal := settled.pop("refusal", None)):
        content = message.get("content") or []
        before = content if isinstance(content, list) else [{"type": "text", "text": content}]
        settled["content"] = [*before, {"type": "refusal", "refusal": refusal}] if before else refusal
    return settled


def settle_format(wanted: Any, path: str, *, is_flat: bool = False) -> Any:
    """A `response_format` (`is_flat`: of Responses) whose schema is enforced, also with the type `json_object`, where
    vLLM would ignore it. Raises BadRequest for another type, a schema that belongs to no type, and one without a name.
    """
    if not isinstance(wanted, Mapping):
        raise BadRequest(f"{path}: must be an object", param=path)
    kind, schema = wanted.get("type"), wanted.get("schema")
    if kind is None:
        raise required(f"{path}.type")
    known = [name for name in _FORMATS if not is_flat or name != "structural_tag"]
    if kind not in known:
        hint = nearest(str(kind), known)
        raise BadRequest(f"{path}.type: there are no formats of type '{str(kind)[:64]}'{hint}", param=f"{path}.type")
    if kind == "json_object" and isinstance(schema, Mapping):
        inner = {"name": "schema", "schema": schema}
        return {"type": "json_schema", **(inner if is_flat else {"json_schema": inner})}
    for name, owner in (("schema", "json_schema" if is_flat else "json_object"), ("json_schema", "json_schema")):
        if name in wanted and kind != owner:
            raise BadRequest(f"{path}.{name}: only with the type '{owner}'", param=f"{path}.{name}")
    if kind == "json_schema":
        described, where = (wanted, path) if is_flat else (wanted.get("json_schema"), f"{path}.json_schema")
        _check_described(described, where, needs_schema=is_flat)
    return wanted


_FORMATS = ("text", "json_object", "json_schema", "structural_tag")
"""Types of formats that vLLM has; the last one in chats only."""


def _check_described(described: Any, path: str, *, needs_schema: bool) -> None:
    if not isinstance(described, Mapping):
        raise BadRequest(f"{path}: must be an object", param=path)
    for name, kind in (("name", str), ("schema", Mapping)):
        if name not in described and (name == "name" or needs_schema):
            raise required(f"{path}.{name}")
        if name in described and not isinstance(described[name], kind):
            must = "a string" if kind is str else "an object"
            raise BadRequest(f"{path}.{name}: must be {must}", param=f"{path}.{name}")


def required(path: str) -> BadRequest:
    """The error for a field that is absent."""
    return BadRequest(f"{path}: Field required", param=path, code="missing_required_parameter")


@immutable
class DirectTranslation(Translation):
    """One engine request, whose answer is the client's unless a subclass translates it."""

    path: str
    body: Mapping[str, Any]

    def engine_requests(self, serving: ServingContext) -> Flow:
        return no_lookups(EngineRequest(self.path, self.body))


_PATH = "/tokenize"

T = TypeVar("T")
Steps = Generator[Sequence[EngineRequest], Sequence[Any], T]
"""A part of a flow (``yield from``). It yields no requests between two steps of long work: see `dialects.base.Flow`."""


def tokenize(
    prompts: Sequence[Mapping[str, Any]], serving: ServingContext, field: str = "prompt", *, whole: bool = False
) -> Steps[PromptTokens]:
    """The tokens of `prompts`: bodies of `/tokenize`, with ``prompt`` or ``messages``.

    Texts are tokenized here if the translation needs the model anyway; conversations need the engine's chat template.
    Unless it is `whole`, a text is read until it exceeds the context. `field` is the client's name of the texts.
    Raises BadRequest.
    """
    model = serving.model
    if model is not None and all(prompt.keys() == {"prompt"} for prompt in prompts):
        found: list[Sequence[int]] = []
        for prompt in prompts:
            if found:
                yield ()
            ids = array("I")  # a tenth of a list's memory
            most = None if whole else model.max_len
            is_partial = yield from in_steps(model, prompt["prompt"], field, partial(_read, ids, most))
            found.append(ids.tolist() if len(ids) <= model.max_len else ids)
            if is_partial:
                return PromptTokens(found, model.max_len, is_partial=True)
        return PromptTokens(found, model.max_len)
    answers = yield [EngineRequest(_PATH, prompt) for prompt in prompts]
    return PromptTokens([answer["tokens"] for answer in answers], answers[0]["max_model_len"])


def in_steps(model: Model, text: str, field: str, use: Callable[[Piece], object]) -> Steps[bool]:
    """Calls `use` with each piece of the text's tokens, until it returns something true, and returns whether it did.

    Raises BadRequest, also for more than `MOST_TOKENS` that the model's context does not hold.
    """
    if len(text) > (most := most_characters(model.max_len)):
        raise BadRequest(f"{field}: has {len(text)} characters; {most} are tokenized at most", param=field)
    try:
        count = 0
        for piece in model.pieces(text):
            if count:
                yield ()
            if use(piece):
                return True
            count += len(piece.ids)
            if count > (limit := max(MOST_TOKENS, model.max_len)):
                raise BadRequest(f"{field}: has more than {limit} tokens", param=field)
    except Unsplittable as error:
        message = f"{field}: has a word of more than {error.longest} characters, which cannot be tokenized"
        raise BadRequest(message, param=field) from error
    return False


def _read(ids: "array[int]", most: int | None, piece: Piece) -> bool:
    """Adds the piece's ids, unless there are more than `most` already."""
    if most is not None and len(ids) > most:
        return True
    ids.extend(piece.ids)
    return False


FIELD_NAMES: Mapping[str, str] = {"n": "best_of"}
"""The client's name of the number of choices that vLLM generates (`Call.field_names`)."""


@dataclass(frozen=True, slots=True)
class BestOf:
    """Keeps, of `best_of` candidates per prompt, the `keep` with the highest mean log-probability per token."""

    best_of: int
    keep: int
    show_logprobs: bool

    @classmethod
    def take(cls, body: dict[str, Any]) -> Self | None:
        """Replaces `best_of` in `body` by the fields that generate the candidates; None if there is nothing to choose.

        Raises BadRequest for a `best_of` below `n`, or with a stream.
        """
        n = body.get("n", 1)
        best_of = body.pop("best_of", n)
        if best_of < n:
            raise BadRequest(f"best_of: must be at least n ({n})", param="best_of")
        if best_of == n:
            return None
        if body.get("stream"):
            raise BadRequest("best_of: results cannot be streamed; set stream to false", param="best_of")
        show_logprobs = "logprobs" in body
        body.setdefault("logprobs", 0)
        body["n"] = best_of
        return cls(best_of, n, show_logprobs)

    def select(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The completion with the best candidates of each prompt only, the likeliest first."""
        choices = answer["choices"]
        groups = [choices[at : at + self.best_of] for at in range(0, len(choices), self.best_of)]
        kept = [choice for group in groups for choice in sorted(group, key=_mean_logprob, reverse=True)[: self.keep]]
        for index, choice in enumerate(kept):
            choice["index"] = index
            if not self.show_logprobs:
                choice["logprobs"] = None
        return {**answer, "choices": kept}


def _mean_logprob(choice: dict[str, Any]) -> float:
    # An echoed prompt's first token has no log-probability; its others are the same in every candidate.
    known = [value for value in choice["logprobs"]["token_logprobs"] if value is not None]
    return fmean(known) if known else float("-inf")


# The calls after the first are removed here, from whole answers and from streams.

_INDEX = re.compile(rb'"output_index": ?(\d+)')
_CALL = re.compile(rb'"type": ?"function_call"')


def with_single_call(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A response's output without its function calls after the first."""
    calls = [index for index, item in enumerate(output) if item["type"] == "function_call"]
    return [item for index, item in enumerate(output) if index not in calls[1:]]


class SingleCallFilter:
    """Finds the frames of one stream to leave out."""

    def __init__(self) -> None:
        self._calls: list[int] = []

    def drops(self, frame: bytes) -> bool:
        """Whether a frame is about a function call after the first."""
        if (match := _INDEX.search(frame)) is None:
            return False
        index = int(match[1])
        if _CALL.search(frame) and index not in self._calls:
            self._calls.append(index)
        return index in self._calls[1:]


def model_names(config: Config) -> list[str]:
    """The names that `model` may have."""
    return [*config.endpoints, *config.deployments]


def description(config: Config, name: str) -> dict[str, Any]:
    """The kind of `name` (endpoint or deployment), its tasks, and a deployment's own name for its model.

    An adapter also has a `parent`, the deployment of the model that it adapts, if the caller may see that. `root` and
    `parent` are vLLM's keys.
    """
    if (endpoint := config.endpoints.get(name)) is not None:
        return {"kind": "endpoint", "tasks": endpoint.tasks}
    deployment = config.deployments[name]
    card: dict[str, Any] = {"kind": "deployment", "tasks": deployment.tasks, "root": deployment.model}
    return card if deployment.parent not in config.deployments else {**card, "parent": deployment.parent}


def model_card(config: Config, name: str, created: int) -> dict[str, Any]:
    """The model object of an endpoint or deployment. `created` is in Unix seconds."""
    card = {"id": name, "object": "model", "created": created, "owned_by": "switchyard"}
    return {**card, **description(config, name)}


def model_list(config: Config, names: Iterable[str], created: int) -> dict[str, Any]:
    """The list object of these endpoints and deployments."""
    return {"object": "list", "data": [model_card(config, name, created) for name in names]}


# The bodies and the numbers in them are bounded; without a bound on the product, one request would take gigabytes.

MAX_COPIED_BYTES = 8 * 1024 * 1024
"""Of all copies of one value together, as JSON."""


def check_copies(field: str, value: Any, copies: int) -> None:
    """Raises BadRequest about `field` if `copies` of `value` (JSON), besides the one that was sent, are too long."""
    if copies > 0 and (size := len(dump(value))) * copies > MAX_COPIED_BYTES:
        raise BadRequest(
            f"{field}: {copies} more copies of {size} bytes would be over {MAX_COPIED_BYTES} bytes; "
            "send several requests",
            param=field,
        )


def encoded(vector: list[float], encoding: str) -> Any:
    """A vector in an `encoding_format`. Raises as arithmetic does if it is not a list of numbers."""
    return _ENCODERS[encoding](vector)


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *map(float, vector))).decode()


def _bits(vector: list[float]) -> list[int]:
    """One byte for eight signs, the first the most significant; a remainder is padded with zeros."""
    padded = [value > 0 for value in vector] + [False] * (-len(vector) % 8)
    return [sum(bit << (7 - i) for i, bit in enumerate(padded[at : at + 8])) for at in range(0, len(padded), 8)]


def _scaled(vector: list[float]) -> list[int]:
    """Each value of a vector of length one, [-1, 1], as an integer in [-128, 127]."""
    return [max(-128, min(127, round(value * 127))) for value in vector]


_ENCODERS: Mapping[str, Any] = {
    "float": lambda vector: vector,
    "base64": _base64,
    "ubinary": _bits,
    "binary": lambda vector: [value - 128 for value in _bits(vector)],
    "int8": _scaled,
    "uint8": lambda vector: [value + 128 for value in _scaled(vector)],
}
