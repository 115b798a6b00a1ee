"""Checks a body against a pydantic model, and describes the first problem. One rule for fields of nested objects."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import isfinite
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, SchemaValidator, from_json, to_json

from app.errors import BadRequest, SwitchyardError, TooLarge
from app.long_json import LONG_BODY, Outline, outlined, parsed
from app.misspellings import Names

_MOST_MEMBERS = 10_000
"""In one object: each unknown one may be an error of its own."""

_MOST_NESTED_VALUES = 100_000
"""In a JSON text that is a value of a body; see `long_json.weight`."""


_LONGEST_WORD = 4 * 1024 * 1024

CONTENT = frozenset(
    "messages input inputs prompt suffix system instructions instruction query queries documents texts text_1 text_2 "
    "data_1 data_2 images instances prompt_embeds input_data extra_params".split()
)
"""Members that may hold megabytes of text, images, audio and files, in members of theirs, too."""

_WORDS = frozenset({"role", "type"})


def json_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object without nulls. Raises BadRequest on anything else."""
    value = json_object_with_nulls(body)
    # Most bodies have no null, and searching for the word is far cheaper than walking the tree.
    return without_nulls(value) if body.find(b"null") >= 0 else value


def json_object_with_nulls(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises BadRequest on anything else."""
    try:
        value = parsed(body, _check_text)
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("The body must be a JSON object")
    if body.count(b":") > _MOST_MEMBERS:
        _check_members(value)
    return value


def _check_text(names: Sequence[str], size: int) -> None:
    """Raises TooLarge for megabytes where no content stands, such as a role: checks of words read all of a text."""
    if size > _LONGEST_WORD and names and (names[-1] in _WORDS or CONTENT.isdisjoint(names)):
        name = names[-1]
        raise TooLarge(f"{name}: a text here has at most {_LONGEST_WORD} bytes", param=name)


def _check_members(body: dict[str, Any]) -> None:
    """Raises BadRequest, about a field of the body, if an object has too many members."""
    if len(body) > _MOST_MEMBERS:
        raise BadRequest(f"The body has {len(body)} fields, at most {_MOST_MEMBERS} are allowed")
    for name, field in body.items():
        pending = [field]
        while pending:
            value = pending.pop()
            if isinstance(value, dict):
                if len(value) > _MOST_MEMBERS:
                    message = f"{name}: an object has {len(value)} members, at most {_MOST_MEMBERS} are allowed"
                    raise BadRequest(message, param=name)
                pending.extend(item for item in value.values() if isinstance(item, dict | list))
            elif isinstance(value, list):
                pending.extend(item for item in value if isinstance(item, dict | list))


# Contract: vLLM 0.29 hands a request to its engine as msgpack, which has no longer integers.

_LEAST, _MOST, _INTEGER = -(2**63), 2**64 - 1, frozenset({int})
_OWN = frozenset({"chat_template_kwargs", "client_metadata", "documents", "metadata"})
"""Fields of a request whose values are the caller's own: an engine reads them as text, or not at all."""

_TOOLS = frozenset({"functions", "tools"})
_CONVERSATION = frozenset({"input", "messages"})
_OF_CALLS = frozenset({"arguments", "input"})
"""The same in a conversation: what tools were called with."""

_NONE: frozenset[str] = frozenset()


def check_large_numbers(body: Any, *, with_tools: bool, within: str = "") -> None:
    """Raises BadRequest, naming the field, for an integer of more than 64 bits and for an infinite number in a request.
    `with_tools`: the answer has to follow the schemas of the tools, too. `within`: the field that has the body."""
    own = _OWN if with_tools else _OWN | _TOOLS
    for name, value in body.items():
        if name in own:
            continue
        location = _large_number(value, _OF_CALLS if name in _CONVERSATION else _NONE)
        if location is not None:
            path = field_path([within, name, *location] if within else [name, *location])
            raise BadRequest(f"{path}: a number has at most 64 bits", param=path)


def _large_number(value: Any, own: frozenset[str]) -> list[int | str] | None:
    """The location of the first one, but for those in members that are the caller's `own`."""
    if isinstance(value, dict):
        places: Iterable[tuple[int | str, Any]] = ((name, item) for name, item in value.items() if name not in own)
    elif isinstance(value, list):
        if _INTEGER.issuperset(map(type, value)) and min(value, default=0) >= _LEAST and max(value, default=0) <= _MOST:
            return None  # for hundreds of thousands of them: without a step of Python for each
        places = enumerate(value)
    else:
        is_large = (
            not isfinite(value) if isinstance(value, float) else type(value) is int and not _LEAST <= value <= _MOST
        )
        return [] if is_large else None
    for place, item in places:
        if isinstance(item, str):
            continue
        if (location := _large_number(item, own)) is not None:
            return [place, *location]
    return None


def nested_json(text: str) -> Any:
    """The value of a JSON text that is a value of a body. Raises ValueError, and TooLarge."""
    return parsed(outlined(text.encode("utf-8", "surrogatepass"), _MOST_NESTED_VALUES))


class _Named(msgspec.Struct):
    model: msgspec.Raw = msgspec.Raw()


_NAMED = msgspec.json.Decoder(_Named)
_LONGEST_NAME = 1024


def model_in(body: bytes) -> str | None:
    """The text in the body's `model`, found without parsing the rest; None if it has none, or is not an object."""
    try:
        raw = _NAMED.decode(body).model
        value = from_json(bytes(raw)) if 0 < len(raw) <= _LONGEST_NAME else None
    except (ValueError, RecursionError):  # the latter for one that is nested too deeply, which `parse` refuses
        return None
    is_mark = isinstance(body, Outline) and body.is_mark(value)
    return value if isinstance(value, str) and not is_mark else None


def peek(body: bytes) -> Mapping[str, Any]:
    """The body if it is a JSON object, else an empty one: to detect the dialect of a request. Of an `Outline` it is
    the object with the marks.
    """
    if not body:  # not read yet
        return {}
    try:
        if len(body) > LONG_BODY:
            return _Peeked(members(body))
        value = from_json(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class _Peeked(Mapping[str, Any]):
    """A JSON object whose members are read when they are asked for: most are not, and to read a list of 400,000 texts
    takes 60 ms, in which nothing else runs."""

    def __init__(self, raw: Mapping[str, msgspec.Raw]) -> None:
        self._raw = raw

    def __getitem__(self, name: str) -> Any:
        try:
            return from_json(bytes(self._raw[name]), cache_strings="keys")
        except ValueError:  # the body is no JSON
            return None

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)


# Below these keys JSON null is data, not absence: a JSON Schema's `const`, `default` or `enum`, template variables.
_VERBATIM = frozenset({"parameters", "schema", "json", "input_schema", "chat_template_kwargs", "arguments"})


def without_nulls(value: Any) -> Any:
    """`value` without the null members of its objects: null means absent, at every level."""
    if isinstance(value, dict):
        return {
            key: item if key in _VERBATIM else without_nulls(item) for key, item in value.items() if item is not None
        }
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def field_path(location: Sequence[int | str]) -> str:
    """A field's path in the form of OpenAI's errors: ``messages[0].role``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def value_at(body: Any, path: str | None) -> Any:
    """The value in `body` at a `field_path`; None if there is none."""
    for part in _STEPS.findall(path or ""):
        try:
            body = body[int(part) if isinstance(body, list) else part]
        except (KeyError, IndexError, ValueError, TypeError):
            return None
    return body if path else None


_STEPS = re.compile(r"[^.\[\]]+")


def dump(value: Any) -> bytes:
    """Compact JSON on one line."""
    return to_json(value)


_MEMBERS, _ITEMS = msgspec.json.Decoder(dict[str, msgspec.Raw]), msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def members(body: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """A JSON object's members as they are written: a long answer makes no object for each of its numbers.

    Raises ValueError.
    """
    return _MEMBERS.decode(body)


def items(body: bytes | msgspec.Raw) -> list[dict[str, msgspec.Raw]]:
    """The `members` of each object of a JSON list. Raises ValueError."""
    return _ITEMS.decode(body)


def dump_members(value: Any) -> bytes:
    """Compact JSON of a value that has `members` in it."""
    return msgspec.json.encode(value)


Checked = TypeVar("Checked", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Problem:
    """The first problem of a body: a `field_path`, and a sentence that begins with it.

    `missing`: a required field is absent; `unknown`: the model has no such field; `wrong_type`: the value has the wrong
    JSON type, in every branch of a union.
    """

    path: str
    message: str
    missing: bool
    unknown: bool
    wrong_type: bool


def first_problem(error: ValidationError) -> Problem:
    """The problem of the first invalid field; in a union, of the branch for the value's type, and furthest in it."""
    errors = error.errors(include_url=False)
    of_the_first = [item for item in errors if item["loc"][:1] == errors[0]["loc"][:1]]
    deepest = max(of_the_first, key=lambda item: (len(_fields(item)), not _is_wrong_type(item)))
    path, message = field_path(_fields(deepest)), _message(deepest)
    if not path:  # a rule over several fields, whose message begins with the field's name
        path, _, message = message.partition(": ")
    kind = deepest["type"]
    wrong_type = all(map(_is_wrong_type, of_the_first))
    return Problem(path, f"{path}: {message}", kind == "missing", kind == "extra_forbidden", wrong_type)


def _message(error: ErrorDetails) -> str:
    """Pydantic's message in the words of JSON, not of Python."""
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "Input should be an object"
    if error["type"] == "none_required":
        return "Input should be null"
    message = error["msg"].removeprefix("Value error, ")
    return message.replace("True", "true").replace("False", "false") if error["type"] == "literal_error" else message


def _is_wrong_type(error: ErrorDetails) -> bool:
    # Pydantic reports a wrong type for a choice of words as a value out of bounds.
    is_literal = error["type"] == "literal_error" and not isinstance(error["input"], str)
    return error["type"].endswith("_type") or is_literal


def _fields(error: ErrorDetails) -> list[int | str]:
    """An error's location without the parts that name a branch of a union and no field."""
    *parents, last = error["loc"] or ("",)
    fields = [part for part in parents if isinstance(part, int) or not _BRANCH.match(part)]
    is_field = isinstance(last, int) or error["type"] in ("missing", "extra_forbidden") or not _BRANCH.match(last)
    return [*fields, last] if error["loc"] and is_field else fields


_BRANCH = re.compile(r"(str|int|float|bool|dict)$|constrained-|[A-Z]|.*\[")


def validated(model: type[Checked], body: Any, wrong: Callable[[Problem], SwitchyardError]) -> Checked:
    """`body` as a `model`. Raises the error that `wrong` returns for the first problem."""
    try:
        checked: Checked = validator(model).validate_python(body)
        return checked
    except ValidationError as error:
        raise wrong(first_problem(error)) from None


@cache
def validator(model: type[BaseModel]) -> SchemaValidator:
    """The model's validator, which leaves a list at its first invalid item: a list of a million would have as many
    errors, times the branches of a union.
    """
    schema = _failing_fast(model.__pydantic_core_schema__)
    return SchemaValidator(schema, _use_prebuilt=False)  # those of nested models would not fail fast


_SEQUENCES = ("list", "tuple", "set", "frozenset")
_NO_SCHEMAS = frozenset({"metadata", "serialization", "default", "expected"})


def _failing_fast(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)(map(_failing_fast, schema))
    if not isinstance(schema, dict):
        return schema
    changed = {key: value if key in _NO_SCHEMAS else _failing_fast(value) for key, value in schema.items()}
    return {**changed, "fail_fast": True} if changed.get("type") in _SEQUENCES else changed


# vLLM ignores the fields of nested objects that it does not know, and the vendors' clients send some that are only for
# their own servers. So an unknown field passes, unless it is one slip away from a field that the object could have and
# has not (`app.misspellings`). That one is refused, with the name that was meant, and so is a field that the caller
# relies on and this server cannot honour. The documentation lists those that change nothing (`IDLE`). The fields of a
# request itself are each dialect's to check.

_SHORTEST_REPLACED = 6
"""Letters of a name in which another letter is a slip: `data` and `date` are two words."""

_MOST_UNKNOWN = 10_000
"""Unknown fields of a request that are compared with the known ones: a body of megabytes may consist of them."""

_MOST_REMEMBERED = 1024


class Shape:
    """The fields that an object may have in any dialect.

    `kinds`: each field to the name in `SHAPES` of the objects in it, alone or in a list; None if they have the caller's
    own names, as those of a JSON Schema, or if there are none. `idle` of them change nothing in any dialect. Of
    `exclusive` ones an object with the `type` of that name has no other. `refused` are further fields, which no value
    makes acceptable, to the `reason`.
    """

    def __init__(
        self,
        fields: str,
        *,
        idle: str = "",
        exclusive: str = "",
        refused: str = "",
        reason: str = "",
        **nested: str,
    ) -> None:
        self.exclusive = frozenset(exclusive.split())
        self.idle = idle.split()
        self.refused: Mapping[str, str] = dict.fromkeys(refused.split(), reason)
        self.kinds: Mapping[str, str | None] = {**dict.fromkeys([*fields.split(), *self.idle]), **nested}
        self.meant = lru_cache(_MOST_REMEMBERED)(Names(self.kinds, _SHORTEST_REPLACED).meant)


REQUEST: Mapping[str, str] = {
    "function_call": "called",
    "functions": "function",
    "input": "item",
    "input_data": "azure_ml",
    "inputs": "input",
    "instances": "instance",
    "messages": "message",
    "output_config": "output_config",
    "output_format": "format",
    "parameters": "parameters",
    "reasoning": "reasoning",
    "response_format": "format",
    "stream_options": "stream_options",
    "structured_outputs": "structured_outputs",
    "system": "part",
    "text": "text",
    "thinking": "thinking",
    "tool_choice": "choice",
    "tools": "tool",
}
"""The fields of a request that have objects in them, to their names in `SHAPES`."""

SHAPES: Mapping[str, Shape] = {
    "instance": Shape("", **REQUEST),  # of Vertex AI
    "azure_ml": Shape("columns data index parameters", input_string="message"),
    # Of Cohere, and of Hugging Face's sentence similarity.
    "input": Shape("sentences source_sentence", content="part"),
    # Of TGI and MindIE, and of the tasks of Hugging Face's clients.
    "parameters": Shape(
        "adapter_id best_of decoder_input_details details do_sample frequency_penalty function_to_apply "
        "max_new_tokens normalize prompt_name repetition_penalty return_full_text seed stop temperature top_k "
        "top_n_tokens top_p truncate truncation truncation_direction typical_p watermark",
        grammar="format",
    ),
    "message": Shape(
        "clear_at name prefix reasoning reasoning_content refusal role task tool_call_id",
        idle="annotations cache_control id output_config phase reasoning_details status thinking thinking_blocks type",
        refused="audio",
        reason="no audio is stored; send the text that was spoken as `content`",
        cache_control="cache_control",
        content="part",
        function_call="called",
        output_config="output_config",
        tool_calls="call",
        tools="tool",
    ),
    # Of Responses: messages, and what else can be in an `input`.
    "item": Shape(
        "acknowledged_safety_checks action actions approval_request_id approve arguments background call_id code "
        "container_id error execution id input name namespace operation output_format outputs "
        "pending_safety_checks quality queries reason refusal result results revised_prompt role server_label size "
        "status svg_usage tool_call_id type",
        idle="annotations async cache_control caller encrypted_content environment fingerprint max_output_length phase",
        cache_control="cache_control",
        content="part",
        output="part",
        reasoning="reasoning",
        summary="part",
        text="text",
        tool_calls="call",
        tools="tool",
    ),
    # Of a message's content, or a result's: OpenAI's parts, Anthropic's blocks, vLLM's parts.
    "part": Shape(
        "audio_embeds closed context data encrypted_content encrypted_stdout error_code error_message file_data "
        "file_id file_type file_url filename from id image_embeds image_pil input input_image is_file_update lines "
        "mcp_server_name mm_processor_kwargs name new_lines new_start num_lines old_lines old_start outcome refusal "
        "retrieved_at return_code server_name start_line stderr stdout stop_reason text thinking title to tool "
        "tool_changes tool_name tool_reference tool_references tool_use_id tools total_lines trigger type url uuid",
        idle="annotations cache_control caller citations detail is_error logprobs prompt_cache_breakpoint signature "
        "toolset_name transformations",
        exclusive="audio_url file image_url input_audio text video_url",
        audio_url="url",
        cache_control="cache_control",
        content="part",
        file="file",
        image_url="url",
        input_audio="audio",
        source="source",
        video_url="url",
    ),
    "url": Shape("url", idle="detail"),
    "audio": Shape("data format"),
    "file": Shape("file_data file_id filename"),
    "source": Shape("data file_id media_type type url", content="part"),
    "cache_control": Shape("scope ttl type"),
    "call": Shape("arguments id name type", idle="cache_control index", function="called", custom="called"),
    "called": Shape("arguments description input name namespace parameters"),
    "tool": Shape(
        "action allowed_domains allowed_tools authorization background blocked_domains caching citations complexity "
        "configs connector_id container default_config defer_loading description display_height display_height_px "
        "display_number display_width display_width_px enable_zoom environment execution external_web_access filters "
        "frame_count frame_duration_ms headers input_fidelity input_image_mask input_schema max_characters "
        "max_content_tokens max_num_results max_tokens max_uses mcp_server_name model moderation name "
        "output_compression output_format parameters "
        "partial_images quality ranking_options require_approval response_inclusion search_content_types "
        "search_context_size server_description server_label server_url size strict svg tunnel_id type url_sources "
        "use_cache user_location vector_store_ids",
        idle="allowed_callers async cache_control eager_input_streaming input_examples output_schema",
        cache_control="cache_control",
        custom="function",
        format="grammar",
        function="function",
        tools="tool",
    ),
    "function": Shape("defer_loading description name parameters strict", idle="cache_control", format="grammar"),
    "grammar": Shape("definition grammar syntax type"),
    "choice": Shape(
        "disable_parallel_tool_use mode name server_label type",
        allowed_tools="choice",
        custom="called",
        function="called",
        tools="tool",
    ),
    "format": Shape("name schema type value", idle="description strict", json_schema="json_schema"),
    "json_schema": Shape("name schema", idle="description strict"),
    "text": Shape("", idle="verbosity", format="format"),
    "reasoning": Shape(
        "effort",
        idle="context generate_summary mode summary",
        refused="enabled exclude max_tokens",
        reason="not supported; use `effort`",
    ),
    "output_config": Shape("effort", idle="task_budget", format="format"),
    "stream_options": Shape("continuous_usage_stats include_usage", idle="include_obfuscation"),
    "structured_outputs": Shape(
        "choice disable_additional_properties disable_any_whitespace disable_fallback grammar json json_object regex "
        "structural_tag whitespace_pattern"
    ),
    "thinking": Shape("block_binding budget_tokens display type"),
}
"""What each object is, in any dialect."""

IDLE: Mapping[str, Sequence[str]] = {kind: sorted(shape.idle) for kind, shape in SHAPES.items() if shape.idle}
"""The known fields of each kind of object that change nothing, for the docs."""

UNREAD = "no effect: vLLM does not read it, and clients send some that are only for their own servers"
"""The support of unknown fields."""


def request_object(body: bytes) -> dict[str, Any]:
    """A request's body as a JSON object without nulls.

    Raises BadRequest on anything else, and for nested fields that are misspelt or refused.
    """
    request = json_object(body)
    search = _Search()
    for name in request:
        if name in REQUEST and (wrong := search.within(request[name], REQUEST[name])) is not None:
            location, reason, code = wrong
            path = field_path([name, *location])
            raise BadRequest(f"{path}: {reason}", param=path, code=code)
    return request


_Wrong = tuple[list[int | str], str, str]
"""The location of a field, what is wrong with it, and the error's code."""


class _Search:
    """Looks through one request."""

    def __init__(self) -> None:
        self._left = _MOST_UNKNOWN

    def within(self, value: Any, kind: str) -> _Wrong | None:
        """The first wrong field in an object, or in a list of objects."""
        if isinstance(value, dict):
            return self._in_object(value, SHAPES[kind])
        if isinstance(value, list):
            shape = SHAPES[kind]
            for number, item in enumerate(value):
                if isinstance(item, dict) and (wrong := self._in_object(item, shape)) is not None:
                    return [number, *wrong[0]], *wrong[1:]
        return None

    def _in_object(self, value: dict[str, Any], shape: Shape) -> _Wrong | None:
        kinds = shape.kinds
        if shape.exclusive and isinstance(own := value.get("type"), str) and own in shape.exclusive:
            others = shape.exclusive - {own}
            if other := next((name for name, member in value.items() if name in others and member), None):
                return [other], f"an object of type '{own}' has no such field", "unknown_parameter"
        for name, member in value.items():
            kind = kinds.get(name, "")
            if kind is None:
                continue
            if kind:
                # Most members are texts, which are not worth the call.
                if not isinstance(member, str) and (wrong := self.within(member, kind)) is not None:
                    return [name, *wrong[0]], *wrong[1:]
            elif (reason := shape.refused.get(name)) is not None:
                return [name], reason, "unsupported_parameter"
            elif (meant := self._meant(name, value, shape)) is not None:
                return [name], f"unknown field; did you mean {meant}?", "unknown_parameter"
        return None

    def _meant(self, name: str, value: dict[str, Any], shape: Shape) -> str | None:
        self._left -= 1
        if self._left < 0:
            return None
        return next((field for field in shape.meant(name) if field not in value), None)
