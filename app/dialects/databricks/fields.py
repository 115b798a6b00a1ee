"""The fields of Databricks' chat, completion and embedding requests, and their bounds.

Every model forbids unknown fields, as Databricks does at any depth. Besides the documented fields they have OpenAI's
standard ones and those that `databricks-sdk` may send.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from app.dialects.bodies import Problem, check_large_numbers, dump, nested_json, validated, without_nulls
from app.dialects.common.fields import (
    BEST_OF,
    BEST_OF_WITHOUT_STREAM,
    BOOKKEEPING,
    CACHE_KEY,
    FALLBACK_USER,
    GREEDY_N,
    MODEL,
    RECORDS,
    REST_OF_THE_CONTEXT,
    SOME_TOOLS,
    STREAM_OPTIONS_WITH_STREAM,
    TOOL_CHOICE,
    TOP_LOGPROBS_WITH_LOGPROBS,
    USAGE_ON_LAST_CHOICE,
    USER,
    Function,
    JsonSchema,
    ResponseFormat,
    SamplingFields,
    StreamOptions,
    ToolChoice,
    absent,
    both,
    check_tool_choice,
    described_by,
    either,
    given,
    only_with,
    values,
)
from app.errors import BadRequest
from app.internal_api import MAX_STOP_STRINGS

MAX_TOOLS = 32
MAX_PROPERTIES = 15
MAX_CHOICES = 1024  # Databricks documents no limit; we need one to bound the work per request

_NOT_SENT = BOOKKEEPING | {"client_request_id", "usage_context"}
OTHER_MODELS = "it has rows for models of other kinds; send `messages`, `prompt` or `input`, by the endpoint's task"

StopString = Annotated[str, Field(min_length=1)]


class StrictModel(BaseModel):
    """A part of a request. Unknown fields are errors, and so is a number in quotes."""

    model_config = ConfigDict(extra="forbid", strict=True)


class DatabricksBody(StrictModel):
    """The fields that all requests share."""

    refused: ClassVar[Mapping[str, str]] = {  # what `databricks-sdk` sends to endpoints of other kinds
        "dataframe_records": OTHER_MODELS,
        "dataframe_split": OTHER_MODELS,
        "inputs": OTHER_MODELS,
        "instances": OTHER_MODELS,
    }

    model: str | None = Field(default=None, description=f"{MODEL}; below an endpoint's path one of its deployments")
    # `merged` has put them into the body before it is checked.
    extra_params: dict[str, str] | None = Field(
        default=None, description="a map of strings: each is a field, read as JSON if it is JSON"
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema)["properties"]
        map_of_strings = properties["extra_params"]["anyOf"][0]
        map_of_strings["propertyNames"] = {"enum": sorted(properties.keys() - {"extra_params"})}
        return schema


AnyRequest = TypeVar("AnyRequest", bound=DatabricksBody)


class _Records(DatabricksBody):
    user: str | None = Field(default=None, description=USER)
    safety_identifier: str | None = Field(default=None, description=FALLBACK_USER)
    client_request_id: str | None = Field(default=None, description=RECORDS)
    usage_context: dict[str, str] | None = Field(default=None, description=RECORDS)
    metadata: dict[str, Any] | None = Field(default=None, description=RECORDS)
    prompt_cache_key: str | None = Field(default=None, description=CACHE_KEY)
    prompt_cache_retention: str | None = Field(default=None, description=RECORDS)
    service_tier: str | None = Field(default=None, description=RECORDS)
    store: bool | None = Field(default=None, description=RECORDS)


class _DatabricksSampling(SamplingFields, _Records):
    stream: bool = Field(default=False, description=USAGE_ON_LAST_CHOICE)
    stream_options: StreamOptions | None = Field(
        default=None, description="with `include_usage` the usage is in a separate chunk"
    )
    max_tokens: int | None = Field(default=None, gt=0, description=REST_OF_THE_CONTEXT)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, gt=0, lt=2**31)
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    n: int = Field(default=1, gt=0, le=MAX_CHOICES, description=GREEDY_N)


class ImageUrl(StrictModel):
    """Where an image is."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class Part(StrictModel):
    """One part of a message's content."""

    model_config = described_by(
        either(
            both(values({"type": ["text"]}), given("text"), absent("image_url")),
            both(values({"type": ["image_url"]}), given("image_url"), absent("text")),
        )
    )

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ImageUrl | None = None
    cache_control: Any = Field(default=None, exclude=True)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.text is None) == (self.type == "text") or (self.image_url is None) == (self.type == "image_url"):
            raise ValueError(f"a part of type '{self.type}' needs the field '{self.type}', and only that")
        return self


class CalledFunction(StrictModel):
    """What the model called; `arguments` is JSON, or an object."""

    name: str
    arguments: str | dict[str, Any]

    @field_serializer("arguments")
    def _as_json(self, arguments: str | dict[str, Any]) -> str:
        return arguments if isinstance(arguments, str) else dump(arguments).decode()


class ToolCall(StrictModel):
    """One call in an assistant's message. `index` comes from clients that assemble it from a stream."""

    id: str
    type: Literal["function"]
    function: CalledFunction
    index: int | None = Field(default=None, exclude=True)
    cache_control: Any = Field(default=None, exclude=True)


class Message(StrictModel):
    """One chat message. `reasoning` comes back from this server's own answers."""

    model_config = described_by(
        either(
            both(values({"role": ["tool"], "tool_calls": [None, []]}), given("tool_call_id"), given("content")),
            both(values({"role": ["system", "user", "assistant"]}), absent("tool_call_id")),
        ),
        either(
            both(values({"tool_calls": [None, []]}), given("content")),
            both(values({"role": ["assistant"]}), given("content")),
            both(values({"role": ["assistant"]}), given("tool_calls", {"type": "array", "minItems": 1})),
        ),
    )

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None

    @model_validator(mode="after")
    def _fields_go_with_the_role(self) -> Self:
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("`tool_call_id` goes with role 'tool', and only with it")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("`tool_calls` goes with role 'assistant' only")
        if self.content is None and not self.tool_calls:
            raise ValueError(f"`content` is required for role '{self.role}'")
        return self

    def sent(self) -> dict[str, Any]:
        """The message for vLLM."""
        message = self.model_dump(exclude_unset=True)
        if not self.tool_calls:
            message.pop("tool_calls", None)
        return message


class ToolFunction(Function):
    """A function that the model may call."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra=both(
            {"properties": {"parameters": {"properties": {"properties": {"maxProperties": MAX_PROPERTIES}}}}}
        ),
    )

    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _has_few_properties(cls, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
        properties = (parameters or {}).get("properties")
        if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
            raise ValueError(f"has {len(properties)} properties, at most {MAX_PROPERTIES} are supported")
        return parameters


class Tool(StrictModel):
    """One tool."""

    type: Literal["function"]
    function: ToolFunction
    cache_control: Any = Field(default=None, exclude=True)

    def sent(self) -> dict[str, Any]:
        """The tool for vLLM."""
        return self.model_dump(exclude_unset=True)


class _JsonSchema(JsonSchema):
    name: str = "answer"  # Databricks' own LangChain class sends none


class _ResponseFormat(ResponseFormat):
    json_schema: _JsonSchema | None = None


_NO_SYSTEM = values({"role": ["user", "assistant", "tool"]})


class Chat(_DatabricksSampling):
    """Chat requests."""

    model_config = described_by(
        STREAM_OPTIONS_WITH_STREAM,
        TOP_LOGPROBS_WITH_LOGPROBS,
        either(values({"tool_choice": [None, "none"]}), SOME_TOOLS),
        {"properties": {"messages": {"prefixItems": [{}], "items": _NO_SYSTEM}}},
    )

    messages: list[Message] = Field(
        min_length=1, description="vLLM's; `system` first and once; `cache_control` changes nothing"
    )
    max_completion_tokens: int | None = Field(default=None, gt=0)
    tools: list[Tool] | None = Field(
        default=None,
        max_length=MAX_TOOLS,
        description=f"vLLM's; at most {MAX_TOOLS} functions of at most {MAX_PROPERTIES} properties",
    )
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = Field(default=None, description=TOOL_CHOICE)
    parallel_tool_calls: bool | None = None
    response_format: _ResponseFormat | None = Field(
        default=None, description="vLLM's; a schema without a `name` gets one, which the answer does not have"
    )
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    reasoning_effort: Literal["low", "medium", "high"] | None = Field(
        default=None, description="for the chat template; models that do not reason ignore it"
    )

    @model_validator(mode="after")
    def _companions(self) -> Self:
        for index, message in enumerate(self.messages[1:], start=1):
            if message.role == "system":
                raise ValueError(f"messages[{index}].role: 'system' is only allowed once, as the first message")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: only allowed when logprobs is true")
        check_tool_choice(self.tool_choice, {tool.function.name for tool in self.tools or ()})
        return self


class Completions(_DatabricksSampling):
    """Completion requests."""

    model_config = described_by(
        STREAM_OPTIONS_WITH_STREAM, BEST_OF_WITHOUT_STREAM, only_with("logprobs", values({"echo": [None, False]}))
    )

    prompt: str | Annotated[list[str], Field(min_length=1)] = Field(
        description="one or several, each put into the chat template here"
    )
    error_behavior: Literal["error", "truncate"] = Field(
        default="error",
        description="done here: `truncate` cuts the prompt from the left, lowers `max_tokens`, and returns the text "
        "so far when time is up",
    )
    suffix: str = Field(default="", description="done here: added after each text")
    echo: bool = Field(default=False, description="done here: adds the prompt before each text")
    use_raw_prompt: bool = Field(default=False, description="done here: true leaves the chat template out")
    best_of: int | None = Field(default=None, ge=1, le=20, description=BEST_OF)
    logprobs: int | None = Field(default=None, ge=0, description="vLLM's; not with `echo`")

    @model_validator(mode="after")
    def _companions(self) -> Self:
        if self.echo and self.logprobs is not None:
            raise ValueError("logprobs: not supported together with echo")
        return self

    @property
    def prompts(self) -> Sequence[str]:
        """The prompts, of which there is at least one."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def truncates(self) -> bool:
        """Whether prompts, limit and text are cut rather than rejected."""
        return self.error_behavior == "truncate"


class Embeddings(_Records):
    """Embedding requests."""

    input: str | Annotated[list[str], Field(min_length=1)]
    instruction: str | None = Field(
        default=None, description="put into each text by the deployment's `instruction_template`"
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, gt=0)


def checked(model: type[AnyRequest], body: dict[str, Any]) -> AnyRequest:
    """`body` as `model`. Raises BadRequest, with Databricks' text for an unknown field."""
    for name, reason in model.refused.items():
        if name in body:
            raise BadRequest(f"{name}: {reason}", param=name)
    return validated(model, body, _bad_request)


def _bad_request(problem: Problem) -> BadRequest:
    if problem.unknown:
        return BadRequest(f'Bad request: json: unknown field "{problem.path}"')
    return BadRequest(problem.message, param=problem.path)


def without_records(body: Mapping[str, Any]) -> dict[str, Any]:
    """`body` without the fields for the caller's own records."""
    return {name: value for name, value in body.items() if name not in _NOT_SENT}


def merged(body: dict[str, Any]) -> dict[str, Any]:
    """`body` with the fields of its `extra_params`, a map of strings, each JSON or else a string value.

    Raises BadRequest if it is something else, or names a field of the body.
    """
    extra = body.get("extra_params", {})
    if not isinstance(extra, dict) or not all(isinstance(value, str) for value in extra.values()):
        raise BadRequest("extra_params: must be a map of strings to strings", param="extra_params")
    rest = {name: value for name, value in body.items() if name != "extra_params"}
    if twice := next((name for name in extra if name in body), None):
        raise BadRequest(f"extra_params.{twice}: the request has the field '{twice}' too", param="extra_params")
    decoded: dict[str, Any] = without_nulls({name: _decoded(value) for name, value in extra.items()})
    check_large_numbers(decoded, with_tools="tool_choice" in decoded or "tool_choice" in body, within="extra_params")
    return rest | decoded


def _decoded(text: str) -> Any:
    try:
        return nested_json(text)
    except ValueError:
        return text
