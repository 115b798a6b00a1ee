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
from collections.abc import Mapping
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

_DOUBLINGS = 64
_HALVINGS = 60


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


def narrowest(alpha: float) -> float:
    """k*: the boundary, in standard errors, at the information for which its rho is the best."""
    share = (1 + best_rho(1.0, alpha)) / best_rho(1.0, alpha)
    return math.sqrt((1 + best_rho(1.0, alpha)) * math.log(share / alpha**2))


@lru_cache(maxsize=1024)
def rho_for(effect: float, alpha: float) -> float:
    """The precision that is best at the information at which `effect` is just found: (k* / effect)²."""
    return best_rho((narrowest(alpha) / effect) ** 2, alpha)


def ln_e(t2: ArrayLike, v: ArrayLike, rho: ArrayLike, nu: ArrayLike) -> Floats:
    """ln of the e-value of one mixture scale.

    `t2` is (estimate/se)², `v` the information 1/se², `nu` the degrees of freedom, infinite for the normal limit.
    All broadcast.
    """
    t2, v, rho, nu = (np.asarray(argument, dtype=np.float64) for argument in (t2, v, rho, nu))
    r = rho / (v + rho)
    finite = np.isfinite(nu)
    n = np.where(finite, nu, 1.0)
    student = 0.5 * (n + 1) * (np.log1p(t2 / n) - np.log1p(r * t2 / n))
    gain = np.where(finite, student, 0.5 * t2 * (1 - r))
    return np.asarray(0.5 * np.log(r) + gain, dtype=np.float64)


def usable(est: ArrayLike, se: ArrayLike, nu: ArrayLike) -> NDArray[np.bool_]:
    """The mask of the looks at which a claim is possible: a finite estimate, a positive finite error, more than MIN_NU
    degrees.
    """
    est, se, nu = (np.asarray(argument, dtype=np.float64) for argument in (est, se, nu))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        v = 1 / (se * se)
        t2 = est * est * v
    return np.asarray((se > 0) & (v > 0) & np.isfinite(v) & np.isfinite(t2) & (nu > MIN_NU), dtype=np.bool_)


def _mixed(t2: Floats, v: Floats, nu: Floats, weights: Mapping[float, float]) -> Floats:
    """`weights` by rho."""
    each = [math.log(weight) + ln_e(t2, v, rho, nu) for rho, weight in weights.items()]
    return np.asarray(np.logaddexp.reduce(each), dtype=np.float64)


def _precisions(mixture: Mapping[float, float], effect: float, alpha: float) -> dict[float, float]:
    """The weights of a mixture's scales by their rho."""
    return {rho_for(scale * effect, alpha): weight for scale, weight in mixture.items()}


def ln_e_mix(est: ArrayLike, se: ArrayLike, nu: ArrayLike, *, effect: float, alpha: float) -> Floats:
    """ln of the e-value against "no effect", all scales averaged; 0, which is no evidence, where nothing is `usable`.

    Arguments broadcast. `alpha` tunes the mixture; the value is an e-value at every level.
    """
    est, se, nu = np.broadcast_arrays(*(np.asarray(a, dtype=np.float64) for a in (est, se, nu)))
    ok = usable(est, se, nu)
    est, se, nu = np.where(ok, est, 0.0), np.where(ok, se, 1.0), np.where(ok, nu, 1.0)
    weights = _precisions(MIXTURE, effect, alpha)
    return np.where(ok, _mixed((est / se) ** 2, 1 / se**2, nu, weights), 0.0)


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

    The root in k of ``ln_e_mix(k * se, se, nu) = ln(1 / level)``; `level` is `alpha`, which tunes the mixture, if it is
    left out; `mixture` replaces the scales and weights.
    """
    se, nu = np.broadcast_arrays(*(np.asarray(a, dtype=np.float64) for a in (se, nu)))
    ok = usable(0.0, se, nu)
    v = 1 / np.where(ok, se, 1.0) ** 2
    n = np.where(ok, nu, 1.0)
    target = math.log(1 / (level or alpha))
    weights = _precisions(mixture, effect, alpha)

    def reached(k: Floats) -> NDArray[np.bool_]:
        return np.asarray(_mixed(k * k, v, n, weights) >= target, dtype=np.bool_)

    high = np.ones_like(v)
    for _ in range(_DOUBLINGS):
        low_yet = ~reached(high)
        if not low_yet.any():
            break
        high = np.where(low_yet, 2 * high, high)
    finite = ok & reached(high)
    low = np.where(high > 1, high / 2, 0.0)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        enough = reached(middle)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(finite, high, np.inf)


def confidence_sequence(
    est: float, se: float, nu: float, *, effect: float, alpha: float, level: float | None = None
) -> Interval | None:
    """The interval at this look. All looks' intervals together cover the effect with probability 1 - level.

    `level` as in `boundary`. None where there is no finite interval.
    """
    if not usable(est, se, nu):
        return None
    reach = float(boundary(se, nu, effect=effect, alpha=alpha, level=level)) * se
    return Interval(est - reach, est + reach) if math.isfinite(reach) else None
