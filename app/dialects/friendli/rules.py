"""The rules for the fields of completions and of what they share with chat, in the order in which they are checked."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.dialects.common.schema_rules import Schema, absent, both, either, given, values
from app.dialects.friendli.detection import Form
from app.dialects.friendli.fields import Completions, GenerationFields, checked
from app.dialects.friendli.rule import (
    SOME_ITEMS,
    UNFORMATTED,
    WITHOUT_BEAMS,
    EncoderOnly,
    Exclusive,
    NotWithBeams,
    NotWithDeterministicBeams,
    NotWithFormat,
    OnlyWith,
    OnlyWithBeams,
    RequiredWith,
    Rule,
    Unsupported,
    checked_against,
    unset,
)

MAX_BEAM_TEMPERATURE = 2.0  # vLLM's own limit: logits processors have no effect on beams


class OneSeedPerChoice(Rule[GenerationFields]):
    field = "seed"
    message = "must hold as many seeds as n says"

    def when(self, fields: GenerationFields) -> bool:
        return isinstance(fields.seed, list) and len(fields.seed) not in (0, fields.n)


class PromptOrTokens(Rule[Completions]):
    field = "prompt"
    message = "either it or tokens must be given"

    def when(self, fields: Completions) -> bool:
        return fields.prompt is None and not fields.tokens

    def schema(self) -> Schema:
        return either(given("prompt"), given("tokens", SOME_ITEMS))


class PromptNotEmpty(Rule[Completions]):
    field = "prompt"
    message = "must not be empty"

    def when(self, fields: Completions) -> bool:
        return fields.prompt == ""


class DistinctIndices(Rule[Completions]):
    field = "token_index_to_replace"
    message = "must not hold an index twice"

    def when(self, fields: Completions) -> bool:
        return len(set(fields.token_index_to_replace)) < len(fields.token_index_to_replace)

    def schema(self) -> Schema:
        return {"properties": {self.field: {"uniqueItems": True}}}


class LogitsOrLogprobs(Rule[Completions]):
    field = "include_output_logits"
    message = "cannot be given together with log-probabilities"

    def when(self, fields: Completions) -> bool:
        return fields.include_output_logits and (fields.include_output_logprobs or fields.logprobs is not None)

    def schema(self) -> Schema:
        return either(unset(self.field), both(unset("include_output_logprobs"), absent("logprobs")))


class NoFormatWithBeams(Rule[Completions]):
    field = "response_format"
    message = "not supported with num_beams"

    def when(self, fields: Completions) -> bool:
        return fields.searches and fields.is_formatted

    def schema(self) -> Schema:
        return either(WITHOUT_BEAMS, UNFORMATTED)


_NOT_DRAWN = either(WITHOUT_BEAMS, values({"beam_search_type": [None, "DETERMINISTIC"]}))


class PositiveTopPWithBeams(Rule[Completions]):
    field = "top_p"
    message = "must be greater than 0 with num_beams"

    def when(self, fields: Completions) -> bool:
        return fields.draws_beams and fields.top_p == 0

    def schema(self) -> Schema:
        return either(_NOT_DRAWN, {"properties": {self.field: {"exclusiveMinimum": 0}}})


class BeamTemperature(Rule[Completions]):
    field = "temperature"
    message = f"must be above 0 and at most {MAX_BEAM_TEMPERATURE:g} where beams are drawn"

    def when(self, fields: Completions) -> bool:
        temperature = fields.temperature
        return fields.draws_beams and temperature is not None and not 0 < temperature <= MAX_BEAM_TEMPERATURE

    def schema(self) -> Schema:
        bounds = {"exclusiveMinimum": 0, "maximum": MAX_BEAM_TEMPERATURE}
        return either(_NOT_DRAWN, {"properties": {self.field: bounds}})


class RepetitionPenaltyFromOne(Rule[Completions]):
    field = "repetition_penalty"
    message = "must be at least 1"

    def when(self, fields: Completions) -> bool:
        return fields.repetition_penalty is not None and fields.repetition_penalty < 1


class PositiveTopP(Rule[Completions]):
    field = "top_p"
    message = "must be greater than 0"

    def when(self, fields: Completions) -> bool:
        return fields.top_p == 0


GENERATION_RULES: Sequence[Rule[GenerationFields]] = (
    OnlyWith("stream_options", "stream"),
    OneSeedPerChoice(),
    Exclusive("timeout", "timeout_microseconds"),
    NotWithFormat("min_tokens"),
)

COMPLETION_RULES: Sequence[Rule[Completions]] = (
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
CLASSIC_RULES: Sequence[Rule[Completions]] = (RepetitionPenaltyFromOne(), PositiveTopP())


def read(body: Mapping[str, Any], form: Form) -> Completions:
    """The fields of a completions request. Raises BadRequest or Unprocessable, which name the field."""
    classic = CLASSIC_RULES if form == "classic" else ()
    return checked_against(checked(body, Completions), [*GENERATION_RULES, *COMPLETION_RULES, *classic])
