"""The read side of a ledger's directory alone, without a controller: nothing is written there.

The journal holds the runs, their times, and the traffic, prices and timeouts in force; the segments hold the records.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from app.config.base import ConfigError
from app.config.experiments import Experiment
from app.config.schema import Config
from app.errors import BadRequest, Conflict
from app.experiments.activity import ActivityKeeper
from app.experiments.audit import AuditTrail
from app.experiments.automation.actions import Actions, Journal
from app.experiments.automation.state import states_of
from app.experiments.contract.journal import FAILED, LOST, OBSTACLES, READ, JournalEntry, history
from app.experiments.contract.query import ManualDecision
from app.experiments.contract.report import AutomationStatus, Foreseen, Report
from app.experiments.issued_keys import IssuedKeyStore
from app.experiments.judging import AnalysisFactory, Evidence, RunAnalysis
from app.experiments.recordings import RecordingKeeper
from app.experiments.runs import ExperimentRun, history_until, loads_of, looks_of, of_run, rehashed, runs_of
from app.experiments.storage import directory, segments, write_ahead
from app.experiments.storage.columns import Exposures, Tables, from_batch, router_hash
from app.experiments.storage.directory import exposures_of, scored
from app.experiments.storage.gaps import find_lost, waited_entries
from app.experiments.storage.keeper import FLUSH_S, LOOK_S, StorageHealth
from app.experiments.storage.pending import Waiting, total_lost
from app.experiments.storage.store import Missing, local_directory, open_store

REPLAYED = "replayed"
"""The kind of the entry in a replay's journal with the notes for its report, as `notes`."""


class RecordedLedger:
    """The content of a directory, until the Unix time `at` if given. `url` is as `ledger.url`, relative to `base`.

    A report of that time says what the controller showed then, word for word. Of what troubled the controller's own
    service (`Report.service`) it has the failures of the directory alone. Of a time with two controllers, as there may
    be for a moment, it says what all of their records together say, and warns of it.

    Raises StoreError if the directory cannot be read, Missing if it holds no ledger, BadRequest if `at` is to come.
    """

    def __init__(
        self,
        url: str,
        base: Path,
        analysis_factory: AnalysisFactory,
        *,
        at: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = open_store(url, base)
        self.audit = AuditTrail(lambda: self._store, lambda: 0, clock)
        self.activity = ActivityKeeper(lambda: self._store, clock)
        self.issued_keys = IssuedKeyStore(lambda: self._store, clock)
        self.recordings = RecordingKeeper(lambda: self._store)
        local = local_directory(url, base)
        waiting = write_ahead.waiting(local) if local is not None else []  # before it may be stored
        self._waiting = [left for process in waiting for left in process.batches]
        self._contents = contents = directory.contents(self._store)
        if not contents.entries and not contents.segments:
            raise Missing(f"{url} holds no ledger")
        recorded = [
            *(entry.at for entry in contents.entries),
            *(footer.written_at for footer in contents.footers.values()),
        ]
        if at is not None and at > max(clock(), *recorded):
            raise BadRequest("The time of the report is later than now, and than everything recorded", param="at")
        self._new_analysis, self._at, self._clock = analysis_factory, at, clock
        entries = [entry for entry in contents.entries if at is None or entry.at <= at]
        self._settings: dict[str, Any] = {"traffic": {}, "prices": {}}
        for entry in entries:
            if entry.kind == "configuration":
                traffic = {**self._settings["traffic"], **entry.detail.get("traffic", {})}
                self._settings |= {**entry.detail, "traffic": traffic}
        self._entries, self._runs, self._gaps = entries, runs_of(entries), contents.gaps
        present = {process.name for process in waiting} if local is not None else None
        known = Waiting()
        known.restore(contents.footers.values(), contents.snapshots.values())
        waited = waited_entries(contents.entries, waiting, present, known.stored, clock())
        find_lost(self._store, [replace(entry, at=math.inf) for entry in waited], self._gaps)
        self._actions = Actions(Journal(len, lambda: 0, lambda: False), has_control_plane=False)
        self._actions.restore(entries)
        if (obstacles := self._fact(OBSTACLES)) is not None:
            self._actions.meet(obstacles)
        self._judged: dict[str, Evidence] = {}

    def now(self) -> float:
        """The moment of its reports, in Unix seconds."""
        return self._clock() if self._at is None else self._at

    def experiments(self) -> Mapping[str, Experiment]:
        """Every experiment that has had a run, as its last run was judged."""
        return {name: _section(run) for name, run in self._runs.items()}

    def analysis(self, name: str) -> Evidence | None:
        """The evidence of the experiment's last run. Raises BadRequest if the journal lacks what its analysis needs."""
        run = self._runs.get(name)
        if run is None:
            return None
        if name not in self._judged:
            self._judged[name] = self._replayed(run)
        return self._judged[name]

    def acting(self, report: Report) -> AutomationStatus | None:
        """The state of acting at that time; None if nothing acted on it, or the journal does not tell."""
        run = self._runs[report.experiment]
        if self._fact(OBSTACLES) is None:
            return None
        return self._actions.acting(run, self._config_of(run), report, self.now())

    def shown(self, report: Report) -> None:
        """Nothing is written."""

    def decide(self, report: Report, request: ManualDecision) -> None:
        """Raises Conflict."""
        raise Conflict("Decisions are for a running server: what was recorded cannot be changed")

    def foresee(self, report: Report, request: ManualDecision) -> Foreseen:
        """Raises Conflict."""
        raise Conflict("Decisions are for a running server: what was recorded cannot be changed")

    def exposures(self, request: int) -> Sequence[Mapping[str, Any]]:
        """The exposures of a request id's hash, or of an answer id's."""
        rows = directory.find(self._store, request)
        if rows is None:
            return []
        return scored(exposures_of(*rows), directory.scores(self._store, rows[0]))

    def mirrored(self) -> Sequence[str]:
        """Shadows are for a running server."""
        return ()

    def shadow(self, endpoint: str) -> None:
        """Like `mirrored`."""

    def entries(self) -> Sequence[JournalEntry]:
        """The journal."""
        return self._entries

    def missing(self) -> Sequence[str]:
        """Parts of the journal that are missing, and of what has been read of the records, each with the reason."""
        return self._gaps.since(0.0, math.inf if self._at is None else self._at)

    def _replayed(self, run: ExperimentRun) -> Evidence:
        tables = Tables()
        config = self._config_of(run)
        analysis = self._new_analysis(run.name, config.experiments[run.name], config, tables, run.started_at)
        older = looks_of(self._contents.entries, run, self._at) if self._at is not None else {}
        loads, until = loads_of(self._entries), history_until(self._entries, run)
        judged = RunAnalysis(run, None, analysis, looks=older, loads=loads, history_until=until)
        acted = states_of(self._entries).get(run.name)
        if acted is not None and acted.started_at == run.started_at:
            analysis.intervene(acted.interventions)
        for exposures in self._exposures_since(run.evidence_since, tables):
            judged.count_again(exposures if self._at is None else exposures.until(self._at), tables, self.now())
        judged.catch_up(math.inf)
        judged.set_lost(self._lost())
        judged.set_gaps(self._gaps, math.inf if self._at is None else self._at)
        state = self._contents.snapshots.get(run.name)
        is_of_this_run = state is not None and state.started_at == run.started_at
        is_early = state is not None and (self._at is None or state.at <= self._at)
        judged.resume(state.state if state is not None and is_of_this_run and is_early else None, self._entries)
        return Evidence(analysis, lambda now: self._amended(analysis.report_again(now, older)))

    def _exposures_since(self, since: float, tables: Tables) -> Iterator[Exposures]:
        """As a controller that starts now reads them: last, what waits to be stored."""
        known: dict[int, segments.Numbers] = {}
        yield from directory.history(self._store, since, tables, known, self._gaps)
        for batch, arrived in self._waiting:
            with suppress(ValueError):  # the controller has refused it, too
                yield segments.fresh(from_batch(batch, tables, arrived or batch.sent_at), known)
            known.setdefault(router_hash(batch.router), segments.Numbers()).add(batch.number)

    def _amended(self, report: Report) -> Report:
        """The report with the next step and the arms' traffic, as the controller showed them."""
        notes = [*rehashed(self._entries, self._runs[report.experiment]), *self._notes()]
        report = replace(report, warnings=[*report.warnings, *notes], service=self.warnings())
        if self._fact(OBSTACLES) is None:
            return report
        run = self._runs[report.experiment]
        applied = self._fact("configuration") or {}
        declared = applied.get("experiments", {}).get(run.name, report.state)
        next_ = self._actions.next_sentence(run, self._config_of(run), report, self.now(), declared)
        traffic = applied.get("traffic", {}).get(report.endpoint)
        plan = next(iter(history(self._entries, report.endpoint)), None) if traffic is not None else None
        weights = self._actions.weights(run, traffic or {})
        return replace(report, next=next_, plan=plan.plan if plan is not None else None, weights=weights)

    def warnings(self) -> list[str]:
        """What the controller said of a directory that did not work at that time."""
        ended = [entry for entry in self._contents.entries if entry.kind == FAILED]
        over = [(StorageHealth(entry.detail["since"], entry.detail["error"]), entry.at) for entry in ended]
        now = self.now()
        return [health.warning(now) for health, until in over if (health.failing_since or 0.0) <= now < until]

    def _fact(self, kind: str) -> dict[str, Any] | None:
        """The last entry of a kind, by that time."""
        return next((entry.detail for entry in reversed(self._entries) if entry.kind == kind), None)

    def _lost(self) -> dict[tuple[str, str], int]:
        if (lost := self._fact(LOST)) is not None:
            return {(endpoint, deployment): rows for endpoint, deployment, rows in lost["rows"]}
        waiting = Waiting()  # of a version that did not journal them
        for footer in self._contents.footers.values():
            if self._at is None or footer.written_at <= self._at:
                waiting.resume(footer)
        return total_lost(waiting.routers)

    def _notes(self) -> list[str]:
        notes = [note for entry in self._entries if entry.kind == REPLAYED for note in entry.detail.get("notes", ())]
        if self._at is not None:
            notes += _overlaps(self._contents.entries, self._at)
        since = min((run.started_at for run in self._runs.values()), default=0.0)
        if self._at is None or not self._gaps.lacking_since(since)["arrived"]:
            return notes
        return [*notes, "Some records of that time do not say when they arrived: those count that had ended by then."]

    def _config_of(self, run: ExperimentRun) -> Config:
        """A configuration of this one experiment, as far as its analysis needs it."""
        endpoint = run.experiment.endpoint
        traffic = self._settings["traffic"].get(endpoint)
        try:
            return of_run(
                run,
                traffic=traffic,
                prices=self._settings["prices"],
                total_s=self._settings.get("total_s"),
                plan=self._plan(endpoint, traffic),
            )
        except ConfigError as error:
            raise BadRequest(f"The journal lacks settings of '{run.name}' to judge it: {error}") from None

    def _plan(self, endpoint: str, traffic: Mapping[str, int] | None) -> dict[str, Any]:
        """The author of the endpoint's plan and its end, if the plan was made by that traffic."""
        plan = next(iter(history(self._entries, endpoint)), None)
        if plan is None or plan.weights != traffic:
            return {}
        expires = {"at": plan.expires, "generation": 0, "weights": traffic} if plan.expires is not None else None
        return {"by": plan.by, "expires": expires}


@dataclass(slots=True)
class _Life:
    """A controller's, by its entries of the journal."""

    writer: str
    begin: float
    end: float
    last: int
    """The number of its last entry; 0: of a version that did not number them."""
    read: Mapping[str, int] = field(default_factory=dict)
    """The numbers of the last entries of others that it has read when it began."""

    def is_read_by(self, other: "_Life") -> bool:
        """Whether the other one had read all of its entries before it began."""
        return 0 < self.last <= other.read.get(self.writer, 0)


def _overlaps(entries: Sequence[JournalEntry], at: float) -> list[str]:
    """What there is to say if two controllers took records at a Unix time, or so shortly before that neither need have
    read all of the other's. One that has read all that the other wrote came after it, whatever their clocks say.
    """
    lives: dict[str, _Life] = {}
    for entry in entries:
        if entry.writer:
            life = lives.setdefault(entry.writer, _Life(entry.writer, entry.at, entry.at, 0))
            life.begin, life.end = min(life.begin, entry.at), max(life.end, entry.at)
            life.last = max(life.last, entry.number)
            life.read = entry.detail if entry.kind == READ else life.read
    notes: set[str] = set()
    for one, other in combinations(sorted(lives), 2):
        first, second = sorted((lives[one], lives[other]), key=lambda life: life.begin)
        if second.begin >= first.end:
            continue
        are_in_turn = lives[one].is_read_by(lives[other]) or lives[other].is_read_by(lives[one])
        if are_in_turn and second.begin <= at <= first.end:
            notes.add(
                "A controller took over with a clock that was behind that of the last one, such as one that was set "
                "back: this time came twice, and the records of both are here."
            )
        if not are_in_turn and second.begin <= at <= first.end + FLUSH_S + LOOK_S:
            notes.add(
                "Two controllers ran at that time, or just before: what each of them showed may lack the other's "
                "records of the last two minutes."
            )
    return sorted(notes)


def _section(run: ExperimentRun) -> Experiment:
    return run.experiment if run.stopped_at is None else run.experiment.model_copy(update={"state": "stopped"})
