"""Everything that judges recorded exposures: an analysis for each run, and the shadows of mirrors.

Each of them counts every exposure once. One whose basis has changed is rebuilt, and counts everything recorded so far.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.config.schema import Config
from app.experiments.acting.facts import Interventions
from app.experiments.columns import Exposures, Tables
from app.experiments.judging.evidence import AnalysisFactory, RunAnalysis, basis_of, config_of
from app.experiments.keeper import Keeper
from app.experiments.runs import Run, loads_of
from app.experiments.shadows.judge import ShadowJudge
from app.experiments.storage.snapshots import Snapshot
from app.experiments.storage.store import StoreError

Lost = Mapping[tuple[str, str], int]
"""Rows that routers have lost, by endpoint and deployment."""


class Judges:
    """`of` are those of experiments with a run. Not thread-safe."""

    def __init__(self, tables: Tables, keeper: Keeper, new_analysis: AnalysisFactory) -> None:
        self._tables, self._keeper, self._new_analysis = tables, keeper, new_analysis
        self.shadows = ShadowJudge(tables)
        self.of: dict[str, RunAnalysis] = {}
        self.has_counted_all = False
        """Whether all earlier records could be read."""

    def are_alarmed(self) -> bool:
        """Whether a guardrail has an alarm that has still to be raised."""
        return any(it.analysis.is_alarmed() for it in self.of.values())

    def count(self, exposures: Exposures) -> None:
        """Counts new exposures."""
        for judged in self.of.values():
            judged.count(exposures, self._tables)
        self.shadows.count(exposures.pairs)

    def set_lost(self, lost: Lost) -> None:
        """Takes the lost rows of all routers together."""
        for judged in self.of.values():
            judged.set_lost(lost)

    def set_gaps(self) -> None:
        """Takes what could not be read of the directory."""
        for judged in self.of.values():
            judged.set_gaps(self._keeper.gaps)

    def observe_load(self, routers: int, replicas: Mapping[str, int] | None, gone: Sequence[str]) -> None:
        """As `Analysis.observe_load`."""
        for judged in self.of.values():
            judged.analysis.observe_load(routers, replicas, gone)

    def snapshots(self, now: float) -> list[Snapshot]:
        """The analyses' states, for the directory."""
        return [Snapshot(now, name, it.run.started_at, it.analysis.state()) for name, it in self.of.items()]

    def rebuild(
        self,
        config: Config,
        runs: Mapping[str, Run],
        interventions: Callable[[Run], Interventions],
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
        former = {name: judged for name, judged in self.of.items() if name in config.experiments}
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
                new[name] = RunAnalysis(run, basis, analysis, loads=loads_of(self._keeper.entries))
            else:
                former[name].run = run
                former[name].analysis.update(own)
        self.has_counted_all = self._replay(list(new.values()), now, shadows=everything) and self._keeper.is_open
        for name, judged in new.items():
            judged.catch_up(math.inf)
            judged.resume(self._state_of(judged.run, former.get(name)), self._keeper.entries)
            judged.set_lost(lost)
            judged.set_gaps(self._keeper.gaps)
        self.of = {**former, **new} if self.has_counted_all else {**new, **former}

    def _replay(self, new: Sequence[RunAnalysis], now: float, *, shadows: bool) -> bool:
        """Counts earlier records for new analyses, and for the shadows. Returns whether that was possible."""
        begins = [judged.run.evidence_since for judged in new]
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

    def _state_of(self, run: Run, former: RunAnalysis | None) -> Mapping[str, Any] | None:
        """The state of the run's former analysis, of this or an earlier controller."""
        if former is not None:
            return former.analysis.state() if former.run.started_at == run.started_at else None
        snapshot = self._keeper.snapshots.get(run.name)
        return snapshot.state if snapshot is not None and snapshot.started_at == run.started_at else None
