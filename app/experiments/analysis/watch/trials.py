"""Absolute limits: an event may happen to at most a given share of the treatment's exposures.

A trial is the first exposure of each unit in each hour, so that one busy unit does not decide.
"""

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.evidence.arrays import Hashes, Ints, Mask
from app.experiments.analysis.evidence.first_seen import FirstSeen
from app.experiments.analysis.watch.events import OncePerPeriod
from app.experiments.columns import F64
from app.experiments.statistics.events import Detector, EventEvidence

_HOUR_S = 3600.0

_ENOUGH_TRIALS = 20
"""The number of trials from which control is judged by its latest two hours alone."""

Arm = NDArray[np.int8]


class Trials:
    """The trials of control and of one treatment."""

    def __init__(self, max_rate: float, treatment: int) -> None:
        self._max_rate = max_rate
        self._treatment = treatment
        self._open: dict[int, FirstSeen] = {}
        self._closed: Ints = np.zeros((2, 2), np.int64)
        """Rows: with the event, without. Columns: control, treatment."""
        self._hourly = OncePerPeriod(_HOUR_S)
        self.detector = Detector("exposures")
        self.evidence = EventEvidence("exposures")
        self.largest = 0.0
        """The largest evidence so far, ln."""

    def add(self, unit: Hashes, at: F64, hit: Mask, arm: Arm) -> None:
        """Exposures of any arms: equally long arrays. After two hours, an hour is closed."""
        here = np.flatnonzero((arm == 0) | (arm == self._treatment))
        unit, at, hit, arm = unit[here], at[here], hit[here], (arm[here] != 0).astype(np.int8)
        if not len(unit):
            return
        hour = (at // _HOUR_S).astype(np.int64)
        latest = max([int(hour.max()), *self._open])
        for number in (latest - 1, latest):
            rows = hour == number
            seen = self._open.setdefault(number, FirstSeen(arms=2))
            seen.add(unit[rows], at[rows], np.where(hit[rows], 0, 1).astype(np.int32), arm[rows])
        for number in [number for number in self._open if number < latest - 1]:
            self._closed = self._closed + _table(self._open.pop(number))
        hits, misses = self._sums()[:, 1].tolist()
        self.evidence.restore({"counts": [(self._max_rate, hits, misses)], "largest": 0.0})
        self.largest = max(self.largest, self.evidence.ln_e)
        treated = np.flatnonzero(arm == 1)
        rows_ = treated[self._hourly.new(unit[treated], at[treated])]
        self.detector.add(hit[rows_], np.full(len(rows_), self._max_rate))

    def _sums(self) -> Ints:
        return self._closed + sum((_table(seen) for seen in self._open.values()), np.zeros((2, 2), np.int64))

    def rate(self, arm: int) -> float | None:
        """Trials with the event by trials: of the latest two hours if there are enough, else of the whole run."""
        recent = self._sums() - self._closed
        hits, misses = (recent if recent[:, 0].sum() >= _ENOUGH_TRIALS else self._sums())[:, arm].tolist()
        return hits / (hits + misses) if hits + misses else None

    @property
    def control_exceeds(self) -> bool:
        """Whether control itself exceeds the limit."""
        return (self.rate(0) or 0.0) > self._max_rate

    def detectable(self, threshold: float) -> float | None:
        """The smallest rate that would have been detected by now."""
        return self.evidence.detectable(self._max_rate, threshold)


def _table(seen: FirstSeen) -> Ints:
    counts = np.zeros((2, 2), np.int64)
    counts[: len(seen.counts)] = seen.counts
    return counts
