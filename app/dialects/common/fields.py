"""Fields that the requests of several dialects share: objects inside a chat request, sampling, records.

- Rules over several fields as JSON Schema: the OpenAPI document states what pydantic's validators check.
- Sentences about how fields are supported, where several dialects share them (`app.dialects.schemas`).
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from app.config.meant import nearest

# Null is absent here too. The rules are alternatives rather than `if` and `not`, which generators of requests can
# hardly satisfy.

Schema = dict[str, Any]

_VALUE: Schema = {"type": ["array", "boolean", "number", "object", "string"]}


def absent(*names: str) -> Schema:
    """The schema of a body without any of these fields."""
    return values({name: [None] for name in names})


def values(choices: dict[str, list[Any]]) -> Schema:
    """The schema of a body whose given fields each have one of these values; None is null."""
    return {"properties": {name: {"enum": allowed} for name, allowed in choices.items()}}


def given(name: str, schema: Schema = _VALUE) -> Schema:
    """The schema of a body with this field, with a value that matches `schema`."""
    return {"required": [name], "properties": {name: schema}}


def is_true(name: str) -> Schema:
    """The schema of a body with true in this field."""
    return given(name, {"const": True})


def both(*rules: Schema) -> Schema:
    """Matches all of `rules`."""
    return {"allOf": list(rules)}


def either(*rules: Schema) -> Schema:
    """Matches at least one of `rules`."""
    return {"anyOf": list(rules)}


def only_with(name: str, condition: Schema) -> Schema:
    """The schema of a body that has the field `name` only if `condition` matches."""
    return either(absent(name), condition)


def described_by(*rules: Schema) -> ConfigDict:
    """A model's configuration that adds `rules` to its schema."""
    return ConfigDict(json_schema_extra=both(*rules))


STREAM_OPTIONS_WITH_STREAM = only_with("stream_options", is_true("stream"))
TOP_LOGPROBS_WITH_LOGPROBS = only_with("top_logprobs", is_true("logprobs"))
BEST_OF_WITHOUT_STREAM = either(
    values({"stream": [None, False]}), absent("best_of"), values({"best_of": [1], "n": [None, 1]})
)
SOME_TOOLS = given("tools", {"type": "array", "minItems": 1})


Penalty = Annotated[float, Field(ge=-2, le=2)]
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]

_Item = TypeVar("_Item")
# A rule of the whole request rejects empty ones, with the provider's error; here only the schema excludes them.
NonEmpty = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1})]
NonEmptyList = Annotated[list[_Item], Field(json_schema_extra={"minItems": 1})]

# Accepted for the caller's own records: without billing and storage they change nothing.
BOOKKEEPING = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False


class SamplingFields(BaseModel):
    """The sampling fields of OpenAI's chat and completion requests on whose bounds the dialects agree."""

    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)

    @model_validator(mode="after")
    def _stream_options_go_with_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed when stream is true")
        return self


class Function(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChosenFunction(BaseModel):
    """The name in a `tool_choice`."""

    model_config = ConfigDict(strict=True)

    name: str


class ToolChoice(BaseModel):
    """A `tool_choice` that names one function."""

    model_config = ConfigDict(strict=True)

    type: Literal["function"]
    function: ChosenFunction


class JsonSchema(BaseModel):
    """The schema of a `response_format`."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    """`response_format`."""

    model_config = ConfigDict(
        extra="ignore",
        strict=True,
        json_schema_extra=either(
            both(values({"type": ["text", "json_object"]}), absent("json_schema")),
            both(values({"type": ["json_schema"]}), given("json_schema")),
        ),
    )

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[Any, WithJsonSchema({"type": "null"})] = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _schema_goes_with_its_type(self) -> Self:
        if self.schema_ is not None:  # vLLM would ignore it
            raise ValueError("a schema is sent as `json_schema.schema`, with the type 'json_schema'")
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("`json_schema` goes with type 'json_schema', and only with it")
        return self


def check_tool_choice(
    choice: Literal["none", "auto", "required"] | ToolChoice | None, names: set[str], *, auto_needs_tools: bool = True
) -> None:
    """Raises ValueError, for a pydantic validator, if `choice` demands a tool that is not among `names`."""
    if choice in (("auto", "required") if auto_needs_tools else ("required",)) and not names:
        raise ValueError("tool_choice: only allowed with tools")
    if isinstance(choice, ToolChoice) and choice.function.name not in names:
        raise ValueError(f"tool_choice: no tool is named '{choice.function.name}'")


_PARTS = frozenset(
    "audio_embeds audio_url image_embeds image_pil image_url input_audio prompt_embeds refusal text thinking "
    "tool_reference video_embeds video_url".split()
)
"""The types of parts of a chat's messages that vLLM knows."""

_OTHER_PARTS: Mapping[str, str] = {
    "image": "image_url",
    "input_image": "image_url",
    "input_text": "text",
    "output_text": "text",
}
"""Types of Responses' and Anthropic's parts, to those of chats."""


class AnyPart(BaseModel):
    """A part of a chat message's content, whose members vLLM checks."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str | None = None

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        if self.type in ("file", "input_file"):
            raise ValueError("this server has no files; send the text as 'text', or an image as 'image_url'")
        if self.type is not None and self.type not in _PARTS:
            other = _OTHER_PARTS.get(self.type)
            hint = f"; use '{other}'" if other else nearest(self.type, _PARTS)
            raise ValueError(f"there are no parts of type '{self.type[:64]}' here{hint}")
        return self


WITH_CONTENT = ("developer", "system", "tool", "user")
"""The roles of OpenAI's messages that need content. The assistant may call a tool instead."""


def content_for(roles: Collection[str], *, parts_for: Collection[str] = ()) -> AfterValidator:
    """Checks that a message with one of these roles has content, and with one of `parts_for` no empty list: an
    annotation of a field behind `role`."""

    def checked(value: Any, info: ValidationInfo) -> Any:
        if value is None and info.data.get("role") in roles:
            raise PydanticCustomError("missing", "Field required")
        if value == [] and info.data.get("role") in parts_for:
            raise PydanticCustomError("too_short", "must have at least one part")
        return value

    return AfterValidator(checked)


def has_content_for(roles: Collection[str], *, parts_for: Collection[str] = ()) -> Schema:
    """The schema of a message for which `content_for` holds."""
    some = has_for(roles, "content")
    return both(some, has_for(parts_for, "content", {**_VALUE, "minItems": 1})) if parts_for else some


def has_for(roles: Collection[str], name: str, schema: Schema = _VALUE) -> Schema:
    """The schema of a message that has a field if it has one of these roles."""
    return either({"properties": {"role": {"not": {"enum": [*roles]}}}}, given(name, schema))


def check_without_prefix(messages: Iterable[Any]) -> None:
    """Raises ValueError, for a pydantic validator, for a message that an answer is to continue."""
    for number, message in enumerate(messages):
        if isinstance(message, dict) and message.get("prefix", False) is not False:
            raise ValueError(f"messages[{number}].prefix: not supported here; OpenAI's chats continue a message")


MODEL = "an endpoint or a deployment"
RECORDS = "accepted for your records; changes nothing"
USER = "the sticky key if the endpoint is sticky by user; otherwise changes nothing"
FALLBACK_USER = "used like `user` if that is absent"
CACHE_KEY = (
    "requests with the same key reach the same replica of a deployment with `affinity: {by: prefix}`; "
    "otherwise changes nothing"
)
ECHOED = "repeated in the answer; changes nothing else"
ECHOED_USER = "the sticky key if the endpoint is sticky by user; repeated in the answer"
GREEDY_TOP_P = "vLLM's; 0 is greedy"
GREEDY_N = "vLLM's; more than 1 works at temperature 0 too"
SINGLE_TOOL_CALL = "done here: false removes every call after the first from the answer"
NEEDS_TOOLS = "vLLM's; not sent without tools"
TOOL_CHOICE = "vLLM's; without tools only `none` is accepted, and not sent"
BEST_OF = "done here: generates this many, at least `n`, and returns the `n` likeliest; not in streams"
USAGE_ON_LAST_CHOICE = "vLLM's; the usage is on the last chunk with a choice"
USAGE_IN_LAST_EVENT = "checked; changes nothing: the stream's last event has the usage"
REST_OF_THE_CONTEXT = "vLLM's; the default is the rest of the context"
REJECTED_BY_NAME = "rejected by name"
