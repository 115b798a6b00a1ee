"""TGI's rules for the values of `parameters` and `inputs`: its texts, in its order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.dialects.tgi.fields import (
    MAX_BEST_OF,
    MAX_NEW_TOKENS,
    MAX_SEED,
    MAX_STOP_SEQUENCES,
    MAX_TOP_K,
    MAX_TOP_N_TOKENS,
    Parameters,
)
from app.dialects.tgi.profile import RequestStyle
from app.engine.pieces import MOST_CHARACTERS
from app.errors import Unprocessable


@dataclass(frozen=True, slots=True)
class ParameterRule:
    """Rejects `field` with `message` when `when` is true of the request.

    `{given}` in the message is the field's value, for a list its length.
    """

    field: str
    when: Callable[[Parameters, RequestStyle], bool]
    message: str

    def rejection(self, parameters: Parameters) -> Unprocessable:
        """The error for parameters that break the rule."""
        value = getattr(parameters, self.field)
        given = len(value) if isinstance(value, list) else value
        return Unprocessable(self.message.format(given=given), param=f"parameters.{self.field}", value=value)


def _outside(low: float, value: float | None, high: float) -> bool:
    return value is not None and not low <= value <= high


def _not_positive(value: float | None) -> bool:
    return value is not None and value <= 0


def _not_between_0_and_1(value: float | None) -> bool:
    return value is not None and not 0 < value < 1


RULES: Sequence[ParameterRule] = (
    ParameterRule(
        "best_of",
        when=lambda p, style: _outside(1, p.best_of, MAX_BEST_OF),
        message=f"`best_of` must be > 0 and <= {MAX_BEST_OF}. Given: {{given}}",
    ),
    ParameterRule(
        "best_of",
        when=lambda p, style: p.best_of != 1 and style.stream,
        message="`best_of` != 1 is not supported when streaming tokens",
    ),
    ParameterRule(
        "decoder_input_details",
        when=lambda p, style: p.decoder_input_details and style.stream,
        message="`decoder_input_details` == true is not supported when streaming tokens",
    ),
    ParameterRule(
        "best_of",
        when=lambda p, style: p.best_of != 1 and not samples(p, style),
        message="you must use sampling when `best_of` is > 1",
    ),
    ParameterRule(
        "temperature",
        when=lambda p, style: _not_positive(p.temperature),
        message="`temperature` must be strictly positive",
    ),
    ParameterRule(
        "repetition_penalty",
        when=lambda p, style: _not_positive(p.repetition_penalty),
        message="`repetition_penalty` must be strictly positive",
    ),
    ParameterRule(
        "frequency_penalty",
        when=lambda p, style: _outside(-2, p.frequency_penalty, 2),
        message="`frequency_penalty` must be >= -2.0 and <= 2.0",
    ),
    ParameterRule(
        "top_p",
        when=lambda p, style: _not_between_0_and_1(p.top_p),
        message="`top_p` must be > 0.0 and < 1.0",
    ),
    ParameterRule(
        "typical_p",
        when=lambda p, style: (
            _not_between_0_and_1(p.typical_p) and not (p.typical_p == 1 and style.profile.typical_p_1_is_off)
        ),
        message="`typical_p` must be > 0.0 and < 1.0",
    ),
    ParameterRule(
        "top_k",
        when=lambda p, style: _not_positive(p.top_k),
        message="`top_k` must be strictly positive",
    ),
    ParameterRule(
        "top_k",
        when=lambda p, style: _outside(1, p.top_k, MAX_TOP_K),
        message=f"`top_k` must be <= {MAX_TOP_K}. Given: {{given}}",
    ),
    ParameterRule(
        "max_new_tokens",
        when=lambda p, style: _not_positive(p.max_new_tokens),
        message="`max_new_tokens` must be strictly positive",
    ),
    ParameterRule(
        "max_new_tokens",
        when=lambda p, style: _outside(1, p.max_new_tokens, MAX_NEW_TOKENS),
        message=f"`max_new_tokens` must be <= {MAX_NEW_TOKENS}. Given: {{given}}",
    ),
    ParameterRule(
        "stop",
        when=lambda p, style: len(p.stop) > MAX_STOP_SEQUENCES,
        message=f"`stop` supports up to {MAX_STOP_SEQUENCES} stop sequences. Given: {{given}}",
    ),
    ParameterRule(
        "stop",
        when=lambda p, style: "" in p.stop,
        message="`stop` must not hold an empty stop sequence",
    ),
    ParameterRule(
        "seed",
        when=lambda p, style: p.seed is not None and p.best_of != 1,
        message="`seed` must not be set when `best_of` > 1",
    ),
    ParameterRule(
        "seed",
        when=lambda p, style: _outside(0 if style.is_tgi else 1, p.seed, MAX_SEED),
        message=f"`seed` must be > 0 and <= {MAX_SEED}. Given: {{given}}",
    ),
    ParameterRule(
        "top_n_tokens",
        when=lambda p, style: _outside(0, p.top_n_tokens, MAX_TOP_N_TOKENS),
        message=f"`top_n_tokens` must be >= 0 and <= {MAX_TOP_N_TOKENS}. Given: {{given}}",
    ),
)
"""The rules in TGI's order: a client sees the first rule that its request breaks."""


def check(inputs: str, parameters: Parameters, style: RequestStyle) -> None:
    """Raises Unprocessable for the first rule that the request breaks."""
    for rule in RULES:
        if rule.when(parameters, style):
            raise rule.rejection(parameters)
    check_inputs(inputs)


def check_inputs(inputs: str) -> None:
    """Raises Unprocessable if `inputs` is empty, or too long to be worth tokenizing."""
    if not inputs:
        raise Unprocessable("`inputs` cannot be empty", param="inputs")
    if len(inputs) > MOST_CHARACTERS:
        raise Unprocessable(
            f"`inputs` must have at most {MOST_CHARACTERS} characters. Given: {len(inputs)}", param="inputs"
        )


def samples(parameters: Parameters, style: RequestStyle) -> bool:
    """Whether the engine samples; greedy decoding otherwise.

    An explicit `do_sample` decides; without one the other fields do, as in TGI. TGI's Python client sends false by
    default: from it false counts as absent.
    """
    if parameters.do_sample or (parameters.do_sample is False and not style.sends_every_field):
        return parameters.do_sample
    if parameters.temperature is not None and (parameters.temperature != 1 or parameters.best_of > 1):
        return True
    return any(value is not None and value != 1 for value in (parameters.top_p, parameters.typical_p)) or (
        parameters.top_k is not None
    )
