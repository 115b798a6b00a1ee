"""The rules of verdicts: from a confidence sequence to a verdict, in the direction that is good for the metric."""

import math
from collections.abc import Sequence

from app.experiments.analysis.evidence.metrics import Measure
from app.experiments.report import Better, Comparison, Decision, Effect, Scale, Verdict

WORDS: tuple[Verdict, ...] = ("better", "worse", "different", "equivalent")
"""Verdicts that say something about the effect."""

AGAINST: tuple[Verdict, ...] = ("worse", "different")
"""Verdicts on a primary metric that speak against a treatment. Where neither direction is better, the arms were meant
to be alike."""


def effect_of(estimate: float, bounds: tuple[float, float] | None, scale: Scale) -> Effect:
    """Converts from the estimate's scale, a logarithm if `scale` is relative, to lifts."""
    convert = math.expm1 if scale == "relative" else float
    lower, upper = (None, None) if bounds is None else (convert(bounds[0]), convert(bounds[1]))
    return Effect(estimate=convert(estimate), lower=lower, upper=upper)


def verdict_of(effect: Effect, measure: Measure) -> Verdict:
    """The verdict of the present interval."""
    low, high = _good_direction(effect, measure.better)
    within = low > -measure.minimal_effect and high < measure.minimal_effect
    if measure.better == "neither":
        return "equivalent" if within else "different" if low > 0 or high < 0 else "undecided"
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    return "equivalent" if within else "undecided"


def is_non_inferior(effect: Effect, measure: Measure) -> bool:
    """Whether the treatment is worse by at most the minimal effect."""
    low, high = _good_direction(effect, measure.better)
    return low > -measure.minimal_effect and (measure.better != "neither" or high < measure.minimal_effect)


def _good_direction(effect: Effect, better: Better) -> tuple[float, float]:
    """The interval with the good direction above 0. A missing end is infinite."""
    low = -math.inf if effect.lower is None else effect.lower
    high = math.inf if effect.upper is None else effect.upper
    return (-high, -low) if better == "lower" else (low, high)


def decision_of(
    primary: Sequence[Comparison],
    *,
    acted: bool,
    quiet: bool,
    changed: bool,
    same_length: bool,
    settled: bool,
    comparable: bool,
    invalid: bool,
    long_enough: bool,
) -> Decision:
    """The decision on one treatment, from its primary metrics.

    `acted`: a guardrail whose alarm does more than alert has one; `quiet`: no guardrail of any action has an alarm, and
    control keeps every absolute limit; `changed`: a primary effect has changed during the run; `same_length`: answers
    do not differ in length, or it is declared which length is better; `settled`: requests that are still running cannot
    change a primary verdict; `comparable`: nothing else than the treatment could explain its verdicts; `invalid`:
    something about the traffic makes a primary verdict invalid; `long_enough`: the shortest duration before a promotion
    is over. Guardrails come first: a treatment that fails lacks values, too.
    """
    if acted:
        return "do_not_ship"
    if invalid:
        return "invalid"
    if any(it.measured in AGAINST for it in primary):
        return "do_not_ship"
    good = all(it.non_inferior for it in primary) and any(it.verdict == "better" for it in primary)
    free = quiet and same_length and settled and comparable and long_enough and not changed
    return "ship" if good and free else "keep_going"
