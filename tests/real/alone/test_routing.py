"""Routing, live traffic and cancellation on the real application."""

import asyncio
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from scipy.stats import binomtest

from deployments.local import processes as run_processes
from deployments.local.environment import TOKEN
from tests.real.conftest import Application, restore
from tests.support.processes.launcher import deliver
from tests.support.processes.project import ROOT
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

HEADER = "azureml-model-deployment"
SHORT: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
LONG: dict[str, Any] = {**SHORT, "max_tokens": 4000, "ignore_eos": True}


def metrics(application: Application) -> str:
    return httpx.get(f"{application.url}/metrics").text


def ask(application: Application, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return httpx.post(f"{application.url}/v1/chat/completions", json={**SHORT, **fields}, headers=headers, timeout=60)


def test_the_header_routes(application: Application) -> None:
    for name in ("smollm2-blue", "smollm2-green"):
        answer = ask(application, {HEADER: name, "x-request-id": f"id-{name}"})
        assert (answer.status_code, answer.headers[HEADER]) == (200, name)
        assert answer.headers["x-request-id"] == f"id-{name}"


def test_an_unknown_deployment_in_the_header_is_not_found(application: Application) -> None:
    answer = ask(application, {HEADER: "minilm"})
    assert answer.status_code == 404
    assert "smollm2-blue, smollm2-green" in answer.json()["error"]["message"]


def test_the_named_engine_did_the_work(application: Application) -> None:
    name = "vllm:request_success_total"
    before = {d: application.engine_metric(d, name) for d in ("smollm2-blue", "smollm2-green")}
    for _ in range(3):
        ask(application, {HEADER: "smollm2-green"})
    assert application.engine_metric("smollm2-green", name) == before["smollm2-green"] + 3
    assert application.engine_metric("smollm2-blue", name) == before["smollm2-blue"]


SENT = 120


async def test_the_split_of_real_traffic_is_ninety_to_ten(application: Application) -> None:
    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=16)) as client:
        url = f"{application.url}/v1/chat/completions"
        answers = await asyncio.gather(*(client.post(url, json=SHORT) for _ in range(SENT)))
    seen = Counter(answer.headers[HEADER] for answer in answers)
    assert binomtest(seen["smollm2-green"], SENT, 0.1).pvalue > 1e-6


def test_model_deployments_need_the_internal_key(application: Application) -> None:
    url = f"{application.url}/deployments/smollm2-blue"
    for path in ("/v1/models", "/metrics", "/health"):
        assert httpx.get(url + path).status_code == 401
    assert httpx.post(f"{url}/v1/chat/completions", json=SHORT).status_code == 401
    assert httpx.get(f"{url}/v1/models", headers={"x-switchyard-key": "guess"}).status_code == 401


@pytest.mark.parametrize("stream", [True, False])
async def test_the_engine_stops_when_the_client_disconnects(application: Application, stream: bool) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        body = {**LONG, "stream": stream}
        headers = {HEADER: "smollm2-blue"}
        url = f"{application.url}/v1/chat/completions"
        request = asyncio.create_task(client.post(url, json=body, headers=headers))
        await asyncio.to_thread(wait_until, lambda: application.running("smollm2-blue") == 1, within_s=20)
        request.cancel()
        await asyncio.to_thread(wait_until, lambda: application.running("smollm2-blue") == 0, within_s=10)
    active = [line for line in metrics(application).splitlines() if line.startswith("http_server_active_requests{")]
    assert active
    assert all(line.endswith(" 0.0") for line in active)


def test_headers_that_are_too_large_are_refused_in_the_clients_error_format(application: Application) -> None:
    sent = {"x-large": "x" * 40_000}
    answer = httpx.get(f"{application.url}/v1/models", headers=sent)
    assert answer.status_code == 431
    assert answer.json()["error"]["message"] == "The headers are larger than 32768 bytes"
    assert httpx.get(f"{application.url}/v1/models", headers={"x-large": "x" * 30_000}).status_code == 200


def test_an_http_1_0_client_gets_a_whole_stream_and_others_a_keep_alive_header(
    application: Application,
) -> None:
    body = json.dumps({**SHORT, "stream": True}).encode()
    address = httpx.URL(application.url)
    with socket.create_connection((address.host, address.port or 80), timeout=60) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        answer = HTTPResponse(connection)
        answer.begin()
        content = answer.read()
    assert (answer.status, answer.getheader("transfer-encoding")) == (200, None)
    assert answer.getheader("content-length") == str(len(content))
    assert content.endswith(b"data: [DONE]\n\n")
    assert ask(application).headers["keep-alive"] == "timeout=115"


def test_ready_and_metrics(application: Application) -> None:
    ready = httpx.get(f"{application.url}/ready")
    assert (ready.status_code, ready.json()["endpoints"]) == (200, {"chat": True, "embed": True})
    assert httpx.get(f"{application.url}/health").json() == {"status": "ok"}
    ask(application, {HEADER: "smollm2-blue"})
    line = 'gen_ai_server_request_duration_seconds_count{deployment="smollm2-blue",dialect="openai"'
    assert line in metrics(application)


class Deploy:
    """Changes the running configuration like an operator, by editing and deploying the file."""

    def __init__(self, application: Application, folder: Path) -> None:
        self._application = application
        self._file = folder / "serve_config.yaml"

    def __call__(self, **chat: Any) -> None:
        """Deploys with the command of `make deploy`."""
        self._file.write_text(yaml.safe_dump(_changed(**chat)))
        deliver(self._file, self._application.directory)

    def unchecked(self, **chat: Any) -> None:
        """Deploys straight to Serve, without the checks of `make deploy`."""
        run = run_processes.record(self._application.directory)
        assert run is not None
        token = (Path(run.directory) / TOKEN).read_text()
        document = {**_changed(**chat), "http_options": {"host": "127.0.0.1", "port": run.port}}
        headers = {"authorization": f"Bearer {token}"}
        httpx.put(f"{run.dashboard}/api/serve/applications/", json=document, headers=headers).raise_for_status()


def _changed(**chat: Any) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    router = next(app for app in document["applications"] if app["name"] == "router")
    router["deployments"][0]["user_config"]["endpoints"]["chat"].update(chat)
    return document


@pytest.fixture
def deploy(application: Application, tmp_path: Path) -> Iterator[Deploy]:
    change = Deploy(application, tmp_path)
    yield change
    restore(application)


def test_traffic_moves_live_under_load_without_a_failed_request(application: Application, deploy: Deploy) -> None:
    seen: list[tuple[int, str]] = []
    stop = threading.Event()

    def load() -> None:
        with httpx.Client(timeout=60) as client:
            while not stop.is_set():
                answer = client.post(f"{application.url}/v1/chat/completions", json={**SHORT, "stream": True})
                seen.append((answer.status_code, answer.headers.get(HEADER, "")))
                assert answer.text.endswith("data: [DONE]\n\n"), answer.text

    workers = [threading.Thread(target=load) for _ in range(4)]
    for worker in workers:
        worker.start()
    try:
        time.sleep(1)
        deploy(traffic={"smollm2-blue": 0, "smollm2-green": 100})
        wait_until(
            lambda: len(seen) > 30 and {name for _, name in seen[-30:]} == {"smollm2-green"}, lambda: Counter(seen)
        )
    finally:
        stop.set()
        for worker in workers:
            worker.join(60)
    assert {status for status, _ in seen} == {200}
    assert "smollm2-blue" in {name for _, name in seen}


def test_a_wrong_configuration_leaves_the_running_one_in_force(application: Application, deploy: Deploy) -> None:
    def refused() -> float:
        lines = [
            line
            for line in metrics(application).splitlines()
            if line.startswith('switchyard_config_reloads_total{outcome="refused"}')
        ]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    before = refused()
    deploy.unchecked(traffic={"smollm2-blue": 50, "smollm2-green": 40})
    wait_until(lambda: refused() > before)
    assert ask(application).status_code == 200
    assert ask(application, {HEADER: "smollm2-green"}).status_code == 200


def test_a_wrong_configuration_is_refused_before_it_is_sent(deploy: Deploy) -> None:
    with pytest.raises(AssertionError, match=r"traffic: sums to 90 .*: add 10"):
        deploy(traffic={"smollm2-blue": 50, "smollm2-green": 40})


def test_a_session_stays_on_its_deployment(application: Application, deploy: Deploy) -> None:
    deploy(traffic={"smollm2-blue": 50, "smollm2-green": 50}, sticky={"by": "header", "name": "x-session-id"})

    def landed(session: int) -> str:
        return ask(application, {"x-session-id": f"s{session}"}).headers[HEADER]

    wait_until(lambda: len({landed(7) for _ in range(8)}) == 1 and len({landed(i) for i in range(8)}) == 2)
    first = [landed(i) for i in range(12)]
    assert [landed(i) for i in range(12)] == first
