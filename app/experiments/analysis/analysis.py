"""One running experiment: exposures in, verdicts and a report out.

No I/O, and no clock except for the pace of looks. The order of exposures and how they are split into batches
change nothing, except for guardrails: their detectors take events as they come, and running conversations are judged
by what is known of their beginning. A restarted controller adds the stored exposures again and then restores the
`state`.

The pace of looks: at most one a second, and at most a tenth of the time.
"""

import math
import time
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from operator import itemgetter
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from app.config.experiments import Experiment, FeedbackSettings
from app.config.schema import Config
from app.experiments.analysis import monitoring
from app.experiments.analysis.aggregates import SubgroupLook, SufficientStatistics
from app.experiments.analysis.arms import ArmAssignment, Arms, Arrivals
from app.experiments.analysis.arrays import Mask
from app.experiments.analysis.cells import MAX_LINES, value_name
from app.experiments.analysis.comparing import MetricComparison, effect_of, planned
from app.experiments.analysis.false_verdicts import MAX_UNITS, RecordedMetric, false_verdicts
from app.experiments.analysis.feedback import Match, PendingFeedback
from app.experiments.analysis.metrics import RESPONSE_RATE, Measure, facts_of, measures_of
from app.experiments.analysis.monitoring import RETURNS, Monitoring
from app.experiments.analysis.reporting import reported
from app.experiments.automation.state import Interventions
from app.experiments.contract.report import (
    FalseVerdicts,
    HistoryPoint,
    Occurrence,
    Planned,
    Report,
    SubgroupEffect,
    Subgroups,
)
from app.experiments.statistics.look import Estimate, Slack
from app.experiments.statistics.planner import e_bh, levels, weight_of_place
from app.experiments.statistics.sequences import confidence_sequence, effect_size, log_e_mixture
from app.experiments.storage.columns import OverdueColumns, RowColumns, StartColumns, Tables, router_hash
from app.exposures.wire import FeedbackItem, Flag

SUBGROUPS = "subgroups"
"""The key of these looks in the journal, beside those of comparisons."""


class SubgroupWatch:
    """For whom the effect differs: the effect in each subgroup of one experiment against that in all other units.

    Both are estimates from different units, so that their difference is a look like any other: whenever one looks, its
    e-value is one. e-BH selects among all of them, and the intervals of effects share alpha, so nothing here is said
    more often wrongly for being one of many. New subgroups may come at any time; each has the weight of its place.

    Where no verdict counts, nothing is said. What requests without a value allow for is a part of every interval.

    `alpha`: that of the experiment. `names`: those of the records' codes.
    """

    def __init__(self, comparing: Sequence[MetricComparison], alpha: float, names: Sequence[str]) -> None:
        self._comparing = [
            comparison
            for comparison in comparing
            if comparison.measure.role == "primary" and comparison.measure.kind != "quantile"
        ]
        self._alpha, self._names = alpha, names
        self._effects: list[SubgroupEffect] = []
        self.looked_at = -math.inf
        self.looked_version = -1
        """As in `MetricComparison`."""

    def look(self, collected: SufficientStatistics, now: float) -> None:
        """Looks at all subgroups."""
        self.looked_at, self._effects = now, []
        if collected.unknown.any():  # any of them may belong to any subgroup
            return
        groups = [
            (comparing, look)
            for comparing in self._comparing
            for look in collected.looks_of_subgroups(
                comparing.column, comparing.treatment, comparing.rate_of_scores(collected)
            )
        ]
        evidence = [self._evidence(*group) for group in groups]
        weights = [weight_of_place(look.place) / len(self._comparing) for _, look in groups]
        kept, level = set(e_bh(evidence, self._alpha, weights)), levels(evidence, self._alpha, weights)
        self._effects = [
            self._effect(*group, evidence[number], level[number], weights[number], differs=number in kept)
            for number, group in enumerate(groups)
        ]

    def _evidence(self, comparing: MetricComparison, look: SubgroupLook) -> float:
        est, se, nu = _difference(look.inside, look.outside)
        return float(log_e_mixture(_apart(look).shrink(est), se, nu, effect=comparing.delta, alpha=self._alpha))

    def _effect(
        self,
        comparing: MetricComparison,
        look: SubgroupLook,
        log_e_value: float,
        level: float,
        weight: float,
        *,
        differs: bool,
    ) -> SubgroupEffect:
        measure, delta, alpha = comparing.measure, comparing.delta, self._alpha
        subgroup, inside = look.subgroup, look.inside
        own = inside.interval(effect=delta, alpha=alpha, level=alpha * weight, slack=look.slack)
        est, se, nu = _difference(inside, look.outside)
        apart = _apart(look).widen(confidence_sequence(est, se, nu, effect=delta, alpha=alpha, level=level))
        return SubgroupEffect(
            attribute=subgroup.attribute,
            name=value_name(subgroup.attribute, subgroup.value, self._names),
            metric=measure.key,
            treatment=comparing.names[1],
            scale=measure.scale,
            units=dict(zip(comparing.names, inside.units, strict=True)),
            effect=effect_of(inside.est, own, measure.scale),
            difference=effect_of(est, apart, measure.scale),
            log_e_value=log_e_value,
            differs=differs,
        )

    def report(self, version: int, now: float, silent: Callable[[MetricComparison], bool]) -> Subgroups | None:
        """The latest look, for a report of the Unix time `now`. `version`: that of the data. `silent`: of which
        comparisons nothing is said.
        """
        if self.looked_version < 0:
            return None
        untold = {(comparing.measure.key, comparing.names[1]) for comparing in self._comparing if silent(comparing)}
        outdated = self.looked_version < version
        return Subgroups(
            looked_at=self.looked_at if outdated else now,
            outdated=outdated,
            alpha=self._alpha,
            effects=[effect for effect in self._effects if (effect.metric, effect.treatment) not in untold],
        )


def _apart(look: SubgroupLook) -> Slack:
    """What requests without a value allow for in the difference of both effects."""
    return Slack(look.slack.down + look.slack_outside.up, look.slack.up + look.slack_outside.down)


def _difference(inside: Estimate, outside: Estimate) -> tuple[float, float, float]:
    """The difference of both estimates, its standard error, and Welch's and Satterthwaite's degrees of freedom."""
    own, others = inside.se**2, outside.se**2
    variance = own + others
    return inside.est - outside.est, math.sqrt(variance), variance**2 / (own**2 / inside.nu + others**2 / outside.nu)


EVERY_S = 1.0
REST = 10.0
"""The length of the pause after a turn, as a multiple of the turn's length."""

TURN_S = 0.2
"""The length of a turn: it ends with the look that reaches this, so that batches do not wait for long."""


class Pace:
    """`with pace:` is one turn. `timer` counts seconds."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self._timer = timer
        self._began = self._next = timer()

    def allows(self) -> bool:
        """Whether a turn may begin."""
        return self._timer() >= self._next

    def is_over(self) -> bool:
        """Whether the turn's time is up."""
        return self._timer() - self._began >= TURN_S

    def __enter__(self) -> Self:
        self._began = self._timer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = self._timer()
        self._next = now + max(EVERY_S, REST * (now - self._began))


SLOW_EVERY_S = 60.0
"""Quantiles read all of their values, and subgroups all units once for each of them."""

AnyColumns = StartColumns | RowColumns | OverdueColumns
C = TypeVar("C", StartColumns, RowColumns, OverdueColumns)


class Analysis:
    """Single-threaded."""

    def __init__(
        self,
        name: str,
        experiment: Experiment,
        config: Config,
        tables: Tables,
        started_at: float,
        *,
        pace: Pace | None = None,
        max_lines: int = MAX_LINES,
    ) -> None:
        """`max_lines`: of units, strata and arms; above, half of the units are dropped."""
        self.name = name
        self.experiment = experiment
        self._config = config
        self._returning = returning = config.endpoints[experiment.endpoint].sticky is not None
        self._arms = Arms(name, experiment, tables, started_at)
        self._arrivals = Arrivals(len(self._arms.names))
        measures = measures_of(experiment)
        self._watched = Monitoring(experiment, measures, self._arms, tables, returning=returning)
        self.collected = SufficientStatistics(
            measures,
            self._arms,
            facts_of(config, tables),
            experiment.strata,
            experiment.covariates,
            returning=returning,
            first_exposures=self._watched.sample_ratio.first_exposures,
            max_lines=max_lines,
        )
        self._feedback = PendingFeedback(experiment.feedback)
        self._comparing = self._comparisons()
        self._subgroups = SubgroupWatch(self._comparing, experiment.alpha, tables.names)
        self._pace = pace or Pace(time.perf_counter)
        self._done = Interventions()
        self._version = 0
        """The number of additions so far."""
        self._occurrences: list[Occurrence] = []

    def _comparisons(self) -> list[MetricComparison]:
        experiment, names = self.experiment, self._arms.names
        each = experiment.alpha / (len(experiment.primary) * len(experiment.treatments))
        others = sum(measure.role == "secondary" for measure in self.collected.measures) * len(experiment.treatments)
        comparing = [
            MetricComparison(
                measure,
                column,
                treatment,
                (names[0], names[treatment]),
                each if measure.role == "primary" else experiment.alpha,
                self._watched.rare.get((column, treatment)),
                each if measure.role == "primary" else experiment.alpha / others,
            )
            for column, measure in enumerate(self.collected.measures)
            for treatment in range(1, len(names))
        ]
        rates = {
            (comparison.measure.metric, comparison.treatment): comparison
            for comparison in comparing
            if comparison.measure.statistic == RESPONSE_RATE
        }
        for comparison in comparing:
            if comparison.measure.feedback and comparison.measure.statistic != RESPONSE_RATE:
                comparison.response = rates[comparison.measure.metric, comparison.treatment]
        return comparing

    def intervene(self, done: Interventions) -> None:
        """Takes the actions so far. Also called before exposures are added again."""
        if done != self._done:
            self._done = done
            self._watched.intervene(done)

    # Records of routers.

    def add_starts(self, starts: StartColumns) -> None:
        """Draws of an arm, of any endpoint."""
        starts, placed = self._belonging(starts)
        analysed = _analysed(starts)
        self._watched.add_starts(starts, placed, _random(starts), analysed)
        self._arrivals.start(starts.take(analysed), placed.take(analysed))

    def add_rows(self, rows: RowColumns) -> None:
        """Requests that have ended, of any endpoint."""
        self._count_earlier(rows)
        self._watched.shared_time.see(rows.at, rows.plan)
        rows, placed = self._belonging(rows)
        if not len(rows):
            return
        self._watched.add_rows(rows, placed, _random(rows))
        analysed = _analysed(rows)
        if not analysed.any():
            return
        rows, placed = rows.take(analysed), placed.take(analysed)
        self._feedback.add_rows(rows, self.collected.strata.codes_of(rows, placed.weights), placed.arm)
        self._arrivals.end(rows, placed)
        self._count_arrivals()

    def _count_earlier(self, rows: RowColumns) -> None:
        """Counts what units did before the run."""
        if not ("history" in self.experiment.covariates and self._returning):
            return
        early = self._arms.before(rows) & _analysed(rows)
        if early.any():
            self.collected.add_earlier(rows.take(early))
            self._version += 1

    def _count_arrivals(self, now: float = -math.inf) -> None:
        """Counts the requests that no earlier one holds up."""
        before = self.collected.unknown, self.collected.running
        ended = self._arrivals.release(now)
        self.collected.unknown, self.collected.running = self._arrivals.unknown, self._arrivals.running
        self.collected.held = self._arrivals.held
        if ended is not None:
            self._watched.add_values(*ended, self.collected.add(*ended))
        after = self.collected.unknown, self.collected.running
        if ended is not None or not all(map(np.array_equal, before, after)):
            self._version += 1

    def add_late(self, late: OverdueColumns) -> None:
        """Requests that are late, of any endpoint."""
        late, placed = self._belonging(late)
        self._watched.add_late(late, placed, _random(late))

    def add_feedback(self, items: Sequence[FeedbackItem], arrived: Sequence[float] | None = None) -> None:
        """Scores of any answers. `arrived`: when the controller took each, in Unix seconds."""
        self._feedback.add(items, arrived)

    def matches(self, items: Sequence[FeedbackItem]) -> list[Match]:
        """What each score belongs to."""
        return self._feedback.matches(items)

    def set_lost(self, rows: Mapping[str, int]) -> None:
        """Rows of the endpoint that routers dropped since the start, by deployment."""
        experiment = self.experiment
        if experiment.mode == "aa":  # labels share what control lost
            rows = dict.fromkeys(experiment.arms, rows.get(experiment.control, 0) // len(experiment.arms))
        self._watched.traffic.set_lost(rows)

    def set_gaps(self, damaged: Sequence[str], lacking: Mapping[str, int], gone: Sequence[str] = ()) -> None:
        """`damaged`: parts of the ledger with records of the run that cannot be read, each with the reason. `lacking`:
        columns that records of another version do not have, with the number of these records. `gone`: what is
        missing and does not count, as `Gaps.known_since`.
        """
        self._watched.damaged, self._watched.lacking, self._watched.gone = list(damaged), dict(lacking), list(gone)

    def observe_load(self, routers: int, replicas: Mapping[str, int] | None, gone: Sequence[str] = ()) -> None:
        """Routers that send rows and running replicas by deployment, now; None: replicas are not known. `gone`: the ids
        of routers that have ended of late, as far as is known now: their running requests hold up no others.
        """
        self._watched.load.observe(routers, replicas)
        self._arrivals.abandon([router_hash(router) for router in gone])

    def _belonging(self, columns: C) -> tuple[C, ArmAssignment]:
        placed = self._arms.place(columns)
        if placed.belongs.all():
            return columns, placed
        return columns.take(placed.belongs), placed.take(placed.belongs)

    def is_alarmed(self) -> bool:
        """Whether a guardrail has an alarm that `tick` has still to raise."""
        return any(watch.is_new_alarm() for watch in self._watched.guardrails)

    # Looks, alarms and reports.

    def tick(self, now: float) -> list[Occurrence]:
        """Counts feedback whose window is over, raises alarms, makes looks as far as the pace allows.

        Returns new occurrences since the last call, for the journal. `now` is in Unix seconds.
        """
        self._advance(now)
        new, self._occurrences = self._occurrences, []
        return new

    def _advance(self, now: float) -> None:
        self.settle(now)
        self._occurrences += self._watched.raise_alarms(now)
        if self._pace.allows():
            self._look(now)
        self._discover()
        self._occurrences += self._reached(now)

    def settle(self, now: float) -> None:
        """Counts what is complete by a Unix time: requests that no earlier one holds up, feedback after its window."""
        self._count_arrivals(now)
        self._count_feedback(now)

    def _count_feedback(self, now: float) -> None:
        if not self.experiment.feedback:  # nothing waits for a score
            return
        for metric, matured in self._feedback.mature(now).items():
            if len(matured.unit):
                self.collected.add_feedback(metric, matured)
                self._version += 1

    def _look(self, now: float) -> None:
        """Looks at one comparison after the other, until this turn's time is up."""
        with self._pace:
            due = [(comparison.looked_at, partial(self._look_at, comparison, now)) for comparison in self._stale(now)]
            if now - self._subgroups.looked_at >= SLOW_EVERY_S:
                due.append((self._subgroups.looked_at, partial(self._look_at_subgroups, now)))
            for _, look in sorted(due, key=itemgetter(0)):
                look()
                if self._pace.is_over():
                    return

    def _stale(self, now: float) -> list[MetricComparison]:
        """Comparisons with new data. Quantiles wait for their minute."""
        return [
            comparison
            for comparison in self._comparing
            if comparison.looked_version < self._version
            and (comparison.measure.kind != "quantile" or now - comparison.looked_at >= SLOW_EVERY_S)
        ]

    def _look_at(self, comparing: MetricComparison, now: float) -> None:
        if comparing.looked_version < self._version:
            comparing.looked_version = self._version
            comparing.look(self.collected, self._arms.weights, now)

    def _look_at_subgroups(self, now: float) -> None:
        if self._subgroups.looked_version < self._version:
            self._subgroups.looked_version = self._version
            self._subgroups.look(self.collected, now)

    def _discover(self) -> None:
        """Selects the secondary metrics that differ, among all of them."""
        secondary = [comparison for comparison in self._comparing if comparison.measure.role == "secondary"]
        log_e_values = [
            0.0
            if self._watched.invalidates(comparison.column, comparison.treatment)
            else comparison.known.log_e_value or 0.0
            for comparison in secondary
        ]
        kept, own = set(e_bh(log_e_values, self.experiment.alpha)), levels(log_e_values, self.experiment.alpha)
        for number, (comparing, level) in enumerate(zip(secondary, own, strict=True)):
            comparing.assume(level, number in kept, self._arms.weights)
        for comparing in self._comparing:
            comparing.returns = self._watched.returns
            comparing.say()

    def _reached(self, now: float) -> list[Occurrence]:
        """Verdicts that are reached, and those that no longer hold, and effects that have changed."""
        invalid = {
            comparing.key: self._watched.invalidates(comparing.column, comparing.treatment)
            for comparing in self._comparing
        }
        valid = [comparing for comparing in self._comparing if not invalid[comparing.key]]
        new = [
            comparing for comparing in self._comparing if comparing.tell(invalid=bool(invalid[comparing.key]), now=now)
        ]
        alarms = self._watched.raise_instrumentation_alarms(new, now) if self.experiment.mode == "aa" else []
        alarms += self._watched.raise_changes(valid, now)
        return [monitoring.verdict_occurrence(comparing, now, invalid[comparing.key]) for comparing in new] + alarms

    def report(self, now: float) -> Report:
        """Everything that is known. Every comparison has a look; those that the pace does not allow to repeat are
        older.
        """
        self._count_arrivals(now)
        for comparing in self._comparing:
            if comparing.looked_version < 0:
                self._look_at(comparing, now)
        if self._subgroups.looked_version < 0:
            self._look_at_subgroups(now)
        self._advance(now)
        return self._reported(now)

    def standing(self, now: float) -> Report:
        """A report of the state after the last `tick`, in milliseconds: without new looks and the arms' values."""
        return self._reported(now, with_values=False)

    def look(self, keys: Container[str], now: float) -> None:
        """Looks at comparisons by their `MetricComparison.key`, SUBGROUPS or RETURNS, whatever the pace."""
        self.settle(now)
        for comparing in self._comparing:
            if comparing.key in keys:
                self._look_at(comparing, now)
        if SUBGROUPS in keys:
            self._look_at_subgroups(now)
        if RETURNS in keys:
            self._watched.sample_ratio.compare_returns(now, growth=1.0)

    def latest_looks(self) -> dict[str, float]:
        """The Unix time of each comparison's latest look, by the names that `look` takes."""
        looks = {comparing.key: comparing.looked_at for comparing in self._comparing}
        return {**looks, SUBGROUPS: self._subgroups.looked_at}

    def report_again(self, now: float, older: Container[str]) -> Report:
        """The report of a time in the past, on records until then. All looks are made, except for the comparisons whose
        report rested on `older` looks: `look` has made these.
        """
        self.settle(now)
        self._watched.raise_alarms(now)
        every = (*(comparison.key for comparison in self._comparing), SUBGROUPS)
        self.look([key for key in every if key not in older], now)
        self._discover()
        self._reached(now)
        return self._reported(now)

    def _reported(self, now: float, *, with_values: bool = True) -> Report:
        return reported(
            self.name,
            self._config,
            collected=self.collected,
            watched=self._watched,
            feedback=self._feedback,
            comparing=self._comparing,
            subgroups=self._subgroups.report(self._version, now, self._is_silent),
            version=self._version,
            now=now,
            with_values=with_values,
        )

    def _is_silent(self, comparing: MetricComparison) -> bool:
        """Whether no verdict on a measure counts, or units are known to make different numbers of requests."""
        return bool(self._watched.returns or self._watched.invalidates(comparing.column, comparing.treatment))

    def update(self, config: Config) -> None:
        """Takes a new configuration of the same run (`same_run`): its state and what reports show of it."""
        self._config = config

    def history(self, metric: str, treatment: str) -> list[HistoryPoint]:
        """The looks of the past, oldest first. Raises KeyError for a metric or a treatment that is not compared."""
        return self._compared(metric, treatment).history.points

    def plan_sample_size(
        self, metric: str, effect: float, power: float, now: float, treatment: str | None = None
    ) -> Planned:
        """Units for a verdict on an effect, from the spread of the recorded values. By default of the first treatment.

        Raises KeyError as `history`, Conflict before anything can be estimated.
        """
        comparing = self._compared(metric, treatment or self.experiment.treatments[0])
        self._look_at(comparing, now)
        return planned(comparing, effect, power, self._watched.units_per_day(now))

    def false_verdicts(self) -> Callable[[int], list[FalseVerdicts]]:
        """A/A runs on a copy of the present records: a function of the number of runs, for any thread."""
        recorded = [
            RecordedMetric(
                measure.key, scale, effect_size(measure.minimal_effect, measure.scale), lines, hashes, covariates
            )
            for measure, scale, lines, hashes, covariates in self.collected.recorded(MAX_UNITS)
        ]
        alpha = self.experiment.alpha
        return lambda runs: false_verdicts(recorded, runs, alpha)

    def _compared(self, metric: str, treatment: str) -> MetricComparison:
        for comparing in self._comparing:
            if (comparing.measure.key, comparing.names[1]) == (metric, treatment):
                return comparing
        raise KeyError(f"{metric} of {treatment}")

    def state(self) -> dict[str, Any]:
        """State that cannot be recomputed from exposures: the verdicts so far, alarms, past looks.

        As plain data, for the journal.
        """
        return {
            "comparisons": {comparing.key: comparing.state() for comparing in self._comparing},
            "alarms": self._watched.alarms.state(),
        }

    def landmarks(self) -> dict[str, Any]:
        """The part of the state on which the words of reports rest: it changes only with them."""
        return {
            "comparisons": {comparing.key: comparing.landmarks() for comparing in self._comparing},
            "alarms": self._watched.alarms.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state`, or from `landmarks`. What they do not know stays as it is."""
        for comparing in self._comparing:
            if known := state.get("comparisons", {}).get(comparing.key):
                comparing.restore(known)
        self._watched.restore(state.get("alarms", {}))


def _random(columns: AnyColumns) -> Mask:
    """Exposures whose arm was drawn: guardrails count them."""
    return np.asarray((columns.flags & Flag.FORCED) == 0)


def _analysed(columns: AnyColumns) -> Mask:
    """Exposures that are compared."""
    return np.asarray((columns.flags & (Flag.FORCED | Flag.CARRIED)) == 0)


def same_run(old: Experiment, new: Experiment) -> bool:
    """Whether a change of an experiment's section keeps the evidence.

    A change of the comparison, or of the rules that decide, starts a new run. (So does one of the endpoint's `sticky`,
    which is not part of the section.) A primary metric is what defines it, too: a score's window and good direction, a
    guardrail's limits. A new secondary metric is computed from the recorded exposures.
    """
    fields = ("endpoint", "mode", "control", "treatments", "primary", "alpha", "starts_at", "strata", "covariates")
    return all(getattr(old, name) == getattr(new, name) for name in fields) and _deciding(old) == _deciding(new)


def _deciding(experiment: Experiment) -> list[tuple[Measure, FeedbackSettings | None]]:
    """The primary metrics with what defines them elsewhere in the section."""
    return [
        (measure, experiment.feedback.get(measure.metric))
        for measure in measures_of(experiment)
        if measure.role == "primary"
    ]
