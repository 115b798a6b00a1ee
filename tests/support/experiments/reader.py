"""The controller's read side in memory: one experiment with a report, one that is a draft."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from app.config.experiments import Experiment
from app.errors import ClientError
from app.experiments.activity import ActivityKeeper
from app.experiments.analysis.feedback import Match
from app.experiments.audit import AuditTrail
from app.experiments.contract.journal import JournalEntry
from app.experiments.contract.query import ManualDecision
from app.experiments.contract.report import (
    AutomationStatus,
    Effect,
    FalseVerdicts,
    Foreseen,
    HistoryPoint,
    Planned,
    Report,
)
from app.experiments.issued_keys import IssuedKeyStore
from app.experiments.recordings import RecordingKeeper
from app.experiments.shadows import ShadowReport
from app.experiments.storage.store import FileStore, StoreError
from app.exposures.wire import FeedbackItem
from tests.support.experiments.reports import NOW, SHIP, START

GREEN_FLOAT32 = {
    "endpoint": "chat",
    "control": "smollm2-blue",
    "treatments": ["smollm2-green"],
    "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
    "secondary": [
        {"metric": "ttft", "statistic": "p95", "minimal_effect": 0.1},
        {"metric": "thumbs", "minimal_effect": 0.02},
    ],
    "feedback": {"thumbs": {"type": "boolean"}, "stars": {"type": "number", "min": 1, "max": 5}},
}


def _no_directory() -> FileStore:
    raise StoreError("this reader has no directory")


class FixedEvidence:
    """Returns a fixed report."""

    def __init__(self, report: Report = SHIP) -> None:
        self._report = report
        self.requests: set[int] = set()
        """Those that wait for feedback."""
        self.reports = 0
        self.failing = False

    def report(self, now: float) -> Report:
        self.reports += 1
        return msgspec.structs.replace(self._report, at=now)

    def history(self, metric: str, treatment: str) -> Sequence[HistoryPoint]:
        if metric != "ttft":
            return []
        return [
            HistoryPoint(
                at=START + 60 * minute,
                effect=Effect(estimate=-0.07, lower=-0.2 + minute / 50, upper=0.06 - minute / 50),
                log_e_value=minute / 2,
                verdict="undecided" if minute else "too_early",
            )
            for minute in range(3)
        ]

    def matches(self, items: Sequence[FeedbackItem]) -> Sequence[Match]:
        return ["waiting" if item.request in self.requests else "unknown" for item in items]

    def plan_sample_size(
        self, metric: str, effect: float, power: float, now: float, treatment: str | None = None
    ) -> Planned:
        return Planned(
            metric=metric,
            effect=effect,
            power=power,
            alpha=0.05,
            treatment_share=0.5,
            units=26002,
            units_so_far=2402,
            units_per_day=2200.0,
            days=10.7,
            design_effect=2.6,
        )

    def false_verdicts(self) -> Callable[[int], Sequence[FalseVerdicts]]:
        def work(runs: int) -> Sequence[FalseVerdicts]:
            if self.failing:
                raise RuntimeError("a bug")
            return [FalseVerdicts(metric="ttft", runs=runs, looks=60, units=2402, sequences=0.013, peeked=0.354)]

        return work


class FakeReader:
    """One running experiment, `green-float32`, and a draft, `next`."""

    def __init__(self) -> None:
        running = Experiment.model_validate(GREEN_FLOAT32)
        self.declared = {"green-float32": running, "next": running.model_copy(update={"state": "draft"})}
        self.judged = FixedEvidence()
        self.time = NOW
        self.rows: dict[int, list[Mapping[str, Any]]] = {}
        self.journal: list[JournalEntry] = []
        self.shadows: dict[str, ShadowReport] = {}
        self.audit = AuditTrail(_no_directory, lambda: 1, lambda: self.time)
        self.activity = ActivityKeeper(_no_directory, lambda: self.time)
        self.issued_keys = IssuedKeyStore(_no_directory, lambda: self.time)
        self.recordings = RecordingKeeper(_no_directory)
        self.doing: AutomationStatus | None = AutomationStatus(state="running", revision=3)
        self.decided: list[ManualDecision] = []
        self.read: list[float] = []
        self.refusal: ClientError | None = None

    def now(self) -> float:
        return self.time

    def experiments(self) -> Mapping[str, Experiment]:
        return self.declared

    def analysis(self, name: str) -> FixedEvidence | None:
        return self.judged if name == "green-float32" else None

    def acting(self, report: Report) -> AutomationStatus | None:
        return self.doing

    def shown(self, report: Report) -> None:
        self.read.append(report.at)

    def decide(self, report: Report, request: ManualDecision) -> None:
        self.decided.append(request)
        if self.refusal is not None:
            raise self.refusal

    def foresee(self, report: Report, request: ManualDecision) -> Foreseen:
        if self.refusal is not None:
            raise self.refusal
        control, treatment = report.control, report.treatments[0]
        before, after = {control: 95, treatment: 5}, {control: 75, treatment: 25}
        return Foreseen(revision=7, state="running", before=before, after=after, stopped=[])

    def exposures(self, request: int) -> Sequence[Mapping[str, Any]]:
        return self.rows.get(request, [])

    def entries(self) -> Sequence[JournalEntry]:
        return self.journal

    def missing(self) -> Sequence[str]:
        return []

    def warnings(self) -> Sequence[str]:
        return ()

    def mirrored(self) -> Sequence[str]:
        return list(self.shadows)

    def shadow(self, endpoint: str) -> ShadowReport | None:
        return self.shadows.get(endpoint)
