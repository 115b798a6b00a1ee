from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.dialects.friendli.detection import Form
from app.dialects.friendli.fields import Completions, _Fields, checked
from app.errors import BadRequest

MAX_BEAM_TEMPERATURE = 2.0  # vLLM's own limit: processors do not act on beams

Rule = tuple[str, Callable[[_Fields], bool], str]
"""A field, when it is wrong, and why."""

GENERATION_RULES: Sequence[Rule[Any]] = (
    ("stream_options", lambda f: f.stream_options is not None and not f.stream, "only allowed with stream"),
    ("seed", lambda f: isinstance(f.seed, list) and len(f.seed) not in (0, f.n), "must hold as many seeds as n says"),
    (
        "timeout",
        lambda f: f.timeout is not None and f.timeout_microseconds is not None,
        "cannot be given together with timeout_microseconds",
    ),
    ("min_tokens", lambda f: f.is_formatted and bool(f.min_tokens), "not supported with response_format"),
)


def _either(name: str, other: str) -> Rule[Completions]:
    return (
        name,
        lambda f: getattr(f, name) not in (None, []) and getattr(f, other) not in (None, []),
        f"cannot be given together with {other}",
    )


def _needs(name: str, other: str) -> Rule[Completions]:
    return name, lambda f: bool(getattr(f, other)) and not getattr(f, name), f"must be given with {other}"


def _with_beams(name: str, reason: str = "not supported with num_beams") -> Rule[Completions]:
    """`name`, where it says anything, contradicts a beam search."""
    nothing = Completions.model_fields[name].default
    return name, lambda f: f.searches and getattr(f, name) != nothing, reason


def _for_drawing(name: str) -> Rule[Completions]:
    reason = "not allowed where beam_search_type is DETERMINISTIC"
    return name, lambda f: f.searches and not f.draws_beams and getattr(f, name) is not None, reason


def _for_beams(name: str) -> Rule[Completions]:
    return name, lambda f: not f.searches and getattr(f, name) is not None, "only allowed with num_beams"


def _for_encoders(name: str) -> Rule[Completions]:
    return name, lambda f: getattr(f, name) != 1, "only allowed for encoder-decoder models"


def _unsupported(name: str) -> Rule[Completions]:
    return name, lambda f: getattr(f, name) is not None, "not supported"


COMPLETION_RULES: Sequence[Rule[Completions]] = (
    ("prompt", lambda f: f.prompt is None and not f.tokens, "either it or tokens must be given"),
    _either("prompt", "tokens"),
    ("prompt", lambda f: f.prompt == "", "must not be empty"),
    _either("max_total_tokens", "max_tokens"),
    _either("min_total_tokens", "min_tokens"),
    ("min_total_tokens", lambda f: f.is_formatted and bool(f.min_total_tokens), "not supported with response_format"),
    _for_encoders("encoder_no_repeat_ngram"),
    _for_encoders("encoder_repetition_penalty"),
    _needs("embedding_to_replace", "token_index_to_replace"),
    _needs("token_index_to_replace", "embedding_to_replace"),
    (
        "token_index_to_replace",
        lambda f: len(set(f.token_index_to_replace)) < len(f.token_index_to_replace),
        "must not hold an index twice",
    ),
    (
        "include_output_logprobs",
        lambda f: f.include_output_logprobs and f.logprobs is not None,
        "cannot be given together with logprobs",
    ),
    (
        "include_output_logits",
        lambda f: f.include_output_logits and (f.include_output_logprobs or f.logprobs is not None),
        "cannot be given together with log-probabilities",
    ),
    (
        "forced_output_tokens",
        lambda f: bool(f.forced_output_tokens) and f.is_formatted,
        "cannot be given together with response_format",
    ),
    _for_beams("early_stopping"),
    _for_beams("length_penalty"),
    (
        "beam_compat_no_post_normalization",
        lambda f: f.beam_compat_no_post_normalization and not f.beam_compat_pre_normalization,
        "only allowed with beam_compat_pre_normalization",
    ),
    _with_beams("stream"),
    _with_beams("n"),
    _with_beams("stop", "not supported with num_beams: use stop_tokens"),
    _with_beams("min_p"),
    _with_beams("xtc_probability"),
    _with_beams("xtc_threshold"),
    _with_beams("forced_output_tokens"),
    ("response_format", lambda f: f.searches and f.is_formatted, "not supported with num_beams"),
    _for_drawing("top_k"),
    _for_drawing("top_p"),
    ("top_p", lambda f: f.draws_beams and f.top_p == 0, "must be greater than 0 with num_beams"),
    (
        "temperature",
        lambda f: f.draws_beams and f.temperature is not None and not 0 < f.temperature <= MAX_BEAM_TEMPERATURE,
        f"must be above 0 and at most {MAX_BEAM_TEMPERATURE:g} where beams are drawn",
    ),
    _unsupported("soft_prompts"),
    _unsupported("position_ids"),
    _unsupported("generation_offset"),
)


# What the documents of the classic form say; the present SDK's allow more.
CLASSIC_RULES: Sequence[Rule[Completions]] = (
    (
        "repetition_penalty",
        lambda f: f.repetition_penalty is not None and f.repetition_penalty < 1,
        "must be at least 1",
    ),
    ("top_p", lambda f: f.top_p == 0, "must be greater than 0"),
)


def read(body: Mapping[str, Any], form: Form) -> Completions:
    """The fields of a completions request. Raises BadRequest or Unprocessable, which name the field."""
    classic = CLASSIC_RULES if form == "classic" else ()
    return obeyed(checked(body, Completions), [*GENERATION_RULES, *COMPLETION_RULES, *classic])


def obeyed(fields: _Fields, rules: Sequence[Rule[_Fields]]) -> _Fields:
    """`fields`. Raises BadRequest for the first rule that they break."""
    for name, is_broken, why in rules:
        if is_broken(fields):
            raise BadRequest(f"{name}: {why}", param=name)
    return fields
