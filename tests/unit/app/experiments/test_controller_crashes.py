"""Deaths, failures and repeated batches: rows that were sent and not dropped count exactly once, and are on disk."""

import itertools
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from app.config.experiments import LedgerSettings
from app.experiments.controller import Controller
from app.experiments.storage.columns import router_hash
from app.experiments.storage.pending import Waiting
from app.exposures.wire import Batch, decode_acknowledgement, encode
from tests.support.experiments.exposures import batch, row, start
from tests.support.experiments.failing_store import Death, Disk
from tests.support.experiments.fake_analysis import FakeAnalysis, same_run
from tests.unit.app.experiments.test_controller import configuration

ROUTERS = ("router-a", "router-b")


class ModelRouter:
    """Keeps batches until they are durable, and sends those above `received` in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept: dict[int, Batch] = {}
        self.recorded: set[int] = set()
        self.dropped: set[int] = set()
        self.received = 0
        self.last = 0

    def record(self, rows: int, now: float) -> None:
        seqs = range(len(self.recorded) + 1, len(self.recorded) + 1 + rows)
        self.last += 1
        self.recorded.update(seqs)
        self.kept[self.last] = batch(
            self.last,
            self.name,
            starts=[start(seq, at=now) for seq in seqs],
            rows=[row(seq, at=now) for seq in seqs],
            sent_at=now,
        )

    def drop_oldest(self) -> None:
        if self.kept:
            self.dropped.update(row.seq for row in self.kept.pop(min(self.kept)).rows)

    def next(self) -> Batch | None:
        number = next((number for number in sorted(self.kept) if number > self.received), None)
        if number is None:
            return None
        sent = self.kept[number]
        return Batch(**{name: getattr(sent, name) for name in sent.__struct_fields__} | {"oldest": min(self.kept)})

    def receive(self, answer: bytes) -> None:
        shown = decode_acknowledgement(answer)
        self.received = shown.received
        self.kept = {number: batch for number, batch in self.kept.items() if number > shown.durable}


class Crashes(RuleBasedStateMachine):
    """One controller after another, sometimes two at once, on a disk that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.disk, self.now = Disk(), 7000.0
        self.routers = [ModelRouter(name) for name in ROUTERS]
        self.analyses: dict[Controller, list[FakeAnalysis]] = {}
        self.config = configuration(starts_at=1.0)
        self.retiring: Controller | None = None

    @initialize(max_waiting=st.sampled_from([5, 1000]))
    def first(self, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self.controller = self.new_controller()

    def new_controller(self) -> Controller:
        analyses: list[FakeAnalysis] = []

        def analysis(*arguments: Any) -> FakeAnalysis:
            analyses.append(FakeAnalysis(*arguments))
            return analyses[-1]

        controller = Controller(
            LedgerSettings(),
            base=Path(),
            analysis_factory=analysis,
            same_run=same_run,
            clock=lambda: self.now,
            open_store=lambda url, base: self.disk,
        )
        controller.storage.waiting = Waiting(self.max_waiting)
        self.analyses[controller] = analyses
        try:
            controller.configure(self.config)
        except Death:
            self.disk.dies_after = None
            return self.new_controller()
        return controller

    def guarded(self, work: Any) -> Any:
        """The result of `work`; None if the process died."""
        try:
            return work()
        except Death:
            self.disk.dies_after = None
            self.controller = self.new_controller()
            return None

    @rule(which=st.sampled_from([0, 1]), rows=st.integers(0, 3))
    def record(self, which: int, rows: int) -> None:
        self.routers[which].record(rows, self.now)

    @rule(which=st.sampled_from([0, 1]), answered=st.booleans(), retired=st.booleans())
    def send(self, which: int, answered: bool, retired: bool) -> None:
        router = self.routers[which]
        to = self.retiring if retired and self.retiring is not None else self.controller
        if (sent := router.next()) is not None:
            answer = self.guarded(lambda: to.ingest(encode(sent)))
            if answer is not None and answered:
                router.receive(answer)

    @rule(seconds=st.sampled_from([1.0, 61.0, 3600.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.disk.now = self.now
        self.guarded(self.controller.tick)

    @rule()
    def tick_retiring(self) -> None:
        if self.retiring is not None:
            self.guarded(self.retiring.tick)

    @rule(which=st.sampled_from([0, 1]))
    def drop(self, which: int) -> None:
        self.routers[which].drop_oldest()

    @rule(fails=st.booleans(), is_read_only=st.booleans())
    def change_disk(self, fails: bool, is_read_only: bool) -> None:
        self.disk.fails, self.disk.is_read_only = fails, is_read_only

    @rule(after=st.integers(0, 12))
    def die_soon(self, after: int) -> None:
        self.disk.dies_after = after

    @rule()
    def die(self) -> None:
        self.controller = self.new_controller()

    @rule()
    def replace(self) -> None:
        self.retiring = self.controller
        self.controller = self.new_controller()

    @rule(closes=st.booleans())
    def retire(self, closes: bool) -> None:
        if self.retiring is not None and closes:
            self.guarded(self.retiring.close)
        self.retiring = None

    @rule(metrics=st.sampled_from([[], [{"metric": "duration", "minimal_effect": 0.1}]]))
    def judge_by_other_metrics(self, metrics: list[Any]) -> None:
        self.config = configuration(starts_at=1.0, secondary=metrics)
        self.guarded(lambda: self.controller.configure(self.config))

    @invariant()
    def nothing_is_counted_twice(self) -> None:
        for analyses in self.analyses.values():
            if analyses:
                assert max(analyses[-1].rows.values(), default=1) == 1
                assert analyses[-1].rows == analyses[-1].starts

    def teardown(self) -> None:
        self.disk.fails = self.disk.is_read_only = False
        self.disk.dies_after = None
        if self.retiring is not None:
            self.retiring.close()
        minutes = itertools.count(1)
        while any(set(router.kept) - {router.last} for router in self.routers) or next(minutes) < 4:
            assert self.now < 1e7
            self.pass_time(61.0)
            for router in self.routers:
                router.record(0, self.now)
                while (sent := router.next()) is not None:
                    router.receive(self.controller.ingest(encode(sent)))
        self.compare(self.analyses[self.controller][-1])
        restarted = self.new_controller()
        self.compare(self.analyses[restarted][-1])

    def compare(self, analysis: FakeAnalysis) -> None:
        for router in self.routers:
            counted = {seq for of, seq in analysis.rows if of == router_hash(router.name)}
            assert router.recorded - router.dropped <= counted <= router.recorded
        self.nothing_is_counted_twice()


Crashes.TestCase.settings = settings(stateful_step_count=30)
TestCrashes = Crashes.TestCase
