"""The fields of OpenAI's requests: types and bounds of the documented ones, names of all that pass.

vLLM checks the rest itself. The names of vLLM's own fields are listed here because the router does not import vLLM;
`tests/real/test_fields.py` compares them with the installed release.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.dialects.common import fields
from app.dialects.common.fields import Sampling

TokenIds = Annotated[list[int], Field(min_length=1)]


class _Fields(BaseModel):
    # Strict: a number in quotes is an error, as it is at OpenAI's.
    model_config = ConfigDict(extra="ignore", strict=True)

    model: str | None = None
    user: str | None = None


class StreamOptions(fields.StreamOptions):
    """`stream_options`; what it says beyond is the engine's."""

    model_config = ConfigDict(extra="ignore")


class _Sampling(Sampling, _Fields):
    stream_options: StreamOptions | None = None
    top_p: float | None = Field(default=None, ge=0, le=1)
    n: int = Field(default=1, ge=1, le=128)
    stop: str | list[str] | None = None
    max_tokens: int | None = Field(default=None, ge=0)


class Part(BaseModel):
    """One part of a message's content; which kinds there are is the model's affair."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: str
    text: str | None = None

    @model_validator(mode="after")
    def _text_has_text(self) -> Self:
        if self.type == "text" and self.text is None:
            raise ValueError("a part of type 'text' needs the field 'text'")
        return self


class Message(BaseModel):
    """One chat message."""

    model_config = ConfigDict(extra="ignore", strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None


class Chat(_Sampling):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: list[dict[str, Any]] | None = Field(default=None, min_length=1)
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None

    @model_validator(mode="after")
    def _companions(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: only allowed when logprobs is true")
        if self.tool_choice not in (None, "none") and self.tools is None:
            raise ValueError("tool_choice: only allowed when tools are specified")
        return self


class Completions(_Sampling):
    """POST /v1/completions."""

    prompt: str | TokenIds | list[str] | list[TokenIds] | None = None
    prompt_embeds: Any = None
    best_of: int | None = Field(default=None, ge=1, le=20)
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0)
    suffix: Literal[""] | None = None

    @model_validator(mode="after")
    def _has_a_prompt(self) -> Self:
        if self.prompt_embeds is None and (self.prompt is None or self.prompt == []):
            raise ValueError("prompt: must be given and not be empty")
        return self


class Embeddings(_Fields):
    """POST /v1/embeddings. `messages` is vLLM's alternative to `input`."""

    input: str | TokenIds | list[str] | list[TokenIds] | None = None
    messages: list[Any] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _has_an_input(self) -> Self:
        if not self.input and not self.messages:
            raise ValueError("input: must be given and not be empty")
        return self


class Tokenize(_Fields):
    """vLLM's POST /tokenize: of a prompt, or of a conversation."""

    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _has_one_of_both(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt: either it or `messages` must be given")
        return self


class Responses(_Fields):
    """POST /v1/responses."""

    input: str | list[Any]
    stream: bool = False
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    metadata: dict[str, str] | None = Field(default=None, max_length=16)
    parallel_tool_calls: bool | None = None
    background: Literal[False] | None = None
    truncation: Literal["auto", "disabled"] | None = None

    @model_validator(mode="after")
    def _has_an_input(self) -> Self:
        if not self.input:
            raise ValueError("input: must not be empty")
        return self
