"""Absolute limits: an event may happen to at most a given share of the treatment's exposures.

A unit that always fails says no more about the others on its second day than on its first. So a trial is the first
exposure of each unit, in the run or since a start of the detector; and, in tests of their own, each unit's first
exposure after 1 earlier turn, after 2 or 3, after 4 to 7 and so on: what never happens at first may happen later.
Whether control itself keeps the limit is judged by the first exposure of each unit in each hour, too, since that is
about the present.
"""

import math

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.evidence.arrays import Hashes, Ints, Mask
from app.experiments.analysis.evidence.first_seen import FirstSeen
from app.experiments.analysis.watch.events import MAX_UNITS, UnitDetector
from app.experiments.columns import F64, U16
from app.experiments.statistics.events import LN_SECOND, EventEvidence, share_of_start

_HOUR_S = 3600.0

_ENOUGH_TRIALS = 20
"""The number of trials from which control's present rate is that of its latest two hours alone."""

_WHOLE_RUN = _HOURS = math.log(0.5)
"""The share, ln, of the error rate of what is said of control: half by the whole run, half by all hours together."""

Arm = NDArray[np.int8]


class Trials:
    """The trials of control and of one treatment. `alpha`: the error rate of what is said of either."""

    def __init__(self, max_rate: float, treatment: int, alpha: float) -> None:
        self._max_rate = max_rate
        self._treatment = treatment
        self._control = _Control(max_rate, alpha)
        self._first = _FirstTrials(max_rate)
        self._later: dict[int, _FirstTrials] = {}
        """By the number of binary digits of the earlier turns."""
        self.detector = UnitDetector("exposures")
        self.largest = 0.0
        """The largest evidence so far, ln: it alarms at `alarm_at`."""

    def add(self, unit: Hashes, at: F64, hit: Mask, arm: Arm, turn: U16 | None) -> None:
        """Exposures of any arms: equally long arrays. `turn`: earlier turns of the conversation, if they are known."""
        control, treated = arm == 0, arm == self._treatment
        self._control.add(unit[control], at[control], hit[control])
        if not treated.any():
            return
        unit, at, hit = unit[treated], at[treated], hit[treated]
        self._first.add(unit, at, hit)
        if turn is not None:
            self._add_later(unit, at, hit, turn[treated])
        self.largest = max(self.largest, self.ln_e)
        self.detector.add(unit, at, hit, np.full(len(unit), self._max_rate))

    def _add_later(self, unit: Hashes, at: F64, hit: Mask, turn: U16) -> None:
        digits = np.frexp(turn.astype(np.float64))[1]
        for number in np.unique(digits[turn > 0]).tolist():
            rows = digits == number
            self._later.setdefault(number, _FirstTrials(self._max_rate)).add(unit[rows], at[rows], hit[rows])

    @property
    def evidence(self) -> EventEvidence:
        """The evidence of the first exposures."""
        return self._first.evidence

    @property
    def ln_e(self) -> float:
        """The evidence now, ln, of the turns for which it is largest in proportion to their share of alpha."""
        later = (trials.evidence.ln_e + LN_SECOND - number * math.log(2) for number, trials in self._later.items())
        return max(self.evidence.ln_e, *later) if self._later else self.evidence.ln_e

    @property
    def control_rate(self) -> float | None:
        """Control's trials with the event by its trials, at present; None before there are any."""
        return self._control.rate

    @property
    def control_is_above(self) -> bool:
        """Whether control's present rate is above the limit, which may be chance."""
        return (self.control_rate or 0.0) > self._max_rate

    @property
    def control_exceeds(self) -> bool:
        """Whether control itself exceeds the limit. Where it keeps it, that is ever said with probability at most
        `alpha`.
        """
        return self.control_is_above and self._control.exceeds

    def detectable(self, threshold: float) -> float | None:
        """The smallest rate that would have been detected by now."""
        return self.evidence.detectable(self._max_rate, threshold)


class _FirstTrials:
    """Each unit's first exposure."""

    def __init__(self, max_rate: float, max_units: int = MAX_UNITS) -> None:
        self._max_rate = max_rate
        self._seen = FirstSeen(arms=1, max_units=max_units)
        self.evidence = EventEvidence("exposures")

    def add(self, unit: Hashes, at: F64, hit: Mask) -> None:
        """Exposures: equally long arrays."""
        self._seen.add(unit, at, np.where(hit, 0, 1).astype(np.int32), np.zeros(len(unit), np.int8))
        hits, misses = self.table.tolist()
        self.evidence.restore({"counts": [(self._max_rate, hits, misses)], "largest": 0.0})

    @property
    def table(self) -> Ints:
        """Units with the event at that exposure, and without."""
        counts = np.zeros(2, np.int64)
        counts[: len(self._seen.counts)] = self._seen.counts[:, 0]
        return counts


class _Control:
    """Control's trials: the first exposure of each unit in the run, and in each hour. After two hours, an hour is
    closed.
    """

    def __init__(self, max_rate: float, alpha: float) -> None:
        self._max_rate, self._threshold = max_rate, -math.log(alpha)
        self._run = _FirstTrials(max_rate)
        self._open: dict[int, _FirstTrials] = {}
        self._closed: Ints = np.zeros(2, np.int64)
        self._since: int | None = None

    def add(self, unit: Hashes, at: F64, hit: Mask) -> None:
        """Exposures: equally long arrays."""
        if not len(unit):
            return
        self._run.add(unit, at, hit)
        hour = (at // _HOUR_S).astype(np.int64)
        self._since = int(hour.min()) if self._since is None else self._since
        latest = max([int(hour.max()), *self._open])
        for number in (latest - 1, latest):
            rows = hour == number
            if rows.any():
                self._open.setdefault(number, _FirstTrials(self._max_rate)).add(unit[rows], at[rows], hit[rows])
        for number in [number for number in self._open if number < latest - 1]:
            self._closed = self._closed + self._open.pop(number).table

    @property
    def rate(self) -> float | None:
        """The share with the event: of the latest two hours if there are enough, else of the whole run."""
        recent = sum((trials.table for trials in self._open.values()), np.zeros(2, np.int64))
        hits, misses = (recent if recent.sum() >= _ENOUGH_TRIALS else recent + self._closed).tolist()
        return hits / (hits + misses) if hits + misses else None

    @property
    def exceeds(self) -> bool:
        """Whether the run, or one of the latest two hours, is evidence that the rate is above the limit."""
        found = [self._run.evidence.ln_e + _WHOLE_RUN]
        for number, trials in self._open.items():
            start = max(number - (self._since or 0), 0) + 1
            found.append(trials.evidence.ln_e + _HOURS + share_of_start(start))
        return max(found) >= self._threshold
