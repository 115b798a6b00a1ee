"""Conversations keep their deployment during the time after a change, unless it is stopped.

Several routers, with the real rules, pins and exchange of pins; plans and files change the weights, deployments are
stopped, and turns of conversations come to any router. Pins travel faster than a conversation's next turn comes.
"""

from collections.abc import Mapping

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from app.config.schema import Config, Endpoint, Sticky
from app.control_plane import Authorship, WantedPlan, planned
from app.experiments.contract.journal import JournalEntry, new_plans, replaced
from app.experiments.controller import PinExchange
from app.exposures.wire import Replaced, TrafficBlock
from app.routing.rules import ConversationTurn
from tests.conftest import NIGHTLY
from tests.support.processes.one_router import DEPLOYMENTS, SETTLE_S, OneRouter

PIN_S = 100.0
CONTROL, TREATMENTS = "a", ["b", "c"]
ARMS = [CONTROL, *TREATMENTS]
WEIGHTS = [
    {"a": 100, "b": 0, "c": 0},
    {"a": 50, "b": 50, "c": 0},
    {"a": 20, "b": 40, "c": 40},
    {"a": 0, "b": 100, "c": 0},
    {"a": 10, "b": 20, "c": 70},
    {"a": 60, "b": 10, "c": 30},
]
CONVERSATIONS = 12
USERS = [f"user-{number}" for number in range(8)]


def by_file(weights: Mapping[str, int]) -> Endpoint:
    """The endpoint as a file declares it."""
    return Endpoint(tasks=("chat",), traffic=dict(weights), sticky=Sticky(by="user"), pin_s=PIN_S)


class RunningConversations(RuleBasedStateMachine):
    """`last` maps each conversation to its last turn: the router, the deployment, and the time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.controller = PinExchange()
        self.stops: list[TrafficBlock] = []
        self.stopped_until: dict[str, float] = {}
        self.endpoint = by_file(WEIGHTS[0])
        self.journal: list[JournalEntry] = []
        self.replaced: list[Replaced] = []
        self._write_journal()
        self.routers: list[OneRouter] = []
        self.last: dict[int, tuple[OneRouter, str, float]] = {}
        self.changed_at = self.ended_at = float("-inf")
        """When the weights changed last, and when the time after an earlier change was over."""
        self.uneven: list[tuple[float, float]] = []
        """From the end of the time after a change on one router to its end on the last. Either weights may count in
        these seconds, and a further change in them finds routers that remember different weights: time skips them."""
        self.unplanned_at = float("-inf")
        """When something last happened that a router which starts later cannot know."""

    @initialize(routers=st.integers(1, 3))
    def begin(self, routers: int) -> None:
        for _ in range(routers):
            self._start()

    def _start(self) -> None:
        router = OneRouter(f"router-{len(self.routers)}", lambda: self.now)
        router.configure(self.endpoint)
        router.exchange(self.controller, self.stops, self._replaced())
        self.routers.append(router)

    @property
    def _config(self) -> Config:
        return Config(endpoints={"chat": self.endpoint}, deployments=DEPLOYMENTS)

    def _write_journal(self) -> None:
        config = self._config
        self.journal += new_plans(self.journal, config, self.now)
        self.replaced = replaced(self.journal, config)

    def _replaced(self) -> list[Replaced]:
        return [period for period in self.replaced if period.until > self.now]

    def _deliver(self, new: Endpoint, *, behind: OneRouter | None = None) -> None:
        if {n: w for n, w in new.traffic.items() if w} != {n: w for n, w in self.endpoint.traffic.items() if w}:
            self._change()
        self.endpoint = new
        self._write_journal()
        for router in self.routers:
            if router is not behind:
                router.configure(new)

    def _change(self) -> None:
        self.ended_at, self.changed_at = self._last_end, self.now

    @property
    def _last_end(self) -> float:
        """The time until which no conversation had to stay that has not had a turn since."""
        over = self.changed_at + PIN_S
        return over if over <= self.now else self.ended_at

    @rule(weights=st.sampled_from(WEIGHTS))
    def a_plan_changes_the_weights(self, weights: Mapping[str, int]) -> None:
        self._deliver(planned(self.endpoint, WantedPlan(weights), Authorship("boss", self.now)))
        self.every_conversation_takes_a_turn(0, 1, True)

    @rule(weights=st.sampled_from(WEIGHTS))
    def a_file_changes_the_weights(self, weights: Mapping[str, int]) -> None:
        self._deliver(by_file(weights))

    @precondition(lambda self: len(self.routers) > 1 and not PIN_S - 20 < self.now - self.changed_at < PIN_S + 20)
    @precondition(lambda self: not any(first - 20 < self.now for first, _ in self.uneven))  # else time skips meanwhile
    @rule(weights=st.sampled_from(WEIGHTS), router=st.integers(0, 4))
    def a_file_comes_later_to_one_router(self, weights: Mapping[str, int], router: int) -> None:
        behind, new = self.routers[router % len(self.routers)], by_file(weights)
        first_at = self.now
        self._deliver(new, behind=behind)
        self.every_conversation_takes_a_turn(0, 1, True)
        for _ in range(2):
            self._exchange_with_controller()
        self._pass(SETTLE_S)
        self.every_conversation_takes_a_turn(0, 1, True)
        behind.configure(new)
        if self.changed_at == first_at:
            self.uneven.append((first_at + PIN_S, self.now + PIN_S))

    @rule(treatment=st.sampled_from(TREATMENTS))
    def a_treatment_is_stopped(self, treatment: str) -> None:
        if treatment not in self._stopped:
            self.stops = [*self.stops, TrafficBlock(f"stop-{self.now}", "chat", treatment, CONTROL)]
            self._exchange_with_controller()
            self.every_conversation_takes_a_turn(0, 1, False)

    @precondition(lambda self: self.stops)
    @rule()
    def a_stop_is_lifted(self) -> None:
        """The plan with the same content may or may not be there."""
        lifted, *self.stops = self.stops
        self.stopped_until[lifted.deployment] = self.now
        self.unplanned_at = self.now
        if self.endpoint.traffic[lifted.deployment] > 0:
            self._change()
        self._exchange_with_controller()
        self.every_conversation_takes_a_turn(1, 1, False)

    @precondition(lambda self: self.stops)
    @rule()
    def a_rollback_is_planned_and_its_stop_lifted(self) -> None:
        stop, *self.stops = self.stops
        self.stopped_until[stop.deployment] = self.now
        weights = dict(self.endpoint.traffic)
        weights[CONTROL] += weights[stop.deployment]
        weights[stop.deployment] = 0
        wanted = WantedPlan(weights, withdrawn={stop.deployment: CONTROL})
        self._deliver(planned(self.endpoint, wanted, Authorship("controller", self.now)))
        self._exchange_with_controller()

    def _exchange_with_controller(self) -> None:
        for router in self.routers:
            router.exchange(self.controller, self.stops, self._replaced(), len(self.routers))

    @property
    def _stopped(self) -> set[str]:
        return {stop.deployment for stop in self.stops}

    @rule(seconds=st.sampled_from([0.5, 5.0, 30.0, 60.0, 99.0, 101.0]))
    def time_passes(self, seconds: float) -> None:
        for _ in range(2):
            self._exchange_with_controller()  # as every second
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        for first, last in self.uneven:
            if first <= self.now <= last:
                self.now = last + 1
        self.uneven = [(first, last) for first, last in self.uneven if self.now <= last]

    @precondition(lambda self: len(self.routers) < 5 and self.now - self.unplanned_at >= PIN_S)
    @rule()
    def another_router_starts(self) -> None:
        self._start()

    @rule()
    def the_controller_is_replaced(self) -> None:
        self.controller = PinExchange()
        for _ in range(2):
            self._exchange_with_controller()

    @rule(first=st.integers(0, 4), step=st.integers(0, 4), begins=st.booleans())
    def every_conversation_takes_a_turn(self, first: int, step: int, begins: bool) -> None:
        """The turns come to one router, or alternate between routers."""
        for number, conversation in enumerate(range(CONVERSATIONS)):
            if begins or conversation in self.last:
                self.a_turn(conversation, first + number * step)

    @rule(conversation=st.integers(0, CONVERSATIONS - 1), router=st.integers(0, 4))
    def a_turn(self, conversation: int, router: int) -> None:
        self._pass(0.125)
        chosen = self.routers[router % len(self.routers)]
        before = self.last.get(conversation)
        for _ in range(2):
            self._exchange_with_controller()
        answers = chosen.decides(
            USERS[conversation % len(USERS)], ConversationTurn(before is not None, conversation)
        ).deployment
        assert answers not in self._stopped
        if before is not None and not self._was_stopped(before[1], before[2]) and self._last_end <= before[2]:
            assert answers == before[1], (conversation, before[0].name, chosen.name)
        self.last[conversation] = (chosen, answers, self.now)

    def _was_stopped(self, deployment: str, since: float) -> bool:
        return deployment in self._stopped or self.stopped_until.get(deployment, 0.0) >= since


TestRunningConversations = RunningConversations.TestCase
TestRunningConversations.settings = settings(max_examples=200 if NIGHTLY else 50, stateful_step_count=25, deadline=None)


# --- cases that random runs rarely reach -----------------------------------------------------------


@pytest.fixture
def two() -> RunningConversations:
    """Two routers, whose conversations started under weights that give two deployments a share."""
    machine = RunningConversations()
    machine.begin(2)
    machine.a_file_changes_the_weights(WEIGHTS[1])
    machine.every_conversation_takes_a_turn(0, 1, True)
    machine.time_passes(PIN_S + 1)
    machine.every_conversation_takes_a_turn(0, 1, True)
    return machine


def by(machine: RunningConversations) -> set[str]:
    return {deployment for _, deployment, _ in machine.last.values()}


def test_a_lifted_stop_moves_no_conversation_back() -> None:
    machine = RunningConversations()
    machine.begin(2)
    machine.a_plan_changes_the_weights(WEIGHTS[2])
    assert by(machine) == {"a", "b", "c"}
    machine.a_treatment_is_stopped("b")
    machine.a_stop_is_lifted()
    machine.every_conversation_takes_a_turn(0, 1, False)
    assert by(machine) == {"a", "c"}


def test_a_router_that_starts_after_a_rollback_moves_no_conversation_back(two: RunningConversations) -> None:
    two.a_plan_changes_the_weights(WEIGHTS[2])
    two.a_treatment_is_stopped("b")
    two.a_rollback_is_planned_and_its_stop_lifted()
    two.another_router_starts()
    two.every_conversation_takes_a_turn(2, 0, False)
    assert by(two) == {"a"}, "no conversation had started on c"


def test_a_router_that_starts_when_a_withdrawn_deployment_has_traffic_again_moves_no_conversation_back(
    two: RunningConversations,
) -> None:
    two.a_plan_changes_the_weights(WEIGHTS[2])
    two.a_treatment_is_stopped("b")
    two.a_rollback_is_planned_and_its_stop_lifted()
    two.a_plan_changes_the_weights(WEIGHTS[2])
    two.another_router_starts()
    two.every_conversation_takes_a_turn(2, 0, False)
    assert "a" in by(two)


def test_a_new_router_gets_the_pins_from_another_controller(two: RunningConversations) -> None:
    two.a_plan_changes_the_weights(WEIGHTS[2])
    two.time_passes(5.0)
    two.last.clear()
    two.every_conversation_takes_a_turn(0, 1, True)
    assert by(two) == {"a", "b", "c"}
    two.the_controller_is_replaced()
    two.another_router_starts()
    two.every_conversation_takes_a_turn(2, 0, False)


def test_conversations_over_two_changes_keep_their_deployments_until_both_are_over(two: RunningConversations) -> None:
    began = by(two)
    two.a_plan_changes_the_weights(WEIGHTS[4])
    two.time_passes(60.0)
    two.a_plan_changes_the_weights(WEIGHTS[5])
    two.time_passes(60.0)
    two.every_conversation_takes_a_turn(1, 1, False)
    assert by(two) == began == {"a", "b"}
    two.time_passes(60.0)
    two.every_conversation_takes_a_turn(1, 1, False)
    assert by(two) == {"a", "c"}


def test_a_new_router_follows_the_weights_in_the_journals_order() -> None:
    """A plan after a file lists the file's weights first, and then those from before the file."""
    machine = RunningConversations()
    machine.begin(1)
    machine.a_plan_changes_the_weights(WEIGHTS[0])
    machine.a_file_changes_the_weights(WEIGHTS[1])
    machine.a_plan_changes_the_weights(WEIGHTS[0])
    machine.a_plan_changes_the_weights(WEIGHTS[1])
    machine.another_router_starts()
    machine.a_plan_changes_the_weights(WEIGHTS[0])
    assert by(machine) == {"a"}
