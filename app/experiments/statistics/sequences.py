"""Confidence sequences: intervals that hold at every look, in the clock of information.

The process is an estimate with standard error `se` and `nu` degrees of freedom; its clock is the information 1/se².
The e-value against "no effect" mixes Student's t likelihood ratios over effects that are normal with variance 1/rho
(Lindon, Ham, Tingley and Bojinov 2022, "Anytime-Valid Linear Models and Regression Adjusted Causal Inference"; with
nu = ∞ the normal mixture of Howard, Ramdas, McAuliffe and Sekhon 2021, "Time-uniform, nonparametric, nonasymptotic
confidence sequences"). rho follows from the smallest effect of interest alone, so that any look can be computed again
from data. Three scales, that effect, four times it and sixteen times it, are averaged with the weights of `MIXTURE`.
The smallest has half of the weight, so that an effect of interest costs ln 2 of evidence; an effect of twenty times
that size needs 1.6 times the units of a single look, where the two smaller scales alone would need 2.7 times.

`effect` is everywhere on the scale of the estimate: `effect_size` turns a configured minimal effect into it.
"""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import lambertw

from app.experiments.contract.report import Scale

Floats = NDArray[np.float64]

MIXTURE: Mapping[float, float] = MappingProxyType({1.0: 0.5, 4.0: 0.3, 16.0: 0.2})
"""The mixture's scales, in multiples of the smallest effect of interest, each with its weight; weights add up to 1."""

MIN_NU = 10.0
"""The degrees of freedom that a claim must exceed: with fewer the asymptotics do not hold yet."""

_LARGEST = 2.0**64
"""In standard errors: no estimate is further away."""

_STEPS = 100
_NEAR = 1e-11
"""A relative change of the root after which Newton's method has all its digits."""


class Interval(NamedTuple):
    """An interval with finite ends, on the estimate's scale."""

    lower: float
    upper: float


def effect_size(minimal_effect: float, scale: Scale) -> float:
    """The smallest effect of interest on the estimate's scale: ln(1 + m) for a relative one, m itself if absolute."""
    return math.log1p(minimal_effect) if scale == "relative" else minimal_effect


def best_rho(v: float, alpha: float) -> float:
    """The mixture's precision whose boundary is narrowest at information `v` (Howard et al. 2021, proposition 3)."""
    return float(v / (-lambertw(-(alpha**2) / math.e, -1).real - 1))


def smallest_boundary(alpha: float) -> float:
    """k*: the boundary, in standard errors, at the information for which its rho is the best."""
    share = (1 + best_rho(1.0, alpha)) / best_rho(1.0, alpha)
    return math.sqrt((1 + best_rho(1.0, alpha)) * math.log(share / alpha**2))


@lru_cache(maxsize=1024)
def rho_for(effect: float, alpha: float) -> float:
    """The precision that is best at the information at which `effect` is just found: (k* / effect)²."""
    return best_rho((smallest_boundary(alpha) / effect) ** 2, alpha)


def is_well_defined(est: ArrayLike, se: ArrayLike, nu: ArrayLike) -> NDArray[np.bool_]:
    """The mask of the looks at which a claim is possible: a finite estimate, a positive finite error, more than MIN_NU
    degrees.
    """
    est, se, nu = (np.asarray(argument, dtype=np.float64) for argument in (est, se, nu))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        v = 1 / (se * se)
        t2 = est * est * v
    return np.asarray((se > 0) & (v > 0) & np.isfinite(v) & np.isfinite(t2) & (nu > MIN_NU), dtype=np.bool_)


class _Mixture:
    """The e-value's mixture at looks with information `v` (1/se²) and `nu` degrees of freedom, infinite for the normal
    limit, which broadcast: what every estimate at these looks shares. `weights` by rho."""

    def __init__(self, v: Floats, nu: Floats, weights: Mapping[float, float]) -> None:
        def by_scale(numbers: Iterable[float]) -> Floats:
            """A first axis more than the looks have."""
            return np.reshape([*numbers], (-1, *[1] * v.ndim))

        rho = by_scale(weights)
        self._r = rho / (v + rho)
        self._at_zero = by_scale(math.log(weight) for weight in weights.values()) + 0.5 * np.log(self._r)
        self._is_finite = np.isfinite(nu)
        self._n = np.where(self._is_finite, nu, 1.0)

    def _parts(self, t2: Floats) -> Floats:
        """ln of each scale's part."""
        n = self._n
        student = 0.5 * (n + 1) * (np.log1p(t2 / n) - np.log1p(self._r * t2 / n))
        return np.asarray(self._at_zero + np.where(self._is_finite, student, 0.5 * t2 * (1 - self._r)))

    def log_e_value(self, t2: Floats) -> Floats:
        """ln of the e-value of estimates whose (estimate/se)² is `t2`."""
        return np.asarray(np.logaddexp.reduce(self._parts(t2)), dtype=np.float64)

    def enough_for_a_scale(self, log_e_value: float) -> Floats:
        """The smallest estimates, in standard errors, of which one scale's part alone is `log_e_value`: the mixture is
        not less there. `_LARGEST` where no estimate would suffice."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            gain = 2 * (log_e_value - self._at_zero)
            ratio = np.exp(gain / (self._n + 1))
            student = self._n * (ratio - 1) / (1 - self._r * ratio)
            t2 = np.where(self._is_finite, np.where(student >= 0, student, np.inf), gain / (1 - self._r))
        return np.asarray(np.minimum(np.sqrt(t2.min(axis=0)), _LARGEST))

    def with_slope(self, k: Floats) -> tuple[Floats, Floats]:
        """ln of the e-value of estimates of `k` standard errors, and its derivative by `k`."""
        t2, n = k * k, self._n
        parts = self._parts(t2)
        value = np.asarray(np.logaddexp.reduce(parts), dtype=np.float64)
        student = (n + 1) * k * (1 / (n + t2) - self._r / (n + self._r * t2))
        slopes = np.where(self._is_finite, student, k * (1 - self._r))
        return value, np.asarray((np.exp(parts - value) * slopes).sum(axis=0), dtype=np.float64)


def _precisions(mixture: Mapping[float, float], effect: float, alpha: float) -> dict[float, float]:
    """The weights of a mixture's scales by their rho."""
    return {rho_for(scale * effect, alpha): weight for scale, weight in mixture.items()}


def log_e_mixture(est: ArrayLike, se: ArrayLike, nu: ArrayLike, *, effect: float, alpha: float) -> Floats:
    """ln of the e-value against "no effect", all scales averaged; 0, which is no evidence, unless `is_well_defined`.

    Arguments broadcast. `alpha` tunes the mixture; the value is an e-value at every level.
    """
    est, se, nu = np.broadcast_arrays(*(np.asarray(a, dtype=np.float64) for a in (est, se, nu)))
    ok = is_well_defined(est, se, nu)
    est, se, nu = np.where(ok, est, 0.0), np.where(ok, se, 1.0), np.where(ok, nu, 1.0)
    weights = _precisions(MIXTURE, effect, alpha)
    return np.where(ok, _Mixture(1 / se**2, nu, weights).log_e_value((est / se) ** 2), 0.0)


def boundary(
    se: ArrayLike,
    nu: ArrayLike,
    *,
    effect: float,
    alpha: float,
    level: float | None = None,
    mixture: Mapping[float, float] = MIXTURE,
) -> Floats:
    """k: the half-width of the interval in standard errors, at each (se, nu); inf where no estimate would suffice.

    The root in k of ``log_e_mixture(k * se, se, nu) = ln(1 / level)``; `level` is `alpha`, which tunes the mixture, if
    it is left out, and has no root if it is 0; `mixture` replaces the scales and weights.
    """
    se, nu = np.broadcast_arrays(*(np.asarray(a, dtype=np.float64) for a in (se, nu)))
    ok = is_well_defined(0.0, se, nu)
    v = 1 / np.where(ok, se, 1.0) ** 2
    n = np.where(ok, nu, 1.0)
    level = alpha if level is None else level
    target = math.log(1 / level) if level else math.inf
    mixed = _Mixture(v, n, _precisions(mixture, effect, alpha))
    low, high = np.zeros_like(v), np.full_like(v, _LARGEST)
    finite = ok & (mixed.log_e_value(high * high) >= target)
    k = mixed.enough_for_a_scale(target)
    searched = finite
    for _ in range(_STEPS):
        if not searched.any():
            break
        value, slope = mixed.with_slope(k)
        enough = value >= target
        low, high = np.where(enough, low, k), np.where(enough, k, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            newton = k - (value - target) / slope
        closer = np.where((low <= newton) & (newton <= high), newton, 0.5 * (low + high))
        k, searched = np.where(searched, closer, k), searched & (abs(closer - k) > _NEAR * k)
    return np.where(finite, k, np.inf)


def confidence_sequence(
    est: float, se: float, nu: float, *, effect: float, alpha: float, level: float | None = None
) -> Interval | None:
    """The interval at this look. All looks' intervals together cover the effect with probability 1 - level.

    `level` as in `boundary`. None where there is no finite interval.
    """
    if not is_well_defined(est, se, nu):
        return None
    reach = float(boundary(se, nu, effect=effect, alpha=alpha, level=level)) * se
    return Interval(est - reach, est + reach) if math.isfinite(reach) else None
