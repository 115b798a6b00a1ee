"""From a client's request to the report: the real router, a real controller, fake engines."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from starlette.responses import Response

from app.access.keys import append, create
from app.config.schema import parse
from app.experiments.api import ControllerApi
from app.exposures.controller_client import Answer
from app.exposures.wire import decode_batch
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from deployments.cli.main import main
from tests.router.conftest import Rig
from tests.support.engine.fake_engine import USAGE, chunk, frame, stream
from tests.support.experiments.recorded_ledger import Clock, controller_of
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

NAME = "green-against-blue"
REPORT = f"/api/experiments/{NAME}/report"

EXPERIMENT: dict[str, Any] = {
    "endpoint": "chat",
    "control": "blue",
    "treatments": ["green"],
    "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
    "secondary": [{"metric": "thumbs", "minimal_effect": 0.1}, {"metric": "error", "minimal_effect": 0.2}],
    "feedback": {"thumbs": {"window_s": 60}},
}


class SkewedClock(Clock):
    """The time, and how far the controller's clock is ahead of it."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def __call__(self) -> float:
        return time.time() + self.now


class LocalController:
    """The controller in the router's own process: a `ControllerClient`."""

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        self.clock = SkewedClock()
        self.controller = controller_of(directory, parse(config), self.clock)
        self.answers = ControllerApi(self.controller)
        self.scores = 0
        """The number of requests that have arrived."""

    async def send(self, batch: bytes) -> bytes:
        acknowledgement = self.controller.ingest(batch)
        self.scores += len(decode_batch(batch).feedback)
        return acknowledgement

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        self.controller.tick()
        return self.answers.answer(method, path, query, body)


def says(body: dict[str, Any]) -> Response:
    """A chat answer with its own id, as engines create them."""
    id = f"chatcmpl-{body['messages'][0]['content']}"
    parts = [chunk("Hello"), chunk("", finish_reason="stop")]
    if body.get("stream_options", {}).get("include_usage"):
        parts.append(frame({"id": id, "object": "chat.completion.chunk", "choices": [], "usage": USAGE}))
    return stream([part.replace('"chatcmpl-1"', f'"{id}"') for part in [*parts, "data: [DONE]\n\n"]])


GROUPS = {"team a": "customers", "team b": "unlisted"}
"""The groups of those keys that have one."""


class LedgerRig:
    """A router with an experiment, two teams that share it, and their manager."""

    def __init__(self, rig: Rig, directory: Path) -> None:
        rig.blue.answer = rig.green.answer = says
        self.keys: dict[str, str] = {}
        file = directory / "keys.yaml"
        for name, endpoints in (("boss", []), ("team a", ["chat"]), ("team b", ["chat"]), ("embed team", ["embed"])):
            self.keys[name], record = create(name, endpoints=endpoints, group=GROUPS.get(name))
            append(file, record.line)
        endpoints = rig.config["endpoints"]
        chat = {**endpoints["chat"], "traffic": {"blue": 50, "green": 50}, "sticky": {"by": "conversation"}}
        self.config = {
            **rig.config,
            "endpoints": {**endpoints, "chat": chat},
            "experiments": {NAME: EXPERIMENT},
            "access": {"keys_file": str(file), "managers": ["boss"], "groups": ["customers", "staff"]},
        }
        self.here = LocalController(directory, self.config)
        environment = RuntimeEnvironment(internal_key="internal")
        self.router = Router(environment, random=Random(7), controller=self.here)
        self.router.reconfigure(self.config)
        self.url = ""

    def call(self, method: str, path: str, key: str = "boss", **more: Any) -> httpx.Response:
        authorization = {"authorization": f"Bearer {self.keys[key]}"}
        return httpx.request(method, self.url + path, headers=authorization, timeout=60, **more)

    def ask(self, number: int, key: str = "team a") -> str:
        """Sends one request in its own session. Returns its id."""
        body = {"model": "chat", "stream": True, "messages": [{"role": "user", "content": str(number)}]}
        answer = self.call("POST", "/v1/chat/completions", key, json=body)
        assert answer.status_code == 200
        assert "[DONE]" in answer.text
        return str(answer.headers["x-request-id"])

    def report(self, requests: int) -> Any:
        """The report, once it has that many requests."""

        def arrived() -> Any:
            report = self.call("GET", REPORT).json()
            return report if sum(report["requests"].values()) >= requests else None

        return wait_until(arrived, lambda: self.call("GET", REPORT).json()["requests"])


@pytest.fixture
def live(rig: Rig, servers: ServerPool, tmp_path: Path) -> Iterator[LedgerRig]:
    live = LedgerRig(rig, tmp_path)
    with servers.host(live.router.app) as live.url:
        yield live


def test_the_report_counts_what_clients_asked(live: LedgerRig) -> None:
    for number in range(40):
        live.ask(number)
    report = live.report(40)
    assert sum(report["units"].values()) == 40
    assert report["decision"] == "keep_going"
    assert report["served"] == {arm: {arm: requests} for arm, requests in report["requests"].items()}
    values = {value["arm"]: value["value"] for value in report["primary"][0]["values"]}
    assert all(0 < value < 10 for value in values.values())
    view = live.call("GET", REPORT, params={"format": "text"}).text
    assert view.startswith(f"{NAME} on chat: ")
    listed = live.call("GET", "/api/experiments").json()["experiments"]
    assert [(summary["experiment"], summary["state"]) for summary in listed] == [(NAME, "running")]
    shown = live.call("GET", "/metrics").text
    assert f'switchyard_experiment_units{{arm="blue",endpoint="chat",experiment="{NAME}"}}' in shown


def test_a_request_is_found_by_its_id_and_by_the_answers(live: LedgerRig) -> None:
    id = live.ask(1)
    live.report(1)
    exposure = live.call("GET", f"/api/requests/{id}", "team a").json()["exposures"][0]
    assert exposure["assigned"] == exposure["served"]
    assert (exposure["status"], exposure["finish"], exposure["plan"]["endpoint"]) == (200, "stop", "chat")
    assert live.call("GET", "/api/requests/chatcmpl-1").json()["exposures"][0]["request"] == exposure["request"]
    assert live.call("GET", f"/api/requests/{id}", "team b").status_code == 404
    for endpoint, status in (("chat", 200), ("embed", 404)):
        access = {**live.config["access"], "operators": {endpoint: ["team b"]}}
        live.router.reconfigure({**live.config, "access": access})
        assert live.call("GET", f"/api/requests/{id}", "team b").status_code == status


def test_a_request_has_the_group_of_its_caller_if_experiments_tell_it_apart(live: LedgerRig) -> None:
    ids = [live.ask(number, key) for number, key in enumerate(("team a", "team b", "boss"))]
    live.report(3)
    groups = [live.call("GET", f"/api/requests/{id}").json()["exposures"][0]["group"] for id in ids]
    assert groups == ["customers", None, None]


def test_feedback_counts_once_its_window_is_over(live: LedgerRig) -> None:
    ids = [live.ask(number) for number in range(20)]
    live.report(20)
    by_answer = {"request_id": "chatcmpl-0", "metric": "thumbs", "value": True}
    assert live.call("POST", "/api/feedback", "team a", json=by_answer).json() == {
        "accepted": 1,
        "pending": 0,
        "late": 0,
        "unknown_metric": [],
    }
    rest = [{"request_id": id, "metric": "thumbs", "value": False} for id in ids[1:]]
    assert live.call("POST", "/api/feedback", json=rest).json()["pending"] == 0
    wait_until(lambda: live.here.scores >= 20)
    assert [thumb["response_rate"] for thumb in thumbs(live)] == [None, None]
    live.here.clock.now = 90.0
    assert [thumb["response_rate"] for thumb in thumbs(live)] == [1.0, 1.0]
    assert sum(thumb["value"] * thumb["requests"] for thumb in thumbs(live)) == pytest.approx(1.0)


def thumbs(live: LedgerRig) -> Any:
    """The metric's values in both arms."""
    return next(comparison for comparison in live.report(20)["secondary"] if comparison["metric"] == "thumbs")["values"]


def test_scores_of_other_callers_answers_do_not_count(live: LedgerRig) -> None:
    id = live.ask(1, "team a")
    live.report(1)
    score = {"request_id": id, "metric": "thumbs", "value": True}
    assert live.call("POST", "/api/feedback", "team b", json=score).json()["pending"] == 1
    assert live.call("POST", "/api/feedback", "embed team", json=score).json()["unknown_metric"] == ["thumbs"]
    assert live.call("POST", "/api/feedback", "team a", json=score).json()["pending"] == 0


def test_the_api_returns_no_names_keys_or_texts(live: LedgerRig) -> None:
    id = live.ask(918_273_645_546_372)
    live.report(1)
    paths = ["/api/experiments", REPORT, f"/api/requests/{id}", "/metrics"]
    view = "".join(live.call("GET", path).text for path in paths).replace(id, "")
    secrets = [*live.keys.values(), "team a", "918273645546372", "Hello"]
    assert [secret for secret in secrets if secret in view] == []


def test_the_controllers_directory_is_read_without_a_server(
    live: LedgerRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(10):
        live.ask(number)
    live.report(10)
    live.here.controller.close()
    assert main(["experiments", "report", NAME, "--ledger", str(tmp_path / "ledger"), "--format", "json"]) == 0
    assert sum(json.loads(capsys.readouterr().out)["requests"].values()) == 10
