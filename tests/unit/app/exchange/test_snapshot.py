"""The earlier weights that a router gets when it starts."""

from collections.abc import Mapping

import pytest

from app.config.base import ConfigError
from app.config.schema import Config, Deployment, Endpoint, Sticky
from app.exchange.snapshot import NEW_S, Preparation, Snapshot, SnapshotBuilder
from app.exposures.log import ExposureLog
from app.exposures.plans import plan_of
from app.exposures.wire import Replaced
from app.routing.conversations import PinnedConversations
from app.routing.rules import ConversationTurn
from app.upstream.target import RuntimeEnvironment
from tests.unit.app.config.test_loading import document


def test_plans_are_those_of_the_endpoints_and_kept_while_these_are() -> None:
    preparation = Preparation(RuntimeEnvironment())
    first, second = preparation.prepare(document(10, 20)), preparation.prepare(document(11, 20))
    for incoming in (first, second):
        endpoints = incoming.config.endpoints
        assert {name: plan for name, (_, plan) in incoming.plans.items()} == {
            n: plan_of(n, endpoints[n]) for n in endpoints
        }
        assert all(endpoint is endpoints[name] for name, (endpoint, _) in incoming.plans.items())
    assert second.plans["e1"][1] is first.plans["e1"][1]
    assert second.plans["e0"][1] != first.plans["e0"][1]
    assert set(second.targets) == {"blue", "green"}


def test_a_key_that_cannot_be_read_refuses_the_configuration() -> None:
    data = document(10)
    data["deployments"]["blue"] = {"url": "http://a", "model": "m", "api_key_env": "SWITCHYARD_TEST_UNSET"}
    with pytest.raises(ConfigError, match="SWITCHYARD_TEST_UNSET is not set"):
        Preparation(RuntimeEnvironment()).prepare(data)


BLUE, HALF, GREEN = {"blue": 100, "green": 0}, {"blue": 50, "green": 50}, {"blue": 0, "green": 100}
DEPLOYMENTS = {name: Deployment(url=f"http://{name}", model="m") for name in ("blue", "green")}


def config(weights: Mapping[str, int], pin_s: float = 600.0) -> Config:
    endpoint = Endpoint(tasks=("chat",), traffic=dict(weights), sticky=Sticky(by="user"), pin_s=pin_s)
    return Config(endpoints={"chat": endpoint}, deployments=DEPLOYMENTS)


def before(weights: Mapping[str, int], present: Mapping[str, int], until: float = 1500.0) -> Replaced:
    plan = plan_of("chat", config(present).endpoints["chat"]).id
    return Replaced("chat", plan, dict(weights), until)


class StartingRouter:
    """One router's builder; its first configuration arrives at time 1000."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self.now = 1000.0
        self.pins = PinnedConversations(lambda endpoint, cause: None, lambda: self.now)
        self.builder = SnapshotBuilder(ExposureLog(lambda url: b"s" * 32), self.pins, lambda: self.now)
        assert self.builder.replaced([before(BLUE, weights)]) is None, "it serves nothing yet"
        self.builder.configured(config(weights), {})


def who(snapshot: Snapshot | None, *, carried: bool) -> str:
    assert snapshot is not None
    turn = ConversationTurn(carried, 7)
    return snapshot.rules["chat"].decide("ann", _Chance(), lambda name: False, lambda: turn).deployment


class _Chance:
    def random(self) -> float:
        raise AssertionError("there is a key")


def test_a_new_router_lets_running_conversations_follow_the_weights_that_were_replaced() -> None:
    starting = StartingRouter(GREEN)
    snapshot = starting.builder.replaced([before(BLUE, GREEN)])
    assert (who(snapshot, carried=True), who(snapshot, carried=False)) == ("blue", "green")
    assert starting.pins.is_open
    assert who(snapshot, carried=True) == "green", "it has started here since"
    assert starting.builder.replaced([before(BLUE, GREEN)]) is None, "nothing new"


def test_a_router_that_has_seen_the_change_ignores_the_replaced_weights() -> None:
    running = StartingRouter(BLUE)
    running.builder.configured(config(GREEN, pin_s=20.0), {})
    assert running.builder.replaced([before(BLUE, GREEN, 1025.0)]) is None
    running.now = 1022.0
    assert running.builder.replaced([before(BLUE, GREEN, 1025.0)]) is None, "the time is over by its own clock"


def test_earlier_weights_of_another_plan_or_endpoint_or_expired_ones_are_ignored() -> None:
    starting = StartingRouter(GREEN)
    assert starting.builder.replaced([before(BLUE, HALF)]) is None
    assert starting.builder.replaced([before(BLUE, GREEN, 1000.0)]) is None
    other = before(BLUE, GREEN)
    assert starting.builder.replaced([Replaced("gone", other.plan, other.weights, other.until)]) is None


def test_a_new_router_asks_for_earlier_weights_for_a_minute() -> None:
    starting = StartingRouter(GREEN)
    asks = [starting.builder.is_watched]
    starting.now += NEW_S
    asks.append(starting.builder.is_watched)
    assert asks == [True, False]
    assert starting.builder.replaced([before(BLUE, GREEN)]) is None, "conversations started here since would be moved"
    unpinned = StartingRouter(GREEN)
    unpinned.builder.configured(config(GREEN, pin_s=0.0), {})
    assert not unpinned.builder.is_watched, "nothing is ever pinned there"
