"""`switchyard router`: the router alone, as its own process, in front of external servers."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import uvicorn
import yaml

from tests.support.engine.fake_engine import FakeEngine
from tests.support.processes.project import ROOT
from tests.support.processes.servers import free_port


def start(config: Path, port: int, host: str = "127.0.0.1", **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "deployments", "router", str(config), "--port", str(port), "--host", host]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environment}, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def document(url: str) -> dict[str, Any]:
    return {
        "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"far": 100}}},
        "deployments": {"far": {"url": f"{url}/blue", "model": "big", "api_key_env": "FAR_KEY"}},
    }


def test_the_router_serves_an_external_deployment_on_loopback_and_stops_on_sigterm(
    engines: tuple[dict[str, FakeEngine], str], tmp_path: Path
) -> None:
    fakes, url = engines
    fakes["blue"].reset()
    port, config = free_port(), tmp_path / "router.yaml"
    config.write_text(yaml.safe_dump(document(url)))
    process = start(config, port, FAR_KEY="theirs")
    try:
        answer = None
        for _ in range(1000):
            try:
                body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
                answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body)
                break
            except httpx.ConnectError:
                assert process.poll() is None
                time.sleep(0.05)
        assert answer is not None
        assert answer.headers["keep-alive"] == "timeout=115"
        assert answer.json()["choices"][0]["message"]["content"] == "Hello big"
        assert fakes["blue"].headers[-1]["authorization"] == "Bearer theirs"
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert '"deployment":"far"' in log
    assert "theirs" not in log
    assert "every process on this machine may call, other machines may not" in log


def test_an_idle_connection_is_kept_longer_than_by_the_server_itself(tmp_path: Path) -> None:
    """uvicorn's default of 5 s equals httpx's: a request could be on its way when the connection closes."""
    port, config = free_port(), tmp_path / "router.yaml"
    config.write_text(yaml.safe_dump(document("http://127.0.0.1:1")))
    process = start(config, port, FAR_KEY="theirs")
    try:
        while not is_listening(port):
            assert process.poll() is None
            time.sleep(0.05)
        with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            assert health(connection) == 200
            connection.auto_open = 0  # a closed one must not be opened again
            time.sleep(uvicorn.Config("").timeout_keep_alive + 0.5)
            assert health(connection) == 200
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def health(connection: HTTPConnection) -> int:
    connection.request("GET", "/health")
    response = connection.getresponse()
    response.read()
    return response.status


def test_an_invalid_or_unprotected_configuration_is_reported_and_nothing_starts(tmp_path: Path) -> None:
    invalid, unprotected = tmp_path / "invalid.yaml", tmp_path / "unprotected.yaml"
    invalid.write_text("endpoints: {chat: {tasks: [chat], traffic: {gone: 100}}}\ndeployments: {}\n")
    unprotected.write_text(yaml.safe_dump(document("http://127.0.0.1:1")))
    started = (
        (start(invalid, free_port()), ["deployments: "]),
        (
            start(unprotected, free_port(), host="0.0.0.0", FAR_KEY="theirs"),
            ["access: the server would be reachable from other machines", "allow_anonymous: true"],
        ),
    )
    for process, expected in started:
        _, output = process.communicate(timeout=60)
        assert process.returncode == 1
        assert all(sentence in output for sentence in expected), output
        assert "Traceback" not in output
