from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ConfigDict, Field

from app.dialects.common.schema_rules import SOME_TOOLS, Schema, either, values
from app.dialects.friendli.fields import (
    EXCLUDED_STOP,
    TOOLS,
    GenerationFields,
    Microseconds,
    Phrase,
    Strict,
    checked,
)
from app.dialects.friendli.rule import UNFORMATTED, Exclusive, OnlyWith, Rule, checked_against, unset
from app.dialects.friendli.rules import GENERATION_RULES
from app.dialects.friendli.sampling import seeds_count_up
from app.internal_api import MAX_STOP_STRINGS


class _PartlyChecked(Strict):
    """Checks some members; vLLM checks the others."""

    model_config = ConfigDict(extra="allow")


class Message(_PartlyChecked):
    """One chat message."""

    role: str
    content: str | list[dict[str, Any]] | None = None


class Function(_PartlyChecked):
    """A function that the model may call."""

    name: str = Field(min_length=1)


class Tool(_PartlyChecked):
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
    parse_reasoning: bool | None = Field(
        default=None, description="true sends reasoning as `reasoning_content`; false is an error"
    )
    reasoning_budget: int | None = Field(default=None, ge=1, description="vLLM's `thinking_token_budget`")
    reasoning_effort: str | None = None
    stop: str | list[Phrase] = Field(default=[], max_length=MAX_STOP_STRINGS, description=EXCLUDED_STOP)
    timeout_microseconds: Microseconds | None = Field(
        default=None,
        description="the time for the whole answer, then 429; if the answer has started, an error event",
    )
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = Field(
        default=None, description="vLLM's; `auto` and `none` are not sent without tools"
    )
    tools: list[Tool] = Field(default=[], description=TOOLS)
    top_logprobs: int | None = Field(default=None, ge=0, le=20)

    @property
    def seeds(self) -> list[int]:
        """None, one, or one for each choice, as the client gave them."""
        return self.seed if isinstance(self.seed, list) else [self.seed]

    @property
    def is_one_request(self) -> bool:
        """Whether vLLM can make all choices from one request: it can count seeds up, and no more."""
        return not self.seeds or seeds_count_up(self.seeds)


class NoFormatWithTools(Rule[Chat]):
    field = "response_format"
    message = "not supported with tools"

    def when(self, fields: Chat) -> bool:
        return fields.is_formatted and bool(fields.tools)

    def schema(self) -> Schema:
        return either(UNFORMATTED, unset("tools"))


class NoMinTokensWithTools(Rule[Chat]):
    field = "min_tokens"
    message = "not supported with tools"

    def when(self, fields: Chat) -> bool:
        return bool(fields.min_tokens and fields.tools)

    def schema(self) -> Schema:
        return either(values({self.field: [None, 0]}), unset("tools"))


class ToolChoiceNeedsTools(Rule[Chat]):
    field = "tool_choice"
    message = "only allowed with tools"

    def when(self, fields: Chat) -> bool:
        return fields.tool_choice not in (None, "none", "auto") and not fields.tools

    def schema(self) -> Schema:
        return either(values({self.field: [None, "none", "auto"]}), SOME_TOOLS)


class StreamedSeedsCountUp(Rule[Chat]):
    field = "seed"
    message = "a list that does not count up by one cannot be streamed"

    def when(self, fields: Chat) -> bool:
        return fields.stream and not fields.is_one_request


class ReasoningStaysParsed(Rule[Chat]):
    field = "parse_reasoning"
    message = "false is not supported: what the engine parses stays so"

    def when(self, fields: Chat) -> bool:
        return fields.parse_reasoning is False

    def schema(self) -> Schema:
        return values({self.field: [None, True]})


CHAT_RULES: Sequence[Rule[Chat]] = (
    OnlyWith("top_logprobs", "logprobs"),
    Exclusive("max_completion_tokens", "max_tokens"),
    NoFormatWithTools(),
    NoMinTokensWithTools(),
    ToolChoiceNeedsTools(),
    StreamedSeedsCountUp(),
    ReasoningStaysParsed(),
)


def read(body: Mapping[str, Any]) -> Chat:
    """The fields of a chat request. Raises BadRequest or Unprocessable, which name the field."""
    return checked_against(checked(body, Chat), [*GENERATION_RULES, *CHAT_RULES])
