from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from app.dialects.validation import first_problem
from app.errors import BadRequest


class CountTokens(BaseModel):
    """POST /v1/messages/count_tokens: what makes a prompt. Anthropic's own API refuses the other fields here."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    messages: list[Any] = Field(min_length=1)
    chat_template_kwargs: Any = None
    system: str | list[Any] | None = None
    thinking: Any = None
    tool_choice: Any = None
    tools: list[Any] | None = None

    @field_validator("thinking")
    @classmethod
    def _thinks_as_it_does(cls, value: Any) -> Any:
        # Absent is disabled at Anthropic's too. vLLM knows neither a budget nor a way to ask for thoughts.
        if value != {"type": "disabled"}:
            raise ValueError(
                'only {"type": "disabled"} is supported; whether a model thinks is up to its chat template '
                "(`chat_template_kwargs`)"
            )
        return value


class Messages(CountTokens):
    """POST /v1/messages: what vLLM 0.29 models, `tests/real/test_fields.py` compares, and TAKEN.

    Anything else it would drop without a word.
    """

    max_tokens: int
    cache_salt: Any = None
    ec_transfer_params: Any = None
    kv_transfer_params: Any = None
    metadata: dict[str, Any] | None = None
    output_config: Any = None
    service_tier: Any = None
    stop_sequences: list[Any] | None = None
    stream: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    vllm_xargs: Any = None


TAKEN = frozenset({"service_tier", "thinking"})
"""Anthropic's fields that vLLM does not have, and that change nothing."""

_MODELS: Mapping[str, type[BaseModel]] = {"messages": Messages, "count_tokens": CountTokens}

FIELDS: Mapping[str, frozenset[str]] = {name: frozenset(model.model_fields) for name, model in _MODELS.items()}
"""Operation to fields."""

ENGINE = FIELDS["messages"] - TAKEN
ENGINE_COUNT = FIELDS["count_tokens"] - TAKEN


def _check(body: dict[str, Any], model: type[BaseModel]) -> None:
    """Raises BadRequest, naming the field."""
    try:
        model.model_validate(body)
    except ValidationError as error:
        problem = first_problem(error)
        raise BadRequest(problem.message, param=problem.path) from None
