"""Rules over several fields: the combinations that Friendli's reference excludes, each with its message.

Pydantic checks each field alone. These are written by hand because their order and their texts are part of the
contract.

The rules for the fields of completions and of what they share with chat, in the order in which they are checked.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from pydantic import ConfigDict, Field

from app.dialects.common.fields import SOME_TOOLS, AnyPart, Schema, absent, both, either, given, is_true, values
from app.dialects.friendli.detection import Form
from app.dialects.friendli.fields import (
    EXCLUDED_STOP,
    TOOLS,
    Completions,
    ExactFields,
    GenerationFields,
    Microseconds,
    Phrase,
    checked,
)
from app.dialects.friendli.sampling import seeds_count_up
from app.errors import BadRequest
from app.internal_api import MAX_STOP_STRINGS

_Checked = TypeVar("_Checked", bound=GenerationFields)
_Fields = TypeVar("_Fields", bound=GenerationFields, contravariant=True)


class FieldRule(ABC, Generic[_Fields]):
    """`field` is wrong `when` the condition holds; `message` states the reason."""

    field: str
    message: str

    @abstractmethod
    def when(self, fields: _Fields) -> bool:
        """Whether `fields` break the rule."""

    def schema(self) -> Schema | None:
        """The rule in JSON Schema; None if that cannot express it."""
        return None


def checked_against(fields: _Checked, rules: Iterable[FieldRule[_Checked]]) -> _Checked:
    """Returns `fields`. Raises BadRequest for the first rule that they break."""
    for rule in rules:
        if rule.when(fields):
            raise BadRequest(f"{rule.field}: {rule.message}", param=rule.field)
    return fields


def schemas(rules: Iterable[FieldRule[Any]]) -> list[Schema]:
    """The rules that JSON Schema can express."""
    return [schema for rule in rules if (schema := rule.schema()) is not None]


def unset(*names: str) -> Schema:
    """The condition that no field of these is given: the opposite of `GenerationFields.is_given`."""
    return values({name: [None, False, []] for name in names})


SOME_ITEMS: Schema = {"type": "array", "minItems": 1}
UNFORMATTED: Schema = {"properties": {"response_format": values({"type": ["text"]})}}
WITHOUT_BEAMS = absent("num_beams")


class _FieldRule(FieldRule[_Fields]):
    """A kind of rule, for one field."""

    def __init__(self, field: str, message: str) -> None:
        self.field, self.message = field, message

    def _value(self, fields: GenerationFields) -> Any:
        return getattr(fields, self.field)


class Exclusive(_FieldRule[GenerationFields]):
    """Two fields that exclude one another."""

    def __init__(self, field: str, other: str) -> None:
        super().__init__(field, f"cannot be given together with {other}")
        self._other = other

    def when(self, fields: GenerationFields) -> bool:
        return fields.is_given(self.field) and fields.is_given(self._other)

    def schema(self) -> Schema:
        return either(unset(self.field), unset(self._other))


class OnlyWith(_FieldRule[GenerationFields]):
    """A field that needs another one to be true."""

    def __init__(self, field: str, other: str) -> None:
        super().__init__(field, f"only allowed with {other}")
        self._other = other

    def when(self, fields: GenerationFields) -> bool:
        return fields.is_given(self.field) and not getattr(fields, self._other)

    def schema(self) -> Schema:
        return either(unset(self.field), is_true(self._other))


class RequiredWith(_FieldRule[GenerationFields]):
    """A list that must be given if another one is."""

    def __init__(self, field: str, other: str) -> None:
        super().__init__(field, f"must be given with {other}")
        self._other = other

    def when(self, fields: GenerationFields) -> bool:
        return fields.is_given(self._other) and not fields.is_given(self.field)

    def schema(self) -> Schema:
        return either(unset(self._other), given(self.field, SOME_ITEMS))


class NotWithFormat(_FieldRule[GenerationFields]):
    """A field that a grammar excludes."""

    def __init__(self, field: str, message: str = "not supported with response_format") -> None:
        super().__init__(field, message)

    def when(self, fields: GenerationFields) -> bool:
        return fields.is_formatted and bool(self._value(fields))

    def schema(self) -> Schema:
        return either(UNFORMATTED, values({self.field: [None, 0, []]}))


class NotWithBeams(_FieldRule[Completions]):
    """A field that must have its default in a beam search."""

    def __init__(self, field: str, message: str = "not supported with num_beams") -> None:
        super().__init__(field, message)

    def when(self, fields: Completions) -> bool:
        return fields.searches and self._value(fields) != self._default

    @property
    def _default(self) -> Any:
        return Completions.model_fields[self.field].default

    def schema(self) -> Schema:
        return either(WITHOUT_BEAMS, values({self.field: [None, self._default]}))


class OnlyWithBeams(_FieldRule[Completions]):
    """A field of beam searches alone."""

    def __init__(self, field: str) -> None:
        super().__init__(field, "only allowed with num_beams")

    def when(self, fields: Completions) -> bool:
        return not fields.searches and self._value(fields) is not None

    def schema(self) -> Schema:
        return either(absent(self.field), given("num_beams"))


class NotWithDeterministicBeams(_FieldRule[Completions]):
    """A field of those beam searches alone that draw."""

    def __init__(self, field: str) -> None:
        super().__init__(field, "not allowed where beam_search_type is DETERMINISTIC")

    def when(self, fields: Completions) -> bool:
        return fields.searches and not fields.draws_beams and self._value(fields) is not None

    def schema(self) -> Schema:
        drawn = given("beam_search_type", {"enum": ["NAIVE_SAMPLING", "STOCHASTIC"]})
        return either(WITHOUT_BEAMS, absent(self.field), drawn)


class EncoderOnly(_FieldRule[Completions]):
    """A field that has an effect in encoder-decoder models alone; 1 is neutral."""

    def __init__(self, field: str) -> None:
        super().__init__(field, "only allowed for encoder-decoder models")

    def when(self, fields: Completions) -> bool:
        return bool(self._value(fields) != 1)

    def schema(self) -> Schema:
        return values({self.field: [None, 1]})


class Unsupported(_FieldRule[Completions]):
    """A field that no value makes acceptable."""

    def __init__(self, field: str) -> None:
        super().__init__(field, Completions.refused[field])

    def when(self, fields: Completions) -> bool:
        return self._value(fields) is not None

    def schema(self) -> Schema:
        return absent(self.field)


MAX_BEAM_TEMPERATURE = 2.0  # vLLM's own limit: logits processors have no effect on beams


class OneSeedPerChoice(FieldRule[GenerationFields]):
    field = "seed"
    message = "must hold as many seeds as n says"

    def when(self, fields: GenerationFields) -> bool:
        return isinstance(fields.seed, list) and len(fields.seed) not in (0, fields.n)


class PromptOrTokens(FieldRule[Completions]):
    field = "prompt"
    message = "either it or tokens must be given"

    def when(self, fields: Completions) -> bool:
        return fields.prompt is None and not fields.tokens

    def schema(self) -> Schema:
        return either(given("prompt"), given("tokens", SOME_ITEMS))


class PromptNotEmpty(FieldRule[Completions]):
    field = "prompt"
    message = "must not be empty"

    def when(self, fields: Completions) -> bool:
        return fields.prompt == ""


class DistinctIndices(FieldRule[Completions]):
    field = "token_index_to_replace"
    message = "must not hold an index twice"

    def when(self, fields: Completions) -> bool:
        return len(set(fields.token_index_to_replace)) < len(fields.token_index_to_replace)

    def schema(self) -> Schema:
        return {"properties": {self.field: {"uniqueItems": True}}}


class LogitsOrLogprobs(FieldRule[Completions]):
    field = "include_output_logits"
    message = "cannot be given together with log-probabilities"

    def when(self, fields: Completions) -> bool:
        return fields.include_output_logits and (fields.include_output_logprobs or fields.logprobs is not None)

    def schema(self) -> Schema:
        return either(unset(self.field), both(unset("include_output_logprobs"), absent("logprobs")))


class NoFormatWithBeams(FieldRule[Completions]):
    field = "response_format"
    message = "not supported with num_beams"

    def when(self, fields: Completions) -> bool:
        return fields.searches and fields.is_formatted

    def schema(self) -> Schema:
        return either(WITHOUT_BEAMS, UNFORMATTED)


_NOT_DRAWN = either(WITHOUT_BEAMS, values({"beam_search_type": [None, "DETERMINISTIC"]}))


class PositiveTopPWithBeams(FieldRule[Completions]):
    field = "top_p"
    message = "must be greater than 0 with num_beams"

    def when(self, fields: Completions) -> bool:
        return fields.draws_beams and fields.top_p == 0

    def schema(self) -> Schema:
        return either(_NOT_DRAWN, {"properties": {self.field: {"exclusiveMinimum": 0}}})


class BeamTemperature(FieldRule[Completions]):
    field = "temperature"
    message = f"must be above 0 and at most {MAX_BEAM_TEMPERATURE:g} where beams are drawn"

    def when(self, fields: Completions) -> bool:
        temperature = fields.temperature
        return fields.draws_beams and temperature is not None and not 0 < temperature <= MAX_BEAM_TEMPERATURE

    def schema(self) -> Schema:
        bounds = {"exclusiveMinimum": 0, "maximum": MAX_BEAM_TEMPERATURE}
        return either(_NOT_DRAWN, {"properties": {self.field: bounds}})


class RepetitionPenaltyFromOne(FieldRule[Completions]):
    field = "repetition_penalty"
    message = "must be at least 1"

    def when(self, fields: Completions) -> bool:
        return fields.repetition_penalty is not None and fields.repetition_penalty < 1


class PositiveTopP(FieldRule[Completions]):
    field = "top_p"
    message = "must be greater than 0"

    def when(self, fields: Completions) -> bool:
        return fields.top_p == 0


GENERATION_RULES: Sequence[FieldRule[GenerationFields]] = (
    OnlyWith("stream_options", "stream"),
    OneSeedPerChoice(),
    Exclusive("timeout", "timeout_microseconds"),
    NotWithFormat("min_tokens"),
)

COMPLETION_RULES: Sequence[FieldRule[Completions]] = (
    PromptOrTokens(),
    Exclusive("prompt", "tokens"),
    PromptNotEmpty(),
    Exclusive("max_total_tokens", "max_tokens"),
    Exclusive("min_total_tokens", "min_tokens"),
    NotWithFormat("min_total_tokens"),
    EncoderOnly("encoder_no_repeat_ngram"),
    EncoderOnly("encoder_repetition_penalty"),
    RequiredWith("embedding_to_replace", "token_index_to_replace"),
    RequiredWith("token_index_to_replace", "embedding_to_replace"),
    DistinctIndices(),
    Exclusive("include_output_logprobs", "logprobs"),
    LogitsOrLogprobs(),
    NotWithFormat("forced_output_tokens", "cannot be given together with response_format"),
    OnlyWithBeams("early_stopping"),
    OnlyWithBeams("length_penalty"),
    OnlyWith("beam_compat_no_post_normalization", "beam_compat_pre_normalization"),
    NotWithBeams("stream"),
    NotWithBeams("n"),
    NotWithBeams("stop", "not supported with num_beams: use stop_tokens"),
    NotWithBeams("min_p"),
    NotWithBeams("xtc_probability"),
    NotWithBeams("xtc_threshold"),
    NotWithBeams("forced_output_tokens"),
    NoFormatWithBeams(),
    NotWithDeterministicBeams("top_k"),
    NotWithDeterministicBeams("top_p"),
    PositiveTopPWithBeams(),
    BeamTemperature(),
    Unsupported("soft_prompts"),
    Unsupported("position_ids"),
    Unsupported("generation_offset"),
)

# From the documentation of the classic form; the current SDK's allows more.
CLASSIC_RULES: Sequence[FieldRule[Completions]] = (RepetitionPenaltyFromOne(), PositiveTopP())


def read_completions(body: Mapping[str, Any], form: Form) -> Completions:
    """The fields of a completions request. Raises BadRequest or Unprocessable, which name the field."""
    classic = CLASSIC_RULES if form == "classic" else ()
    return checked_against(checked(body, Completions), [*GENERATION_RULES, *COMPLETION_RULES, *classic])


class _PartlyChecked(ExactFields):
    """Checks some members; vLLM checks the others."""

    model_config = ConfigDict(extra="allow")


class Message(_PartlyChecked):
    """One chat message."""

    role: str
    content: str | list[AnyPart] | None = None


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


class NoFormatWithTools(FieldRule[Chat]):
    field = "response_format"
    message = "not supported with tools"

    def when(self, fields: Chat) -> bool:
        return fields.is_formatted and bool(fields.tools)

    def schema(self) -> Schema:
        return either(UNFORMATTED, unset("tools"))


class NoMinTokensWithTools(FieldRule[Chat]):
    field = "min_tokens"
    message = "not supported with tools"

    def when(self, fields: Chat) -> bool:
        return bool(fields.min_tokens and fields.tools)

    def schema(self) -> Schema:
        return either(values({self.field: [None, 0]}), unset("tools"))


class ToolChoiceNeedsTools(FieldRule[Chat]):
    field = "tool_choice"
    message = "only allowed with tools"

    def when(self, fields: Chat) -> bool:
        return fields.tool_choice not in (None, "none", "auto") and not fields.tools

    def schema(self) -> Schema:
        return either(values({self.field: [None, "none", "auto"]}), SOME_TOOLS)


class StreamedSeedsCountUp(FieldRule[Chat]):
    field = "seed"
    message = "a list that does not count up by one cannot be streamed"

    def when(self, fields: Chat) -> bool:
        return fields.stream and not fields.is_one_request


class ReasoningStaysParsed(FieldRule[Chat]):
    field = "parse_reasoning"
    message = "false is not supported: what the engine parses stays so"

    def when(self, fields: Chat) -> bool:
        return fields.parse_reasoning is False

    def schema(self) -> Schema:
        return values({self.field: [None, True]})


CHAT_RULES: Sequence[FieldRule[Chat]] = (
    OnlyWith("top_logprobs", "logprobs"),
    Exclusive("max_completion_tokens", "max_tokens"),
    NoFormatWithTools(),
    NoMinTokensWithTools(),
    ToolChoiceNeedsTools(),
    StreamedSeedsCountUp(),
    ReasoningStaysParsed(),
)


def read_chat(body: Mapping[str, Any]) -> Chat:
    """The fields of a chat request. Raises BadRequest or Unprocessable, which name the field."""
    return checked_against(checked(body, Chat), [*GENERATION_RULES, *CHAT_RULES])
