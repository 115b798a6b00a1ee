"""Mistakes that the launcher refuses before a start, and a closed terminal. Other ends of runs are tested in
test_live_traffic and tests/real/conftest.py."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deployments.local import processes
from deployments.weights.cache import prepare
from tests.support.processes.launcher import launched, run
from tests.support.processes.project import ROOT
from tests.support.processes.servers import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real


def embedding_only() -> dict[str, Any]:
    """The repository's own configuration, cut down to one model."""
    document = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    applications = {one["name"]: one for one in document["applications"]}
    applications["router"]["deployments"][0]["user_config"] = {
        "endpoints": {"embed": {"tasks": ["embeddings"], "traffic": {"minilm": 100}}},
        "deployments": {"minilm": {"app": "minilm", "model": "all-MiniLM-L6-v2", "tasks": ["embeddings"]}},
    }
    return {"applications": [applications["router"], applications["minilm"]]}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "serve_config.yaml"
    path.write_text(yaml.safe_dump(embedding_only()))
    return path


def launch(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return run(*arguments, directory=directory, timeout_s=120)


@pytest.mark.parametrize("is_in_file", [False, True], ids=["on the command line", "in the file"])
def test_a_taken_port_is_refused_at_once(is_in_file: bool, config: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        if is_in_file:
            config.write_text(yaml.safe_dump({"http_options": {"port": port}, **embedding_only()}))
        options = [] if is_in_file else ["--port", str(port)]
        refused = launch("serve", str(config), *options, directory=tmp_path)
    assert refused.returncode == 1
    assert f"Port {port} is taken" in refused.stderr


def test_a_wrong_configuration_is_refused_at_once(config: Path, tmp_path: Path) -> None:
    document = embedding_only()
    document["applications"][0]["deployments"][0]["user_config"]["endpoints"]["embed"]["traffic"] = {"minilm": 99}
    config.write_text(yaml.safe_dump(document))
    refused = launch("serve", str(config), directory=tmp_path)
    assert refused.returncode == 1
    assert "traffic: sums to 99 (minilm 99), it must be 100: add 1" in refused.stderr


def test_a_ray_that_does_not_start_is_said_without_a_stack_trace(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "gone"))
    refused = launch("serve", str(config), "--port", str(free_port()), directory=tmp_path)
    assert refused.returncode == 1
    assert re.search(r"^Ray did not start: RAY_AUTH_TOKEN_PATH .*/gone", refused.stderr, re.MULTILINE)
    assert "Stopping after" not in refused.stderr + refused.stdout
    assert "Traceback" not in refused.stderr


def test_a_model_that_no_hub_gives_is_refused_before_ray_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = embedding_only()
    document["applications"][1]["args"]["llm_config"]["model_loading_config"]["model_source"] = "acme/mine"
    config = tmp_path / "serve_config.yaml"
    config.write_text(yaml.safe_dump(document))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    refused = launch("serve", str(config), "--port", str(free_port()), directory=tmp_path)
    assert refused.returncode == 1
    assert "The model acme/mine is not in the cache" in refused.stderr
    assert "the hub http://127.0.0.1:9 cannot be reached" in refused.stderr
    assert "Starting Ray" not in refused.stderr


def test_a_models_folder_is_served_beside_a_variant_from_the_first_minute(tmp_path: Path) -> None:
    model = prepare("all-MiniLM-L6-v2", ROOT / ".models")
    options = ("--as", "embed", "--variant", "short=--max-model-len 64", "--output", str(tmp_path / "own.yaml"))
    with launched(str(model), tmp_path, {}, None, *options) as launcher:
        answers = [
            httpx.post(f"{launcher.url}/v1/embeddings", json={"model": name, "input": "a"}, timeout=60).json()
            for name in ("embed", "all-MiniLM-L6-v2", "short")
        ]
        assert [len(answer["data"][0]["embedding"]) for answer in answers] == [384] * 3
        assert answers[2]["model"] == "short"
        status = run("status", "--json", directory=tmp_path, timeout_s=60)
        assert json.loads(status.stdout)["endpoints"]["embed"]["traffic"] == {"all-minilm-l6-v2": 90, "short": 10}


CALLS = [
    ("POST", "/v1/embeddings"),
    ("POST", "/endpoints/embed/embeddings?api-version=2024-05-01-preview"),
    ("POST", "/serving-endpoints/embed/invocations"),
    ("POST", "/dedicated/v1/embeddings"),
    ("POST", "/tgi/embed/embed"),
    ("GET", "/tgi/embed/health"),
    ("GET", "/v1/models/embed"),
    ("GET", "/anthropic/v1/models/embed"),
    ("GET", "/ready"),
    ("GET", "/ui"),
    ("GET", "/"),
]


class Prober(threading.Thread):
    """Calls every route of `CALLS` again and again; `answers` has each different one: call, status, Retry-After."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.ended = port, threading.Event()
        self.answers: set[tuple[str, int, str | None]] = set()
        self.rounds = 0

    def run(self) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60) as client:
            while not self.ended.wait(0.2):
                for method, path in CALLS:
                    with contextlib.suppress(httpx.HTTPError):
                        body = {"model": "embed", "input": "a", "inputs": "a"} if method == "POST" else None
                        answer = client.request(method, path, json=body)
                        self.answers.add((f"{method} {path}", answer.status_code, answer.headers.get("retry-after")))
                self.rounds += 1

    def wait_round(self) -> None:
        """Returns when every route has been called since."""
        begun = self.rounds + 1
        wait_until(lambda: self.rounds > begun, lambda: "the routes are no longer called")

    def without_router(self) -> set[str]:
        """The calls that were told to come back, since the last time. All others were served, or failed otherwise."""
        answers, self.answers = self.answers, set()
        assert [answer for answer in answers if answer[1] == 404] == []
        return {call for call, status, retry in answers if (status, retry) == (503, "2")}


def test_no_request_during_a_start_or_a_stop_is_told_that_its_route_or_model_does_not_exist(tmp_path: Path) -> None:
    document = embedding_only()
    (router, _) = document["applications"]
    deployments = router["deployments"][0]["user_config"]["deployments"]
    deployments["minilm"] = {"url": "http://127.0.0.1:9", "model": "minilm", "tasks": ["embeddings"]}
    config = tmp_path / "serve_config.yaml"
    config.write_text(yaml.safe_dump({"applications": [router]}))
    prober = Prober(free_port())
    prober.start()
    try:
        with launched(config, tmp_path, {}, prober.port) as launcher:
            prober.wait_round()
            assert prober.without_router(), "the ingress answers before the router"
            os.kill(launcher.process.pid, signal.SIGINT)
            assert launcher.process.wait(120) == 0, (tmp_path / "terminal").read_text()
            assert len(prober.without_router()) == len(CALLS), "the ingress answers longer than the router"
    finally:
        prober.ended.set()
        prober.join()


def test_a_closed_terminal_leaves_nothing_behind(tmp_path: Path) -> None:
    document = embedding_only()
    (router, _) = document["applications"]
    deployments = router["deployments"][0]["user_config"]["deployments"]
    deployments["minilm"] = {"url": "http://127.0.0.1:9", "model": "minilm", "tasks": ["embeddings"]}
    config = tmp_path / "serve_config.yaml"
    config.write_text(yaml.safe_dump({"applications": [router]}))
    with launched(config, tmp_path, {}) as launcher:
        assert len(processes.processes_of(launcher.run_id)) > 5
        os.killpg(launcher.process.pid, signal.SIGHUP)
        while launcher.process.poll() is None:
            said = launch("status", directory=tmp_path).stderr
            assert re.match(r"$|The application is stopping\. |Nothing is running\. ", said), said
        assert launcher.process.wait(60) == 0, (tmp_path / "terminal").read_text()
        launcher.assert_nothing_is_left()
        assert not (tmp_path / "local.json").exists()
