"""The distributions of a few metrics over the requests of each arm: counted in bins, so that their size is fixed.

Bins are equally wide in the logarithm: a quantile is within 2 % of the recorded values, in any unit. Nothing is
inferred from them; they show where an effect lies, in the middle or in the tail.
"""

import math
from collections.abc import Sequence

import numpy as np

from app.experiments.analysis.evidence.arms import Placement
from app.experiments.analysis.evidence.arrays import Ints
from app.experiments.analysis.evidence.metrics import Facts, numbers_of
from app.experiments.columns import RowColumns
from app.experiments.report import ArmDistribution, Distribution

METRICS = ("ttft", "itl", "duration", "output_tokens")
SHARES = (0.01, 0.025, *(number / 20 for number in range(1, 20)), 0.975, 0.99)
"""Shares of an arm's requests: the points of its curve."""

_LOWEST, _WIDTH, _BINS = math.log(1e-4), 0.04, 576
"""The range of the bins, from 0.0001 to a million: seconds and tokens."""

_COUNTS = {"output_tokens"}
"""The metrics that are whole numbers."""


class Distributions:
    """Distributions of one experiment's analysed requests."""

    def __init__(self, arms: Sequence[str]) -> None:
        self._arms = arms
        self._counts: dict[str, Ints] = {name: np.zeros((len(arms), _BINS), np.int64) for name in METRICS}

    def add(self, rows: RowColumns, placed: Placement, facts: Facts) -> None:
        """Analysed rows."""
        for name, counts in self._counts.items():
            value = numbers_of(name, rows, facts)
            known = np.isfinite(value)
            if not known.any():
                continue
            bins = (np.log(np.maximum(value[known], math.exp(_LOWEST))) - _LOWEST) / _WIDTH
            place = placed.arm[known].astype(np.int64) * _BINS + np.clip(bins.astype(np.int64), 0, _BINS - 1)
            counts += np.bincount(place, minlength=counts.size).reshape(counts.shape)

    def report(self) -> list[Distribution]:
        """Each metric that any request has."""
        return [
            Distribution(
                metric=name,
                shares=list(SHARES),
                arms=[
                    ArmDistribution(arm=arm, requests=int(of_arm.sum()), values=_values(of_arm, name in _COUNTS))
                    for arm, of_arm in zip(self._arms, counts, strict=True)
                ],
            )
            for name, counts in self._counts.items()
            if counts.any()
        ]


def _values(counts: Ints, whole: bool) -> list[float]:
    """The quantiles at each of `SHARES`, to three digits; empty without requests."""
    below = np.cumsum(counts)
    if not below[-1]:
        return []
    wanted = np.array(SHARES) * below[-1]
    bins = np.searchsorted(below, wanted)
    # Spread over its bin: a curve of few steps would show the bins and not the values.
    inside = (wanted - (below[bins] - counts[bins])) / counts[bins]
    low, high = (np.exp(_LOWEST + _WIDTH * edge) for edge in (bins, bins + 1))
    values = low * (high / low) ** inside
    if whole:
        values = np.clip(np.rint(values), np.ceil(low), np.maximum(np.ceil(low), np.ceil(high) - 1))
    return [float(f"{value:.3g}") for value in np.where(bins == 0, 0.0, values).tolist()]
