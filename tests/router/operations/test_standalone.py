"""`switchyard router`: the router alone, as its own process, in front of external servers."""

import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import uvicorn
import yaml

from tests.support.engine.fake_engine import FakeEngine
from tests.support.processes.servers import free_port
from tests.support.processes.standalone_router import standalone_router, start


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
    with standalone_router(document(url), tmp_path, FAR_KEY="theirs") as router:
        body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
        answer = httpx.post(f"{router.url}/v1/chat/completions", json=body)
        assert answer.headers["keep-alive"] == "timeout=115"
        assert answer.json()["choices"][0]["message"]["content"] == "Hello big"
        assert fakes["blue"].headers[-1]["authorization"] == "Bearer theirs"
    log = router.log.read_text()
    assert '"deployment":"far"' in log
    assert "theirs" not in log
    assert "accepting loopback connections only" in log


def test_an_idle_connection_is_kept_longer_than_by_the_server_itself(tmp_path: Path) -> None:
    """uvicorn's default of 5 s equals httpx's: a request could be on its way when the connection closes."""
    with (
        standalone_router(document("http://127.0.0.1:1"), tmp_path, FAR_KEY="theirs") as router,
        closing(HTTPConnection("127.0.0.1", router.port, timeout=60)) as connection,
    ):
        assert health(connection) == 200
        connection.auto_open = 0  # a closed one must not be opened again
        time.sleep(uvicorn.Config("").timeout_keep_alive + 0.5)
        assert health(connection) == 200


def health(connection: HTTPConnection) -> int:
    connection.request("GET", "/health")
    response = connection.getresponse()
    response.read()
    return response.status


def test_an_invalid_or_unprotected_configuration_is_reported_and_nothing_starts(tmp_path: Path) -> None:
    invalid, unprotected = tmp_path / "invalid.yaml", tmp_path / "unprotected.yaml"
    invalid.write_text("endpoints: {chat: {tasks: [chat], traffic: {gone: 100}}}\ndeployments: {}\n")
    unprotected.write_text(yaml.safe_dump(document("http://127.0.0.1:1")))
    logs = tmp_path / "invalid.log", tmp_path / "unprotected.log"
    started = (
        (start(invalid, free_port(), logs[0]), ["deployments: "]),
        (
            start(unprotected, free_port(), logs[1], "--host", "0.0.0.0", FAR_KEY="theirs"),
            ["access: the server would be reachable from other machines", "allow_anonymous: true"],
        ),
    )
    for (process, expected), log in zip(started, logs, strict=True):
        assert process.wait(60) == 1
        output = log.read_text()
        assert all(sentence in output for sentence in expected), output
        assert "Traceback" not in output
