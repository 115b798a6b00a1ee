"""Tests whether the arms' counts contradict the weights (sample-ratio mismatch), at every look.

The e-value is the Dirichlet-multinomial against the multinomial with the plan's own probabilities: Lindon and Malek
2022, "Anytime-Valid Inference for Multinomial Count Data". A unit counts once, under the plan of its first exposure:
counted again under a later plan it would be the same coin twice.
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

CERTAIN = 700.0
"""ln of the evidence of a unit in an arm that has no weight."""


def ln_e(plans: Iterable[tuple[Sequence[int], Sequence[float]]]) -> float:
    """The evidence, ln, of (units of each arm, weights of each arm) per plan. Plans add up.

    Weights are of any sum; those of arms outside of the experiment are left out beforehand.
    """
    return float(sum(ln_e_of_plan(counts, weights) for counts, weights in plans))


def ln_e_of_plan(counts: ArrayLike, weights: Sequence[float]) -> NDArray[np.float64]:
    """The evidence, ln, of one plan's counts of shape (…, arms), for many moments at once: shape (…)."""
    c, w = np.asarray(counts, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    weightless = c[..., w <= 0].any(axis=-1)
    c, p = c[..., w > 0], w[w > 0] / w[w > 0].sum()
    mixture = gammaln(CONCENTRATION * p + c) - gammaln(CONCENTRATION * p)
    together = gammaln(CONCENTRATION) - gammaln(CONCENTRATION + c.sum(axis=-1))
    return np.where(weightless, CERTAIN, together + (mixture - c * np.log(p)).sum(axis=-1))
