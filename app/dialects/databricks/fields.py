"""The fields of Databricks' chat, completion and embedding requests, and their bounds.

Every model forbids what it does not know: Databricks refuses unknown fields at any depth. Beside the documented fields
it knows OpenAI's standard ones and what `databricks-sdk` may send.
"""

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import from_json

from app.dialects.common.fields import BOOKKEEPING, Function, ResponseFormat, Sampling, ToolChoice, check_tool_choice
from app.dialects.json_body import without_nulls
from app.dialects.validation import first_problem
from app.errors import BadRequest
from app.internal_api import MAX_STOP_STRINGS

MAX_TOOLS = 32
MAX_PROPERTIES = 15
MAX_CHOICES = 1024  # Databricks tells no bound; without one a small request is any amount of work

RECORDS = BOOKKEEPING | {"client_request_id", "usage_context"}
"""For the caller's own records: taken, and not sent on."""

NOT_FOR_LANGUAGE_MODELS = ("dataframe_records", "dataframe_split", "inputs", "instances")
"""What `databricks-sdk` sends to endpoints of other kinds."""

StopString = Annotated[str, Field(min_length=1)]
Checked = TypeVar("Checked", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Fields(_Strict):
    model: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    client_request_id: str | None = None
    usage_context: dict[str, str] | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    store: bool | None = None


class _Sampling(Sampling, _Fields):
    max_tokens: int | None = Field(default=None, gt=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, gt=0, lt=2**31)
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    n: int = Field(default=1, gt=0, le=MAX_CHOICES)


class ImageUrl(_Strict):
    """Where an image is."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class Part(_Strict):
    """One part of a message's content."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ImageUrl | None = None
    cache_control: Any = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.text is None) == (self.type == "text") or (self.image_url is None) == (self.type == "image_url"):
            raise ValueError(f"a part of type '{self.type}' needs the field '{self.type}', and only that")
        return self


class CalledFunction(_Strict):
    """What the model called; `arguments` is JSON."""

    name: str
    arguments: str


class ToolCall(_Strict):
    """One call in an assistant's message. `index` is what a client has that put it together from a stream."""

    id: str
    type: Literal["function"]
    function: CalledFunction
    index: int | None = None
    cache_control: Any = None


class Message(_Strict):
    """One chat message. `reasoning` comes back from this server's own answers."""

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
        if self.tool_calls and self.content:
            raise ValueError("`content` must be left out of a message with `tool_calls`")
        if self.content is None and not self.tool_calls:
            raise ValueError(f"`content` is required for role '{self.role}'")
        return self


class ToolFunction(Function):
    """A function that the model may call."""

    model_config = ConfigDict(extra="forbid", strict=True)

    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _has_few_properties(cls, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
        properties = (parameters or {}).get("properties")
        if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
            raise ValueError(f"has {len(properties)} properties, at most {MAX_PROPERTIES} are supported")
        return parameters


class Tool(_Strict):
    """One tool."""

    type: Literal["function"]
    function: ToolFunction
    cache_control: Any = None


class Chat(_Sampling):
    """Chat requests."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, gt=0)
    tools: list[Tool] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    reasoning_effort: Literal["low", "medium", "high"] | None = None

    @model_validator(mode="after")
    def _companions(self) -> Self:
        for index, message in enumerate(self.messages[1:], start=1):
            if message.role == "system":
                raise ValueError(f"messages[{index}].role: 'system' is only allowed once, as the first message")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: only allowed when logprobs is true")
        check_tool_choice(self.tool_choice, {tool.function.name for tool in self.tools or ()})
        return self


class Completions(_Sampling):
    """Completion requests."""

    prompt: str | Annotated[list[str], Field(min_length=1)]
    error_behavior: Literal["error", "truncate"] = "error"
    suffix: str = ""
    echo: bool = False
    use_raw_prompt: bool = False
    best_of: int | None = Field(default=None, ge=1, le=20)
    logprobs: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _companions(self) -> Self:
        if self.echo and self.logprobs is not None:
            raise ValueError("logprobs: not supported together with echo")
        return self


class Embeddings(_Fields):
    """Embedding requests."""

    input: str | Annotated[list[str], Field(min_length=1)]
    instruction: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, gt=0)


def checked(model: type[Checked], body: dict[str, Any]) -> Checked:
    """`body` as `model`. Raises BadRequest, in Databricks' words for a field that it does not know."""
    for name in NOT_FOR_LANGUAGE_MODELS:
        if name in body:
            raise BadRequest(f"{name}: not for an endpoint that serves a language model", param=name)
    try:
        return model.model_validate(body)
    except ValidationError as error:
        problem = first_problem(error)
        if problem.unknown:
            raise BadRequest(f'Bad request: json: unknown field "{problem.path}"') from None
        raise BadRequest(problem.message, param=problem.path) from None


def merged(body: dict[str, Any]) -> dict[str, Any]:
    """`body` with the fields of its `extra_params`, a map of strings that hold JSON, or else themselves.

    Raises BadRequest where it is something else, or names a field that is there already.
    """
    extra = body.get("extra_params", {})
    if not isinstance(extra, dict) or not all(isinstance(value, str) for value in extra.values()):
        raise BadRequest("extra_params: must be a map of strings to strings", param="extra_params")
    rest = {name: value for name, value in body.items() if name != "extra_params"}
    if twice := next((name for name in extra if name in rest), None):
        raise BadRequest(f"extra_params.{twice}: the request has the field '{twice}' too", param="extra_params")
    decoded: dict[str, Any] = without_nulls({name: _decoded(value) for name, value in extra.items()})
    return rest | decoded


def _decoded(text: str) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text
