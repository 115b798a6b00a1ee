"""Absolute limits: an event may happen to at most a given share of the treatment's exposures.

A trial is the first exposure of each unit, in the run or since a start of the detector: a unit that always fails says
no more about the others on its second day than on its first. Whether control itself keeps the limit is judged by the
first exposure of each unit in each hour, since that is about the present.
"""

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.evidence.arrays import Hashes, Ints, Mask
from app.experiments.analysis.evidence.first_seen import FirstSeen
from app.experiments.analysis.watch.events import MAX_UNITS, UnitDetector
from app.experiments.columns import F64
from app.experiments.statistics.events import EventEvidence

_HOUR_S = 3600.0

_ENOUGH_TRIALS = 20
"""The number of trials from which control is judged by its latest two hours alone."""

Arm = NDArray[np.int8]


class Trials:
    """The trials of control and of one treatment."""

    def __init__(self, max_rate: float, treatment: int) -> None:
        self._max_rate = max_rate
        self._treatment = treatment
        self._control = _HourlyTrials()
        self._first = FirstSeen(arms=1, max_units=MAX_UNITS)
        self.detector = UnitDetector("exposures")
        self.evidence = EventEvidence("exposures")
        self.largest = 0.0
        """The largest evidence so far, ln."""

    def add(self, unit: Hashes, at: F64, hit: Mask, arm: Arm) -> None:
        """Exposures of any arms: equally long arrays."""
        control, treated = arm == 0, arm == self._treatment
        self._control.add(unit[control], at[control], hit[control])
        if not treated.any():
            return
        unit, at, hit = unit[treated], at[treated], hit[treated]
        _add(self._first, unit, at, hit)
        hits, misses = _table(self._first).tolist()
        self.evidence.restore({"counts": [(self._max_rate, hits, misses)], "largest": 0.0})
        self.largest = max(self.largest, self.evidence.ln_e)
        self.detector.add(unit, at, hit, np.full(len(unit), self._max_rate))

    @property
    def control_rate(self) -> float | None:
        """Control's trials with the event by its trials; None before there are any."""
        return self._control.rate

    @property
    def control_exceeds(self) -> bool:
        """Whether control itself exceeds the limit."""
        return (self.control_rate or 0.0) > self._max_rate

    def detectable(self, threshold: float) -> float | None:
        """The smallest rate that would have been detected by now."""
        return self.evidence.detectable(self._max_rate, threshold)


class _HourlyTrials:
    """The first exposure of each unit in each hour. After two hours, an hour is closed."""

    def __init__(self) -> None:
        self._open: dict[int, FirstSeen] = {}
        self._closed: Ints = np.zeros(2, np.int64)
        """With the event, and without."""

    def add(self, unit: Hashes, at: F64, hit: Mask) -> None:
        """Exposures: equally long arrays."""
        if not len(unit):
            return
        hour = (at // _HOUR_S).astype(np.int64)
        latest = max([int(hour.max()), *self._open])
        for number in (latest - 1, latest):
            rows = hour == number
            _add(self._open.setdefault(number, FirstSeen(arms=1)), unit[rows], at[rows], hit[rows])
        for number in [number for number in self._open if number < latest - 1]:
            self._closed = self._closed + _table(self._open.pop(number))

    @property
    def rate(self) -> float | None:
        """The share with the event: of the latest two hours if there are enough, else of the whole run."""
        recent = sum((_table(seen) for seen in self._open.values()), np.zeros(2, np.int64))
        hits, misses = (recent if recent.sum() >= _ENOUGH_TRIALS else recent + self._closed).tolist()
        return hits / (hits + misses) if hits + misses else None


def _add(seen: FirstSeen, unit: Hashes, at: F64, hit: Mask) -> None:
    seen.add(unit, at, np.where(hit, 0, 1).astype(np.int32), np.zeros(len(unit), np.int8))


def _table(seen: FirstSeen) -> Ints:
    """Units with the event at their first exposure, and without."""
    counts = np.zeros(2, np.int64)
    counts[: len(seen.counts)] = seen.counts[:, 0]
    return counts
