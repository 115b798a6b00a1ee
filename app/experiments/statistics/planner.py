"""The information, and the number of units, that a verdict needs.

- A t-test that is checked repeatedly, for comparison only. It finds effects that do not exist.
- Selects the metrics that differ, among many: e-BH, whose share of false discoveries is bounded under any dependence.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from scipy.special import ndtri, stdtr

from app.experiments.statistics.look import Estimate
from app.experiments.statistics.sequences import log_e_mixture

_HALVINGS = 50


@lru_cache(maxsize=256)
def information_needed(
    effect: float, *, minimal_effect: float | None = None, alpha: float, power: float = 0.8
) -> float:
    """The information 1/se² at which `effect` has led to a verdict with probability `power`.

    The smallest v with |effect| √v ≥ k + z, k being the boundary there and z the normal quantile of `power`. Both
    effects are on the estimate's scale (`sequences.effect_size`); `minimal_effect` tunes the boundary, and is `effect`
    itself if left out. `effect` must not be 0. The verdict may have come long before: half the time at half of it.
    """
    effect, z = abs(effect), float(ndtri(power))
    tuned_for = minimal_effect or effect

    def suffices(v: float) -> bool:
        excess = effect * math.sqrt(v) - z  # at least k exactly where its evidence suffices
        evidence = log_e_mixture(excess / math.sqrt(v), 1 / math.sqrt(v), math.inf, effect=tuned_for, alpha=alpha)
        return excess > 0 and float(evidence) >= math.log(1 / alpha)

    low = high = 1 / effect**2
    while not suffices(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def units_needed(information: float, sigma: float, share: float) -> int:
    """The units of both arms that give this information.

    `sigma` is the residuals' standard deviation per unit (`Estimate.sigma`), `share` the treatment's, between 0 and 1.
    """
    return math.ceil(information * sigma**2 / (share * (1 - share)))


def p_value(look: Estimate) -> float:
    """Student's two-sided p-value of this look, as if it were the only one."""
    return float(2 * stdtr(look.nu, -abs(look.est / look.se)))


class PeekedTest:
    """Rejects "no effect" as soon as any look's p-value is below alpha."""

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self.smallest = 1.0
        """The smallest p-value so far."""

    def add(self, look: Estimate | None) -> None:
        """Adds a look; None is a look without a result."""
        if look is not None and look.enough and math.isfinite(look.se):
            self.smallest = min(self.smallest, p_value(look))

    @property
    def rejects(self) -> bool:
        return self.smallest < self._alpha


# Wang and Ramdas 2022, "False discovery rate control with e-values". The intervals that belong to the selection are
# those of Xu, Wang and Ramdas 2022, "Post-selection inference for e-value based confidence intervals".
#
# Where nothing differs, the probability that anything is ever selected is at most the level: k selected metrics have
# e-values of m / (level k) each, so that the mean of all m, which is an e-process too, is at least 1 / level.
#
# Equal weights of 1 / m are those of a family that is known beforehand. Of one that grows, each member has the weight
# of the place at which it came, which does not change when others come: the weighted mean of all is an e-process, too.

_AT_ONCE = 8
"""Members of a growing family that share a half of what is left."""

PLACES = 1000
"""Members of a growing family that have a weight: a later one would need evidence of more than e^88."""


def weight_of_place(place: int) -> float:
    """The weight of a member of a growing family, by its place from 0 on: those of all places together are at most 1.
    None after the first `PLACES`.
    """
    return 0.5 ** (place // _AT_ONCE + 1) / _AT_ONCE if place < PLACES else 0.0


def e_bh(log_e_values: Sequence[float], level: float, weights: Sequence[float] | None = None) -> list[int]:
    """The indexes that are kept, rising. `log_e_values` are logarithms of e-values; `level` the false discovery rate;
    `weights`, together at most 1, are 1 / m if left out. What has none is not kept.

    Sorted from the largest weighted e-value, the first k are kept, with the largest k whose is at least 1 / (level k).
    """
    m = len(log_e_values)
    weighted = [
        log_e_value + math.log(weight) if weight else -math.inf
        for log_e_value, weight in zip(log_e_values, weights or _equal(m), strict=True)
    ]
    order = sorted(range(m), key=lambda index: -weighted[index])
    enough = (k for k in range(m, 0, -1) if weighted[order[k - 1]] >= -math.log(level * k))
    return sorted(order[: next(enough, 0)])


def levels(log_e_values: Sequence[float], level: float, weights: Sequence[float] | None = None) -> list[float]:
    """The level of each metric's interval: it excludes "no effect" exactly for the metrics that `e_bh` keeps.

    Of those that are kept, the intervals that miss their effects are at most the share `level` in the mean.
    """
    kept = set(e_bh(log_e_values, level, weights))
    return [
        level * weight * (len(kept) if index in kept else len(kept) + 1)
        for index, weight in enumerate(weights or _equal(len(log_e_values)))
    ]


def _equal(members: int) -> list[float]:
    return [1 / max(members, 1)] * members
