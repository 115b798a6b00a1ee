"""The fields of Anthropic's requests, as far as vLLM 0.29 models them; it would ignore any other one silently."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator

from app.dialects.common.support import MODEL, RECORDS


class CountTokens(BaseModel):
    """POST /v1/messages/count_tokens: the fields that make up a prompt. Anthropic's own API rejects the other fields
    here.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(description=MODEL)
    messages: list[Any] = Field(min_length=1)
    chat_template_kwargs: Any = None
    system: str | list[Any] | None = None
    thinking: Annotated[Any, WithJsonSchema({"enum": [{"type": "disabled"}, None]})] = Field(
        default=None,
        description="`disabled` is the same as absent; any other value is rejected: the engine has no reasoning "
        "budget, and whether a model thinks depends on its chat template (`chat_template_kwargs`)",
    )
    tool_choice: Any = None
    tools: list[Any] | None = None

    @field_validator("thinking")
    @classmethod
    def _only_disabled(cls, value: Any) -> Any:
        # Absent means disabled at Anthropic's too. vLLM has neither a budget nor a switch for reasoning.
        if value != {"type": "disabled"}:
            raise ValueError(
                'only {"type": "disabled"} is supported; whether a model thinks is up to its chat template '
                "(`chat_template_kwargs`)"
            )
        return value


class Messages(CountTokens):
    """POST /v1/messages."""

    max_tokens: int
    cache_salt: Any = None
    ec_transfer_params: Any = None
    kv_transfer_params: Any = None
    metadata: dict[str, Any] | None = Field(
        default=None,
        description="`user_id` is the sticky key if the endpoint is sticky by user; otherwise changes nothing",
    )
    output_config: Any = None
    service_tier: Any = Field(default=None, description=RECORDS)
    stop_sequences: list[Any] | None = None
    stream: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    vllm_xargs: Any = None


NOT_SENT = frozenset({"service_tier", "thinking"})
"""Anthropic's fields that vLLM does not have, and that change nothing."""

# `tests/engine/test_field_names.py` compares these with the installed vLLM.
ENGINE = Messages.model_fields.keys() - NOT_SENT
ENGINE_COUNT = CountTokens.model_fields.keys() - NOT_SENT
