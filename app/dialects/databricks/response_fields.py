"""The fields of Databricks' Responses requests, and their bounds.

A function call and its output may be items, as in OpenAI's API, or blocks of a message's content. Tools, `tool_choice`
and `text.format` are documented as nested objects; `flat` converts them to OpenAI's form, which the models describe.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from app.dialects.common.fields import (
    CACHE_KEY,
    ECHOED,
    ECHOED_USER,
    FALLBACK_USER,
    RECORDS,
    SINGLE_TOOL_CALL,
    SOME_TOOLS,
    STREAM_OPTIONS_WITH_STREAM,
    USAGE_IN_LAST_EVENT,
    FunctionName,
    NonEmpty,
    StreamOptions,
    absent,
    both,
    described_by,
    either,
    given,
    values,
)
from app.dialects.databricks.fields import DatabricksBody, StrictModel

Text = Annotated[str, Field(max_length=512)]
Key = Annotated[str, Field(max_length=64)]


_FLAT = "vLLM's, in the documented nested form or in OpenAI's flat one"


class _Lenient(BaseModel):
    """A part of a conversation; those from earlier answers may have more fields."""

    model_config = ConfigDict(extra="ignore", strict=True)


class TextBlock(_Lenient):
    """Text of the user or the model."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class ImageBlock(_Lenient):
    """An image, as a URL or a data URL."""

    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto", "low", "high"] = "auto"


class FileBlock(_Lenient):
    """A file in the request itself."""

    model_config = described_by(given("file_data"))

    type: Literal["input_file"]
    file_id: str | None = None
    filename: str | None = None
    file_data: str | None = None


class FunctionCall(_Lenient):
    """A call that the model made. `arguments` is JSON, or an object."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str | dict[str, Any] | list[Any]
    id: str | None = None


class FunctionCallOutput(_Lenient):
    """The result of a call: text, or any JSON but null."""

    model_config = described_by(given("output"))

    type: Literal["function_call_output"]
    call_id: str
    output: Any = Field()


class Reasoning(_Lenient):
    """The model's reasoning in an earlier answer."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[dict[str, Any]] = Field(default_factory=list)
    content: list[dict[str, Any]] = Field(default_factory=list)


def _type(default: str) -> Discriminator:
    def tag_of(value: Any) -> str | None:
        name = value.get("type", default) if isinstance(value, dict) else getattr(value, "type", None)
        return _TAGS.get(name) if isinstance(name, str) else None

    return Discriminator(
        tag_of, custom_error_type="unknown_type", custom_error_message="has a type that is not supported"
    )


_TAGS = {
    "input_text": "TextBlock",
    "output_text": "TextBlock",
    "text": "TextBlock",
    "input_image": "ImageBlock",
    "input_file": "FileBlock",
    "function_call": "FunctionCall",
    "function_call_output": "FunctionCallOutput",
    "reasoning": "Reasoning",
    "message": "Message",
}

Block = Annotated[
    Annotated[TextBlock, Tag("TextBlock")]
    | Annotated[ImageBlock, Tag("ImageBlock")]
    | Annotated[FileBlock, Tag("FileBlock")]
    | Annotated[FunctionCall, Tag("FunctionCall")]
    | Annotated[FunctionCallOutput, Tag("FunctionCallOutput")],
    _type(""),
]


class Message(_Lenient):
    """One message."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Block]


Item = Annotated[
    Annotated[Message, Tag("Message")]
    | Annotated[FunctionCall, Tag("FunctionCall")]
    | Annotated[FunctionCallOutput, Tag("FunctionCallOutput")]
    | Annotated[Reasoning, Tag("Reasoning")],
    _type("message"),
]


class Tool(StrictModel):
    """One tool, flat."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(StrictModel):
    """A `tool_choice` that names a function, flat."""

    type: Literal["function"]
    name: str


class Format(StrictModel):
    """`text.format`, flat."""

    model_config = described_by(
        either(
            both(values({"type": ["text", "json_object"]}), either(absent("name"), absent("schema"))),
            both(values({"type": ["json_schema"]}), given("name"), given("schema")),
        )
    )

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.type == "json_schema") != (self.name is not None and self.schema_ is not None):
            raise ValueError("`name` and `schema` go with type 'json_schema', and only with it")
        return self


class TextOptions(StrictModel):
    """`text`."""

    format: Format | None = None


class ReasoningOptions(StrictModel):
    """`reasoning`. `encrypted_content` changes nothing: no reasoning is stored that could be returned encrypted."""

    effort: Literal["low", "medium", "high"] | None = None
    encrypted_content: Any = None


class Responses(DatabricksBody):
    """Responses requests."""

    model_config = described_by(
        STREAM_OPTIONS_WITH_STREAM, either(values({"tool_choice": [None, "none", "auto"]}), SOME_TOOLS)
    )

    refused: ClassVar[Mapping[str, str]] = {  # with any value, even `store` false
        "background": "not supported; every response is generated while the client waits",
        "conversation": "not supported; send the conversation's items in `input`",
        "previous_response_id": "not supported, responses are not stored; send the conversation's items in `input`",
        "prompt": "not supported, there are no stored prompts; write it into `instructions` and `input`",
        "service_tier": "not supported",
        "store": "not supported; responses are not stored",
        **DatabricksBody.refused,
    }

    input: NonEmpty | Annotated[list[Item], Field(min_length=1)] = Field(
        description="text or items; calls and their outputs as items or blocks, files as their text"
    )
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, gt=0)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stream: bool = False
    stream_options: StreamOptions | None = Field(default=None, description=USAGE_IN_LAST_EVENT)
    text: TextOptions | None = Field(default=None, description=_FLAT)
    reasoning: ReasoningOptions | None = Field(
        default=None, description="`effort` is vLLM's; `encrypted_content` changes nothing"
    )
    tools: list[Tool] = Field(default_factory=list, description=_FLAT)
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = Field(
        default=None, description=f"{_FLAT}; only with tools"
    )
    parallel_tool_calls: bool = Field(default=True, description=SINGLE_TOOL_CALL)
    max_tool_calls: int | None = Field(default=None, gt=0, description=ECHOED)
    metadata: Annotated[dict[Key, Text], Field(max_length=16)] | None = Field(default=None, description=ECHOED)
    truncation: Literal["auto", "disabled"] | None = Field(
        default=None, description="repeated in the answer; an input that is too long is rejected in any case"
    )
    top_logprobs: int | None = Field(
        default=None, ge=0, le=20, description="vLLM's; returns log-probabilities without `include`"
    )
    include: list[str] | None = None
    user: str | None = Field(default=None, description=ECHOED_USER)
    safety_identifier: str | None = Field(default=None, description=f"{FALLBACK_USER}; repeated in the answer")
    prompt_cache_key: str | None = Field(default=None, description=f"{CACHE_KEY}; repeated in the answer")
    prompt_cache_retention: str | None = Field(default=None, description=ECHOED)
    client_request_id: str | None = Field(default=None, description=RECORDS)
    usage_context: dict[str, str] | None = Field(default=None, description=RECORDS)

    @model_validator(mode="after")
    def _companions(self) -> Self:
        if self.input == "":
            raise ValueError("input: must not be empty")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed when stream is true")
        names = {tool.name for tool in self.tools}
        if self.tool_choice == "required" and not names:
            raise ValueError("tool_choice: only allowed with tools")
        if isinstance(self.tool_choice, ToolChoice) and self.tool_choice.name not in names:
            raise ValueError(f"tool_choice: no tool is named '{self.tool_choice.name}'")
        return self


def flat(body: dict[str, Any]) -> dict[str, Any]:
    """`body` with its tools, `tool_choice` and `text.format` in OpenAI's form. Values of other types are kept."""
    changed = dict(body)
    if isinstance(tools := body.get("tools"), list):
        changed["tools"] = [_flat(tool, "function") for tool in tools]
    if "tool_choice" in body:
        changed["tool_choice"] = _flat(body["tool_choice"], "function")
    if isinstance(text := body.get("text"), dict) and "format" in text:
        changed["text"] = {**text, "format": _flat(text["format"], "json_schema")}
    return changed


def _flat(value: Any, nested: str) -> Any:
    """An object with the members of its member `nested` in that one's place."""
    if not isinstance(value, dict) or not isinstance(inner := value.get(nested), dict):
        return value
    return {**{name: item for name, item in value.items() if name != nested}, **inner}
