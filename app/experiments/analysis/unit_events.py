"""Events of units, which count once per unit: `app.experiments.statistics.events` has the mathematics.

- Relative limits: only the arm of an event's unit matters.
- Trials of units, each of which counts once, from whatever moment on: a detector of what a long healthy past hides.
- The trials of absolute limits: whether an event happens to more than a given share of the treatment's exposures, while
  control keeps that limit.
"""

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.arrays import FirstSeen, Floats, Growing, Hashes, HashIndex, Ints, Mask, grouped
from app.experiments.analysis.witnesses import PARTS, UNBOUNDED, Part, without
from app.experiments.contract.report import Effect
from app.experiments.statistics.events import (
    LN_SECOND,
    Detector,
    EventEvidence,
    Trials,
    chance,
    share_of_start,
    two_sided,
)
from app.experiments.storage.columns import F64, I32, U16

MAX_UNITS = 2_000_000
"""Units with an event of one kind. Above, half of them are dropped, by hash: the rest suffices for any effect of
interest.
"""

_LARGEST_RATIO = 1e4
_HALVINGS = 40


class Counted(Protocol):
    """What is known of units."""

    @property
    def counts(self) -> Ints:
        """By group and arm."""

    @property
    def share(self) -> float:
        """The share of units that is counted."""


class CountsThen(NamedTuple):
    """`Counted` at some time."""

    counts: Ints
    share: float


class EventCounts:
    """Units with the event, of control and one treatment, and what follows from their numbers."""

    def __init__(self, treatment: int, counted: Counted, parts: int = 1) -> None:
        """`counted`: by set of weights and part of callers (see `witnesses`), and by arm."""
        self._treatment, self._counted, self._parts = treatment, counted, parts

    @property
    def units(self) -> tuple[int, int]:
        """Units with the event, on control and on the treatment."""
        control, treated = self._counted.counts.sum(axis=0).tolist()
        return round(control / self._counted.share), round(treated / self._counted.share)

    @property
    def table(self) -> Ints:
        """Units by set of weights, part, and arm (control, the treatment)."""
        counts = self._counted.counts
        sets = -(-len(counts) // self._parts)
        padded = np.zeros((sets * self._parts, 2), np.int64)
        padded[: len(counts)] = counts
        return padded.reshape(sets, self._parts, 2)

    def more(self, weights: Ints, r0: float, busier: Floats | None = None, table: Ints | None = None) -> EventEvidence:
        """The evidence that the treatment's rate is more than `r0` times control's. `weights` as in `Arms`; `busier` as
        in `AtRisk`. `table`: the units that count, by set of weights and arm, if not all do.
        """
        w_c, w_t, control, treated = self._counts(weights, table)
        return _evidence(treated, control, chance(w_t if busier is None else w_t * busier[: len(w_t)], w_c, r0))

    def less(self, weights: Ints, r0: float, table: Ints | None = None) -> EventEvidence:
        """The evidence that the treatment's rate is less than `r0` times control's."""
        w_c, w_t, control, treated = self._counts(weights, table)
        return _evidence(control, treated, chance(w_c, w_t, 1 / r0))

    def difference(self, weights: Ints) -> float:
        """ln of the e-value against "the same rate"."""
        return two_sided(self.more(weights, 1.0).log_e_value, self.less(weights, 1.0).log_e_value)

    def lift(self, weights: Ints, alpha: float, unknown: tuple[int, int] = (0, 0)) -> Effect:
        """The treatment's rate over control's, less 1, with its confidence sequence. `unknown`: further units of
        control and of the treatment that may have the event.

        It is exact at every look. The upper bound is None where every larger ratio is possible.
        """
        target = math.log(2 / alpha)

        def proven(ratio: float, arm: int) -> bool:
            """Whether the other arm's rate is more than `ratio` times that of `arm`, also with its unknown units."""
            tables = self._with(unknown[arm], arm, weights)
            if arm == 0:
                return all(self.more(weights, ratio, table=table).log_e_value >= target for table in tables)
            return all(self.less(weights, 1 / ratio, table).log_e_value >= target for table in tables)

        lower, upper = _crossing(lambda ratio: proven(ratio, 0)), _crossing(lambda ratio: proven(ratio, 1))
        return Effect(
            estimate=self._estimate(weights),
            lower=-1.0 if lower is None else lower - 1,
            upper=None if upper is None else 1 / upper - 1,
        )

    def _with(self, unknown: int, arm: int, weights: Ints) -> Iterator[Ints]:
        """Units by set of weights and arm, with so many more of an arm: one table for each set that they may be of."""
        known = self.table.sum(axis=1)
        if not unknown:
            yield known
            return
        table = np.zeros((len(weights), 2), np.int64)
        table[: len(known)] = known
        for place in np.flatnonzero((weights[:, 0] > 0) & (weights[:, self._treatment] > 0)):
            more = table.copy()
            more[place, arm] += unknown
            yield more

    def _estimate(self, weights: Ints) -> float | None:
        """The ratio of the largest likelihood, less 1."""
        w_c, w_t, control, treated = self._counts(weights)
        counts = (w_c > 0) & (w_t > 0)
        w_c, w_t, control, treated = w_c[counts], w_t[counts], control[counts], treated[counts]
        if not control.sum():
            return None
        if not treated.sum():
            return -1.0
        both = control + treated
        ratio = _crossing(lambda r: float(treated.sum() - both @ (w_t * r / (w_t * r + w_c))) >= 0)
        return None if ratio is None else ratio - 1

    def _counts(self, weights: Ints, table: Ints | None = None) -> tuple[Floats, Floats, Floats, Floats]:
        """Weights and units, of control and the treatment, per set of weights."""
        counts = self.table.sum(axis=1) if table is None else table
        known = weights[: len(counts)].astype(np.float64)
        return known[:, 0], known[:, self._treatment], counts[:, 0].astype(float), counts[:, 1].astype(float)


class UnitEvents(EventCounts):
    """The first event of each unit, of control and one treatment."""

    def __init__(self, treatment: int, parts: int = 1) -> None:
        self._first = FirstSeen(arms=2, max_units=MAX_UNITS)
        super().__init__(treatment, self._first, parts)

    def add(self, unit: Hashes, at: F64, weights: I32, arm: NDArray[np.int8], part: Part | None = None) -> bool:
        """Events of any arms: equally long arrays, `weights` and `arm` as in `Arms`. False if none counts here."""
        here = (arm == 0) | (arm == self._treatment)
        if here.any():
            group = weights * np.int32(self._parts) + (0 if part is None else part)
            self._first.add(unit[here], at[here], group[here].astype(np.int32), (arm[here] != 0).astype(np.int8))
        return bool(here.any())

    def at_present(self) -> EventCounts:
        """What is known now, whatever is added later."""
        return EventCounts(self._treatment, CountsThen(self._first.counts.copy(), self._first.share), self._parts)


def _evidence(hits: Floats, misses: Floats, p0: Floats) -> EventEvidence:
    evidence = EventEvidence()
    sums: dict[float, tuple[int, int]] = {}
    for hit, miss, chance_ in zip(hits.tolist(), misses.tolist(), p0.tolist(), strict=True):
        if 0 < chance_ < 1:
            before = sums.get(chance_, (0, 0))
            sums[chance_] = (before[0] + int(hit), before[1] + int(miss))
    evidence.restore({"counts": [(value, *pair) for value, pair in sums.items()], "largest": 0.0})
    return evidence


def _crossing(holds: Callable[[float], bool]) -> float | None:
    """The largest ratio for which a condition holds that holds for every smaller one; None if for no ratio."""
    low, high = 1 / _LARGEST_RATIO, _LARGEST_RATIO
    if not holds(low):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


Arm = NDArray[np.int8]

_LEAST_KEPT = 4096


class UnitDetector:
    """A detector of trials of units: `app.experiments.statistics.events` has the mathematics."""

    def __init__(self, trials: Trials = "events") -> None:
        self._detector = Detector(trials)
        self._taken = 0
        self.units = HashIndex()
        self._at = Growing(np.float64)
        self._number = Growing(np.int64)
        """Of each unit's latest trial: its time, and its number, counted from 1."""
        self._kept = _LEAST_KEPT

    def add(self, unit: Hashes, at: F64, hit: Mask, p0: Floats) -> None:
        """Trials, in the order in which they came: equally long arrays, `hit` and `p0` as in `Detector`.

        Records of one unit with the same time are of one request, which counts once.
        """
        order = np.lexsort((at, unit))
        again = np.zeros(len(unit), np.bool_)
        again[order[1:]] = (unit[order[1:]] == unit[order[:-1]]) & (at[order[1:]] == at[order[:-1]])
        position = self.units.find(unit)
        known = np.flatnonzero(position >= 0)
        again[known] |= self._at.values[position[known]] == at[known]
        rows = np.flatnonzero(~again)
        if len(rows):
            self._detector.add(hit[rows], p0[rows], self._follow(unit[rows], at[rows]))
            self._forget()

    def _follow(self, unit: Hashes, at: F64) -> Ints:
        """Takes up trials; returns the number of each unit's trial before, 0 if there is none."""
        order, starts = grouped(unit)
        position = self.units.add(unit[order[starts]])
        for column in (self._at, self._number):
            column.resize(len(self.units))
        numbers = self._taken + 1 + np.arange(len(unit))
        before = np.empty(len(unit), np.int64)
        before[order[1:]] = numbers[order[:-1]]
        before[order[starts]] = self._number.values[position]
        last = order[np.append(starts[1:], len(unit)) - 1]
        self._at.values[position], self._number.values[position] = at[last], numbers[last]
        self._taken += len(unit)
        return before

    def _forget(self) -> None:
        """Forgets units whose latest trial no living start counts, once they may be many."""
        if len(self.units) > self._kept:
            kept = np.flatnonzero(self._number.values > self._detector.oldest)
            self.units.keep(kept)
            for column in (self._at, self._number):
                column.keep(kept)
            self._kept = max(_LEAST_KEPT, 2 * len(kept))

    @property
    def log_e_value(self) -> float:
        """The evidence now, ln."""
        return self._detector.log_e_value

    @property
    def largest(self) -> float:
        """The largest evidence so far, ln: it alarms at `alarm_at`."""
        return self._detector.largest


class Course:
    """The largest evidence of a whole run so far, and the detector beside it."""

    def __init__(self, trials: Trials = "events") -> None:
        self.largest = 0.0
        """ln: it alarms at `alarm_at`."""
        self.detector = UnitDetector(trials)

    def add(self, log_e_value: float, unit: Hashes, at: F64, hit: Mask, p0: Floats) -> None:
        """Trials, as in `UnitDetector`, after which the evidence of the whole run is `log_e_value`."""
        self.largest = max(self.largest, log_e_value)
        self.detector.add(unit, at, hit, p0)

    @property
    def top(self) -> float:
        """The largest evidence of both, ln."""
        return max(self.largest, self.detector.largest)


# Absolute limits. A unit that always fails says no more about the others on its second day than on its first. So a
# trial is the first exposure of each unit, in the run or since a start of the detector; and, in tests of their own,
# each unit's first exposure after 1 earlier turn, after 2 or 3, after 4 to 7 and so on: what never happens at first may
# happen later.
#
# What fails on control, too, says nothing about the treatment. An exposure of the treatment is no trial if control is
# above the limit, or had the event at its latest exposure. Control's rate is that of each unit's first exposure in each
# of the latest two hours; an outage of minutes moves that too late, so the last exposures of its latest units are a
# rate, too. An outage may hit many of the treatment's exposures before any of control's. So the first two that follow
# one of control's are trials at once, and the others only if control's next one has not the event. The arms' requests
# do not depend on each other, so what is left out by what happens to control leaves the e-process one.

_HOUR_S = 3600.0

_ENOUGH_TRIALS = 20
"""The number of trials from which control's present rate is that of its latest two hours alone; and of latest units."""

_AT_ONCE = 2
"""The number of the treatment's exposures that are trials before control's next one is known."""

_PATIENCE_S = 60.0
"""How long the others wait for it, in the time in which records come."""

_WHOLE_RUN = _HOURS = math.log(0.5)
"""The share, ln, of the error rate of what is said of control: half by the whole run, half by all hours together."""


class UnitExposures(NamedTuple):
    """Exposures in the order in which they came: equally long arrays."""

    unit: Hashes
    at: F64
    hit: Mask
    turn: U16
    """Earlier turns of the conversation; 0 if they are not known."""
    came: F64
    """When its record came, in Unix seconds."""
    part: Part
    provokable: Mask
    """As in `witnesses`."""

    def take(self, rows: Mask) -> "UnitExposures":
        """These exposures only."""
        return UnitExposures._make(column[rows] for column in self)

    def then(self, later: "UnitExposures") -> "UnitExposures":
        """These exposures, and then those."""
        pairs: Any = zip(self, later, strict=True)
        return UnitExposures._make(np.concatenate(pair) for pair in pairs)


_NONE = UnitExposures(
    *(np.zeros(0, np.uint64), np.zeros(0), np.zeros(0, np.bool_), np.zeros(0, np.uint16), np.zeros(0)),
    *(np.zeros(0, np.int8), np.zeros(0, np.bool_)),
)


class UnitTrials:
    """The trials of control and of one treatment. `alpha`: the error rate of what is said of either."""

    def __init__(self, max_rate: float, treatment: int, alpha: float) -> None:
        self._max_rate = max_rate
        self._treatment = treatment
        self._control = _Control(max_rate, alpha)
        self._waiting = _NONE
        """The treatment's exposures that wait for control's next one."""
        self._followed = 0
        """How many of its exposures have followed control's latest one, at most `_AT_ONCE`."""
        self._turns: dict[int, tuple[_FirstTrials, _FirstTrials]] = {
            0: (_FirstTrials(max_rate), _FirstTrials(max_rate))
        }
        """By the number of binary digits of the earlier turns, 0 for all: the exposures, and those of them that are
        in a part and were not provoked.
        """
        self.course = Course("exposures")
        self.others: dict[int, Course] = {}
        """The same without what the callers of a part can have provoked, by this part."""

    def add(self, exposures: UnitExposures, arm: Arm) -> None:
        """Exposures of any arms, in any batches."""
        of_control = exposures.take(arm == 0)
        fails = np.append(self._control.fails, self._control.add(of_control))
        treated = arm == self._treatment
        its = self._waiting.then(exposures.take(treated))
        since = np.append(np.zeros(len(self._waiting.unit), np.int64), np.cumsum(arm == 0)[treated])  # control's before
        first, end = (np.searchsorted(since, since, side) for side in ("left", "right"))
        number = np.arange(len(since)) - first + np.where(since == 0, self._followed, 0)
        at_once = (number < _AT_ONCE) | (its.came[end - 1] - its.came > _PATIENCE_S)
        is_last = since == len(of_control.unit)
        waits = is_last & ~at_once & ~fails[since]
        next_had = np.append(of_control.hit, False)[since]
        self._waiting = its.take(waits)
        followed = int(is_last.sum()) + (self._followed if len(fails) == 1 else 0)
        self._followed = min(_AT_ONCE, followed)
        self._count(its.take(~fails[since] & ~waits & (at_once | ~next_had)))

    def _count(self, trials: UnitExposures) -> None:
        if not len(trials.unit):
            return
        for part in np.unique(trials.part[trials.provokable]).tolist():
            self.others.setdefault(part, deepcopy(self.course))
        digits = np.where(trials.turn > 0, np.frexp(trials.turn.astype(np.float64))[1], 0)
        for number in (0, *np.unique(digits[digits > 0]).tolist()):
            new = (_FirstTrials(self._max_rate), _FirstTrials(self._max_rate))
            every, sure = self._turns.setdefault(number, new)
            its = trials if number == 0 else trials.take(digits == number)
            every.add(its)
            sure.add(its.take((its.part != UNBOUNDED) & ~its.provokable))
        p0 = np.full(len(trials.unit), self._max_rate)
        self.course.add(self.log_e_value, trials.unit, trials.at, trials.hit, p0)
        for part, course in self.others.items():
            own = (trials.part != part) | ~trials.provokable
            course.add(self._log_e_value(part), trials.unit[own], trials.at[own], trials.hit[own], p0[own])

    @property
    def evidence(self) -> EventEvidence:
        """The evidence of the first exposures."""
        return self._evidence(0)

    def _evidence(self, turns: int, left_out: int | None = None) -> EventEvidence:
        every, sure = self._turns[turns]
        table = (
            every.table.sum(axis=0) if left_out is None else without(every.table[None], sure.table[None], left_out)[0]
        )
        return _evidence_of(table, self._max_rate)

    @property
    def log_e_value(self) -> float:
        """The evidence now, ln, of the turns for which it is largest in proportion to their share of alpha."""
        return self._log_e_value(None)

    def _log_e_value(self, left_out: int | None) -> float:
        return max(
            self._evidence(number, left_out).log_e_value + (LN_SECOND - number * math.log(2) if number else 0.0)
            for number in self._turns
        )

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

    def __init__(self, max_rate: float) -> None:
        self._max_rate = max_rate
        self._seen = FirstSeen(arms=2, max_units=MAX_UNITS)
        self.table: Ints = np.zeros((PARTS + 1, 2), np.int64)
        """Exposures with the event, and without, by part."""

    def add(self, exposures: UnitExposures) -> None:
        """Exposures of any parts."""
        part = exposures.part.astype(np.int32)
        self._seen.add(exposures.unit, exposures.at, part, np.where(exposures.hit, 0, 1).astype(np.int8))
        self.table[: len(self._seen.counts)] = self._seen.counts

    @property
    def evidence(self) -> EventEvidence:
        """The evidence of all parts."""
        return _evidence_of(self.table.sum(axis=0), self._max_rate)


def _evidence_of(table: Ints, max_rate: float) -> EventEvidence:
    """The evidence of exposures with the event, and without."""
    evidence = EventEvidence("exposures")
    hits, misses = table.tolist()
    evidence.restore({"counts": [(max_rate, hits, misses)], "largest": 0.0})
    return evidence


class _Control:
    """Control's exposures: the first of each unit in the run, the first in each hour, and the last of each of the
    latest units. Hours are those in which records came; after two, an hour is closed.
    """

    def __init__(self, max_rate: float, alpha: float) -> None:
        self._max_rate, self._threshold = max_rate, -math.log(alpha)
        self._run = _FirstTrials(max_rate)
        self._open: dict[int, tuple[HashIndex, Ints]] = {}
        """The units of each hour, and how many of them had the event at first, and had not."""
        self._closed: Ints = np.zeros(2, np.int64)
        self._since = 0
        """The first hour."""
        self._latest: dict[int, bool] = {}
        """Whether the latest units had the event at last, the latest one last."""
        self.fails = False
        """What `add` returned last."""

    def add(self, exposures: UnitExposures) -> Mask:
        """Takes up control's exposures. Returns after each whether it had the event, or control is above the limit."""
        unit, hit, came = exposures.unit, exposures.hit, exposures.came
        if not len(unit):
            return np.zeros(0, np.bool_)
        self._run.add(exposures)
        hour = (came // _HOUR_S).astype(np.int64)
        if not self._open:
            self._since = int(hour[0])
        hour = np.maximum.accumulate(np.append(max(self._open, default=self._since), hour))[1:]
        above = [
            self._in_hour(number, unit[hour == number], hit[hour == number]) for number in np.unique(hour).tolist()
        ]
        fails = hit | self._lately(unit, hit) | np.concatenate(above)
        self.fails = bool(fails[-1])
        return fails

    def _in_hour(self, number: int, unit: Hashes, hit: Mask) -> Mask:
        """Whether the rate is above the limit after each exposure of the latest hour."""
        for old in [old for old in self._open if old < number - 1]:
            self._closed = self._closed + self._open.pop(old)[1]
        units, table = self._open.setdefault(number, (HashIndex(), np.zeros(2, np.int64)))
        new = np.sort(np.unique(unit, return_index=True)[1])
        new = new[units.find(unit[new]) < 0]
        units.add(unit[new])
        trials = np.zeros((len(unit), 2), np.int64)
        trials[new, np.where(hit[new], 0, 1)] = 1
        so_far = np.cumsum(trials, axis=0)
        present = self._present(so_far + self._recent)
        table += so_far[-1]
        return np.asarray(present[:, 0] > self._max_rate * present.sum(axis=1), np.bool_)

    def _lately(self, unit: Hashes, hit: Mask) -> Mask:
        """Whether too many of the latest units had the event, after each exposure."""
        latest, most = self._latest, max(1.0, self._max_rate * _ENOUGH_TRIALS)
        hits, above = sum(latest.values()), np.zeros(len(unit), np.bool_)
        for place, (key, had) in enumerate(zip(unit.tolist(), hit.tolist(), strict=True)):
            hits += had - latest.pop(key, False)
            latest[key] = had
            if len(latest) > _ENOUGH_TRIALS:
                hits -= latest.pop(next(iter(latest)))
            above[place] = hits > most
        return above

    @property
    def _recent(self) -> Ints:
        return sum((table for _, table in self._open.values()), np.zeros(2, np.int64))

    def _present(self, recent: Ints) -> Ints:
        """Trials with the event, and without: those of the latest two hours if they are enough, else of all hours."""
        return np.where(recent.sum(axis=-1, keepdims=True) >= _ENOUGH_TRIALS, recent, recent + self._closed)

    @property
    def rate(self) -> float | None:
        """The present share with the event; None before there are trials."""
        hits, misses = self._present(self._recent).tolist()
        return hits / (hits + misses) if hits + misses else None

    @property
    def exceeds(self) -> bool:
        """Whether the run, or one of the latest two hours, is evidence that the rate is above the limit."""
        evidence = [self._run.evidence.log_e_value + _WHOLE_RUN]
        for number, (_, table) in self._open.items():
            start = share_of_start(number - self._since + 1)
            evidence.append(_evidence_of(table, self._max_rate).log_e_value + _HOURS + start)
        return max(evidence) >= self._threshold
