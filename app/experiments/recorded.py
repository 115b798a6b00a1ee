"""The read side of a ledger's directory alone, without a controller: nothing is written there.

The journal holds the runs, their times, and the traffic, prices and timeouts in force; the segments hold the records.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.config.base import ConfigError
from app.config.experiments import Experiment
from app.config.schema import Config
from app.errors import BadRequest, Conflict
from app.experiments.acting.decisions import Request
from app.experiments.acting.state import states_of
from app.experiments.audit import AuditTrail
from app.experiments.columns import Exposures, Tables
from app.experiments.judging.evidence import AnalysisFactory, Evidence, RunAnalysis
from app.experiments.plain import exposures_of, scored
from app.experiments.report import Report
from app.experiments.routers import total_lost
from app.experiments.runs import Run, runs_of
from app.experiments.stand_in import evenly, stand_in
from app.experiments.storage import reading
from app.experiments.storage.entry import Entry
from app.experiments.storage.reading import Contents
from app.experiments.storage.store import Missing, open_store
from app.experiments.summary import Foreseen
from app.experiments.waiting import Waiting

REPLAYED = "replayed"
"""The kind of the entry in a replay's journal with the notes for its report, as `notes`."""


class RecordedLedger:
    """The content of a directory, until the Unix time `at` if given. `url` is as `ledger.url`, relative to `base`.

    Raises StoreError if the directory cannot be read, Missing if it holds no ledger.
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
        self._contents = contents = reading.contents(self._store)
        if not contents.entries and not contents.segments:
            raise Missing(f"{url} holds no ledger")
        self._new_analysis, self._at, self._clock = analysis_factory, at, clock
        entries = [entry for entry in contents.entries if at is None or entry.at <= at]
        self._settings: dict[str, Any] = {"traffic": {}, "prices": {}}
        for entry in entries:
            if entry.kind == "configuration":
                traffic = {**self._settings["traffic"], **entry.detail.get("traffic", {})}
                self._settings |= {**entry.detail, "traffic": traffic}
        self._entries, self._runs = entries, runs_of(entries)
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
            self._judged[name] = Evidence(self._replayed(run), self._warnings)
        return self._judged[name]

    def acting(self, report: Report) -> None:
        """None: nothing acts on recorded exposures."""

    def decide(self, report: Report, request: Request) -> None:
        """Raises Conflict."""
        raise Conflict("Decisions are for a running server: what was recorded cannot be changed")

    def foresee(self, report: Report, request: Request) -> Foreseen:
        """Raises Conflict."""
        raise Conflict("Decisions are for a running server: what was recorded cannot be changed")

    def exposures(self, request: int) -> Sequence[Mapping[str, Any]]:
        """The exposures of a request id's hash, or of an answer id's."""
        found = reading.find(self._store, request)
        if found is None:
            return []
        return scored(exposures_of(*found), reading.scores(self._store, found[0]))

    def mirrored(self) -> Sequence[str]:
        """Shadows are for a running server."""
        return ()

    def shadow(self, endpoint: str) -> None:
        """Like `mirrored`."""

    def entries(self) -> Sequence[Entry]:
        """The journal."""
        return self._entries

    def _replayed(self, run: Run) -> Any:
        tables = Tables()
        config = self._config_of(run)
        analysis = self._new_analysis(run.name, config.experiments[run.name], config, tables, run.started_at)
        judged = RunAnalysis(run, None, analysis)
        acted = states_of(self._entries).get(run.name)
        if acted is not None and acted.started_at == run.started_at:
            analysis.intervene(acted.interventions)
        for exposures in reading.history(self._store, run.started_at, tables, {}, self._contents.gaps):
            judged.count(exposures if self._at is None else _until(exposures, self._at), tables)
        judged.set_lost(_lost(self._contents, self._at))
        judged.set_gaps(self._contents.gaps)
        state = self._contents.snapshots.get(run.name)
        is_of_this_run = state is not None and state.started_at == run.started_at
        if state is not None and is_of_this_run and (self._at is None or state.at <= self._at):
            analysis.restore(state.state)
        analysis.tick(self.now())  # counts the feedback whose window is over, before the first look
        return analysis

    def _warnings(self) -> list[str]:
        notes = [note for entry in self._entries if entry.kind == REPLAYED for note in entry.detail.get("notes", ())]
        if self._at is None:
            return notes
        return [*notes, "Computed now, from what had been recorded by then: verdicts have the time of this one look."]

    def _config_of(self, run: Run) -> Config:
        """A configuration of this one experiment, as far as its analysis needs it."""
        experiment = _section(run)
        names = experiment.arms if experiment.mode == "ab" else (experiment.control,)
        try:
            return stand_in(
                run.name,
                experiment,
                traffic=self._settings["traffic"].get(experiment.endpoint) or evenly(list(dict.fromkeys(names))),
                sticky=json.loads(run.unit) if run.unit else None,
                prices=self._settings["prices"],
                total_s=self._settings.get("total_s"),
            )
        except ConfigError as error:
            raise BadRequest(f"The journal lacks settings of '{run.name}' to judge it: {error}") from None


def _section(run: Run) -> Experiment:
    return run.experiment if run.stopped_at is None else run.experiment.model_copy(update={"state": "stopped"})


def _lost(contents: Contents, at: float | None) -> dict[tuple[str, str], int]:
    waiting = Waiting()
    for footer in contents.footers.values():
        if at is None or footer.written_at <= at:
            waiting.resume(footer)
    return total_lost(waiting.routers)


def _until(exposures: Exposures, at: float) -> Exposures:
    """The exposures that a controller had by the Unix time `at`, give or take a router's second."""
    starts, rows, late, feedback, pairs = exposures
    return Exposures(
        starts.take(starts.at <= at),
        rows.take(rows.at + rows.duration_s <= at),
        late.take(late.at + late.above_s <= at),
        feedback.take(feedback.at <= at),
        pairs.take(pairs.at <= at),
    )
