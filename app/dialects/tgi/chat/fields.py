from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.dialects.common.fields import Function, Penalty, StreamOptions
from app.dialects.tgi.fields import MAX_TOP_N_TOKENS

MAX_PROMPTS = 4


class _Strict(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    content: str | list[dict[str, Any]] | None = None


class _Tool(_Strict):
    type: Literal["function"]
    function: Function


class GenerationFields(_Strict):
    """What both requests in OpenAI's form have."""

    model: str | None = None
    frequency_penalty: Penalty | None = None
    max_tokens: int | None = Field(default=None, gt=0)
    repetition_penalty: float | None = Field(default=None, gt=0)
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    stop: str | list[Annotated[str, Field(min_length=1)]] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, ge=0, le=1)


class Chat(GenerationFields):
    messages: list[_Message] = Field(min_length=1)
    guideline: str | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool = False
    max_completion_tokens: int | None = Field(default=None, gt=0)
    n: int = Field(default=1, ge=1, le=128)
    presence_penalty: Penalty | None = None
    response_format: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    tool_prompt: str | None = None
    tools: list[_Tool] | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_N_TOKENS)


class Completions(GenerationFields):
    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)]
    suffix: str | None = None
