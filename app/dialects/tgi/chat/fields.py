from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from app.dialects.common.fields import Function, Penalty, StreamOptions
from app.dialects.common.support import GREEDY_TOP_P, NEEDS_TOOLS
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
    """The fields that both requests in OpenAI's form share."""

    model: str | None = Field(
        default=None,
        description="below `/tgi` a deployment of the endpoint, if it is one; elsewhere an endpoint or a deployment, "
        "`tgi` and `dummy` for the default",
    )
    frequency_penalty: Penalty | None = None
    max_tokens: int | None = Field(default=None, gt=0)
    repetition_penalty: float | None = Field(default=None, gt=0)
    seed: int | None = Field(default=None, ge=0, lt=2**64, description="vLLM's, any unsigned 64-bit number")
    stop: str | list[Annotated[str, Field(min_length=1)]] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = Field(default=None, description="vLLM's; not sent without `stream`")
    temperature: float | None = Field(
        default=None, ge=0, description="vLLM's; 0 is greedy, above 2 by a logits processor"
    )
    top_p: float | None = Field(default=None, ge=0, le=1, description=GREEDY_TOP_P)


class Chat(GenerationFields):
    messages: list[_Message] = Field(min_length=1)
    guideline: str | None = Field(default=None, description="for the chat template")
    logit_bias: dict[str, float] | None = None
    logprobs: bool = False
    max_completion_tokens: int | None = Field(default=None, gt=0)
    n: int = Field(default=1, ge=1, le=128)
    presence_penalty: Penalty | None = None
    response_format: dict[str, Any] | None = Field(
        default=None,
        description="TGI's `type` and `value` become vLLM's structured outputs; OpenAI's form is vLLM's",
    )
    tool_choice: str | dict[str, Any] | None = Field(
        default=None, description=f"{NEEDS_TOOLS}; a function's bare name too"
    )
    tool_prompt: str | None = Field(
        default=None, description="done here: comes after the last message, if there are tools"
    )
    tools: list[_Tool] | None = Field(default=None, description=NEEDS_TOOLS)
    top_logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOP_N_TOKENS,
        description=f"vLLM's; at most {MAX_TOP_N_TOKENS}, not sent without `logprobs`",
    )


class Completions(GenerationFields):
    refused: ClassVar[Mapping[str, str]] = {"suffix": "TGI does not support it"}

    prompt: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1, json_schema_extra={"maxItems": MAX_PROMPTS})]
    ) = Field(description=f"vLLM's; at most {MAX_PROMPTS}")
    max_tokens: int | None = Field(default=None, gt=0, description="vLLM's; the default is the profile's")
    suffix: Annotated[str | None, WithJsonSchema({"type": "null"})] = None
