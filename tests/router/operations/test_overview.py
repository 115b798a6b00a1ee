"""`GET /api/overview` and `POST /api/experiments/check`, on a real router."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from app.access.keys import append, create
from app.control_plane import Replicas
from app.errors import Unavailable
from app.server.application import Router
from app.upstream.balancer import Address, Placement
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.support.engine.fake_engine import refuse
from tests.support.processes.fake_control_plane import MemoryControl
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
SECTION: dict[str, Any] = {
    "endpoint": "chat",
    "control": "blue",
    "treatments": ["green"],
    "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
}


def overview(url: str, key: str | None = None) -> dict[str, Any]:
    answer = httpx.get(f"{url}/api/overview", headers={"authorization": f"Bearer {key}"} if key else {})
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


def deployments(shown: dict[str, Any], endpoint: str = "chat") -> dict[str, dict[str, Any]]:
    (row,) = [endpoint_row for endpoint_row in shown["endpoints"] if endpoint_row["endpoint"] == endpoint]
    return {deployment["deployment"]: deployment for deployment in row["deployments"]}


@pytest.mark.parametrize(
    "path",
    [
        "/api/endpoints/chat/traffic",
        "/api/endpoints/none/traffic",
        "/api/experiments/none",
        "/api/2.0/serving-endpoints/chat",
        "/api/mirrors/chat",
    ],
)
def test_management_is_none_of_an_endpoints_requests(rig: Rig, path: str) -> None:
    for _ in range(5):
        httpx.get(f"{rig.url}{path}")
    (chat,) = [endpoint for endpoint in overview(rig.url)["endpoints"] if endpoint["endpoint"] == "chat"]
    assert (chat["requests_per_s"], chat["refused"]) == (0, 0)
    lines = httpx.get(f"{rig.url}/metrics").text.splitlines()
    assert [line for line in lines if line.startswith("switchyard_requests_total") and 'endpoint="chat"' in line] == []


def test_requests_are_counted_for_the_deployment_that_answered(rig: Rig) -> None:
    rig.chat_endpoint(traffic={"blue": 50, "green": 50})
    for _ in range(20):
        assert httpx.post(f"{rig.url}/v1/chat/completions", json=CHAT).status_code == 200
    forced = {"azureml-model-deployment": "green"}
    assert httpx.post(f"{rig.url}/v1/chat/completions", json=CHAT, headers=forced).status_code == 200
    stream = httpx.post(f"{rig.url}/v1/chat/completions", json={**CHAT, "stream": True})
    assert stream.status_code == 200
    shown = overview(rig.url)
    counts = deployments(shown)
    assert counts["blue"]["requests"] + counts["green"]["requests"] == 22
    assert counts["blue"]["share"] + counts["green"]["share"] == pytest.approx(1.0, abs=1e-3)
    drawn = {name: deployment["requests"] - (name == "green") for name, deployment in counts.items()}
    assert counts["green"]["share"] == pytest.approx(drawn["green"] / 21, abs=1e-3)
    assert counts["blue"]["weight"] == 50
    assert counts["blue"]["model"] == "blue-model"
    assert any(deployment["first_token_s"] for deployment in counts.values())
    assert (shown["routers"], shown["has_controller"]) == (None, True)
    assert shown["why_not"] == "This router reads its traffic from its configuration file: change it there."
    assert [deployment["breaker"] for deployment in counts.values()] == ["closed", "closed"]


def test_without_requests_nothing_is_claimed(rig: Rig) -> None:
    blue = deployments(overview(rig.url))["blue"]
    assert (blue["share"], blue["requests"], blue["errors"], blue["first_token_s"]) == (None, 0, 0, None)


def test_failures_and_refusals_are_distinguished(rig: Rig) -> None:
    rig.chat_endpoint(fallback=[])
    rig.blue.answer = refuse(500, "broken")
    assert httpx.post(f"{rig.url}/v1/chat/completions", json=CHAT).status_code >= 500
    rig.blue.answer = refuse(400, "wrong")
    assert httpx.post(f"{rig.url}/v1/chat/completions", json=CHAT).status_code == 400
    blue = deployments(overview(rig.url))["blue"]
    assert (blue["errors"], blue["refused"]) == (1, 1)


def test_requests_that_a_failing_deployment_should_have_had_are_marked(rig: Rig) -> None:
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = refuse(500, "broken")
    for _ in range(2):
        assert httpx.post(f"{rig.url}/v1/chat/completions", json=CHAT).status_code == 200
    counts = deployments(overview(rig.url))
    assert {name: (deployment["requests"], deployment["diverted"]) for name, deployment in counts.items()} == {
        "blue": (0, 0),
        "green": (2, 2),
    }


class ManagedRig:
    """A router with a control plane, a manager and two teams."""

    def __init__(self, rig: Rig, directory: Path) -> None:
        self.keys: dict[str, str] = {}
        file = directory / "keys.yaml"
        for name, endpoints in (("boss", []), ("chat team", ["chat"]), ("embed team", ["embed"])):
            self.keys[name], record = create(name, endpoints=endpoints)
            append(file, record.line)
        self.config: dict[str, Any] = {**rig.config, "access": {"keys_file": str(file), "managers": ["boss"]}}
        self.config["deployments"] = {**rig.config["deployments"], "blue": {"app": "blue", "model": "blue-model"}}
        self.control = MemoryControl(self.config, lambda _: None)
        self.router = Router(
            RuntimeEnvironment(internal_key="internal", serve_url="http://127.0.0.1:1"),
            random=Random(1),
            control=self.control,
        )
        self.router.reconfigure(self.config)
        self.url = ""


@pytest.fixture
def guarded(rig: Rig, tmp_path: Path, servers: ServerPool) -> Iterator[ManagedRig]:
    guarded = ManagedRig(rig, tmp_path)
    with servers.host(guarded.router.app) as guarded.url:
        yield guarded


def test_a_caller_sees_its_own_endpoints(guarded: ManagedRig) -> None:
    assert httpx.get(f"{guarded.url}/api/overview").status_code == 401
    for name, endpoints in (("boss", ["chat", "embed"]), ("chat team", ["chat"]), ("embed team", ["embed"])):
        shown = overview(guarded.url, guarded.keys[name])
        assert [endpoint["endpoint"] for endpoint in shown["endpoints"]] == endpoints
        assert (shown["why_not"] is None) == (name == "boss")
    assert (
        "mini"
        not in httpx.get(
            f"{guarded.url}/api/overview", headers={"authorization": f"Bearer {guarded.keys['chat team']}"}
        ).text
    )


def test_replicas_are_the_control_planes(guarded: ManagedRig) -> None:
    guarded.control.running = Replicas({"blue": {"RUNNING": 2, "STARTING": 1}}, {"RUNNING": 3})
    shown = overview(guarded.url, guarded.keys["boss"])
    assert shown["routers"] == 3
    assert deployments(shown)["blue"]["replicas"] == {"RUNNING": 2, "STARTING": 1}
    assert deployments(shown)["green"]["replicas"] is None


def test_an_idle_engine_that_fails_its_checks_is_down_although_serve_lists_it(guarded: ManagedRig) -> None:
    guarded.control.running = Replicas({"blue": {"RUNNING": 1}}, {"RUNNING": 1}, ids={"blue": ["x"]})
    assert deployments(overview(guarded.url, guarded.keys["boss"]))["blue"]["dead"] == 0
    state = guarded.router.state
    assert not state.is_down("blue")
    balancer = state.balancer
    balancer.update({"blue": [Address("SERVE_REPLICA::blue#Engine#x", "http://127.0.0.1:1", "/blue")]})

    async def ill(origin: str) -> bool:
        return False

    balancer.clock = lambda: time.monotonic() + 60
    (idle,) = balancer.due()
    for _ in range(2):
        asyncio.run(balancer.check(idle, ill))
    wait_until(lambda: deployments(overview(guarded.url, guarded.keys["boss"]))["blue"]["dead"] == 1)
    assert state.is_down("blue")


def test_what_the_router_is_told_of_replicas_holds_before_the_control_plane_lists_it(guarded: ManagedRig) -> None:
    """Of a start from zero, too: no answer comes from an endpoint that is called down."""
    guarded.control.running = Replicas({"blue": {}, "green": {}}, {"RUNNING": 1}, {"blue", "green"})
    balancer, key = guarded.router.state.balancer, guarded.keys["boss"]
    balancer.update({"blue": [], "green": []})

    def said() -> tuple[str, dict[str, int]]:
        shown = overview(guarded.url, key)
        (chat,) = [one for one in shown["endpoints"] if one["endpoint"] == "chat"]
        return chat["findings"][0]["text"], deployments(shown)["blue"]["replicas"]

    wait_until(lambda: said() == ("chat is scaled to zero: its next request starts a replica.", {}), said)
    with balancer.lacking("blue", Placement()):
        wait_until(lambda: "is scaled to zero: 1 request has waited " in said()[0], said)
        guarded.control.running = guarded.control.running._replace(
            applications={"blue": {"STARTING": 1}, "green": {}}, asleep={"green"}
        )
        balancer.changed()
        wait_until(lambda: "starts from zero (1 starting): 1 request has waited" in said()[0], said)
        balancer.update({"blue": [Address("SERVE_REPLICA::blue#Engine#x", "http://127.0.0.1:1", "/blue")], "green": []})
        wait_until(lambda: said() == ("No request has ended in the last minute.", {"RUNNING": 1}), said)


def test_without_an_answer_of_the_control_plane_replicas_are_unknown(guarded: ManagedRig) -> None:
    guarded.control.failure = Unavailable("The Serve controller is not available")
    shown = overview(guarded.url, guarded.keys["boss"])
    assert shown["routers"] is None
    blue = deployments(shown)["blue"]
    assert (blue["replicas"], blue["is_unknown"]) == (None, True)


def check(url: str, body: Any, key: str | None = None) -> httpx.Response:
    return httpx.post(
        f"{url}/api/experiments/check", json=body, headers={"authorization": f"Bearer {key}"} if key else {}
    )


def test_a_section_is_checked_as_in_the_file(rig: Rig) -> None:
    rig.chat_endpoint(traffic={"blue": 50, "green": 50})
    shown = check(rig.url, {"name": "green-first", "experiment": SECTION}).json()
    assert shown["problems"] == []
    assert shown["warnings"][0].startswith("'chat' has no `sticky`")
    assert shown["yaml"].startswith("experiments:\n  green-first:\n    endpoint: chat\n")
    wrong = {**SECTION, "treatments": ["red"], "alpha": 2}
    shown = check(rig.url, {"name": "green-first", "experiment": wrong}).json()
    assert shown["yaml"] is None
    assert any(line.startswith("alpha: ") for line in shown["problems"])
    shown = check(rig.url, {"name": "green-first", "experiment": {**SECTION, "treatments": ["red"]}}).json()
    assert shown["problems"] == [
        "treatments[0]: 'red' is not in the traffic of 'chat' (blue, green); add it there, with 0 if it gets none yet"
    ]


def test_a_misspelt_metric_is_told_beside_what_it_lacks(rig: Rig) -> None:
    rig.chat_endpoint(traffic={"blue": 50, "green": 50})
    wrong = {**SECTION, "primary": [{"metric": "tfft"}], "secondary": [{"metric": "taste"}], "feedback": {"taste": {}}}
    first, second, third = check(rig.url, {"name": "green-first", "experiment": wrong}).json()["problems"]
    assert (first.partition(":")[0], second.partition(":")[0]) == (
        "primary[0].minimal_effect",
        "secondary[0].minimal_effect",
    )
    assert third == "primary[0].metric: unknown metric 'tfft'; did you mean ttft?"


def test_a_body_that_is_no_section_is_refused(rig: Rig) -> None:
    answer = check(rig.url, {"name": "a", "experiment": []})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "experiment")


def test_a_caller_checks_against_what_it_may_use(guarded: ManagedRig) -> None:
    shown = check(guarded.url, {"name": "a", "experiment": SECTION}, guarded.keys["embed team"]).json()
    assert shown["yaml"] is None
    assert not any("blue" in line and "green" in line for line in shown["problems"])
    assert check(guarded.url, {"name": "a", "experiment": SECTION}).status_code == 401
