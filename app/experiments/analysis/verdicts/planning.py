"""The number of units that a verdict needs, from the spread of the recorded values."""

import math

from app.errors import Conflict
from app.experiments.analysis.verdicts.comparing import Comparator, clusters
from app.experiments.report import Planned
from app.experiments.statistics.planner import information_needed
from app.experiments.statistics.sequences import effect_size


def planned(comparing: Comparator, effect: float, power: float, units_per_day: float | None) -> Planned:
    """The plan for an increase, from the latest look; a decrease needs the same number of units.

    Raises Conflict before there is an estimate.
    """
    look, measure = comparing.known.look, comparing.measure
    if look is None:
        raise Conflict(f"{measure.key}: nothing is known of its spread yet; {comparing.known.reason}")
    size = effect_size(effect, measure.scale)
    information = information_needed(size, minimal_effect=comparing.delta, alpha=comparing.alpha, power=power)
    so_far = clusters(look)
    units = math.ceil(information / look.information * so_far)
    missing = max(0, units - so_far)
    return Planned(
        metric=measure.key,
        effect=effect,
        power=power,
        alpha=comparing.alpha,
        treatment_share=look.units[1] / sum(look.units),
        units=units,
        units_so_far=so_far,
        units_per_day=units_per_day,
        days=0.0 if not missing else missing / units_per_day if units_per_day else None,
        design_effect=comparing.known.design_effect,
    )
