"""A controller that lives through traffic, redeploys, restarts and decisions, and what its reports said."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from app.config.schema import Config
from app.errors import ClientError
from app.experiments.analysis.analysis import Analysis, Pace
from app.experiments.api import ControllerApi
from app.experiments.contract.query import ManualDecision
from app.experiments.controller import Controller
from app.experiments.judging import AnalysisFactory
from app.experiments.offline import RecordedLedger
from app.experiments.storage.write_ahead import WriteAhead
from app.exposures.wire import Batch, FeedbackItem, Lost, OverdueRequest, Row, encode
from tests.support.experiments.recorded_ledger import Clock, batches, controller_of, unpaced
from tests.support.experiments.world import DAY_S, START, World, config

NAME = "green-float32"
SIZE = 100
"""Requests of both routers' batches together."""

WINDOW_S = 300.0
FORMS = ("text", "json")


def declared(weights: tuple[int, int] = (50, 50), sticky: str = "user", **experiment: Any) -> Config:
    given = {
        "secondary": [
            {"metric": "ttft", "statistic": "p90", "minimal_effect": 0.1},
            {"metric": "tokens_per_second", "minimal_effect": 0.05},
            {"metric": "thumbs", "minimal_effect": 0.1},
        ],
        "feedback": {"thumbs": {"window_s": WINDOW_S}},
        "guardrails": [{"event": "error", "action": "pause"}, {"event": "slow", "ttft_above_s": 10.0}],
        "min_duration_s": 600,
        "ramp": {"steps": [5, 50, 100], "min_step_s": 60, "min_units": 10, "cooldown_s": 7200},
    }
    return config(weights, sticky, **(given | experiment))


REDEPLOYED = (
    declared(),
    declared((90, 10)),
    declared((100, 0)),
    declared(sticky="conversation"),
    declared(state="stopped"),
    declared(sticky="conversation", state="stopped"),
    declared((90, 10), state="draft", treatments=["green"], primary=[{"metric": "itl", "minimal_effect": 0.05}]),
    declared(state="paused"),
    declared(secondary=[{"metric": "error", "minimal_effect": 0.2}, {"metric": "duration", "minimal_effect": 0.05}]),
    declared(primary=[{"metric": "duration", "minimal_effect": 0.02}]),
)
DECISIONS = ("pause", "resume", "rollback", "stop", "advance")


class Life:
    """A controller that lives through a history, and what its reports said when."""

    def __init__(
        self,
        directory: Path,
        world: World,
        requests: int,
        before: int = 0,
        analysis_factory: AnalysisFactory = unpaced,
    ) -> None:
        """`before`: requests from before the run."""
        self.directory, self.clock, self._analysis_factory = directory, Clock(), analysis_factory
        if before:
            self._remember(world, before)
        self._batches = batches(world.tables, world.requests(requests, hours=2.0), SIZE)
        self._config = declared()
        self._sent: list[Batch] = []
        """The latest batches, which routers still keep."""
        self.hashed = "the first secret"
        self.controller = self._started()
        self._late: list[OverdueRequest] = []
        """Records of requests that hang, until they are late."""
        self._scores: list[FeedbackItem] = []
        """Scores to come."""
        self._behind: Batch | None = None
        """The latest batch of the router that is behind."""
        self.shown: list[tuple[float, Said]] = []

    def _remember(self, world: World, before: int) -> None:
        self.clock.now = START - 3 * DAY_S
        controller = controller_of(self.directory, declared((100, 0), state="draft"), self.clock)
        for batch in batches(world.tables, world.before(before), 500):
            self.clock.now = max(self.clock.now, *(row.at + row.duration_s for row in batch.rows))
            controller.ingest(encode(replace(batch, router="router-b", sent_at=self.clock.now)))
            controller.tick()
        controller.close()
        self.clock.now = START

    def _started(self) -> Controller:
        ahead = WriteAhead(self.directory / "ledger", is_copy=True)
        return controller_of(self.directory, self._config, self.clock, self._analysis_factory, ahead)

    def traffic(self, count: int, lost: int) -> None:
        """The next batches arrive, the last one with news of lost rows."""
        for _ in range(count):
            batch = next(self._batches, None)
            if batch is None:
                return
            self.clock.now = max(self.clock.now + 1, *(row.at + row.duration_s + 1 for row in batch.rows))
            self._late += batch.late
            late = [overdue for overdue in self._late if overdue.at + overdue.above_s < self.clock.now]
            self._late = [overdue for overdue in self._late if overdue not in late]
            self._scores += scores_of(batch.rows)
            scores = [score for score in self._scores if score.at < self.clock.now]
            self._scores = [score for score in self._scores if score not in scores]
            lost_rows = [Lost("chat", "green", lost)]
            ahead, behind = halves(batch)
            self._ingest(replace(ahead, late=late, feedback=scores, lost=lost_rows))
            if self._behind is not None:
                self._ingest(self._behind)
            self._behind = behind
            self.controller.tick()

    def _ingest(self, batch: Batch) -> None:
        self.clock.now += 0.1
        self.controller.ingest(encode(replace(batch, sent_at=self.clock.now, hashed=self.hashed)))
        self._sent = [*self._sent[-5:], batch]

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.controller.tick()

    def redeploy(self, number: int) -> None:
        self._config = REDEPLOYED[number]
        self.controller.configure(self._config)
        self.controller.tick()

    def restart(self) -> None:
        self.controller.close()
        self.begin_again()

    def kill(self) -> None:
        """The next controller finds what is on disk; routers send again what may be lost. The last thing that the
        former one does is that it answers."""
        self.traffic(1, 0)
        self.shown.append((self.clock.now, said(ControllerApi(self.controller))))
        self.controller.flush()
        self.clock.now += 0.5
        self.die()
        self.begin_again()
        for batch in self._sent:
            self.controller.ingest(encode(replace(batch, sent_at=self.clock.now)))

    def die(self) -> None:
        """The controller does nothing more; its locks end with it."""
        assert self.controller.write_ahead is not None
        self.controller.write_ahead.close()

    def begin_again(self) -> None:
        """The next controller begins."""
        self.controller = self._started()
        self.controller.tick()

    def decide(self, action: Any) -> None:
        evidence = self.controller.analysis(NAME)
        try:
            assert evidence is not None
            self.controller.decide(
                evidence.report(self.clock()), ManualDecision(action=action, reason="as wanted", by="boss")
            )
        except (ClientError, AssertionError):
            return  # not applicable now

    def look(self) -> None:
        """Reads the report, asks for more, reads it once more, and goes on a second later."""
        at, answers = self.clock.now, ControllerApi(self.controller)
        self.shown.append((at, said(answers)))
        self.controller.flush()
        self.clock.now += 0.3
        self.controller.tick()
        for question in ("planner", "history"):
            with suppress(ClientError):
                answers.answer("GET", f"/experiments/{NAME}/{question}", {}, b"")
        said(answers)
        self.controller.flush()
        self.clock.now = at + 1


@contextmanager
def failing(directory: Path) -> Iterator[None]:
    """While the block runs, nothing new can be written into the directory: a file is in its way."""
    aside = directory.with_name(f"{directory.name}-aside")
    directory.rename(aside)
    directory.write_text("in the way")
    yield
    directory.unlink()
    aside.rename(directory)


@dataclass(frozen=True)
class Said:
    """A report, as it is printed and as data. Two are equal that are but for the last digits of sums, which depend on
    how many records were counted together, and for what detectors take as it comes: their alarms are in the journal."""

    text: str
    data: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Said) and self.text == other.text and _is_alike(self.data, other.data)


def said(answers: ControllerApi) -> Said:
    text, data = (answers.answer("GET", f"/experiments/{NAME}/report", {"format": form}, b"") for form in FORMS)
    return Said(text.body.decode(), json.loads(data.body))


def _is_alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        names = one.keys() - {"detector"}
        return names == other.keys() - {"detector"} and all(_is_alike(one[name], other[name]) for name in names)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-8, abs_tol=1e-9)
    return bool(one == other)


class Busy(Pace):
    """Lets one turn in three begin, and that ends with its second look."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self._turns, self._looks = count(), count()

    def allows(self) -> bool:
        return next(self._turns) % 3 == 0

    def is_over(self) -> bool:
        return next(self._looks) % 2 == 1


def busy(*arguments: Any) -> Analysis:
    return Analysis(*arguments, pace=Busy())


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """The batches of two routers with the requests of one."""
    ahead, behind = (
        replace(
            batch,
            router=f"router-{half}",
            starts=[start for start in batch.starts if start.seq % 2 == half],
            rows=[row for row in batch.rows if row.seq % 2 == half],
            late=[],
        )
        for half in (0, 1)
    )
    return ahead, behind


def scores_of(rows: Sequence[Row]) -> list[FeedbackItem]:
    """Scores in time and late ones; some of answers that nobody knows."""
    return [
        FeedbackItem(
            row.at + WINDOW_S * (row.seq % 7) / 4, row.request + (row.seq % 11 == 0), row.caller, "thumbs", score
        )
        for row in rows
        for score in range(row.seq % 3)
    ]


def audited(directory: Path, at: float | None, clock: Clock) -> Said:
    """What the report of the past says, from ledger and journal alone."""
    return said(ControllerApi(RecordedLedger("ledger", directory, unpaced, at=at, clock=clock)))
