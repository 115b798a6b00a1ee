"""Monitoring apart from the metrics: guardrails, sample ratio, completeness, lost rows; and the alarms they raise.

Alarms of one experiment: each is journalled once, with the time at which it was raised.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from app.config.experiments import Experiment
from app.experiments.analysis.arms import ArmAssignment, Arms
from app.experiments.analysis.arrays import Mask
from app.experiments.analysis.comparing import AGAINST, MetricComparison, effect_of
from app.experiments.analysis.effect_changes import EffectChange
from app.experiments.analysis.guardrails import Guardrails, GuardrailWatch
from app.experiments.analysis.metrics import Measure, Values, can_be_missing
from app.experiments.analysis.rare_events import RareEvents
from app.experiments.analysis.sample_ratio import (
    ArmLoad,
    Completeness,
    SampleRatioWatch,
    SharedTime,
    Traffic,
    TreatedWatch,
)
from app.experiments.automation.state import Interventions
from app.experiments.contract.report import Alarm, Occurrence, Verdict
from app.experiments.rendering import words
from app.experiments.statistics.events import RETURNS_THRESHOLD
from app.experiments.storage.columns import I32, OverdueColumns, RowColumns, StartColumns, Tables
from app.exposures.wire import Flag


class Alarms:
    """Alarms that stay, and alarms that hold only while their cause lasts."""

    def __init__(self) -> None:
        self._alarms: dict[str, Alarm] = {}

    def __iter__(self) -> Iterator[Alarm]:
        return iter(sorted(self._alarms.values(), key=lambda alarm: (alarm.at, alarm.text)))

    def raised_at(self, key: str) -> float | None:
        """The time at which it was raised, in Unix seconds; None if it was not."""
        alarm = self._alarms.get(key)
        return None if alarm is None else alarm.at

    def text(self, key: str) -> str:
        """What it says; empty if it was not raised."""
        alarm = self._alarms.get(key)
        return "" if alarm is None else alarm.text

    def hold(self, key: str, alarm: Alarm) -> Occurrence | None:
        """Raises an alarm. New facts about it go into the journal."""
        if key in self._alarms:
            return None
        self._alarms[key] = alarm
        return Occurrence(at=alarm.at, kind="alarm", text=alarm.text, detail=msgspec.to_builtins(alarm) | {"key": key})

    def drop(self, key: str) -> None:
        """Ends an alarm whose cause no longer exists."""
        self._alarms.pop(key, None)

    def drop_until(self, at: float, prefix: str) -> None:
        """Ends the alarms with such keys that were raised until a Unix time."""
        for key in self.keys(prefix):
            if self._alarms[key].at <= at:
                self.drop(key)

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with this."""
        return [key for key in self._alarms if key.startswith(prefix)]

    def state(self) -> dict[str, Any]:
        """The state as plain data."""
        return {key: msgspec.to_builtins(alarm) for key, alarm in self._alarms.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`."""
        self._alarms |= {key: msgspec.convert(alarm, Alarm) for key, alarm in state.items()}


_DAY_S = 86400.0
_SHORTEST_RATE_S = 600.0
SPLIT = "sample_ratio"
RETURNS = "returns"
LOST = "rows_lost"
STANDING = "standing "
"""Begins the keys of guardrails' alarms that stand."""

C = TypeVar("C", RowColumns, OverdueColumns)


class Monitoring:
    """The monitoring of one experiment. `measures` as in `Collected`."""

    def __init__(
        self, experiment: Experiment, measures: Sequence[Measure], arms: Arms, tables: Tables, *, returning: bool
    ) -> None:
        pairs = [
            (column, measure, treatment)
            for column, measure in enumerate(measures)
            for treatment in range(1, len(arms.names))
        ]
        self._experiment = experiment
        self._returning = returning
        self._arms = arms
        self._measures = measures
        self.traffic = Traffic(arms.names, tables)
        labels = experiment.mode == "aa"
        self.load = ArmLoad(arms.names, [experiment.control] * len(arms.names) if labels else arms.names)
        self.sample_ratio = SampleRatioWatch(arms, tables, returning=returning)
        self.guardrails = Guardrails(experiment, returning=returning)
        self.completeness = {(c, t): Completeness(t) for c, measure, t in pairs if can_be_missing(measure)}
        self.rare = {
            (c, t): RareEvents(t) for c, measure, t in pairs if measure.kind == "proportion" and not measure.feedback
        }
        self.treated = TreatedWatch(experiment)
        self.damaged: list[str] = []
        """Parts of the ledger that cannot be read, each with the reason."""
        self.gone: list[str] = []
        """Parts of the ledger that are known to be gone."""
        self.lacking: dict[str, int] = {}
        """Columns that records of another version do not have, with the number of these records."""
        self.alarms = Alarms()
        self._cleared_until: float | None = None
        self.shared_time = SharedTime(arms)

    @property
    def arms(self) -> Arms:
        """The arms of the experiment."""
        return self._arms

    def intervene(self, done: Interventions) -> None:
        """Takes the actions so far. Guardrails that are armed again forget their counts, and can alarm again."""
        if done.armed_since != self.guardrails.since:
            self.guardrails = Guardrails(self._experiment, done.armed_since, returning=self._returning)
        self._cleared_until = done.cleared_until
        self._set_alarms_aside()
        self.treated.count_since(done.since)

    def _set_alarms_aside(self) -> None:
        """Guardrails' alarms from before they were armed again are proofs nonetheless: until a manager clears them,
        they stand, and nothing ships.
        """
        since = self.guardrails.since
        for watch in self.guardrails:
            raised = self.alarms.raised_at(f"guardrail {watch.key}")
            if raised is not None and since is not None and raised <= since:
                self.alarms.drop(f"guardrail {watch.key}")
                alarm = Alarm(kind="standing", at=raised, text=_standing(watch, raised, since))
                self.alarms.hold(f"{STANDING}{watch.key}", alarm)
        if self._cleared_until is not None:
            self.alarms.drop_until(self._cleared_until, STANDING)
        self._mark()

    def has_standing_alarm(self, treatment: int) -> bool:
        """Whether a guardrail has alarmed for a treatment, was armed again, and no manager has cleared the alarm."""
        name = self._arms.names[treatment]
        return any(key.endswith(f" {name}") for key in self.alarms.keys(STANDING))

    def add_starts(self, starts: StartColumns, placed: ArmAssignment, random: Mask, analysed: Mask) -> None:
        """Starts that belong to the experiment."""
        self.treated.add_starts(starts.take(random), placed.take(random))
        self.traffic.add_starts(starts, placed)
        self.sample_ratio.add(starts.unit[analysed], starts.at[analysed], starts.plan[analysed], placed.arm[analysed])

    def add_rows(self, rows: RowColumns, placed: ArmAssignment, random: Mask) -> None:
        """Rows that belong to the experiment."""
        self.traffic.add_rows(rows, placed)
        rows, placed = rows.take(random), placed.take(random)
        drawn = (rows.flags & Flag.CARRIED) == 0
        self.shared_time.add(rows.at[drawn], rows.plan[drawn], placed.arm[drawn])
        self.load.add(rows.in_flight, placed.arm)
        self.treated.add_rows(rows, placed)
        self.guardrails.add_rows(*self._drawn(rows, placed), self._arms)

    def add_late(self, late: OverdueColumns, placed: ArmAssignment, random: Mask) -> None:
        """Late records that belong to the experiment."""
        self.traffic.add_late(late, placed)
        self.guardrails.add_late(*self._drawn(late.take(random), placed.take(random)), self._arms)

    def _drawn(self, columns: C, placed: ArmAssignment) -> tuple[C, ArmAssignment, I32]:
        """Exposures with the first plan that can have drawn their unit: their own, unless their conversation may have
        begun earlier. Conversations from before the run are left out: the plan that drew them may not be recorded.
        """
        carried = (columns.flags & Flag.CARRIED) != 0
        if not carried.any():
            return columns, placed, columns.plan
        first = columns.plan.copy()
        first[carried] = self.sample_ratio.first_plans(columns.unit[carried], columns.plan[carried])
        known = first >= 0
        return columns.take(known), placed.take(known), first[known]

    def add_values(self, rows: RowColumns, placed: ArmAssignment, values: Sequence[Values | None]) -> None:
        """Analysed rows, with each measure's values."""
        sets = self._arms.weights
        for (column, _), completeness in self.completeness.items():
            if (known := values[column]) is not None:
                completeness.add(known.unprovoked, rows.unit, rows.at, placed.weights, placed.arm, sets)
        for (column, _), rare in self.rare.items():
            if (known := values[column]) is not None and rare.applies:
                rare.add(known, rows.unit, rows.at, placed.weights, placed.arm)

    def units_per_day(self, now: float) -> float | None:
        """New units at the rate of the last `rate_window_s`; None if there were none."""
        since = now - rate_window_s(now - self._arms.since)
        new = self.sample_ratio.new_since(since)
        return new * _DAY_S / (now - since) if new and now > since else None

    def split_differences(self) -> list[str]:
        """Possible explanations of a wrong sample ratio; empty without an alarm."""
        if self.sample_ratio.alarmed_at is None:
            return []
        return self.traffic.differences() or [
            "Nothing that is recorded differs by arm: exposures are missing entirely."
        ]

    def invalidates(self, column: int, treatment: int) -> str:
        """The reason why no verdict on a measure counts, in words; empty if there is none."""
        if self.alarms.raised_at(SPLIT) is not None:
            return "the units contradict the weights"
        if lost := self.traffic.too_many_lost():
            return lost
        if self.damaged:
            return "a part of the ledger is missing"
        if self.alarms.raised_at(self._completeness_key(column, treatment)) is not None:
            return "more units lack values on one arm"
        return ""

    @property
    def returns(self) -> str:
        """How the arms' units differ in how many requests they make, in words; empty without an alarm."""
        return self.alarms.text(RETURNS)

    @property
    def suspected_returns(self) -> str:
        """The same, or what may be chance; empty without any suspicion."""
        suspected = self.sample_ratio.suspects and f"{self.sample_ratio.returns} Or it is chance: this is no alarm yet."
        return self.returns or suspected or ""

    def _completeness_key(self, column: int, treatment: int) -> str:
        return f"completeness {self._measures[column].key} {self._arms.names[treatment]}"

    def raise_alarms(self, now: float) -> list[Occurrence]:
        """Raises alarms; returns the new ones, for the journal."""
        occurrences = [self._hold(key, alarm) for key, alarm in self._new_alarms(now)]
        occurrences += [self._while_it_lasts(LOST, "rows_lost", self.traffic.too_many_lost(), now)]
        occurrences += [self._while_it_lasts("incomplete", "incomplete", _unreadable(self.damaged), now)]
        occurrences += [
            self._while_it_lasts(f"unhealthy {watch.key}", "endpoint_unhealthy", _unhealthy(watch), now)
            for watch in self.guardrails
        ]
        occurrences += [
            self._while_it_lasts(f"one caller {watch.key}", "one_caller", _one_caller(watch), now)
            for watch in self.guardrails
        ]
        return [occurrence for occurrence in occurrences if occurrence is not None]

    def _new_alarms(self, now: float) -> Iterator[tuple[str, Alarm]]:
        for watch in self.guardrails:
            if watch.is_new_alarm():
                yield f"guardrail {watch.key}", Alarm(kind="guardrail", at=now, text=_broken(watch))
        if self.sample_ratio.is_new_alarm():
            text = " ".join(["The units contradict the weights.", *self.traffic.differences()])
            yield SPLIT, Alarm(kind="sample_ratio", at=now, text=text)
        elif self.alarms.raised_at(SPLIT) is self.alarms.raised_at(RETURNS) is None and (
            self.sample_ratio.compare_returns(now) >= RETURNS_THRESHOLD
        ):
            text = f"{self.sample_ratio.returns} The arms' requests are not alike."
            yield RETURNS, Alarm(kind="returns", at=now, text=text)
        for (column, treatment), completeness in self.completeness.items():
            if completeness.is_new_alarm():
                yield self._completeness_key(column, treatment), self._incomplete(column, treatment, completeness, now)

    def _incomplete(self, column: int, treatment: int, completeness: Completeness, now: float) -> Alarm:
        metric, names = self._measures[column].key, (self._arms.names[0], self._arms.names[treatment])
        counts = ", ".join(f"{units:,} on {name}" for units, name in zip(completeness.units, names, strict=True))
        text = f"Requests lack {metric} more often on one arm than the weights explain. Units with one: {counts}."
        return Alarm(kind="completeness", at=now, text=text, metric=metric)

    def raise_instrumentation_alarms(self, verdicts: Sequence[MetricComparison], now: float) -> list[Occurrence]:
        """Raises an alarm for a difference found in mode `aa`, where there is none."""
        wrong = [
            verdict
            for verdict in verdicts
            if verdict.measure.role == "primary"
            and verdict.told is not None
            and verdict.told.holds
            and verdict.told.word in ("better", *AGAINST)
        ]
        text = (
            "The labels of A/A differ in {}, where nothing differs: something about the rig is wrong. Chance alone "
            f"does that in at most {100 * self._experiment.alpha:g} % of the runs."
        )
        occurrences = [
            self._hold(
                f"aa {verdict.key}",
                Alarm(kind="aa", at=now, text=text.format(verdict.measure.key), metric=verdict.measure.key),
            )
            for verdict in wrong
        ]
        return [occurrence for occurrence in occurrences if occurrence is not None]

    def raise_changes(self, comparisons: Sequence[MetricComparison], now: float) -> list[Occurrence]:
        """Raises an alarm for each primary effect whose direction has changed."""
        occurrences = [
            self._hold(
                f"effect {comparison.key}",
                Alarm(
                    kind="effect_changed",
                    at=now,
                    text=changed(comparison, change, now),
                    metric=comparison.measure.key,
                    changed_at=change.at,
                ),
            )
            for comparison in comparisons
            if (change := comparison.changes.change) is not None and change.flips
        ]
        return [occurrence for occurrence in occurrences if occurrence is not None]

    def _hold(self, key: str, alarm: Alarm) -> Occurrence | None:
        occurrence = self.alarms.hold(key, alarm)
        self._mark()
        return occurrence

    def _while_it_lasts(self, key: str, kind: Any, text: str, now: float) -> Occurrence | None:
        if not text:
            self.alarms.drop(key)
            return None
        return self.alarms.hold(key, Alarm(kind=kind, at=now, text=text[0].upper() + text[1:] + "."))

    def restore(self, alarms: Mapping[str, Any]) -> None:
        """Continues from the `state` of `alarms`."""
        self.alarms.restore(dict(alarms))
        self._set_alarms_aside()

    def _mark(self) -> None:
        """Copies the times of alarms to the watches."""
        self.sample_ratio.alarmed_at = self.alarms.raised_at(SPLIT)
        for watch in self.guardrails:
            watch.alarmed_at = self.alarms.raised_at(f"guardrail {watch.key}")
        for (column, treatment), completeness in self.completeness.items():
            completeness.alarmed_at = self.alarms.raised_at(self._completeness_key(column, treatment))


def rate_window_s(age_s: float) -> float:
    """How far back the rate of new units is looked at: the last quarter of a run so old, but at most a day and at least
    ten minutes."""
    return min(age_s, _DAY_S, max(_SHORTEST_RATE_S, age_s / 4))


def _standing(watch: GuardrailWatch, raised: float, since: float) -> str:
    return (
        f"The alarm of {watch.rail.event} on {watch.status().treatment} stands since {words.moment(raised, since)}: "
        "nothing ships until a manager's `resume` clears it."
    )


def _broken(watch: GuardrailWatch) -> str:
    status = watch.status()
    counts = ", ".join(f"{units:,} on {name}" for name, units in status.events.items())
    limit = f"{status.treatment} was found above the limit, {status.limit}"
    return f"Guardrail {status.event}: {limit}. Units with the event: {counts}."


def changed(comparing: MetricComparison, change: EffectChange, now: float) -> str:
    """What is said of a change, in words."""
    scale, metric, treatment = comparing.measure.scale, comparing.measure.key, comparing.names[1]

    def size(value: float) -> str:
        lift = effect_of(value, None, scale).estimate or 0.0
        return words.percent(lift, signed=True) if scale == "relative" else f"{lift:+.3g}"

    how = f" at {words.moment(change.at, now)}."
    if change.has_estimates:
        how = (
            f": about {size(change.until)} until {words.moment(change.at, now)}, and about {size(change.since)} since."
        )
    return (
        f"The effect of {treatment} on {metric} has changed{how} What the report says is true of all traffic so far, "
        "not of what comes."
    )


def _unreadable(damaged: Sequence[str]) -> str:
    if not damaged:
        return ""
    parts = "1 part of the ledger is" if len(damaged) == 1 else f"{len(damaged)} parts of the ledger are"
    return (
        f"{parts} missing here: {'; '.join(damaged).rstrip('.')}. Restore what is damaged or gone. To judge by the "
        "rest, delete all files of the damaged segment, put each sentence on what is in no file as a line into "
        "`exposures/_lost`, and restart the controller"
    )


def _unhealthy(watch: GuardrailWatch) -> str:
    if not watch.unhealthy:
        return ""
    return f"control itself exceeds the limit of {watch.rail.event}, {watch.limit}: the endpoint is unhealthy"


def _one_caller(watch: GuardrailWatch) -> str:
    if not watch.one_caller:
        return ""
    return (
        f"{watch.rail.event} on {watch.status().treatment} is above the limit, {watch.limit}, but one caller may have "
        "brought about all of it: nothing is moved. Look at its requests. If one caller has nearly all traffic, set "
        "`one_caller: act` for this guardrail"
    )


def verdict_occurrence(comparing: MetricComparison, now: float, invalid: str) -> Occurrence:
    """Records what a comparison has just told: a verdict with the interval that it rests on, or that it no longer
    holds. `invalid`: why no verdict counts.
    """
    control, treatment = comparing.names
    metric, effect = comparing.measure.key, comparing.known.shown
    assert comparing.told is not None
    word, holds, _ = comparing.told
    verdict: Verdict = word if holds else "invalid" if invalid else comparing.verdict
    text = f"{metric}: {treatment} is {word if holds else f'no longer {word}'}, against {control}"
    return Occurrence(
        at=now,
        kind="verdict",
        text=text if holds else f"{text}: {invalid or verdict.replace('_', ' ')}",
        detail={
            "metric": metric,
            "treatment": treatment,
            "verdict": verdict,
            **({} if holds else {"no_longer": word}),
            "role": comparing.measure.role,
            "lower": effect.lower,
            "upper": effect.upper,
        },
    )
