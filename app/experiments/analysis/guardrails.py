"""Guardrails: events whose rate must not rise. An alarm stays.

Every random exposure counts, also in conversations that began under an earlier plan. Which plan drew the arm of such a
conversation is not recorded; it is judged by the one, of those since its unit's first exposure, that gives the
treatment most. That makes an alarm later, never false. Relative limits compare with control; absolute ones test the
treatment alone, and act only while control itself keeps them.

- Events of units: the evidence about a treatment's rate against control's.
- Absolute limits: an event may happen to at most a given share of the treatment's exposures.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from app.config.experiments import Experiment, Guardrail
from app.experiments.analysis.arms import ArmAssignment, Arms
from app.experiments.analysis.arrays import FirstSeen, Floats, Growing, Hashes, HashIndex, Ints, Mask, grouped
from app.experiments.analysis.at_risk import AtRisk, Units
from app.experiments.analysis.metrics import STREAMS_ONLY, happened, late_events, limits_of
from app.experiments.contract.report import Effect, GuardrailStatus
from app.experiments.statistics.events import (
    LN_SECOND,
    Detector,
    EventEvidence,
    Trials,
    alarm_at,
    always_failing_at,
    chance,
    share_of_start,
    two_sided,
)
from app.experiments.storage.columns import F64, I32, U16, OverdueColumns, RowColumns

# An event counts once per unit. Only the arm of its unit matters: `app.experiments.statistics.events` has the
# mathematics.

MAX_UNITS = 2_000_000
"""Units with an event of one kind. Above, half of them are dropped, by hash: the rest suffices for any effect of
interest.
"""

_LARGEST_RATIO = 1e4
_HALVINGS = 40
_LEAST_KEPT = 4096


class UnitEvents:
    """The first event of each unit, of control and one treatment."""

    def __init__(self, treatment: int) -> None:
        self._treatment = treatment
        self._first = FirstSeen(arms=2, max_units=MAX_UNITS)

    def add(self, unit: Hashes, at: F64, weights: I32, arm: NDArray[np.int8]) -> bool:
        """Events of any arms: equally long arrays, `weights` and `arm` as in `Arms`. False if none counts here."""
        here = (arm == 0) | (arm == self._treatment)
        if here.any():
            self._first.add(unit[here], at[here], weights[here], (arm[here] != 0).astype(np.int8))
        return bool(here.any())

    @property
    def units(self) -> tuple[int, int]:
        """Units with the event, on control and on the treatment."""
        control, treated = self._first.counts.sum(axis=0).tolist()
        return round(control / self._first.share), round(treated / self._first.share)

    def more(self, weights: Ints, r0: float, busier: Floats | None = None) -> EventEvidence:
        """The evidence that the treatment's rate is more than `r0` times control's. `weights` as in `Arms`; `busier` as
        in `AtRisk`.
        """
        w_c, w_t, control, treated = self._counts(weights)
        return _evidence(treated, control, chance(w_t if busier is None else w_t * busier[: len(w_t)], w_c, r0))

    def less(self, weights: Ints, r0: float) -> EventEvidence:
        """The evidence that the treatment's rate is less than `r0` times control's."""
        w_c, w_t, control, treated = self._counts(weights)
        return _evidence(control, treated, chance(w_c, w_t, 1 / r0))

    def difference(self, weights: Ints) -> float:
        """ln of the e-value against "the same rate"."""
        return two_sided(self.more(weights, 1.0), self.less(weights, 1.0))

    def lift(self, weights: Ints, alpha: float) -> Effect:
        """The treatment's rate over control's, less 1, with its confidence sequence.

        It is exact at every look. The upper bound is None where every larger ratio is possible.
        """
        target = math.log(2 / alpha)
        lower = _crossing(lambda ratio: self.more(weights, ratio).ln_e >= target)
        upper = _crossing(lambda ratio: self.less(weights, 1 / ratio).ln_e >= target)
        return Effect(
            estimate=self._estimate(weights),
            lower=-1.0 if lower is None else lower - 1,
            upper=None if upper is None else 1 / upper - 1,
        )

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

    def _counts(self, weights: Ints) -> tuple[Floats, Floats, Floats, Floats]:
        """Weights and units, of control and the treatment, per set of weights."""
        counts = self._first.counts
        known = weights[: len(counts)].astype(np.float64)
        return known[:, 0], known[:, self._treatment], counts[:, 0].astype(float), counts[:, 1].astype(float)


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
        """Trials, in about the order in which they happened: equally long arrays, `hit` and `p0` as in `Detector`.

        Records of one unit with the same time are of one request, which counts once.
        """
        order = np.lexsort((unit, at))
        unit, at = unit[order], at[order]
        again = np.zeros(len(unit), np.bool_)
        again[1:] = (unit[1:] == unit[:-1]) & (at[1:] == at[:-1])
        position = self.units.find(unit)
        known = np.flatnonzero(position >= 0)
        again[known] |= self._at.values[position[known]] == at[known]
        rows = order[~again]
        if len(rows):
            self._detector.add(hit[rows], p0[rows], self._follow(unit[~again], at[~again]))
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
    def ln_e(self) -> float:
        """The evidence now, ln."""
        return self._detector.ln_e

    @property
    def largest(self) -> float:
        """The largest evidence so far, ln: it alarms at `alarm_at`."""
        return self._detector.largest


# A unit that always fails says no more about the others on its second day than on its first. So a trial is the first
# exposure of each unit, in the run or since a start of the detector; and, in tests of their own, each unit's first
# exposure after 1 earlier turn, after 2 or 3, after 4 to 7 and so on: what never happens at first may happen later.
# Whether control itself keeps the limit is judged by the first exposure of each unit in each hour, too, since that is
# about the present.

_HOUR_S = 3600.0

_ENOUGH_TRIALS = 20
"""The number of trials from which control's present rate is that of its latest two hours alone."""

_WHOLE_RUN = _HOURS = math.log(0.5)
"""The share, ln, of the error rate of what is said of control: half by the whole run, half by all hours together."""

Arm = NDArray[np.int8]


class UnitTrials:
    """The trials of control and of one treatment. `alpha`: the error rate of what is said of either."""

    def __init__(self, max_rate: float, treatment: int, alpha: float) -> None:
        self._max_rate = max_rate
        self._treatment = treatment
        self._control = _Control(max_rate, alpha)
        self._outage = _Outage(max_rate)
        self._first = _FirstTrials(max_rate)
        self._later: dict[int, _FirstTrials] = {}
        """By the number of binary digits of the earlier turns."""
        self.detector = UnitDetector("exposures")
        self.largest = 0.0
        """The largest evidence so far, ln: it alarms at `alarm_at`."""

    def add(self, unit: Hashes, at: F64, hit: Mask, arm: Arm, turn: U16 | None) -> None:
        """Exposures of any arms: equally long arrays. `turn`: earlier turns of the conversation, if they are known."""
        control = arm == 0
        treated = (arm == self._treatment) & ~self._outage.holds(unit, at, hit, control)
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
        evidence = [self._run.evidence.ln_e + _WHOLE_RUN]
        for number, trials in self._open.items():
            start = max(number - (self._since or 0), 0) + 1
            evidence.append(trials.evidence.ln_e + _HOURS + share_of_start(start))
        return max(evidence) >= self._threshold


class _Outage:
    """Whether control was above the limit when an exposure began: by what had happened to control before it, as
    `_Control.rate` has it, or in its latest trials: an outage of minutes moves the rate of two hours late. What happens
    to the treatment then is no evidence; that nothing after it decides keeps the e-process one.
    """

    def __init__(self, max_rate: float) -> None:
        self._max_rate = max_rate
        self._open: dict[int, tuple[HashIndex, Ints]] = {}
        """Control's units of each hour, and how many of them had the event at first, and had not."""
        self._closed: Ints = np.zeros(2, np.int64)
        self._latest = np.zeros(_ENOUGH_TRIALS, np.int64)
        """Whether each of control's latest trials had the event."""

    def holds(self, unit: Hashes, at: F64, hit: Mask, control: Mask) -> Mask:
        """Takes up exposures of any arms, and returns whether it holds at each: equally long arrays."""
        hour = (at // _HOUR_S).astype(np.int64)
        if self._open:
            hour = np.maximum(hour, max(self._open) - 1)
        order, above = np.lexsort((unit, ~control, at)), np.zeros(len(unit), np.bool_)
        for number in np.unique(hour).tolist():
            rows = order[hour[order] == number]
            above[rows] = self._of_hour(number, unit[rows], hit[rows], control[rows])
        return above

    def _of_hour(self, number: int, unit: Hashes, hit: Mask, control: Mask) -> Mask:
        for old in [old for old in self._open if old < number - 1]:
            self._closed = self._closed + self._open.pop(old)[1]
        units, counts = self._open.setdefault(number, (HashIndex(), np.zeros(2, np.int64)))
        own = np.flatnonzero(control)
        new = own[np.sort(np.unique(unit[own], return_index=True)[1])]
        new = new[units.find(unit[new]) < 0]
        units.add(unit[new])
        is_new = np.zeros(len(unit), np.bool_)
        is_new[new] = True
        so_far = np.cumsum(np.stack([is_new & hit, is_new & ~hit], axis=1), axis=0)
        recent = so_far + sum((table for _, table in self._open.values()), np.zeros(2, np.int64))
        self._open[number] = units, counts + so_far[-1]
        known = np.where(recent.sum(axis=1, keepdims=True) >= _ENOUGH_TRIALS, recent, recent + self._closed)
        latest = np.concatenate([self._latest, hit[new]])
        self._latest = latest[-_ENOUGH_TRIALS:]
        total = np.append(0, np.cumsum(latest))
        hits = (total[_ENOUGH_TRIALS:] - total[:-_ENOUGH_TRIALS])[np.cumsum(is_new)]
        suddenly = (hits > 1) & (hits > self._max_rate * _ENOUGH_TRIALS)
        return np.asarray(suddenly | (known[:, 0] > self._max_rate * known.sum(axis=1)))


MIN_UNITS = 3
"""The number of distinct units that must have had the event on the treatment before an alarm."""
C = TypeVar("C", RowColumns, OverdueColumns)


class GuardrailWatch:
    """One guardrail for one treatment. `at_risk`: of its event, and `of_any`, of any guardrail's; None where every
    request is a unit.
    """

    def __init__(
        self,
        rail: Guardrail,
        treatment: int,
        names: Sequence[str],
        alpha: float,
        at_risk: AtRisk | None = None,
        of_any: "Failing | None" = None,
        *,
        acts: bool,
    ) -> None:
        self.rail = rail
        self.treatment = treatment
        self.threshold = alarm_at(alpha)
        self.alarmed_at: float | None = None
        self._names = (names[0], names[treatment])
        self._action = rail.action if acts else "alert"
        self._events = UnitEvents(treatment)
        self._requests = np.zeros((2, 2), np.int64)
        """Of control and of the treatment: requests that have ended with the event, and all that have ended."""
        self._trials = None if rail.max_rate is None else UnitTrials(rail.max_rate, treatment, alpha)
        self._at_risk, self._of_any = at_risk, of_any
        self._detector = UnitDetector()
        self._largest = 0.0
        self._evidence = EventEvidence()
        self._failing_units = 0

    def add(self, columns: RowColumns | OverdueColumns, hit: Mask, weights: I32, arm: Arm, sets: Ints) -> None:
        """Exposures, of any arms, with whether each had the event. `weights`, `arm` and `sets` as in `Arms`."""
        unit, at, rows = columns.unit, columns.at, isinstance(columns, RowColumns)
        if rows:
            for place, number in enumerate((0, self.treatment)):
                own = arm == number
                self._requests[place] += (int((hit & own).sum()), int(own.sum()))
        if self._trials is not None:
            self._trials.add(unit, at, hit, arm, columns.turn if isinstance(columns, RowColumns) else None)
        is_new = self._events.add(unit[hit], at[hit], weights[hit], arm[hit])
        if self._trials is None and (is_new or (rows and any(self._events.units))):
            self._compare(unit[hit], at[hit], weights[hit], arm[hit], sets)

    def _compare(self, unit: Hashes, at: F64, weights: I32, arm: Arm, sets: Ints) -> None:
        """Compares the rates of the arms. The exposures are those with the event."""
        busier = np.ones(len(sets))
        if self._at_risk is not None:
            known = self._at_risk.busier(self.treatment)
            busier[: len(known)] = known
            _, self._failing_units = self._at_risk.always_failing(self.treatment, sets)
        self._evidence = self._events.more(sets, self.rail.tolerance, busier)
        if len(unit):
            self._largest = max(self._largest, self._evidence.ln_e)
            own = sets[weights, self.treatment] * busier[weights]
            p0 = chance(own, sets[weights, 0], self.rail.tolerance)
            rows = np.flatnonzero(((arm == 0) | (arm == self.treatment)) & (p0 > 0) & (p0 < 1))
            self._detector.add(unit[rows], at[rows], arm[rows] != 0, p0[rows])

    @property
    def unhealthy(self) -> bool:
        """Whether control itself exceeds an absolute limit."""
        return self._trials is not None and self._trials.control_exceeds

    @property
    def acts(self) -> bool:
        """Whether its alarm does more than alert."""
        return self._action != "alert"

    def is_new_alarm(self) -> bool:
        """Whether the evidence has reached a threshold, without an alarm before."""
        if self.alarmed_at is not None or self._events.units[1] < MIN_UNITS:
            return False
        if self._trials is not None and self._trials.control_is_above:
            return False
        trials = self._trials
        if self._all_fail and self._of_any is not None and self._of_any.is_alarmed:
            return True
        largest, detector = (self._largest, self._detector) if trials is None else (trials.largest, trials.detector)
        return max(largest, detector.largest) >= self.threshold

    @property
    def _all_fail(self) -> bool:
        return self._failing_units >= MIN_UNITS

    @property
    def key(self) -> str:
        """The key in the journal."""
        return f"{self.rail.event} ({self.limit}) {self._names[1]}"

    @property
    def limit(self) -> str:
        """The limit in words."""
        if self.rail.max_rate is not None:
            return f"at most {100 * self.rail.max_rate:g} % of requests"
        return f"at most {self.rail.tolerance:g} times control's rate"

    def status(self) -> GuardrailStatus:
        """Its state for reports."""
        trials = self._trials
        ln_e = self._evidence.ln_e if trials is None else trials.ln_e
        detector = self._detector if trials is None else trials.detector
        return GuardrailStatus(
            event=self.rail.event,
            treatment=self._names[1],
            limit=self.limit,
            action=self._action,
            log_e_value=ln_e,
            log_e_value_always=self._of_any.ln_e if self._all_fail and self._of_any is not None else None,
            threshold=self.threshold,
            detector=max(detector.ln_e, -1e3),
            alarm=self.alarmed_at is not None,
            alarmed_at=self.alarmed_at,
            unhealthy=self.unhealthy,
            events=dict(zip(self._names, self._events.units, strict=True)),
            requests=dict(zip(self._names, self._requests[:, 0].tolist(), strict=True)),
            of_requests=dict(zip(self._names, self._requests[:, 1].tolist(), strict=True)),
            always=self._failing_units,
            detectable=self._detectable(),
        )

    def _detectable(self) -> float | None:
        if self._trials is None:
            return self._evidence.detectable(self.rail.tolerance, self.threshold)
        rate, control = self._trials.detectable(self.threshold), self._trials.control_rate
        return rate / control if rate is not None and control else None


class Failing:
    """Evidence that units of one treatment always fail: every request has the event of a relative limit. It is one test
    for all of these limits.
    """

    def __init__(self, at_risk: AtRisk, treatment: int, alpha: float) -> None:
        self._at_risk, self._treatment = at_risk, treatment
        self._threshold = always_failing_at(alpha)
        self.ln_e = self._largest = 0.0

    def look(self, sets: Ints) -> None:
        """Takes up what was added to `at_risk`. `sets` as in `Arms.weights`."""
        self.ln_e, units = self._at_risk.always_failing(self._treatment, sets)
        if units >= MIN_UNITS:
            self._largest = max(self._largest, self.ln_e)

    @property
    def is_alarmed(self) -> bool:
        """Whether the evidence has ever reached the threshold."""
        return self._largest >= self._threshold


class Guardrails:
    """All guardrails of an experiment, for all treatments."""

    def __init__(self, experiment: Experiment, since: float | None = None, *, returning: bool = True) -> None:
        """`since`: Unix seconds; earlier exposures do not count. None: all do. `returning`: whether a unit may send
        several requests.
        """
        self.since = since
        treatments = range(1, len(experiment.arms))
        alpha = experiment.alpha_guardrails / max(1, len(experiment.guardrails) * len(treatments))
        acts = experiment.mode == "ab"
        self.units = Units()
        any_event = AtRisk(self.units, len(experiment.arms)) if returning else None
        self._any_event = any_event
        shared = experiment.alpha_guardrails / len(treatments)
        self._failing = [Failing(any_event, arm, shared) for arm in treatments] if any_event is not None else []
        self._watches: list[tuple[Guardrail, AtRisk | None, list[GuardrailWatch]]] = []
        for rail in experiment.guardrails:
            at_risk = AtRisk(self.units, len(experiment.arms)) if returning and rail.max_rate is None else None
            watches = [
                GuardrailWatch(
                    rail, arm, experiment.arms, alpha, at_risk, self._failing[arm - 1] if at_risk else None, acts=acts
                )
                for arm in treatments
            ]
            self._watches.append((rail, at_risk, watches))

    def __iter__(self) -> Iterator[GuardrailWatch]:
        return (watch for _, _, watches in self._watches for watch in watches)

    def add_rows(self, rows: RowColumns, placed: ArmAssignment, first: I32, arms: Arms) -> None:
        """Random exposures that belong to the experiment. `first`: the first plan that can have drawn each unit."""

        def counted(rail: Guardrail) -> tuple[Mask, Mask]:
            applies = rows.stream if rail.event in STREAMS_ONLY else np.ones(len(rows), np.bool_)
            return happened(rail.event, rows, limits_of(rail)), applies

        rows, placed, first = self._counting(rows, placed, first)
        self._add(rows, placed, first, arms, counted)

    def add_late(self, late: OverdueColumns, placed: ArmAssignment, first: I32, arms: Arms) -> None:
        """Late records of running requests. Those without the event so far are not trials. `first` as above."""

        def counted(rail: Guardrail) -> tuple[Mask, Mask]:
            hit = late_events(rail.event, late, limits_of(rail))
            return hit, hit

        late, placed, first = self._counting(late, placed, first)
        self._add(late, placed, first, arms, counted)

    def _counting(self, columns: C, placed: ArmAssignment, first: I32) -> tuple[C, ArmAssignment, I32]:
        """Those since the start, in the order in which they came: however they are read again, it is the same."""
        which = np.lexsort((columns.seq, columns.router, columns.at, columns.arrived))
        if self.since is not None:
            which = which[columns.at[which] >= self.since]
        return columns.take(which), placed.take(which), first[which]

    def _add(
        self,
        columns: RowColumns | OverdueColumns,
        placed: ArmAssignment,
        first: I32,
        arms: Arms,
        counted: Callable[[Guardrail], tuple[Mask, Mask]],
    ) -> None:
        """`counted`: which exposures had the event, and to which it can happen."""
        if not len(columns):
            return
        sets = arms.weights
        drawn = first == columns.plan
        number = self._number(columns.unit, placed, drawn)
        ended, any_hit = isinstance(columns, RowColumns), np.zeros(len(columns), np.bool_)

        def count(at_risk: AtRisk, hit: Mask, trials: Mask) -> None:
            own = trials & (number >= 0)
            at_risk.add(number[own], hit[own], placed.weights[own], placed.arm[own], drawn[own], ended=ended)

        for rail, at_risk, watches in self._watches:
            hit, trials = counted(rail)
            if not trials.any():
                continue
            if at_risk is not None:
                count(at_risk, hit, trials)
                any_hit |= hit & trials
            these = columns if trials.all() else columns.take(trials)
            for watch in watches:
                weights = placed.weights
                if not drawn.all():
                    weights = arms.most_treated(watch.treatment, first, columns.plan)
                watch.add(these, hit[trials], weights[trials], placed.arm[trials], sets)

        if self._any_event is not None and ended:
            count(self._any_event, any_hit, np.ones(len(columns), np.bool_))
            for failing in self._failing:
                failing.look(sets)

    def _number(self, unit: Hashes, placed: ArmAssignment, drawn: Mask) -> Ints:
        """Each exposure's unit as `Units` number it; -1 if it does not count there."""
        if self._any_event is None:
            return np.full(len(unit), -1, np.int64)
        if (kept := self.units.thin()) is not None:
            for at_risk in (self._any_event, *(at_risk for _, at_risk, _ in self._watches)):
                if at_risk is not None:
                    at_risk.keep(kept)
        number, counts = np.full(len(unit), -1, np.int64), self.units.kept(unit)
        number[counts] = self.units.add(unit[counts], placed.weights[counts], placed.arm[counts], drawn[counts])
        return number
