"""Rules over several fields: the combinations that Friendli's reference excludes, each with its message.

Pydantic checks each field alone. These are written by hand because their order and their texts are part of the
contract.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import ConfigDict, Field

from app.dialects.common.fields import (
    SOME_TOOLS,
    WITH_CONTENT,
    AnyPart,
    Schema,
    absent,
    both,
    content_for,
    either,
    given,
    has_content_for,
    is_true,
    values,
)
from app.dialects.friendli.fields import (
    EXCLUDED_STOP,
    TOOLS,
    Completions,
    ExactFields,
    Form,
    GenerationFields,
    Microseconds,
    Phrase,
    checked,
)
from app.dialects.friendli.sampling import seeds_count_up
from app.errors import BadRequest
from app.internal_api import MAX_STOP_STRINGS

_Fields = TypeVar("_Fields", bound=GenerationFields)


@dataclass(frozen=True, slots=True)
class Rule(Generic[_Fields]):
    """Rejects `field` with `message` when `when` is true of the request.

    `schema`: the rule in JSON Schema; None if that cannot express it.
    """

    field: str
    message: str
    when: Callable[[_Fields], bool]
    schema: Schema | None = None


def checked_against(fields: _Fields, rules: Iterable[Rule[Any]]) -> _Fields:
    """Returns `fields`. Raises BadRequest for the first rule that they break."""
    for rule in rules:
        if rule.when(fields):
            raise BadRequest(f"{rule.field}: {rule.message}", param=rule.field)
    return fields


def schemas(rules: Iterable[Rule[Any]]) -> list[Schema]:
    """The rules that JSON Schema can express."""
    return [rule.schema for rule in rules if rule.schema is not None]


def unset(*names: str) -> Schema:
    """The condition that no field of these is given: the opposite of `GenerationFields.is_given`."""
    return values({name: [None, False, []] for name in names})


SOME_ITEMS: Schema = {"type": "array", "minItems": 1}
_UNFORMATTED: Schema = {"properties": {"response_format": values({"type": ["text"]})}}
_WITHOUT_BEAMS = absent("num_beams")
_NOT_DRAWN = either(_WITHOUT_BEAMS, values({"beam_search_type": [None, "DETERMINISTIC"]}))


def _exclusive(field: str, other: str) -> Rule[Any]:
    """Two fields that exclude one another."""
    return Rule(
        field,
        f"cannot be given together with {other}",
        when=lambda fields: fields.is_given(field) and fields.is_given(other),
        schema=either(unset(field), unset(other)),
    )


def _only_with(field: str, other: str) -> Rule[Any]:
    """A field that needs another one to be true."""
    return Rule(
        field,
        f"only allowed with {other}",
        when=lambda fields: fields.is_given(field) and not getattr(fields, other),
        schema=either(unset(field), is_true(other)),
    )


def _required_with(field: str, other: str) -> Rule[Any]:
    """A list that must be given if another one is."""
    return Rule(
        field,
        f"must be given with {other}",
        when=lambda fields: fields.is_given(other) and not fields.is_given(field),
        schema=either(unset(other), given(field, SOME_ITEMS)),
    )


def _not_with_format(field: str, message: str = "not supported with response_format") -> Rule[Any]:
    """A field that a grammar excludes."""
    return Rule(
        field,
        message,
        when=lambda fields: fields.is_formatted and bool(getattr(fields, field)),
        schema=either(_UNFORMATTED, values({field: [None, 0, []]})),
    )


def _not_with_beams(field: str, message: str = "not supported with num_beams") -> Rule[Completions]:
    """A field that must have its default in a beam search."""
    default = Completions.model_fields[field].default
    return Rule(
        field,
        message,
        when=lambda fields: fields.searches and getattr(fields, field) != default,
        schema=either(_WITHOUT_BEAMS, values({field: [None, default]})),
    )


def _only_with_beams(field: str) -> Rule[Completions]:
    """A field of beam searches alone."""
    return Rule(
        field,
        "only allowed with num_beams",
        when=lambda fields: not fields.searches and getattr(fields, field) is not None,
        schema=either(absent(field), given("num_beams")),
    )


def _not_with_deterministic_beams(field: str) -> Rule[Completions]:
    """A field of those beam searches alone that draw."""
    drawn = given("beam_search_type", {"enum": ["NAIVE_SAMPLING", "STOCHASTIC"]})
    return Rule(
        field,
        "not allowed where beam_search_type is DETERMINISTIC",
        when=lambda fields: fields.searches and not fields.draws_beams and getattr(fields, field) is not None,
        schema=either(_WITHOUT_BEAMS, absent(field), drawn),
    )


def _encoder_only(field: str) -> Rule[Completions]:
    """A field that has an effect in encoder-decoder models alone; 1 is neutral."""
    return Rule(
        field,
        "only allowed for encoder-decoder models",
        when=lambda fields: getattr(fields, field) != 1,
        schema=values({field: [None, 1]}),
    )


def _unsupported(field: str) -> Rule[Completions]:
    """A field that no value makes acceptable."""
    return Rule(
        field,
        Completions.refused[field],
        when=lambda fields: getattr(fields, field) is not None,
        schema=absent(field),
    )


MAX_BEAM_TEMPERATURE = 2.0  # vLLM's own limit: logits processors have no effect on beams


GENERATION_RULES: Sequence[Rule[Any]] = (
    _only_with("stream_options", "stream"),
    Rule(
        "seed",
        "must hold as many seeds as n says",
        when=lambda fields: isinstance(fields.seed, list) and len(fields.seed) not in (0, fields.n),
    ),
    _exclusive("timeout", "timeout_microseconds"),
    _not_with_format("min_tokens"),
)

COMPLETION_RULES: Sequence[Rule[Completions]] = (
    Rule(
        "prompt",
        "either it or tokens must be given",
        when=lambda fields: fields.prompt is None and not fields.tokens,
        schema=either(given("prompt"), given("tokens", SOME_ITEMS)),
    ),
    _exclusive("prompt", "tokens"),
    Rule("prompt", "must not be empty", when=lambda fields: fields.prompt == ""),
    _exclusive("max_total_tokens", "max_tokens"),
    _exclusive("min_total_tokens", "min_tokens"),
    _not_with_format("min_total_tokens"),
    _encoder_only("encoder_no_repeat_ngram"),
    _encoder_only("encoder_repetition_penalty"),
    _required_with("embedding_to_replace", "token_index_to_replace"),
    _required_with("token_index_to_replace", "embedding_to_replace"),
    Rule(
        "token_index_to_replace",
        "must not hold an index twice",
        when=lambda fields: len(set(fields.token_index_to_replace)) < len(fields.token_index_to_replace),
        schema={"properties": {"token_index_to_replace": {"uniqueItems": True}}},
    ),
    _exclusive("include_output_logprobs", "logprobs"),
    Rule(
        "include_output_logits",
        "cannot be given together with log-probabilities",
        when=lambda fields: (
            fields.include_output_logits and (fields.include_output_logprobs or fields.logprobs is not None)
        ),
        schema=either(
            unset("include_output_logits"),
            both(unset("include_output_logprobs"), absent("logprobs")),
        ),
    ),
    _not_with_format("forced_output_tokens", "cannot be given together with response_format"),
    _only_with_beams("early_stopping"),
    _only_with_beams("length_penalty"),
    _only_with("beam_compat_no_post_normalization", "beam_compat_pre_normalization"),
    _not_with_beams("stream"),
    _not_with_beams("n"),
    _not_with_beams("stop", "not supported with num_beams: use stop_tokens"),
    _not_with_beams("min_p"),
    _not_with_beams("xtc_probability"),
    _not_with_beams("xtc_threshold"),
    _not_with_beams("forced_output_tokens"),
    Rule(
        "response_format",
        "not supported with num_beams",
        when=lambda fields: fields.searches and fields.is_formatted,
        schema=either(_WITHOUT_BEAMS, _UNFORMATTED),
    ),
    _not_with_deterministic_beams("top_k"),
    _not_with_deterministic_beams("top_p"),
    Rule(
        "top_p",
        "must be greater than 0 with num_beams",
        when=lambda fields: fields.draws_beams and fields.top_p == 0,
        schema=either(_NOT_DRAWN, {"properties": {"top_p": {"exclusiveMinimum": 0}}}),
    ),
    Rule(
        "temperature",
        f"must be above 0 and at most {MAX_BEAM_TEMPERATURE:g} where beams are drawn",
        when=lambda fields: (
            fields.draws_beams and fields.temperature is not None and not 0 < fields.temperature <= MAX_BEAM_TEMPERATURE
        ),
        schema=either(
            _NOT_DRAWN, {"properties": {"temperature": {"exclusiveMinimum": 0, "maximum": MAX_BEAM_TEMPERATURE}}}
        ),
    ),
    _unsupported("soft_prompts"),
    _unsupported("position_ids"),
    _unsupported("generation_offset"),
)

# From the documentation of the classic form; the current SDK's allows more.
CLASSIC_RULES: Sequence[Rule[Completions]] = (
    Rule(
        "repetition_penalty",
        "must be at least 1",
        when=lambda fields: fields.repetition_penalty is not None and fields.repetition_penalty < 1,
    ),
    Rule("top_p", "must be greater than 0", when=lambda fields: fields.top_p == 0),
)


def read_completions(body: Mapping[str, Any], form: Form) -> Completions:
    """The fields of a completions request. Raises BadRequest or Unprocessable, which name the field."""
    classic = CLASSIC_RULES if form == "classic" else ()
    return checked_against(checked(body, Completions), [*GENERATION_RULES, *COMPLETION_RULES, *classic])


class _PartlyChecked(ExactFields):
    """Checks some members; vLLM checks the others."""

    model_config = ConfigDict(extra="allow")


class Message(_PartlyChecked):
    """One chat message."""

    model_config = ConfigDict(extra="allow", json_schema_extra=has_content_for(WITH_CONTENT))

    role: str
    content: Annotated[str | list[AnyPart] | None, content_for(WITH_CONTENT)] = Field(
        default=None, validate_default=True
    )


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


CHAT_RULES: Sequence[Rule[Chat]] = (
    _only_with("top_logprobs", "logprobs"),
    _exclusive("max_completion_tokens", "max_tokens"),
    Rule(
        "response_format",
        "not supported with tools",
        when=lambda fields: fields.is_formatted and bool(fields.tools),
        schema=either(_UNFORMATTED, unset("tools")),
    ),
    Rule(
        "min_tokens",
        "not supported with tools",
        when=lambda fields: bool(fields.min_tokens and fields.tools),
        schema=either(values({"min_tokens": [None, 0]}), unset("tools")),
    ),
    Rule(
        "tool_choice",
        "only allowed with tools",
        when=lambda fields: fields.tool_choice not in (None, "none", "auto") and not fields.tools,
        schema=either(values({"tool_choice": [None, "none", "auto"]}), SOME_TOOLS),
    ),
    Rule(
        "seed",
        "a list that does not count up by one cannot be streamed",
        when=lambda fields: fields.stream and not fields.is_one_request,
    ),
    Rule(
        "parse_reasoning",
        "false is not supported: what the engine parses stays so",
        when=lambda fields: fields.parse_reasoning is False,
        schema=values({"parse_reasoning": [None, True]}),
    ),
)


def read_chat(body: Mapping[str, Any]) -> Chat:
    """The fields of a chat request. Raises BadRequest or Unprocessable, which name the field."""
    return checked_against(checked(body, Chat), [*GENERATION_RULES, *CHAT_RULES])
