"""Guardrails: events whose rate must not rise. An alarm stays.

Every random exposure counts, also in conversations that began under an earlier plan. Which plan drew the arm of such a
conversation is not recorded; it is judged by the one, of those since its unit's first exposure, that gives the
treatment most. That makes an alarm later, never false. Relative limits compare with control; absolute ones test the
treatment alone, and act only while control itself keeps them.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from app.config.experiments import Experiment, Guardrail
from app.experiments.analysis.evidence.arms import Arms, Placement
from app.experiments.analysis.evidence.arrays import Hashes, Ints, Mask
from app.experiments.analysis.evidence.outcomes import STREAMS_ONLY, happened, late_events, limits_of
from app.experiments.analysis.watch.events import UnitDetector, UnitEvents
from app.experiments.analysis.watch.trials import Trials
from app.experiments.columns import F64, I32, LateColumns, RowColumns
from app.experiments.report import GuardrailStatus
from app.experiments.statistics.events import EventEvidence, alarm_at, chance

MIN_UNITS = 3
"""The number of distinct units that must have had the event on the treatment before an alarm."""

Arm = NDArray[np.int8]
C = TypeVar("C", RowColumns, LateColumns)


class GuardrailWatch:
    """One guardrail for one treatment."""

    def __init__(self, rail: Guardrail, treatment: int, names: Sequence[str], alpha: float, *, acts: bool) -> None:
        self.rail = rail
        self.treatment = treatment
        self.threshold = alarm_at(alpha)
        self.alarmed_at: float | None = None
        self._names = (names[0], names[treatment])
        self._action = rail.action if acts else "alert"
        self._events = UnitEvents(treatment)
        self._trials = None if rail.max_rate is None else Trials(rail.max_rate, treatment)
        self._detector = UnitDetector()
        self._largest = 0.0
        self._evidence = EventEvidence()

    def add(self, unit: Hashes, at: F64, hit: Mask, weights: I32, arm: Arm, sets: Ints) -> None:
        """Exposures, of any arms, with whether each had the event. `weights`, `arm` and `sets` as in `Arms`."""
        if self._trials is not None:
            self._trials.add(unit, at, hit, arm)
        unit, at, weights, arm = unit[hit], at[hit], weights[hit], arm[hit]
        if not self._events.add(unit, at, weights, arm):
            return
        if self._trials is None:
            self._evidence = self._events.more(sets, self.rail.tolerance)
            self._largest = max(self._largest, self._evidence.ln_e)
            self._detect(unit, at, weights, arm, sets)

    def _detect(self, unit: Hashes, at: F64, weights: I32, arm: Arm, sets: Ints) -> None:
        p0 = chance(sets[weights, self.treatment], sets[weights, 0], self.rail.tolerance)
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
        if self.alarmed_at is not None or self._events.units[1] < MIN_UNITS or self.unhealthy:
            return False
        trials = self._trials
        largest, detector = (self._largest, self._detector) if trials is None else (trials.largest, trials.detector)
        return max(largest, detector.largest) >= self.threshold

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
        evidence = self._evidence if trials is None else trials.evidence
        detector = self._detector if trials is None else trials.detector
        return GuardrailStatus(
            event=self.rail.event,
            treatment=self._names[1],
            limit=self.limit,
            action=self._action,
            log_e_value=evidence.ln_e,
            threshold=self.threshold,
            detector=max(detector.ln_e, -1e3),
            alarm=self.alarmed_at is not None,
            alarmed_at=self.alarmed_at,
            unhealthy=self.unhealthy,
            events=dict(zip(self._names, self._events.units, strict=True)),
            detectable=self._detectable(),
        )

    def _detectable(self) -> float | None:
        if self._trials is None:
            return self._evidence.detectable(self.rail.tolerance, self.threshold)
        rate, control = self._trials.detectable(self.threshold), self._trials.control_rate
        return rate / control if rate is not None and control else None


class Guardrails:
    """All guardrails of an experiment, for all treatments."""

    def __init__(self, experiment: Experiment, since: float | None = None) -> None:
        """`since`: Unix seconds; earlier exposures do not count. None: all do."""
        self.since = since
        treatments = range(1, len(experiment.arms))
        alpha = experiment.alpha_guardrails / max(1, len(experiment.guardrails) * len(treatments))
        acts = experiment.mode == "ab"
        self._watches = [
            (rail, [GuardrailWatch(rail, arm, experiment.arms, alpha, acts=acts) for arm in treatments])
            for rail in experiment.guardrails
        ]

    def __iter__(self) -> Iterator[GuardrailWatch]:
        return (watch for _, watches in self._watches for watch in watches)

    def add_rows(self, rows: RowColumns, placed: Placement, first: I32, arms: Arms) -> None:
        """Random exposures that belong to the experiment. `first`: the first plan that can have drawn each unit."""
        rows, placed, first = self._counting(rows, placed, first)
        for rail, watches in self._watches:
            hit = happened(rail.event, rows, limits_of(rail))
            applies = rows.stream if rail.event in STREAMS_ONLY else np.ones(len(rows), np.bool_)
            _add(watches, hit, hit if rail.max_rate is None else applies, rows, placed, first, arms)

    def add_late(self, late: LateColumns, placed: Placement, first: I32, arms: Arms) -> None:
        """Late records of running requests. Those without the event so far are not trials. `first` as above."""
        late, placed, first = self._counting(late, placed, first)
        for rail, watches in self._watches:
            hit = late_events(rail.event, late, limits_of(rail))
            _add(watches, hit, hit, late, placed, first, arms)

    def _counting(self, columns: C, placed: Placement, first: I32) -> tuple[C, Placement, I32]:
        which = columns.at >= (-math.inf if self.since is None else self.since)
        return (columns, placed, first) if which.all() else (columns.take(which), placed.take(which), first[which])


def _add(
    watches: Sequence[GuardrailWatch],
    hit: Mask,
    trials: Mask,
    columns: RowColumns | LateColumns,
    placed: Placement,
    first: I32,
    arms: Arms,
) -> None:
    if not trials.any():
        return
    unit, at, own, arm = columns.unit[trials], columns.at[trials], placed.weights[trials], placed.arm[trials]
    first, last = first[trials], columns.plan[trials]
    for watch in watches:
        weights = own if (first == last).all() else arms.most_treated(watch.treatment, first, last)
        watch.add(unit, at, hit[trials], weights, arm, arms.weights)
