"""The information, and the number of units, that a verdict needs."""

import math
from functools import lru_cache

from scipy.special import ndtri

from app.experiments.statistics.sequences import ln_e_mix

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
        evidence = ln_e_mix(excess / math.sqrt(v), 1 / math.sqrt(v), math.inf, effect=tuned_for, alpha=alpha)
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

    `sigma` is the residuals' standard deviation per unit (`Look.sigma`), `share` the treatment's, between 0 and 1.
    """
    return math.ceil(information * sigma**2 / (share * (1 - share)))


def fixed_units_needed(effect: float, sigma: float, share: float, *, alpha: float, power: float = 0.8) -> int:
    """Units of both arms for a test that looks once, at the end: for comparison."""
    z = float(ndtri(1 - alpha / 2) + ndtri(power))
    return math.ceil((z / effect) ** 2 * sigma**2 / (share * (1 - share)))
