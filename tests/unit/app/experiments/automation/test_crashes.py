"""Crashes between any two effects, two controllers at once, changes by others: acting ends in the same state.

The controllers are real, with their journal in a directory; only the evidence is set by the test.
"""

import tempfile
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.config.schema import parse
from app.control_plane import Delivery
from app.errors import Unavailable
from app.experiments.automation.actions import TrafficChange, carry_out
from app.experiments.automation.state import states_of
from app.experiments.contract.report import Report
from app.experiments.controller import Controller
from app.experiments.storage.directory import Outcome
from app.exposures.wire import TrafficBlock, decode_acknowledgement, encode
from tests.conftest import NIGHTLY
from tests.support.experiments.acting_facts import alarmed
from tests.support.experiments.exposures import batch
from tests.support.experiments.fake_analysis import FakeAnalysis, same_run
from tests.support.processes.fake_control_plane import MemoryControl
from tests.support.processes.stage import plain

STEPS = [5, 25, 50]
RAMP = {"steps": STEPS, "min_step_s": 60, "min_units": 10, "cooldown_s": 1e6}
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that must not wait."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits")


class StepCheckingControl(MemoryControl):
    """Checks that each change of the traffic is the next single step, or a rollback."""

    async def replace(self, expected: Any, wanted: Any) -> None:
        await super().replace(expected, wanted)
        before, after = (parse(config).endpoints["chat"].traffic["green"] for config in (expected, wanted))
        assert after == 0 or after == min(step for step in STEPS if step > before), (before, after)


class Evidence:
    """The evidence that every analysis reports, for every controller."""

    def __init__(self) -> None:
        self.alarmed_at: float | None = None

    def analysis(self, *arguments: Any) -> "ScriptedAnalysis":
        return ScriptedAnalysis(self, *arguments)


class ScriptedAnalysis(FakeAnalysis):
    """An analysis that reports the test's evidence."""

    def __init__(self, evidence: Evidence, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._evidence = evidence

    def report(self, now: float) -> Report:
        at = self._evidence.alarmed_at
        rails = [] if at is None else [alarmed("rollback", at=at)]
        return msgspec.structs.replace(super().report(now), step_units={"green": 100}, guardrails=rails)


class RunningController:
    """A controller whose write rounds wait for the test, and its host's present state."""

    def __init__(
        self, directory: Path, evidence: Evidence, control: StepCheckingControl, clock: Callable[[], float]
    ) -> None:
        self.rounds: list[tuple[Callable[[], Outcome], Future[Outcome]]] = []
        self.changes: list[TrafficChange] = []
        self.outcomes: list[tuple[TrafficChange, str | None]] = []
        self.control = control
        config = parse(control.config)
        self.controller = Controller(
            config.ledger,
            base=directory,
            analysis_factory=evidence.analysis,
            same_run=same_run,
            clock=clock,
            has_control_plane=True,
            submit=self._submit,
        )
        self.read()

    def _submit(self, work: Callable[[], Outcome]) -> "Future[Outcome]":
        self.rounds.append((work, Future()))
        return self.rounds[-1][1]

    def write(self) -> None:
        work, future = self.rounds.pop(0)
        future.set_result(work())

    def read(self) -> None:
        config = parse(self.control.config)
        self.controller.configure(config, rollout_complete=self.control.delivery is Delivery.SETTLED)

    @property
    def stops(self) -> list[TrafficBlock]:
        return decode_acknowledgement(self.controller.ingest(encode(batch(0, oldest=0)))).stops


class Crashes(RuleBasedStateMachine):
    """One endpoint, one experiment, up to two controllers."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory(prefix="acting-")
        self.now = 1000.0
        self.control = StepCheckingControl(plain(0, ramp=RAMP), lambda config: None)
        self.evidence = Evidence()
        self.others: int | None = None
        """The share that another client set last."""
        self.running = [self._start()]

    def _start(self) -> RunningController:
        return RunningController(Path(self.temporary.name), self.evidence, self.control, lambda: self.now)

    @property
    def green(self) -> int:
        traffic: dict[str, int] = self.control.config["endpoints"]["chat"]["traffic"]
        return traffic["green"]

    def _of(self, number: int) -> RunningController:
        return self.running[number % len(self.running)]

    @rule(seconds=st.sampled_from([0.2, 1.0, 30.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(number=st.integers(0, 1), effects=st.integers(1, 8), seconds=st.sampled_from([1.0, 61.0]))
    def one_after_the_other(self, number: int, effects: int, seconds: float) -> None:
        """Runs a round, up to the given number of its effects."""
        self.now += seconds
        in_order: tuple[Callable[[int], Any], ...] = (
            self.tick,
            self.write,
            self.tick,
            self.ask_for_changes,
            self.compare_and_set,
            self.receive_the_outcome,
            lambda number: self.control.deliver(),
            self.read,
        )
        for effect in in_order[:effects]:
            effect(number)

    @rule(number=st.integers(0, 1))
    def tick(self, number: int) -> None:
        self._of(number).controller.tick()

    @rule(number=st.integers(0, 1))
    def write(self, number: int) -> None:
        if self._of(number).rounds:
            self._of(number).write()

    @rule(number=st.integers(0, 1))
    def read(self, number: int) -> None:
        self._of(number).read()

    @rule(number=st.integers(0, 1))
    def ask_for_changes(self, number: int) -> None:
        host = self._of(number)
        if not host.changes and not host.outcomes:
            host.changes = host.controller.changes()

    @rule(number=st.integers(0, 1))
    def compare_and_set(self, number: int) -> None:
        host = self._of(number)
        for change in host.changes:
            host.outcomes.append((change, run(carry_out(self.control, change, self.now))))
        host.changes = []

    @rule(number=st.integers(0, 1))
    def receive_the_outcome(self, number: int) -> None:
        host = self._of(number)
        for change, refusal in host.outcomes:
            host.controller.changed(change, refusal)
            host.read()
        host.outcomes = []

    @rule()
    def deliver(self) -> None:
        self.control.deliver()

    @rule()
    def fail_or_recover(self) -> None:
        self.control.failure = None if self.control.failure else Unavailable("away")

    @rule(number=st.integers(0, 1), is_written=st.booleans())
    def crash(self, number: int, is_written: bool) -> None:
        """The controller dies with or without finishing the present write."""
        if is_written and self._of(number).rounds:
            self._of(number).write()
        self.running[number % len(self.running)] = self._start()

    @rule()
    @precondition(lambda self: len(self.running) == 1)
    def another_one_starts(self) -> None:
        self.running.append(self._start())

    @rule(number=st.integers(0, 1))
    @precondition(lambda self: len(self.running) == 2)
    def one_ends(self, number: int) -> None:
        del self.running[number]

    @rule()
    @precondition(lambda self: self.evidence.alarmed_at is None)
    def alarm(self) -> None:
        self.evidence.alarmed_at = self.now

    @rule(green=st.sampled_from([0, 10, 30, 80]))
    @precondition(lambda self: self.others is None and self.evidence.alarmed_at is None)
    def another_client_changes_the_traffic(self, green: int) -> None:
        if green == self.green:
            return
        chat = self.control.config["endpoints"]["chat"]
        plan = {"generation": chat.get("plan", {}).get("generation", 0) + 1, "by": "bob"}
        chat = {**chat, "traffic": {"blue": 100 - green, "green": green}, "plan": plan}
        self.control.config = {**self.control.config, "endpoints": {"chat": chat}}
        self.others = green

    @invariant()
    def only_an_alarm_stops(self) -> None:
        for host in self.running:
            assert self.evidence.alarmed_at is not None or not host.stops

    def teardown(self) -> None:
        with self.temporary:
            self.check_the_end_state()

    def check_the_end_state(self) -> None:
        """Ends all failures and leaves one controller."""
        self.control.failure = None
        for host in self.running[1:]:
            host.changes, host.outcomes = [], []
        del self.running[1:]
        (host,) = self.running
        for _ in range(60):
            self.now += 20
            host.controller.tick()
            self.ask_for_changes(0)
            self.compare_and_set(0)
            self.receive_the_outcome(0)
            while host.rounds:
                host.write()
                host.controller.tick()
            self.control.deliver()
            host.read()
        state = states_of(host.controller.entries())["trial"]
        assert host.stops == []
        assert state.intent is None
        if self.evidence.alarmed_at is not None:
            assert (self.green, state.phase, state.cause) == (0, "paused", "alarm")
        elif state.phase == "paused":
            assert (state.cause, self.green) == ("superseded", self.others)
        else:
            assert self.green in (STEPS[-1], self.others if (self.others or 0) > STEPS[-1] else STEPS[-1])


Crashes.TestCase.settings = settings(max_examples=200 if NIGHTLY else 15, stateful_step_count=40, deadline=None)
TestCrashes = Crashes.TestCase
