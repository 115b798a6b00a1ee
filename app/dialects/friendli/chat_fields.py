from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ConfigDict, Field

from app.dialects.friendli.fields import GenerationFields, Phrase, Strict, checked
from app.dialects.friendli.rules import GENERATION_RULES, Rule, obeyed
from app.dialects.friendli.sampling import counts_up
from app.internal_api import MAX_STOP_STRINGS


class _Open(Strict):
    """The members that are looked at; the engine knows the others."""

    model_config = ConfigDict(extra="allow")


class Message(_Open):
    """One chat message."""

    role: str
    content: str | list[dict[str, Any]] | None = None


class Function(_Open):
    """A function that the model may call."""

    name: str = Field(min_length=1)


class Tool(_Open):
    """One tool."""

    type: Literal["function"]
    function: Function


class Chat(GenerationFields):
    """POST …/v1/chat/completions."""

    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    max_completion_tokens: int | None = Field(default=None, ge=1)
    messages: list[Message] = Field(min_length=1)
    parallel_tool_calls: bool | None = None
    parse_reasoning: bool | None = None
    reasoning_budget: int | None = Field(default=None, ge=1)
    reasoning_effort: str | None = None
    stop: str | list[Phrase] = Field(default=[], max_length=MAX_STOP_STRINGS)
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    tools: list[Tool] = Field(default=[])
    top_logprobs: int | None = Field(default=None, ge=0, le=20)

    @property
    def seeds(self) -> list[int]:
        """As the client gave them: none, one, or one for each choice."""
        return self.seed if isinstance(self.seed, list) else [self.seed]


_RULES: Sequence[Rule[Chat]] = (
    ("top_logprobs", lambda f: f.top_logprobs is not None and not f.logprobs, "only allowed with logprobs"),
    (
        "max_completion_tokens",
        lambda f: f.max_completion_tokens is not None and f.max_tokens is not None,
        "cannot be given together with max_tokens",
    ),
    ("response_format", lambda f: f.is_formatted and bool(f.tools), "not supported with tools"),
    ("min_tokens", lambda f: bool(f.min_tokens and f.tools), "not supported with tools"),
    ("tool_choice", lambda f: f.tool_choice not in (None, "none", "auto") and not f.tools, "only allowed with tools"),
    ("seed", lambda f: f.stream and not _counts_up(f), "a list that does not count up by one cannot be streamed"),
    (
        "parse_reasoning",
        lambda f: f.parse_reasoning is False,
        "false is not supported: what the engine parses stays so",
    ),
)


def _counts_up(fields: Chat) -> bool:
    return not fields.seeds or counts_up(fields.seeds)


def read(body: Mapping[str, Any]) -> Chat:
    """The fields of a chat request. Raises BadRequest or Unprocessable, which name the field."""
    return obeyed(checked(body, Chat), [*GENERATION_RULES, *_RULES])
