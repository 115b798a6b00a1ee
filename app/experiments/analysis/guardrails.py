"""Guardrails: events whose rate must not rise. An alarm stays.

Every random exposure counts, also in conversations that began under an earlier plan. Which plan drew the arm of such a
conversation is not recorded; it is judged by the one, of those since its unit's first exposure, that gives the
treatment most. That makes an alarm later, never false. Relative limits compare with control; absolute ones test the
treatment alone, and act only while control itself keeps them.

- Events of units: the evidence about a treatment's rate against control's.
- Absolute limits: an event may happen to at most a given share of the treatment's exposures.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from typing import NamedTuple, TypeVar

import numpy as np

from app.config.experiments import Event, Experiment, Guardrail
from app.experiments.analysis.arms import ArmAssignment, Arms
from app.experiments.analysis.arrays import Floats, Hashes, Ints, Mask
from app.experiments.analysis.at_risk import AtRisk, Units, always_failing_of
from app.experiments.analysis.metrics import STREAMS_ONLY, decided, happened, late_events, limits_of
from app.experiments.analysis.unit_events import Arm, Course, UnitEvents, UnitExposures, UnitTrials
from app.experiments.analysis.witnesses import PARTS, UNBOUNDED, Callers, Part, provokable, without
from app.experiments.contract.report import GuardrailStatus
from app.experiments.rendering import words
from app.experiments.statistics.events import (
    EventEvidence,
    alarm_at,
    always_failing_at,
    chance,
)
from app.experiments.storage.columns import F64, I32, OverdueColumns, RowColumns

HURRIED_SHARE = 0.05
"""The share of alpha, of a relative limit of failures, for requests whose client hardly waits."""

SEEING_SHARE = 0.1
"""The share of the requests that must count for a guardrail that is quiet to mean something."""

FEW_REQUESTS = 30
"""Fewer requests show nothing about the share that counts."""

MIN_UNITS = 3
"""The number of distinct units that must have had the event on the treatment before an alarm."""
C = TypeVar("C", RowColumns, OverdueColumns)


class _Hits(NamedTuple):
    """Exposures with the event, in the order in which they came: equally long arrays."""

    unit: Hashes
    at: F64
    weights: I32
    arm: Arm
    part: Part
    provokable: Mask

    def take(self, rows: Mask) -> "_Hits":
        """These exposures only."""
        return _Hits._make(column[rows] for column in self)


class GuardrailEvidence:
    """The evidence against one guardrail on one treatment. `at_risk`: of its event, and `of_any`, of any guardrail's;
    None where every request is a unit.
    """

    def __init__(
        self,
        rail: Guardrail,
        treatment: int,
        alpha: float,
        at_risk: AtRisk | None = None,
        of_any: "Failing | None" = None,
    ) -> None:
        self.rail = rail
        self.treatment = treatment
        self.threshold = alarm_at(alpha)
        self._events, self._sure = UnitEvents(treatment, PARTS + 1), UnitEvents(treatment, PARTS + 1)
        """All events, and those of callers in a part that they cannot have provoked."""
        self.requests = np.zeros((2, 2), np.int64)
        """Of control and of the treatment: requests that have ended with the event, and all that have ended."""
        self._trials = None if rail.max_rate is None else UnitTrials(rail.max_rate, treatment, alpha)
        self._at_risk, self._of_any = at_risk, of_any
        self._course = Course()
        self._others: dict[int, Course] = {}
        """The same without what the callers of a part can have provoked, by this part."""
        self._evidence = EventEvidence()
        self.failing_units = 0
        """The treatment's units that always fail."""

    def add(
        self,
        columns: RowColumns | OverdueColumns,
        hit: Mask,
        weights: I32,
        arm: Arm,
        sets: Ints,
        part: Part | None = None,
    ) -> None:
        """Exposures, of any arms, with whether each had the event. `weights`, `arm` and `sets` as in `Arms`, `part` as
        in `witnesses`.
        """
        unit, at, rows = columns.unit, columns.at, isinstance(columns, RowColumns)
        part = np.full(len(unit), UNBOUNDED, np.int8) if part is None else part
        suspect = provokable(self.rail.event, columns, hit)
        if rows:
            for place, number in enumerate((0, self.treatment)):
                own = arm == number
                self.requests[place] += (int((hit & own).sum()), int(own.sum()))
        if self._trials is not None:
            turn = columns.turn if isinstance(columns, RowColumns) else np.zeros(len(unit), np.uint16)
            came = np.where(np.isnan(columns.arrived), at, columns.arrived)
            self._trials.add(UnitExposures(unit, at, hit, turn, came, part, suspect), arm)
        is_new = self._events.add(unit[hit], at[hit], weights[hit], arm[hit], part[hit])
        sure = hit & ~suspect & (part != UNBOUNDED)
        self._sure.add(unit[sure], at[sure], weights[sure], arm[sure], part[sure])
        if self._trials is None and (is_new or (rows and any(self._events.units))):
            self._compare(_Hits(unit[hit], at[hit], weights[hit], arm[hit], part[hit], suspect[hit]), sets)

    def _compare(self, hits: "_Hits", sets: Ints) -> None:
        """Compares the rates of the arms."""
        for part in np.unique(hits.part[hits.provokable]).tolist():
            self._others.setdefault(part, deepcopy(self._course))
        busier = self._busier(sets, None)
        if self._at_risk is not None:
            _, self.failing_units = self._at_risk.always_failing(self.treatment, sets)
        self._evidence = self._events.more(sets, self.rail.tolerance, busier)
        if not len(hits.unit):
            return
        self._follow(self._course, self._evidence.log_e_value, hits, sets, busier)
        for part, course in self._others.items():
            less = np.maximum(busier, self._busier(sets, part))
            evidence = self._events.more(sets, self.rail.tolerance, less, self._without(part))
            own = (hits.part != part) | ~hits.provokable
            self._follow(course, evidence.log_e_value, hits.take(own), sets, less)

    def _follow(self, course: Course, log_e_value: float, hits: "_Hits", sets: Ints, busier: Floats) -> None:
        own = sets[hits.weights, self.treatment] * busier[hits.weights]
        p0 = chance(own, sets[hits.weights, 0], self.rail.tolerance)
        rows = np.flatnonzero(((hits.arm == 0) | (hits.arm == self.treatment)) & (p0 > 0) & (p0 < 1))
        course.add(log_e_value, hits.unit[rows], hits.at[rows], hits.arm[rows] != 0, p0[rows])

    def _busier(self, sets: Ints, left_out: int | None) -> Floats:
        busier = np.ones(len(sets))
        if self._at_risk is not None:
            known = self._at_risk.busier(self.treatment, left_out)
            busier[: len(known)] = known
        return busier

    def _without(self, part: int) -> Ints:
        """Units with the event, without those of a part that may have provoked it: by set of weights and arm."""
        return without(self._events.table, self._sure.table, part)

    @property
    def unhealthy(self) -> bool:
        """Whether control itself exceeds an absolute limit."""
        return self._trials is not None and self._trials.control_exceeds

    @property
    def suffices(self) -> bool:
        """Whether it has reached a threshold, whichever callers are left out."""
        return self.reaches() and all(self.reaches(part) for part in self._parts())

    def _parts(self) -> set[int]:
        """The parts of callers without which there must be enough evidence, too."""
        if self.rail.one_caller == "act":
            return set()
        others = self._others if self._trials is None else self._trials.others
        return {*others, *(self._of_any.parts if self._of_any is not None else ())}

    def reaches(self, left_out: int | None = None) -> bool:
        """Whether it has reached a threshold. `left_out`: a part of the callers."""
        units = self._events.units[1] if left_out is None else int(self._without(left_out)[:, 1].sum())
        if units < MIN_UNITS:
            return False
        if self._trials is not None and self._trials.control_is_above:
            return False
        if self._all_fail and self._of_any is not None and self._of_any.is_alarmed(left_out):
            return True
        course, others = (
            (self._course, self._others) if self._trials is None else (self._trials.course, self._trials.others)
        )
        if left_out is not None:
            course = others.get(left_out, course)
        return course.top >= self.threshold

    @property
    def _all_fail(self) -> bool:
        return self.failing_units >= MIN_UNITS

    @property
    def log_e_value(self) -> float:
        """ln of the evidence since the start."""
        return self._evidence.log_e_value if self._trials is None else self._trials.log_e_value

    @property
    def detector(self) -> float:
        """ln of the evidence since a late start."""
        return (self._course if self._trials is None else self._trials.course).detector.log_e_value

    @property
    def ln_e_always(self) -> float | None:
        """ln of the evidence that units always fail because of their arm; None below `MIN_UNITS` of them."""
        return self._of_any.log_e_value if self._all_fail and self._of_any is not None else None

    @property
    def events(self) -> Ints:
        """Units with the event, on control and on the treatment."""
        return np.array(self._events.units)

    def detectable(self) -> float | None:
        """The smallest ratio to control that would have been detected by now, in four of five runs."""
        if self._trials is None:
            return self._evidence.detectable(self.rail.tolerance, self.threshold)
        rate, control = self._trials.detectable(self.threshold), self._trials.control_rate
        return rate / control if rate is not None and control else None


class GuardrailWatch:
    """One guardrail for one treatment: its alarm, and its state for reports."""

    def __init__(self, evidence: Sequence[GuardrailEvidence], names: Sequence[str], *, acts: bool) -> None:
        """`evidence`: of requests that cannot have decided about the event; then, of a limit of failures, of those that
        may have (`Guardrails`). Any of both is enough. `names`: all arms'.
        """
        self._main, self._all = evidence[0], evidence
        self.rail, self.treatment, self.threshold = self._main.rail, self._main.treatment, self._main.threshold
        self.alarmed_at: float | None = None
        self._names = (names[0], names[self.treatment])
        self._action = self.rail.action if acts else "alert"
        self._left_out = 0
        """Requests of both arms that have ended and are no evidence."""

    def leave_out(self, arm: Arm) -> None:
        """Requests, of any arms, that have ended and are no evidence, since they may have decided about the event."""
        self._left_out += int(((arm == 0) | (arm == self.treatment)).sum())

    @property
    def unhealthy(self) -> bool:
        """Whether control itself exceeds an absolute limit."""
        return self._main.unhealthy

    @property
    def acts(self) -> bool:
        """Whether its alarm does more than alert."""
        return self._action != "alert"

    def is_new_alarm(self) -> bool:
        """Whether there is enough evidence, without an alarm before, whichever callers are left out."""
        return self.alarmed_at is None and any(evidence.suffices for evidence in self._all)

    @property
    def one_caller(self) -> bool:
        """Whether the evidence has reached a threshold, but may be one caller's doing."""
        if self.alarmed_at is not None or self.is_new_alarm():
            return False
        return any(evidence.reaches() for evidence in self._all)

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
        main, threshold = self._main, self.threshold
        events = np.sum([evidence.events for evidence in self._all], axis=0)
        requests = np.sum([evidence.requests for evidence in self._all], axis=0)
        return GuardrailStatus(
            event=self.rail.event,
            treatment=self._names[1],
            limit=self.limit,
            action=self._action,
            log_e_value=max(evidence.log_e_value - (evidence.threshold - threshold) for evidence in self._all),
            log_e_value_always=main.ln_e_always,
            threshold=threshold,
            detector=max(-1e3, *(evidence.detector - (evidence.threshold - threshold) for evidence in self._all)),
            alarm=self.alarmed_at is not None,
            alarmed_at=self.alarmed_at,
            unhealthy=self.unhealthy,
            one_caller=self.one_caller,
            events=dict(zip(self._names, events.tolist(), strict=True)),
            requests=dict(zip(self._names, requests[:, 0].tolist(), strict=True)),
            of_requests=dict(zip(self._names, requests[:, 1].tolist(), strict=True)),
            blind=_blindness(int(requests[:, 1].sum()), self._left_out),
            always=main.failing_units,
            detectable=main.detectable(),
        )


def _blindness(counted: int, left_out: int) -> str:
    every = counted + left_out
    if every < FEW_REQUESTS or counted >= SEEING_SHARE * every:
        return ""
    some = f"only {words.count(counted)} count{'s' if counted == 1 else ''}: the others"
    which = some if counted else "none counts: all"
    return f"of {words.count(every)} requests {which} may have decided about it themselves"


class Failing:
    """Evidence that units of one treatment always fail: every request has the event of a relative limit. It is one test
    for all of these limits.
    """

    def __init__(self, at_risk: AtRisk, sure: AtRisk, treatment: int, alpha: float) -> None:
        """`sure`: of events that callers in a part cannot have provoked."""
        self._at_risk, self._sure, self._treatment = at_risk, sure, treatment
        self._threshold = always_failing_at(alpha)
        self.log_e_value = self._largest = 0.0
        self._others: dict[int, float] = {}
        """The largest evidence without what the callers of a part can have provoked, by this part."""

    def look(self, sets: Ints, suspects: Sequence[int]) -> None:
        """Takes up what was added. `sets` as in `Arms.weights`; `suspects`: parts with events that were provokable."""
        for part in suspects:
            self._others.setdefault(part, self._largest)
        self.log_e_value, units = self._at_risk.always_failing(self._treatment, sets)
        if units >= MIN_UNITS:
            self._largest = max(self._largest, self.log_e_value)
        every, sure = self._at_risk.ends(self._treatment), self._sure.ends(self._treatment)
        for part, largest in self._others.items():
            log_e_value, units = always_failing_of(without(every, sure, part), self._treatment, sets)
            if units >= MIN_UNITS:
                self._others[part] = max(largest, log_e_value)

    @property
    def parts(self) -> Collection[int]:
        """The parts of callers without which the evidence is another."""
        return self._others

    def is_alarmed(self, left_out: int | None = None) -> bool:
        """Whether the evidence has ever reached the threshold. `left_out`: a part of the callers."""
        largest = self._largest if left_out is None else self._others.get(left_out, self._largest)
        return largest >= self._threshold


class _Shown:
    """Exposures, in the order in which they came, as `AtRisk` takes them. `number` as `Units` number units, -1 for
    those that do not count there.
    """

    def __init__(self, number: Ints, placed: ArmAssignment, drawn: Mask, part: Part, *, ended: bool) -> None:
        self._number, self._placed, self._drawn, self.part, self.ended = number, placed, drawn, part, ended

    def count(self, at_risk: AtRisk, hit: Mask, trials: Mask) -> None:
        """Counts those to which the event can happen, with whether it did."""
        own = trials & (self._number >= 0)
        placed, part = self._placed, self.part[own]
        at_risk.add(
            self._number[own], hit[own], placed.weights[own], placed.arm[own], self._drawn[own], part, ended=self.ended
        )


class _Counted(NamedTuple):
    rail: Guardrail
    at_risk: AtRisk | None
    evidence: list[GuardrailEvidence]
    """One for each treatment."""
    hurried: bool = False
    """Whether it counts the requests that may have decided about the event, and no others."""


def _compares_hurried(rail: Guardrail) -> bool:
    """Whether the requests that may have decided about the event count, too: compared with each other."""
    return rail.event == "error" and rail.max_rate is None


class Guardrails:
    """All guardrails of an experiment, for all treatments.

    A request that may have decided about its event is no evidence, but for failures: of clients that wait for less than
    a second, as many get no answer in time on either arm if the arms are alike. They are compared with each other, so
    that a client base in a hurry neither hides nor dilutes what else fails, and count only together with those of other
    callers (`witnesses`).
    """

    def __init__(self, experiment: Experiment, since: float | None = None, *, returning: bool = True) -> None:
        """`since`: Unix seconds; earlier exposures do not count. None: all do. `returning`: whether a unit may send
        several requests.
        """
        self.since = since
        treatments = range(1, len(experiment.arms))
        alpha = experiment.alpha_guardrails / max(1, len(experiment.guardrails) * len(treatments))
        acts = experiment.mode == "ab"
        self.units, self._callers = Units(), Callers()
        arms = len(experiment.arms)
        self._any_event = AtRisk(self.units, arms, PARTS + 1) if returning else None
        self._any_sure = AtRisk(self.units, arms, PARTS + 1) if returning else None
        self._failing: list[Failing] = []
        if self._any_event is not None and self._any_sure is not None:
            shared = experiment.alpha_guardrails / len(treatments)
            self._failing = [Failing(self._any_event, self._any_sure, arm, shared) for arm in treatments]
        self._counted: list[_Counted] = []
        self._watches: list[GuardrailWatch] = []
        for rail in experiment.guardrails:
            at_risk, of_hurried = (
                AtRisk(self.units, arms, PARTS + 1) if returning and rail.max_rate is None else None for _ in range(2)
            )
            share = HURRIED_SHARE if _compares_hurried(rail) else 0.0
            counted = [
                _Counted(
                    rail,
                    at_risk,
                    [
                        GuardrailEvidence(
                            rail, arm, (1 - share) * alpha, at_risk, self._failing[arm - 1] if at_risk else None
                        )
                        for arm in treatments
                    ],
                )
            ]
            if share:
                hurried = [GuardrailEvidence(rail, arm, share * alpha, of_hurried) for arm in treatments]
                counted.append(_Counted(rail, of_hurried, hurried, hurried=True))
            self._counted += counted
            each = zip(*(part.evidence for part in counted), strict=True)
            self._watches += [GuardrailWatch(evidence, experiment.arms, acts=acts) for evidence in each]

    def __iter__(self) -> Iterator[GuardrailWatch]:
        return iter(self._watches)

    def add_rows(self, rows: RowColumns, placed: ArmAssignment, first: I32, arms: Arms) -> None:
        """Random exposures that belong to the experiment. `first`: the first plan that can have drawn each unit."""

        def counted(rail: Guardrail, hurried: bool) -> tuple[Mask, Mask]:
            applies = rows.stream if rail.event in STREAMS_ONLY else np.ones(len(rows), np.bool_)
            own = decided(rail.event, rows)
            return happened(rail.event, rows, limits_of(rail)), applies & (own if hurried else ~own)

        rows, placed, first = self._counting(rows, placed, first)
        self._add(rows, placed, first, arms, counted)
        self._leave_out(rows, placed)

    def _leave_out(self, rows: RowColumns, placed: ArmAssignment) -> None:
        """Tells each guardrail of the requests that are no evidence of its event."""
        for watch in self._watches:
            if not _compares_hurried(watch.rail):
                own = decided(watch.rail.event, rows)
                watch.leave_out(placed.arm[own & rows.stream if watch.rail.event in STREAMS_ONLY else own])

    def add_late(self, late: OverdueColumns, placed: ArmAssignment, first: I32, arms: Arms) -> None:
        """Late records of running requests. Those without the event so far are not trials. `first` as above."""

        def counted(rail: Guardrail, hurried: bool) -> tuple[Mask, Mask]:
            own = decided(rail.event, late)
            hit = late_events(rail.event, late, limits_of(rail)) & (own if hurried else ~own)
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
        counted: Callable[[Guardrail, bool], tuple[Mask, Mask]],
    ) -> None:
        """`counted`: which exposures had the event, and to which it can happen."""
        if not len(columns):
            return
        drawn, callers = first == columns.plan, self._callers.part(columns)
        number = self._number(columns.unit, placed, drawn)
        shown = _Shown(number, placed, drawn, callers, ended=isinstance(columns, RowColumns))
        outcomes = [(part, *counted(part.rail, part.hurried)) for part in self._counted]
        for part, hit, trials in outcomes:
            if not trials.any():
                continue
            if part.at_risk is not None:
                shown.count(part.at_risk, hit, trials)
            these = columns if trials.all() else columns.take(trials)
            for evidence in part.evidence:
                weights = placed.weights
                if not drawn.all():
                    weights = arms.most_treated(evidence.treatment, first, columns.plan)
                evidence.add(these, hit[trials], weights[trials], placed.arm[trials], arms.weights, callers[trials])
        if shown.ended:
            relative = [
                (part.rail.event, hit & trials)
                for part, hit, trials in outcomes
                if part.at_risk is not None and not part.hurried
            ]
            self._count_any(columns, shown, relative, arms.weights)

    def _count_any(
        self,
        columns: RowColumns | OverdueColumns,
        shown: "_Shown",
        hits: Sequence[tuple[Event, Mask]],
        sets: Ints,
    ) -> None:
        """Counts exposures that have any of these events. Those that decide about one of them are no trials."""
        if self._any_event is None or self._any_sure is None:
            return
        any_hit, any_sure, trials = (np.full(len(columns), value) for value in (False, False, True))
        for event, hit in hits:
            any_hit |= hit
            any_sure |= hit & ~provokable(event, columns, hit)
            trials &= ~decided(event, columns)
        in_part = shown.part != UNBOUNDED
        shown.count(self._any_event, any_hit, trials)
        shown.count(self._any_sure, any_sure, trials & in_part)
        suspects = np.unique(shown.part[any_hit & ~any_sure & in_part]).tolist()
        for failing in self._failing:
            failing.look(sets, suspects)

    def _number(self, unit: Hashes, placed: ArmAssignment, drawn: Mask) -> Ints:
        """Each exposure's unit as `Units` number it; -1 if it does not count there."""
        if self._any_event is None:
            return np.full(len(unit), -1, np.int64)
        if (kept := self.units.thin()) is not None:
            for at_risk in (self._any_event, self._any_sure, *(part.at_risk for part in self._counted)):
                if at_risk is not None:
                    at_risk.keep(kept)
        number, counts = np.full(len(unit), -1, np.int64), self.units.kept(unit)
        number[counts] = self.units.add(unit[counts], placed.weights[counts], placed.arm[counts], drawn[counts])
        return number
