"""Everything that judges recorded exposures: an analysis for each run, and the shadows of mirrors.

Each of them counts every exposure once. One whose basis has changed is rebuilt, and counts everything recorded so far.

The analyses of a controller: one for each experiment that has a run.
"""

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from app.config.experiments import Experiment
from app.config.schema import Config
from app.experiments.analysis.arms import HORIZON_S
from app.experiments.analysis.feedback import Match
from app.experiments.automation.state import Interventions
from app.experiments.contract.journal import JUDGED, JournalEntry
from app.experiments.contract.report import FalseVerdicts, HistoryPoint, Occurrence, Planned, Report
from app.experiments.runs import ExperimentRun, history_until, loads_of, of_run
from app.experiments.shadows import ShadowJudge
from app.experiments.storage.columns import Bool, Columns, Exposures, OverdueColumns, RowColumns, StartColumns, Tables
from app.experiments.storage.gaps import Gaps
from app.experiments.storage.journal import AnalysisSnapshot
from app.experiments.storage.keeper import StorageManager
from app.experiments.storage.store import StoreError
from app.exposures.wire import FeedbackItem

C = TypeVar("C", bound=Columns)

_WAITING_S = HORIZON_S + 60.0
"""How long a request may wait for an earlier one, with routers whose clocks differ."""


class JudgedAnalysis(Protocol):
    """One running experiment, as `app.experiments.analysis` judges it. Single-threaded, without I/O."""

    def add_starts(self, starts: StartColumns) -> None: ...
    def add_rows(self, rows: RowColumns) -> None: ...
    def add_late(self, late: OverdueColumns) -> None: ...
    def add_feedback(self, items: Sequence[FeedbackItem], arrived: Sequence[float] | None = None) -> None:
        """`arrived`: when the controller took each, in Unix seconds."""

    def settle(self, now: float) -> None:
        """Counts what is complete by a Unix time."""

    def look(self, keys: Container[str], now: float) -> None:
        """Looks at comparisons by `Comparison.key`, whatever the pace."""

    def latest_looks(self) -> Mapping[str, float]:
        """The Unix time of each comparison's latest look, by the names that `look` takes."""

    def report_again(self, now: float, older: Container[str]) -> Report:
        """The report of a time in the past. `older`: comparisons that keep the look that they have."""

    def matches(self, items: Sequence[FeedbackItem]) -> Sequence[Match]:
        """What each score belongs to."""

    def is_alarmed(self) -> bool:
        """Whether a guardrail has an alarm that `tick` has still to raise."""

    def intervene(self, done: Interventions) -> None:
        """Takes the actions on which counting depends: before exposures are added again, and whenever they change."""

    def set_lost(self, rows: Mapping[str, int]) -> None:
        """Rows of the run that routers have lost, by deployment."""

    def set_gaps(self, damaged: Sequence[str], lacking: Mapping[str, int], gone: Sequence[str] = ()) -> None:
        """Parts of the ledger with records of the run that cannot be read, columns that some records do not have, and
        parts that are known to be gone."""

    def observe_load(self, routers: int, replicas: Mapping[str, int] | None, gone: Sequence[str] = ()) -> None:
        """Routers that send rows and running replicas by deployment, now; None: replicas are not known. `gone`: the ids
        of routers that have ended of late, as far as is known now.
        """

    def tick(self, now: float) -> Sequence[Occurrence]:
        """Makes a look, if it is time for one. Returns entries for the journal."""

    def update(self, config: Config) -> None:
        """Takes a configuration with which the same analysis continues: other traffic, another state."""

    def report(self, now: float) -> Report: ...
    def standing(self, now: float) -> Report:
        """A report of the state after the last `tick`, in milliseconds: without new looks, and without the arms'
        values.
        """

    def history(self, metric: str, treatment: str) -> Sequence[HistoryPoint]: ...
    def plan_sample_size(
        self, metric: str, effect: float, power: float, now: float, treatment: str | None = None
    ) -> Planned: ...
    def false_verdicts(self) -> Callable[[int], Sequence[FalseVerdicts]]: ...
    def state(self) -> dict[str, Any]:
        """State that cannot be recomputed from exposures, as plain data."""

    def landmarks(self) -> dict[str, Any]:
        """The part of the state on which the words of reports rest: it changes only with them."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state`, or from `landmarks`."""


AnalysisFactory = Callable[[str, Experiment, Config, Tables, float], JudgedAnalysis]
"""Makes the analysis of a run, without evidence: its name, section, configuration, codes and start."""


@dataclass(slots=True)
class RunAnalysis:
    """A run and its analysis. `basis`: the settings from which the analysis was built; with another one it has to be
    built again.
    """

    run: ExperimentRun
    basis: Any
    analysis: JudgedAnalysis
    landmarks: Mapping[str, Any] = field(default_factory=dict)
    """Those that the journal has."""
    looks: Mapping[str, float] = field(default_factory=dict)
    """Comparisons to be looked at while counting again, each with the Unix time."""
    loads: list[tuple[float, Mapping[str, Any]]] = field(default_factory=list)
    """Observations to be made while counting again, with their Unix times."""
    history_until: float = math.inf
    """Of the records from before the run, only those from before this Unix time count."""
    reported: tuple[float, Mapping[str, float]] = (-math.inf, {})
    """The Unix time of the latest report, and the latest looks then: there may be later ones when it is shown."""
    evidence_since: float = field(init=False)
    """As in the run. It follows from the basis, so that another run with the same basis has the same."""

    def __post_init__(self) -> None:
        self.evidence_since = self.run.evidence_since

    def report(self, now: float) -> Report:
        """The analysis's report at a Unix time."""
        report = self.analysis.report(now)
        self.reported = report.at, self.analysis.latest_looks()
        return report

    def new_landmarks(self, now: float) -> list[JournalEntry]:
        """The analysis's landmarks as an entry of the journal, if they have changed."""
        landmarks = self.analysis.landmarks()
        if landmarks == self.landmarks:
            return []
        self.landmarks = landmarks
        return [JournalEntry(now, JUDGED, self.run.name, {"started_at": self.run.started_at, **landmarks})]

    def resume(self, state: Mapping[str, Any] | None, entries: Iterable[JournalEntry]) -> None:
        """Continues from a saved state of the run's analysis, if there is one, and the landmarks of the journal."""
        if state is not None:
            self.analysis.restore(state)
        known = [entry.detail for entry in entries if entry.kind == JUDGED and entry.experiment == self.run.name]
        mine = [detail for detail in known if detail.get("started_at") == self.run.started_at]
        if mine:
            self.landmarks = {name: value for name, value in mine[-1].items() if name != "started_at"}
            self.analysis.restore(self.landmarks)

    def count_again(self, exposures: Exposures, tables: Tables, now: float) -> None:
        """Adds stored exposures, in the order in which they came, until a Unix time; makes the `looks` on the way.

        Which request waits for an earlier one depends on what was known when it came. So the latest exposures, among
        which are all that wait, come one batch after the other.
        """
        since = min([now, *self.looks.values()]) - _WAITING_S
        for at, piece in exposures.in_order(also=[at for at, _ in self.loads], each_since=since):
            self.catch_up(at)
            self.count(piece, tables)
            if at >= since:
                self.analysis.settle(at)

    def catch_up(self, end: float) -> None:
        """Makes those of the `looks` and the observations that come before a Unix time, in their order."""
        for at in sorted({at for at in self.looks.values() if at < end}):
            self._observe(math.nextafter(at, math.inf))
            self.analysis.look([key for key, its in self.looks.items() if its == at], at)
        self._observe(end)
        self.looks = {key: at for key, at in self.looks.items() if not at < end}

    def _observe(self, end: float) -> None:
        while self.loads and self.loads[0][0] < end:
            self.analysis.observe_load(**self.loads.pop(0)[1])

    def count(self, exposures: Exposures, tables: Tables) -> None:
        """Adds the exposures of the run; the analysis leaves out other endpoints and earlier exposures."""
        starts, rows, late, feedback, _ = exposures
        if len(starts):
            self.analysis.add_starts(_within(starts, self.run.covers(starts.at)))
        if len(rows):
            rows = _within(rows, (rows.at >= self.run.started_at) | (rows.at < self.history_until))
            self.analysis.add_rows(_within(rows, self.run.covers(rows.at)))
        if len(late):
            self.analysis.add_late(_within(late, self.run.covers(late.at)))
        if len(mine := feedback.take(feedback.at >= self.run.started_at)):
            self.analysis.add_feedback(mine.items(tables), mine.arrived.tolist())

    def set_lost(self, lost: Mapping[tuple[str, str], int]) -> None:
        """`lost`: the lost exposures of all routers, by endpoint and deployment."""
        self.analysis.set_lost(
            {
                deployment: rows - self.run.lost_before.get(deployment, 0)
                for (endpoint, deployment), rows in lost.items()
                if endpoint == self.run.experiment.endpoint and rows > self.run.lost_before.get(deployment, 0)
            }
        )

    def set_gaps(self, gaps: Gaps, until: float = math.inf) -> None:
        """`gaps`: parts of the ledger's directory that could not be used. `until`: the Unix time of the report."""
        run, began = self.run, self.run.started_at
        until = until if run.stopped_at is None else min(until, run.stopped_at + _LATE_S)
        known = gaps.known_since(self.evidence_since, began, until)
        self.analysis.set_gaps(gaps.since(began, until, run.name), gaps.lacking_since(began), known)


_LATE_S = 86400.0
"""The time after a run's end by which its last requests have ended, and scores have come."""


class Evidence:
    """The read side of one analysis."""

    def __init__(self, analysis: JudgedAnalysis, report: Callable[[float], Report]) -> None:
        """`report`: the analysis's report at a Unix time, completed with what the analysis does not know."""
        self._analysis, self.report = analysis, report

    def history(self, metric: str, treatment: str) -> Sequence[HistoryPoint]:
        """A comparison's stored looks."""
        return self._analysis.history(metric, treatment)

    def matches(self, items: Sequence[FeedbackItem]) -> Sequence[Match]:
        """What each score belongs to."""
        return self._analysis.matches(items)

    def plan_sample_size(
        self, metric: str, effect: float, power: float, now: float, treatment: str | None = None
    ) -> Planned:
        """The units that an effect needs, by default of the first treatment."""
        return self._analysis.plan_sample_size(metric, effect, power, now, treatment)

    def false_verdicts(self) -> Callable[[int], Sequence[FalseVerdicts]]:
        """The work of A/A runs."""
        return self._analysis.false_verdicts()


def basis_of(run: ExperimentRun, config: Config) -> Any:
    """Everything that the experiment's analysis is built from; its traffic and state may change later. `config` as by
    `config_of`.
    """
    experiment = config.experiments[run.name].model_copy(update={"state": "running"})
    prices = [config.deployments[arm].price for arm in experiment.arms if arm in config.deployments]
    return run.started_at, experiment, run.unit, config.timeouts.total_s, prices


def config_of(run: ExperimentRun, config: Config) -> Config:
    """The configuration by which a run is judged. One that was stopped keeps its section and its units, whatever the
    file says of its name or its endpoint later.
    """
    if run.stopped_at is None:
        return config
    endpoint = config.endpoints.get(run.experiment.endpoint)
    prices = {
        name: deployment.price.model_dump()
        for name, deployment in config.deployments.items()
        if deployment.price is not None
    }
    traffic = endpoint.traffic if endpoint is not None else None
    return of_run(run, traffic=traffic, prices=prices, total_s=config.timeouts.total_s)


def _within(columns: C, mask: Bool | None) -> C:
    return columns if mask is None or mask.all() else columns.take(mask)


Lost = Mapping[tuple[str, str], int]
"""Rows that routers have lost, by endpoint and deployment."""


class Judges:
    """`by_experiment` has those of experiments with a run. Not thread-safe."""

    def __init__(self, tables: Tables, keeper: StorageManager, new_analysis: AnalysisFactory) -> None:
        self._tables, self._keeper, self._new_analysis = tables, keeper, new_analysis
        self.shadows = ShadowJudge(tables)
        self.by_experiment: dict[str, RunAnalysis] = {}
        self.has_counted_all = False
        """Whether all earlier records could be read."""

    def are_alarmed(self) -> bool:
        """Whether a guardrail has an alarm that has still to be raised."""
        return any(judged.analysis.is_alarmed() for judged in self.by_experiment.values())

    def count(self, exposures: Exposures) -> None:
        """Counts new exposures."""
        for judged in self.by_experiment.values():
            judged.count(exposures, self._tables)
        self.shadows.count(exposures.pairs)

    def set_lost(self, lost: Lost) -> None:
        """Takes the lost rows of all routers together."""
        for judged in self.by_experiment.values():
            judged.set_lost(lost)

    def set_gaps(self) -> None:
        """Takes what could not be read of the directory."""
        for judged in self.by_experiment.values():
            judged.set_gaps(self._keeper.gaps)

    def observe_load(self, routers: int, replicas: Mapping[str, int] | None, gone: Sequence[str]) -> None:
        """As `JudgedAnalysis.observe_load`."""
        for judged in self.by_experiment.values():
            judged.analysis.observe_load(routers, replicas, gone)

    def snapshots(self, now: float) -> list[AnalysisSnapshot]:
        """The analyses' states, for the directory."""
        return [
            AnalysisSnapshot(now, name, judged.run.started_at, judged.analysis.state())
            for name, judged in self.by_experiment.items()
        ]

    def rebuild(
        self,
        config: Config,
        runs: Mapping[str, ExperimentRun],
        interventions: Callable[[ExperimentRun], Interventions],
        lost: Lost,
        now: float,
    ) -> None:
        """Makes analyses where the basis is new, and counts for them what has been recorded so far.

        If that could not be read, or the analyses have counted batches that are not held and will come again, it
        makes all of them.
        """
        waiting = self._keeper.waiting
        everything = not (self.has_counted_all and waiting.holds_all_counted)
        if everything:
            waiting.recount()
            self.shadows.forget()
        former = {name: judged for name, judged in self.by_experiment.items() if name in config.experiments}
        entries = self._keeper.entries
        new: dict[str, RunAnalysis] = {}
        for name in config.experiments:
            run = runs.get(name)
            if run is None:
                continue
            own = config_of(run, config)
            basis = basis_of(run, own)
            if everything or name not in former or former[name].basis != basis:
                analysis = self._new_analysis(name, own.experiments[name], own, self._tables, run.started_at)
                analysis.intervene(interventions(run))
                loads, until = loads_of(entries), history_until(entries, run)
                new[name] = RunAnalysis(run, basis, analysis, loads=loads, history_until=until)
            else:
                former[name].run = run
                former[name].history_until = history_until(entries, run)
                former[name].analysis.update(own)
        self.has_counted_all = self._replay(list(new.values()), now, shadows=everything) and self._keeper.is_open
        for name, judged in new.items():
            judged.catch_up(math.inf)
            judged.resume(self._state_of(judged.run, former.get(name)), self._keeper.entries)
            judged.set_lost(lost)
            judged.set_gaps(self._keeper.gaps)
        self.by_experiment = {**former, **new} if self.has_counted_all else {**new, **former}

    def _replay(self, new: Sequence[RunAnalysis], now: float, *, shadows: bool) -> bool:
        """Counts earlier records for new analyses, and for the shadows. Returns whether that was possible."""
        begins = [judged.evidence_since for judged in new]
        if shadows and self.shadows.since is not None:
            begins.append(self.shadows.since)
        if not begins:
            return True
        try:
            for exposures in self._keeper.history(min(begins)):
                for judged in new:
                    judged.count_again(exposures, self._tables, now)
                if shadows:
                    self.shadows.count(exposures.pairs)
        except StoreError:
            return False
        return True

    def _state_of(self, run: ExperimentRun, former: RunAnalysis | None) -> Mapping[str, Any] | None:
        """The state of the run's former analysis, of this or an earlier controller."""
        if former is not None:
            return former.analysis.state() if former.run.started_at == run.started_at else None
        snapshot = self._keeper.snapshots.get(run.name)
        return snapshot.state if snapshot is not None and snapshot.started_at == run.started_at else None
