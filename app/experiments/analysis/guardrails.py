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
from app.experiments.analysis.arrays import FirstSeen, Floats, Hashes, Ints, Mask
from app.experiments.analysis.at_risk import AtRisk, Units
from app.experiments.analysis.metrics import STREAMS_ONLY, happened, late_events, limits_of
from app.experiments.analysis.trials import MAX_UNITS, Arm, Exposures, UnitDetector, UnitTrials
from app.experiments.contract.report import Effect, GuardrailStatus
from app.experiments.statistics.events import (
    EventEvidence,
    alarm_at,
    always_failing_at,
    chance,
    two_sided,
)
from app.experiments.storage.columns import F64, I32, OverdueColumns, RowColumns

# An event counts once per unit. Only the arm of its unit matters: `app.experiments.statistics.events` has the
# mathematics.

_LARGEST_RATIO = 1e4
_HALVINGS = 40


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
            turn = columns.turn if isinstance(columns, RowColumns) else np.zeros(len(unit), np.uint16)
            came = np.where(np.isnan(columns.arrived), at, columns.arrived)
            self._trials.add(Exposures(unit, at, hit, turn, came), arm)
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
