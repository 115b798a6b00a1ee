"""The values of one experiment's requests: one by one, and counted in bins.

- Single values, for quantiles: those need the values themselves and not their sums.
- The distributions of a few metrics over the requests of each arm: counted in bins, so that their size is fixed.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.arms import ArmAssignment
from app.experiments.analysis.arrays import Floats, Growing, Hashes, Ints, kept_share
from app.experiments.analysis.cells import CodesOf, within
from app.experiments.analysis.metrics import MetricContext, numbers_of
from app.experiments.contract.report import ArmDistribution, Distribution
from app.experiments.statistics.look import merged
from app.experiments.storage.columns import I32, RowColumns

MAX_VALUES = 1_000_000
"""Values of all quantile metrics of an experiment together, 25 bytes each. Above, half of the units are left out, by
hash.

A look at as many takes two seconds, in which the controller accepts no batch.
"""


class RawValues:
    """ln of the values of one metric."""

    def __init__(self, max_values: int = MAX_VALUES) -> None:
        self._max = max_values
        self._bits = 0
        self._unit = Growing(np.uint64)
        self._value = Growing(np.float64)
        self._stratum = Growing(np.int32)
        self._minute = Growing(np.int32)
        self._arm = Growing(np.int8)

    def __len__(self) -> int:
        return len(self._value)

    @property
    def share(self) -> float:
        """The share of units that is kept."""
        return 0.5**self._bits

    def add(self, value: Floats, unit: Hashes, stratum: I32, arm: NDArray[np.int8], at: Floats) -> None:
        """Values with their requests' units, strata and arms: equally long arrays."""
        kept = kept_share(unit, self._bits)
        self._unit.append(unit[kept])
        self._value.append(value[kept])
        self._stratum.append(stratum[kept])
        self._minute.append((at[kept] // 60).astype(np.int32))
        self._arm.append(arm[kept])
        while len(self) > self._max:
            self._thin()

    def select(
        self,
        treatment: int,
        strata: I32,
        bands: Ints,
        without_minutes: Ints | None = None,
        codes: CodesOf | None = None,
    ) -> tuple[Floats, Ints, I32, NDArray[np.int64]]:
        """`(value, unit, stratum, arm)` of control and one treatment; units as codes from 0, arms 0 and 1.

        `bands`: as in `ArmMoments.moments`. `without_minutes`: minutes that are left out, counted from 1970. `codes`
        splits the strata by unit; None: they are those of requests.
        """
        arm = self._arm.values
        kept = (arm == 0) | (arm == treatment)
        if without_minutes is not None:
            kept &= ~np.isin(self._minute.values, without_minutes)
        units, inverse = np.unique(self._unit.values[kept], return_inverse=True)
        unit, treated = inverse.astype(np.int64), (arm[kept] != 0).astype(np.int64)
        recorded = self._stratum.values[kept]
        stratum = strata[recorded]
        if codes is not None:
            stratum = within(stratum, codes(units)[unit], unit, treated)
        elif len(unit):
            stratum = np.asarray(merged(stratum, bands[recorded], unit, treated), np.int32)
        return self._value.values[kept], unit, stratum, treated

    def in_bands(self, treatment: int, bands: Ints) -> tuple[Floats, Ints, NDArray[np.int64]]:
        """`(value, band, arm)` of control and one treatment, arms 0 and 1. `bands`: of each recorded stratum."""
        arm = self._arm.values
        kept = (arm == 0) | (arm == treatment)
        return self._value.values[kept], bands[self._stratum.values[kept]], (arm[kept] != 0).astype(np.int64)

    def of_arm(self, arm: int) -> Floats:
        """The values of one arm."""
        return np.asarray(self._value.values[self._arm.values == arm])

    def units(self, arm: int) -> int:
        """Distinct units of one arm; an estimate once units were halved."""
        return round(len(np.unique(self._unit.values[self._arm.values == arm])) / self.share)

    def _thin(self) -> None:
        self._bits += 1
        kept = kept_share(self._unit.values, self._bits)
        for column in (self._unit, self._value, self._stratum, self._minute, self._arm):
            column.keep(kept)


# Bins are equally wide in the logarithm: a quantile is within 2 % of the recorded values, in any unit. Numbers
# of tokens below `_EXACT` have a bin each, so that their quantiles are numbers that occur. Nothing is inferred from
# them; they show where an effect lies, in the middle or in the tail.

METRICS = ("ttft", "itl", "duration", "output_tokens")
SHARES = (0.01, 0.025, *(number / 20 for number in range(1, 20)), 0.975, 0.99)
"""Shares of an arm's requests: the points of its curve."""

_LOWEST, _HIGHEST, _WIDTH, _EXACT = 1e-4, 1e6, 0.04, 4096


def _edges(lowest: float) -> Floats:
    """The edges of bins from `lowest` on."""
    count = math.ceil(math.log(_HIGHEST / lowest) / _WIDTH) + 1
    return np.asarray(lowest * np.exp(_WIDTH * np.arange(count)), np.float64)


_SECONDS = _edges(_LOWEST)
_TOKENS = np.concatenate([np.arange(_EXACT), np.ceil(_edges(_EXACT))])

_COUNTS = {"output_tokens"}
"""The metrics that are whole numbers."""


def _edges_of(metric: str) -> Floats:
    return _TOKENS if metric in _COUNTS else _SECONDS


class Distributions:
    """Distributions of one experiment's analysed requests."""

    def __init__(self, arms: Sequence[str]) -> None:
        self._arms = arms
        self._counts: dict[str, Ints] = {
            name: np.zeros((len(arms), len(_edges_of(name)) - 1), np.int64) for name in METRICS
        }

    def add(self, rows: RowColumns, placed: ArmAssignment, facts: MetricContext) -> None:
        """Analysed rows."""
        for name, counts in self._counts.items():
            value = numbers_of(name, rows, facts)
            known = np.isfinite(value)
            if not known.any():
                continue
            size = counts.shape[1]
            bins = np.clip(np.searchsorted(_edges_of(name), value[known], "right") - 1, 0, size - 1)
            place = placed.arm[known].astype(np.int64) * size + bins
            counts += np.bincount(place, minlength=counts.size).reshape(counts.shape)

    def report(self) -> list[Distribution]:
        """Each metric that any request has."""
        return [
            Distribution(
                metric=name,
                shares=list(SHARES),
                arms=[
                    ArmDistribution(arm=arm, requests=int(of_arm.sum()), values=_values(name, of_arm))
                    for arm, of_arm in zip(self._arms, counts, strict=True)
                ],
            )
            for name, counts in self._counts.items()
            if counts.any()
        ]


def _values(metric: str, counts: Ints) -> list[float]:
    """The quantiles at each of `SHARES`, seconds to three digits; empty without requests."""
    below, edges = np.cumsum(counts), _edges_of(metric)
    if not below[-1]:
        return []
    wanted = np.array(SHARES) * below[-1]
    bins = np.searchsorted(below, wanted)
    # Spread over its bin: a curve of few steps would show the bins and not the values.
    inside = (wanted - (below[bins] - counts[bins])) / counts[bins]
    low, high = edges[bins], edges[bins + 1]
    if metric in _COUNTS:
        whole: list[float] = np.minimum(np.floor(low + (high - low) * inside), high - 1).tolist()
        return whole
    values = low * (high / low) ** inside
    return [float(f"{value:.3g}") for value in np.where(bins == 0, 0.0, values).tolist()]
