"""For whom the effect differs: each subgroup's effect against that in all other units.

Both are estimates from different units, so that their difference is a look like any other: whenever one looks, its
e-value is one. e-BH selects among all of them, and the intervals of effects share alpha, so nothing here is said more
often wrongly for being one of many.
"""

import math
from collections.abc import Sequence

from app.experiments.analysis.aggregates import SufficientStatistics
from app.experiments.analysis.cells import Subgroup, value_name
from app.experiments.analysis.comparing import MetricComparison, effect_of
from app.experiments.contract.report import SubgroupEffect, Subgroups
from app.experiments.statistics import planner
from app.experiments.statistics.look import Estimate
from app.experiments.statistics.planner import e_bh
from app.experiments.statistics.sequences import confidence_sequence, ln_e_mix

KEY = "subgroups"
"""The key of these looks in the journal, beside those of comparisons."""


class SubgroupWatch:
    """The subgroups of one experiment. `alpha`: that of the experiment. `names`: those of the records' codes."""

    def __init__(self, comparing: Sequence[MetricComparison], alpha: float, names: Sequence[str]) -> None:
        self._comparing = [
            comparison
            for comparison in comparing
            if comparison.measure.role == "primary" and comparison.measure.kind != "quantile"
        ]
        self._alpha, self._names = alpha, names
        self._effects: list[SubgroupEffect] = []
        self.looked_at = -math.inf
        self.looked_version = -1
        """As in `MetricComparison`."""

    def look(self, collected: SufficientStatistics, now: float) -> None:
        """Looks at all subgroups."""
        self.looked_at, self._effects = now, []
        if collected.unknown.any():  # any of them may belong to any subgroup
            return
        groups = [
            (comparing, subgroup, inside, outside)
            for comparing in self._comparing
            for subgroup, inside, outside in collected.looks_of_subgroups(comparing.column, comparing.treatment)
            if inside is not None and outside is not None and inside.enough and outside.enough
        ]
        evidence = [
            _evidence(inside, outside, comparison.delta, self._alpha) for comparison, _, inside, outside in groups
        ]
        kept, levels = set(e_bh(evidence, self._alpha)), planner.levels(evidence, self._alpha)
        self._effects = [
            self._effect(*group, evidence[number], levels[number], len(groups), differs=number in kept)
            for number, group in enumerate(groups)
        ]

    def _effect(
        self,
        comparing: MetricComparison,
        subgroup: Subgroup,
        inside: Estimate,
        outside: Estimate,
        ln_e: float,
        level: float,
        tests: int,
        *,
        differs: bool,
    ) -> SubgroupEffect:
        measure, delta, alpha = comparing.measure, comparing.delta, self._alpha
        own = inside.interval(effect=delta, alpha=alpha, level=alpha / tests)
        est, se, nu = _difference(inside, outside)
        apart = confidence_sequence(est, se, nu, effect=delta, alpha=alpha, level=level)
        return SubgroupEffect(
            attribute=subgroup.attribute,
            name=value_name(subgroup.attribute, subgroup.value, self._names),
            metric=measure.key,
            treatment=comparing.names[1],
            scale=measure.scale,
            units=dict(zip(comparing.names, inside.units, strict=True)),
            effect=effect_of(inside.est, own, measure.scale),
            difference=effect_of(est, apart, measure.scale),
            log_e_value=ln_e,
            differs=differs,
        )

    def report(self, version: int) -> Subgroups | None:
        """The latest look. `version`: that of the data."""
        if self.looked_version < 0:
            return None
        return Subgroups(
            looked_at=self.looked_at,
            outdated=self.looked_version < version,
            alpha=self._alpha,
            effects=self._effects,
        )


def _difference(inside: Estimate, outside: Estimate) -> tuple[float, float, float]:
    """The difference of both estimates, its standard error, and Welch's and Satterthwaite's degrees of freedom."""
    own, others = inside.se**2, outside.se**2
    variance = own + others
    return inside.est - outside.est, math.sqrt(variance), variance**2 / (own**2 / inside.nu + others**2 / outside.nu)


def _evidence(inside: Estimate, outside: Estimate, effect: float, alpha: float) -> float:
    return float(ln_e_mix(*_difference(inside, outside), effect=effect, alpha=alpha))
