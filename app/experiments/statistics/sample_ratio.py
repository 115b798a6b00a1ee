"""Tests whether the arms' counts contradict the weights (sample-ratio mismatch), at every look.

The e-value is the Dirichlet-multinomial against the multinomial with the plan's own probabilities: Lindon and Malek
2022, "Anytime-Valid Inference for Multinomial Count Data". A unit counts once, under the plan of its first exposure:
counted again under a later plan it would be the same coin twice.

The same test finds arms whose units come back less, or whose requests are lost: the units that have made two, three,
four … requests are as random a part of the arms as all units, if the arm has no influence on that. Each number of
requests has an e-process of its own and a share of the error rate (a union bound), whatever units' activity is like.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

CONCENTRATION = 1000.0
"""kappa: the concentration of the alternatives around the plan's probabilities."""

THRESHOLD = math.log(1000)
"""The ln of the evidence at which it raises an alarm: 1000 gives a false alarm in one of a thousand experiments."""

RETURNS = np.unique(np.round(2 * 1.4 ** np.arange(30)).astype(np.int64))
"""The numbers of requests at which the units that made as many are compared."""

RETURNS_CONCENTRATION = 30.0
"""kappa for these: fewer units, and larger differences."""

RETURNS_THRESHOLD = math.log(100)
"""The ln of the evidence at which they raise an alarm: a false one in one of a hundred experiments."""

FEWER = 0.05
"""The difference of the arms' mean numbers of requests, in ln, that is to be found soonest."""

SUSPICION = math.log(3)
"""The ln of the evidence above which nothing is shipped: a delay without a cause costs less than a biased verdict."""

_NUMBER = np.arange(1, len(RETURNS) + 1)
_LN_SHARES: NDArray[np.float64] = -np.log(_NUMBER * (_NUMBER + 1.0))

CERTAIN = 700.0
"""ln of the evidence of a unit in an arm that has no weight."""


def ln_e(plans: Iterable[tuple[Sequence[int], Sequence[float]]]) -> float:
    """The evidence, ln, of (units of each arm, weights of each arm) per plan. Plans add up.

    Weights are of any sum; those of arms outside of the experiment are left out beforehand.
    """
    return float(sum(ln_e_of_plan(counts, weights) for counts, weights in plans))


def ln_e_of_returns(reached: NDArray[np.int64], weights: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """The evidence, ln, of each of `RETURNS`, less what its share of the error rate costs.

    `reached`: the units with as many requests, by the plan of their first one, shape (RETURNS, plans, arms); `weights`
    of each plan.
    """
    return np.asarray(
        _LN_SHARES
        + sum(
            ln_e_of_plan(reached[:, plan], of_plan, RETURNS_CONCENTRATION)
            for plan, of_plan in enumerate(weights)
            if reached[:, plan].any()
        )
    )


def ln_e_of_plan(
    counts: ArrayLike, weights: Sequence[float], concentration: float = CONCENTRATION
) -> NDArray[np.float64]:
    """The evidence, ln, of one plan's counts of shape (…, arms), for many moments at once: shape (…)."""
    c, w = np.asarray(counts, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    weightless = c[..., w <= 0].any(axis=-1)
    c, p = c[..., w > 0], w[w > 0] / w[w > 0].sum()
    mixture = gammaln(concentration * p + c) - gammaln(concentration * p)
    together = gammaln(concentration) - gammaln(concentration + c.sum(axis=-1))
    return np.where(weightless, CERTAIN, together + (mixture - c * np.log(p)).sum(axis=-1))
