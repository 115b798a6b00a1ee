"""Feedback: scores that come hours after the answer.

Arms may differ in how fast their users score. So an exposure counts for a metric once its window is over, with the
score that it has by then, or with none. Later scores are counted as late and change nothing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.config.experiments import FeedbackSettings
from app.experiments.analysis.arrays import Floats, Growing, Hashes, HashIndex, Ints, combined
from app.experiments.storage.columns import I32, RowColumns
from app.exposures.wire import FeedbackItem

MAX_PENDING = 5_000_000
"""Exposures, about 150 bytes each. Above, the oldest ones count at once, without waiting for a score."""

GRACE_S = 5.0
"""The longest time that a score takes from the router to the controller."""

UNKNOWN_S = 60.0
"""The time for which a score of an unknown answer is kept: its request may still run."""

_MAX_WAITING = 100_000
_MAX_ENDED = 1_000_000
"""Keys of exposures whose windows are over, in each of two generations: a score of one of them is late, and of another
unknown. Four for each exposure."""

Match = Literal["waiting", "late", "unknown"]
"""What a score belongs to: an exposure that waits for it, one whose window is over, or none that is remembered."""


class MaturedExposures(NamedTuple):
    """Exposures whose window is over, for one metric: equally long arrays."""

    unit: Hashes
    stratum: I32
    arm: NDArray[np.int8]
    value: Floats
    """NaN where no score came."""


class _WaitingScore(NamedTuple):
    item: FeedbackItem
    arrived: float


class PendingFeedback:
    """Exposures that may still be scored, by request and by answer."""

    def __init__(self, metrics: Mapping[str, FeedbackSettings], max_pending: int = MAX_PENDING) -> None:
        self._metrics = list(metrics)
        self._windows = [metrics[name].window_s for name in self._metrics]
        self._max = max_pending
        self._keys = HashIndex()
        self._latest = Growing(np.int64)
        """The latest exposure of each key, by position in `_keys`."""
        self._at = Growing(np.float64)
        self._arrived = Growing(np.float64)
        self._unit = Growing(np.uint64)
        self._caller = Growing(np.uint64)
        self._request = Growing(np.uint64)
        self._answer = Growing(np.uint64)
        self._stratum = Growing(np.int32)
        self._arm = Growing(np.int8)
        self._open = Growing(np.bool_, len(self._metrics))
        self._value = Growing(np.float64, len(self._metrics))
        self._scored_at = Growing(np.float64, len(self._metrics))
        self._waiting: list[_WaitingScore] = []
        self._ended, self._ended_before = HashIndex(), HashIndex()
        """Keys of exposures that were forgotten, by caller and for managers."""
        self.late = 0
        """Scores that came after their window."""
        self.unmatched = 0
        """Scores of no answer that is remembered: unknown, or another caller's."""

    def __len__(self) -> int:
        return len(self._at)

    def add_rows(self, rows: RowColumns, stratum: I32, arm: NDArray[np.int8]) -> None:
        """Analysed exposures."""
        if not self._metrics or not len(rows):
            return
        start = len(self)
        for column, values in (
            (self._at, rows.at),
            (self._arrived, rows.arrived),
            (self._unit, rows.unit),
            (self._caller, rows.caller),
            (self._request, rows.request),
            (self._answer, rows.answer),
            (self._stratum, stratum),
            (self._arm, arm),
        ):
            column.append(values)
        for table, filled in ((self._open, True), (self._value, np.nan), (self._scored_at, -np.inf)):
            table.append(np.full((len(rows), len(self._metrics)), filled))
        self._index(np.arange(start, start + len(rows)))

    def _index(self, exposures: Ints) -> None:
        """Indexes exposures by the request of their caller, by the request, and by the answer."""
        request, answer = self._request.values[exposures], self._answer.values[exposures]
        keys = np.concatenate([_of_caller(request, self._caller.values[exposures]), request, answer])
        which = np.tile(exposures, 3)
        keys, which = keys[keys != 0], which[keys != 0]
        order = np.lexsort((which, self._at.values[which], keys))
        keys, which = keys[order], which[order]
        last = np.ones(len(keys), np.bool_)
        last[:-1] = keys[1:] != keys[:-1]
        keys, which = keys[last], which[last]
        known = len(self._keys)
        position = self._keys.add(keys)
        self._latest.resize(len(self._keys))
        before = np.where(position < known, self._latest.values[position], which)
        later = self._at.values[before] <= self._at.values[which]
        self._latest.values[position[later]] = which[later]

    def add(self, items: Sequence[FeedbackItem], arrived: Sequence[float] | None = None) -> None:
        """Scores, in any order. They count when their exposure is known. `arrived`: the time at which the controller
        took each, in Unix seconds; by default, or where it is NaN, that of the score itself.
        """
        times = [item.at for item in items] if arrived is None else arrived
        self._waiting += [
            _WaitingScore(item, item.at if math.isnan(at) else at)
            for item, at in zip(items, times, strict=True)
            if item.metric in self._metrics
        ]
        self.unmatched += max(0, len(self._waiting) - _MAX_WAITING)
        self._waiting = self._waiting[-_MAX_WAITING:]

    def mature(self, now: float) -> dict[str, MaturedExposures]:
        """Exposures whose window has ended since the last call, by metric."""
        self._match(now)
        at, matured = self._at.values, dict[str, MaturedExposures]()
        too_many = len(self) - self._max
        for column, (name, window) in enumerate(zip(self._metrics, self._windows, strict=True)):
            ripe = at + window + GRACE_S <= now
            if too_many > 0:
                ripe[np.argsort(at, kind="stable")[:too_many]] = True
            rows = np.flatnonzero(ripe & self._open.values[:, column])
            self._open.values[rows, column] = False
            matured[name] = MaturedExposures(
                self._unit.values[rows],
                self._stratum.values[rows],
                self._arm.values[rows],
                self._value.values[rows, column],
            )
        self._forget()
        return matured

    def _match(self, now: float) -> None:
        """Gives scores to their exposures. Of several scores of one exposure, the last one counts.

        What becomes of a score follows from the times at which it and its exposure arrived, whenever this is called: a
        report that is made again counts the same.
        """
        waiting = sorted(self._waiting, key=lambda score: (score.item.at, score.item.value))
        self._waiting = []
        for score, row in zip(waiting, self._rows_of([_who(score.item) for score in waiting]), strict=True):
            ends = score.arrived + UNKNOWN_S
            if row >= 0 and not self._arrived.values[row] > ends:  # NaN: not known
                self._score(row, *score)
            elif row < 0 and self._has_ended(score.item):
                self.late += 1
            elif row >= 0 or now > ends:
                self.unmatched += 1
            else:
                self._waiting.append(score)

    def _score(self, row: int, item: FeedbackItem, arrived: float) -> None:
        column = self._metrics.index(item.metric)
        end = self._at.values[row] + self._windows[column]
        # An exposure that itself came later counts with the scores that came with it.
        on_time = item.at <= end and arrived <= max(end + GRACE_S, float(self._arrived.values[row]))
        if not on_time or not self._open.values[row, column]:
            self.late += 1
        elif item.at >= self._scored_at.values[row, column]:
            self._scored_at.values[row, column] = item.at
            self._value.values[row, column] = item.value

    def matches(self, items: Sequence[FeedbackItem]) -> list[Match]:
        """What each score belongs to; scores of metrics that are not compared to nothing."""
        return [self._match_of(item, row) for item, row in zip(items, self._rows_of([*map(_who, items)]), strict=True)]

    def _match_of(self, item: FeedbackItem, row: int) -> Match:
        if item.metric not in self._metrics:
            return "unknown"
        if row < 0:
            return "late" if self._has_ended(item) else "unknown"
        column = self._metrics.index(item.metric)
        in_time = item.at <= self._at.values[row] + self._windows[column] and self._open.values[row, column]
        return "waiting" if in_time else "late"

    def _has_ended(self, item: FeedbackItem) -> bool:
        key = np.array([item.request], np.uint64)
        if item.caller:
            key = _of_caller(key, np.array([item.caller], np.uint64))
        return any(ended.find(key)[0] >= 0 for ended in (self._ended, self._ended_before))

    def _rows_of(self, scored: Sequence[tuple[int, int]]) -> list[int]:
        """The index of each (request, caller)'s exposure; -1 if it is unknown, or another caller's."""
        if not scored or not len(self):
            return [-1] * len(scored)
        request, caller = np.array(scored, np.uint64).T
        rows = np.full(len(scored), -1, np.int64)
        for keys in (request, _of_caller(request, caller)):  # the caller's own request id comes first, so it is last
            position = self._keys.find(keys)
            row = self._latest.values[np.maximum(position, 0)]
            mine = (position >= 0) & ((caller == 0) | (caller == self._caller.values[row]))
            rows = np.where(mine, row, rows)
        return [int(row) for row in rows]

    def _forget(self) -> None:
        """Drops the exposures that count already, once they are half of all."""
        waiting = np.asarray(self._open.values.any(axis=1))
        if 2 * int(waiting.sum()) > len(waiting) or waiting.all():
            return
        self._remember_ended(np.flatnonzero(~waiting))
        for column in (
            *(self._at, self._arrived, self._unit, self._caller, self._request, self._answer, self._stratum, self._arm),
            *(self._open, self._value, self._scored_at),
        ):
            column.keep(waiting)
        self._keys, self._latest = HashIndex(), Growing(np.int64)
        self._index(np.arange(len(self)))

    def _remember_ended(self, exposures: Ints) -> None:
        """Keeps the keys of exposures that are dropped, up to a bound."""
        request, answer = self._request.values[exposures], self._answer.values[exposures]
        caller = self._caller.values[exposures]
        keys = np.unique(np.concatenate([request, answer, _of_caller(request, caller), _of_caller(answer, caller)]))
        if len(self._ended) + len(keys) > _MAX_ENDED:
            self._ended, self._ended_before = HashIndex(), self._ended
        self._ended.add(keys[keys != 0])


def _who(item: FeedbackItem) -> tuple[int, int]:
    return item.request, item.caller


def _of_caller(request: Hashes, caller: Hashes) -> Hashes:
    return combined(request, caller.view(np.int64))
