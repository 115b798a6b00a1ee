"""The documented fields of Azure's requests, their bounds, and their form for vLLM."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.dialects.bodies import Checked, Problem, validated, value_at
from app.dialects.common.fields import (
    GREEDY_TOP_P,
    MODEL,
    NEEDS_TOOLS,
    REST_OF_THE_CONTEXT,
    SOME_TOOLS,
    STREAM_OPTIONS_WITH_STREAM,
    TOOL_CHOICE,
    USAGE_ON_LAST_CHOICE,
    WITH_CONTENT,
    Function,
    Penalty,
    ResponseFormat,
    Schema,
    StreamOptions,
    ToolChoice,
    both,
    check_tool_choice,
    content_for,
    either,
    given,
    has_content_for,
    values,
)
from app.dialects.schemas import NOT_USED
from app.errors import Unprocessable


def _documented(*rules: Schema) -> ConfigDict:
    """A model's configuration: the schema has the default of `extra-parameters`, which rejects other fields."""
    schema = {**(both(*rules) if rules else {}), "additionalProperties": False}
    return ConfigDict(extra="ignore", strict=True, json_schema_extra=schema)


class _Fields(BaseModel):
    model: str | None = Field(
        default=None, description=f"{MODEL}; below `/endpoints/{{endpoint}}` one of its deployments"
    )


class Part(BaseModel):
    """One part of a message: OpenAI's form, or the documented one with everything in `content`."""

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        json_schema_extra=either(
            values({"type": ["input_audio", "audio_url"]}),
            given("content"),
            both(values({"type": ["text"]}), given("text")),
            both(values({"type": ["image", "image_url"]}), given("image_url")),
        ),
    )

    type: Literal["text", "image", "image_url", "input_audio", "audio_url"]
    content: str | None = None
    text: str | None = None
    image_url: dict[str, Any] | None = None
    detail: Literal["auto", "low", "high"] | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.type == "text" and self.text is None and self.content is None:
            raise ValueError("a part of type 'text' needs the field 'text'")
        if self.type in ("image", "image_url") and self.image_url is None and self.content is None:
            raise ValueError(f"a part of type '{self.type}' needs the field 'image_url'")
        return self

    def openai(self) -> dict[str, Any]:
        """The part as vLLM reads it."""
        if self.type == "text":
            return {"type": "text", "text": self.content if self.text is None else self.text}
        if self.type in ("image", "image_url") and self.image_url is None:
            return {"type": "image_url", "image_url": {"url": self.content, "detail": self.detail or "auto"}}
        return {**self.model_dump(exclude_none=True), "type": "image_url" if self.type == "image" else self.type}


_WITH_CONTENT = [role for role in WITH_CONTENT if role != "tool"]
"""Azure's reference lets a tool's message be without."""


class Message(BaseModel):
    """One chat message."""

    model_config = ConfigDict(extra="allow", strict=True, json_schema_extra=has_content_for(_WITH_CONTENT))

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | list[Part] | None, content_for(_WITH_CONTENT)] = Field(default=None, validate_default=True)

    def openai(self) -> dict[str, Any]:
        """The message as vLLM reads it."""
        message = self.model_dump(exclude_none=True)
        if isinstance(self.content, list):
            message["content"] = [part.openai() for part in self.content]
        return message


class Tool(BaseModel):
    """One tool."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: Literal["function"]
    function: Function


class _AzureSampling(_Fields):
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    max_tokens: int | None = Field(default=None, ge=1, description=REST_OF_THE_CONTEXT)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: str | list[Annotated[str, Field(min_length=1)]] | None = None
    stream: bool = Field(default=False, description=USAGE_ON_LAST_CHOICE)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1, description=GREEDY_TOP_P)


class Chat(_AzureSampling):
    """POST /chat/completions. Other fields are rejected unless the header `extra-parameters` says otherwise."""

    model_config = _documented(STREAM_OPTIONS_WITH_STREAM, either(values({"tool_choice": [None, "none"]}), SOME_TOOLS))

    messages: list[Message] = Field(
        min_length=1, description="vLLM's; the documented form of a part, with all in `content`, becomes OpenAI's"
    )
    modalities: list[Literal["text"]] | None = Field(default=None, description="only text; changes nothing")
    response_format: ResponseFormat | None = None
    stream_options: StreamOptions | None = Field(
        default=None, description="checked; a stream has its usage in any case"
    )
    tools: list[Tool] | None = Field(default=None, description=NEEDS_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = Field(default=None, description=TOOL_CHOICE)

    @model_validator(mode="after")
    def _companions(self) -> Self:
        check_tool_choice(self.tool_choice, {tool.function.name for tool in self.tools or ()})
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed when stream is true")
        return self


class Completions(_AzureSampling):
    """POST /completions. Other fields are rejected unless the header `extra-parameters` says otherwise."""

    model_config = _documented()

    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1, max_length=1)] = Field(
        description="vLLM's; one text, or a list of one"
    )


class Embeddings(_Fields):
    """POST /embeddings. Other fields are rejected unless the header `extra-parameters` says otherwise."""

    model_config = _documented()

    input: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)]
    dimensions: int | None = Field(default=None, ge=1)
    encoding_format: Literal["float", "base64", "binary", "ubinary", "int8", "uint8"] = Field(
        default="float", description="all six are made here from vLLM's floats"
    )
    input_type: Literal["text", "query", "document"] | None = Field(default=None, description=NOT_USED)


MODELS: Mapping[str, type[_Fields]] = {"chat": Chat, "completions": Completions, "embeddings": Embeddings}
"""Operation to body. Any field that the model lacks is an extra parameter."""


def checked(model: type[Checked], body: dict[str, Any]) -> Checked:
    """`body` as `model`. Raises Unprocessable, with the field's path and value."""

    def wrong(problem: Problem) -> Unprocessable:
        return Unprocessable(problem.message, param=problem.path, value=value_at(body, problem.path))

    return validated(model, body, wrong)
