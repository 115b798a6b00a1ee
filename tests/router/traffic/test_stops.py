"""The controller's stops on real routers: they move traffic away at once, and change nothing else."""

from collections.abc import Iterator
from random import Random
from typing import Any

import httpx
import pytest

from app.exposures.wire import Flag, Reason, TrafficBlock
from app.routing.resilience import FAULTS_IN_A_ROW
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.router.traffic.test_resilience import open_breakers
from tests.support.engine.fake_engine import chat, refuse
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

GREEN = TrafficBlock("stop-1", "chat", "green", "blue")
EXPERIMENT: dict[str, Any] = {
    "endpoint": "chat",
    "control": "blue",
    "treatments": ["green"],
    "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
}
SAY: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
ALL_GREEN = {"blue": 0, "green": 100}


class StoppableRouters:
    """Two routers with one controller; all traffic goes to green, unless a test changes it."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.keeper = rig, rig.keeper
        rig.change(experiments={"first": EXPERIMENT})
        rig.chat_endpoint(traffic=ALL_GREEN, sticky={"by": "user"})
        self.other = Router(
            RuntimeEnvironment(internal_key="internal"), random=Random(8), controller=rig.keeper, send_every_s=0.02
        )
        self.other.reconfigure(rig.config)
        self.urls: list[str] = []

    def ask(self, user: str | None = "ann", *, router: int = 0, path: str = "/v1/chat/completions", **more: Any) -> Any:
        headers = more.pop("headers", {})
        body = {**SAY, **({"user": user} if user is not None else {}), **more}
        answer = httpx.post(self.urls[router] + path, json=body, headers=headers, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer

    def serving(self, user: str | None = "ann", *, router: int = 0, **more: Any) -> str:
        name: str = self.ask(user, router=router, **more).headers["azureml-model-deployment"]
        return name

    def stops(self, *stops: TrafficBlock) -> None:
        """Sets the controller's stops, and waits until both routers have them, without any request."""
        self.keeper.stops = list(stops)
        wanted = {"chat": {stop.deployment: stop.control for stop in stops}} if stops else {}
        for router in (self.rig.router, self.other):
            wait_until(lambda router=router: router.state.snapshot.stops == wanted)  # type: ignore[misc]


@pytest.fixture
def stoppable(rig: Rig, servers: ServerPool) -> Iterator[StoppableRouters]:
    both = StoppableRouters(rig)
    with servers.host(both.other.app) as other:
        both.urls = [rig.url, other]
        yield both


def test_two_idle_routers_apply_a_stop_and_its_end(stoppable: StoppableRouters) -> None:
    assert stoppable.keeper.batches == {}
    stoppable.stops(GREEN)
    assert stoppable.keeper.batches == {}, "there was no request"
    assert [stoppable.serving(router=n) for n in (0, 1)] == ["blue", "blue"]
    assert [stoppable.serving(None, router=n) for n in (0, 1)] == ["blue", "blue"]
    stoppable.stops()
    assert [stoppable.serving(router=n) for n in (0, 1)] == ["green", "green"]


def test_header_and_model_still_reach_a_stopped_deployment(stoppable: StoppableRouters) -> None:
    stoppable.stops(GREEN)
    assert stoppable.serving(headers={"azureml-model-deployment": "green"}) == "green"
    assert stoppable.serving(model="green") == "green"
    rows = stoppable.keeper.wait_for(rows=2)
    assert [(row.reason, row.flags) for row in rows] == [(Reason.HEADER, Flag.FORCED), (Reason.MODEL, Flag.FORCED)]


def test_a_stop_beats_an_override(stoppable: StoppableRouters) -> None:
    unit = f"{stoppable.rig.router.state.ledger.unit('ann'):016x}"
    plan = {"generation": 1, "overrides": [{"unit": unit, "deployment": "green"}]}
    stoppable.rig.chat_endpoint(traffic={"blue": 100, "green": 0}, plan=plan)
    assert stoppable.serving() == "green"
    stoppable.rig.chat_endpoint(traffic={"blue": 50, "green": 50}, plan=plan)
    stoppable.stops(GREEN)
    assert stoppable.serving() == "blue"
    assert stoppable.keeper.wait_for(rows=2)[1].flags & Flag.FORCED


def test_a_stopped_deployment_is_no_fallback(stoppable: StoppableRouters) -> None:
    stoppable.rig.chat_endpoint(traffic={"blue": 60, "green": 40}, fallback=["green"])
    stoppable.stops(GREEN)
    stoppable.rig.blue.answer = refuse(500, "out of memory")
    answers = [httpx.post(stoppable.rig.url + "/v1/chat/completions", json=SAY) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [502, 502]
    assert stoppable.rig.green.requests == []


def test_records_use_the_weights_in_force(stoppable: StoppableRouters) -> None:
    stoppable.rig.chat_endpoint(traffic={"blue": 50, "green": 50})
    users = [f"user-{n}" for n in range(8)]
    before = {user: stoppable.ask(user).headers for user in users}
    assert {headers["azureml-model-deployment"] for headers in before.values()} == {"blue", "green"}
    (configured,) = {headers["x-switchyard-plan"] for headers in before.values()}
    stoppable.keeper.wait_for(rows=8)
    stoppable.stops(GREEN)
    after = {user: stoppable.ask(user).headers for user in users}
    (stopped,) = {headers["x-switchyard-plan"] for headers in after.values()}
    assert {headers["azureml-model-deployment"] for headers in after.values()} == {"blue"}
    assert stopped != configured
    rows = stoppable.keeper.wait_for(rows=16)[8:]
    assert {(row.plan, row.assigned, row.reason) for row in rows} == {(stopped, "blue", Reason.STICKY)}
    assert {start.plan for start in stoppable.keeper.starts[8:]} == {stopped}
    weights = {plan.id: plan.weights for batch in stoppable.keeper.batches.values() for plan in batch.plans}
    assert weights == {configured: {"blue": 50, "green": 50}, stopped: {"blue": 100, "green": 0}}
    assert httpx.get(f"{stoppable.rig.url}/api/endpoints/chat/traffic").headers["etag"] == f'"{configured}"'
    metrics = httpx.get(f"{stoppable.rig.url}/metrics").text
    assert 'switchyard_stops{deployment="green",endpoint="chat"} 1.0' in metrics
    assert f'switchyard_plan_info{{endpoint="chat",plan="{stopped}"}} 1.0' in metrics
    stoppable.stops()
    assert stoppable.ask("user-0").headers["x-switchyard-plan"] == configured
    metrics = httpx.get(f"{stoppable.rig.url}/metrics").text
    assert 'switchyard_stops{deployment="green",endpoint="chat"} 0.0' in metrics


def test_a_stop_survives_a_new_configuration_and_has_no_effect_once_the_weight_is_0(
    stoppable: StoppableRouters,
) -> None:
    stoppable.stops(GREEN)
    stoppable.rig.chat_endpoint(traffic={"blue": 10, "green": 90})
    assert stoppable.serving() == "blue"
    stoppable.rig.chat_endpoint(traffic={"blue": 100, "green": 0})
    with_stop = stoppable.ask().headers["x-switchyard-plan"]
    stoppable.keeper.stops = []
    wait_until(lambda: not stoppable.rig.router.state.snapshot.stops)  # type: ignore[union-attr]
    assert stoppable.ask().headers["x-switchyard-plan"] == with_stop


def test_stops_of_unknown_deployments_change_nothing(stoppable: StoppableRouters) -> None:
    plan = stoppable.ask().headers["x-switchyard-plan"]
    stoppable.keeper.stops = [
        TrafficBlock("1", "nowhere", "green", "blue"),
        TrafficBlock("2", "chat", "grey", "blue"),
        TrafficBlock("3", "chat", "green", "mini"),
    ]
    seen = stoppable.keeper.idle
    wait_until(lambda: stoppable.keeper.idle > seen + 4)
    assert (stoppable.serving(), stoppable.ask().headers["x-switchyard-plan"]) == ("green", plan)


def test_without_a_controller_the_last_stops_stay(stoppable: StoppableRouters) -> None:
    stoppable.stops(GREEN)
    stoppable.keeper.failing = True
    calls = stoppable.keeper.calls
    wait_until(lambda: stoppable.keeper.calls > calls)
    assert [stoppable.serving(router=n) for n in (0, 1)] == ["blue", "blue"]
    stoppable.rig.router.reconfigure(stoppable.rig.config)
    assert stoppable.serving() == "blue"


def test_a_stop_waits_while_controls_breaker_is_open(stoppable: StoppableRouters) -> None:
    rig = stoppable.rig
    configured = stoppable.ask().headers["x-switchyard-plan"]
    stoppable.stops(GREEN)
    stopped = stoppable.ask().headers["x-switchyard-plan"]
    rig.blue.answer = refuse(500, "out of memory")
    with httpx.Client(base_url=rig.url, timeout=30) as client:
        for _ in range(FAULTS_IN_A_ROW // 2 + 1):  # each is tried twice
            client.post("/v1/chat/completions", json=SAY)
        wait_until(lambda: open_breakers(client) == ["blue"])
        answer = stoppable.ask()
        assert answer.headers["azureml-model-deployment"] == "green", "a stopped deployment is better than none"
        assert answer.headers["x-switchyard-plan"] == configured != stopped
        assert stoppable.serving(router=1, headers={"azureml-model-deployment": "green"}) == "green"
        rows = stoppable.keeper.wait_for(rows=4 + FAULTS_IN_A_ROW // 2)
        by_green = [row for row in rows if (row.assigned, row.reason) == ("green", Reason.STICKY)]
        assert {row.plan for row in by_green} == {configured}
        rig.blue.answer = chat
        wait_until(lambda: stoppable.serving() == "blue")
        assert open_breakers(client) == []
        assert stoppable.ask().headers["x-switchyard-plan"] == stopped
