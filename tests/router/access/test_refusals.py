"""Requests without valid credentials: throttled by source, whatever they ask for, and never those with valid ones."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.keys import append, create
from app.access.refusals import MOST_A_MINUTE
from app.server.application import Router
from app.telemetry.logs import JsonFormatter
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import PROMPT, Rig
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
ROUTES: dict[str, tuple[str, str, Any]] = {
    "openai": ("POST", "/v1/chat/completions", lambda body: body["error"]["type"] == "rate_limit_error"),
    "anthropic": ("POST", "/v1/messages", lambda body: body["error"]["type"] == "rate_limit_error"),
    "azure": (
        "POST",
        "/endpoints/chat/chat/completions?api-version=2024-05-01-preview",
        lambda body: body["status"] == 429,
    ),
    "databricks": (
        "POST",
        "/serving-endpoints/chat/invocations",
        lambda body: body["error_code"] == "REQUEST_LIMIT_EXCEEDED",
    ),
    "friendli": ("POST", "/dedicated/v1/chat/completions", lambda body: "detail" in body or "error" in body),
    "tgi": ("POST", "/tgi/chat/v1/chat/completions", lambda body: "error" in body),
    "model list": ("GET", "/v1/models", lambda body: body["error"]["type"] == "rate_limit_error"),
    "management": ("GET", "/api/me", lambda body: body["error"]["type"] == "rate_limit_error"),
    "databricks management": ("GET", "/api/2.0/serving-endpoints", lambda body: "error_code" in body),
    "metrics": ("GET", "/metrics", lambda body: body["error"]["type"] == "rate_limit_error"),
}


class Guarded:
    """A router behind an ingress, with one valid key."""

    def __init__(self, rig: Rig, directory: Path) -> None:
        self.valid, record = create("ann")
        self.wrong, _ = create("unknown")
        append(directory / "keys.yaml", record.line)
        timing = replace(PROMPT, refusals_every_s=0.05)
        self.router = Router(RuntimeEnvironment(behind_ingress=True), access_timing=timing)
        self.router.reconfigure(
            {**rig.config, "access": {"keys_file": str(directory / "keys.yaml"), "metrics": "restricted"}}
        )
        self.url = ""

    def ask(self, method: str, path: str, key: str, source: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}", "x-forwarded-for": source}
        body = CHAT if method == "POST" else None
        return httpx.request(method, f"{self.url}{path}", json=body, headers=headers)


@pytest.fixture
def guarded(rig: Rig, tmp_path: Path, servers: ServerPool) -> Iterator[Guarded]:
    guarded = Guarded(rig, tmp_path)
    with servers.host(guarded.router.app) as guarded.url:
        yield guarded


@pytest.mark.parametrize("name", ROUTES)
def test_every_route_throttles_a_source_and_serves_its_valid_keys(guarded: Guarded, name: str) -> None:
    method, path, is_worded = ROUTES[name]
    for _ in range(MOST_A_MINUTE):
        assert guarded.ask(method, path, guarded.wrong, "203.0.113.9").status_code == 401
    throttled = guarded.ask(method, path, guarded.wrong, "203.0.113.9")
    assert throttled.status_code == 429
    assert 0 < int(throttled.headers["retry-after"]) <= 60
    assert is_worded(throttled.json()), throttled.text
    assert guarded.ask(method, path, guarded.valid, "203.0.113.9").status_code not in (401, 429)
    assert guarded.ask(method, path, guarded.wrong, "198.51.100.7").status_code == 401


def test_a_client_cannot_name_another_source(guarded: Guarded) -> None:
    """The ingress adds the last address; those before it are the client's own words."""
    for number in range(MOST_A_MINUTE):
        assert guarded.ask("GET", "/api/me", guarded.wrong, f"192.0.2.{number}, 203.0.113.9").status_code == 401
    assert guarded.ask("GET", "/api/me", guarded.wrong, "192.0.2.99, 203.0.113.9").status_code == 429
    assert guarded.ask("GET", "/api/me", guarded.wrong, "192.0.2.1").status_code == 401


class Lines(logging.Handler):
    """The lines of the log, as JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(json.loads(JsonFormatter().format(record)))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.found if line["event"] == event]


@pytest.fixture
def lines() -> Iterator[Lines]:
    log, handler = logging.getLogger("switchyard"), Lines()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(level)


def test_refusals_are_logged_as_a_sum_and_counted(guarded: Guarded, lines: Lines) -> None:
    sent = MOST_A_MINUTE + 5
    for _ in range(sent):
        guarded.ask("POST", "/v1/chat/completions", guarded.wrong, "203.0.113.9")
    wait_until(lambda: sum(line["requests"] for line in lines.of("requests_unauthorized")) == sent)
    sums = lines.of("requests_unauthorized")
    assert sum(line["throttled"] for line in sums) == 5
    assert {source["source"] for line in sums for source in line["sources"]} == {"203.0.113.9"}
    assert {reason["reason"] for line in sums for reason in line["reasons"]} == {"The API key is not valid"}
    assert lines.of("request") == []
    assert guarded.wrong not in json.dumps(lines.found)
    assert guarded.ask("GET", "/v1/models", guarded.valid, "203.0.113.9").status_code == 200
    wait_until(lambda: len(lines.of("request")) == 1)
    counted = guarded.ask("GET", "/metrics", guarded.valid, "203.0.113.9").text
    assert f'switchyard_unauthorized_requests_total{{outcome="refused"}} {MOST_A_MINUTE}.0' in counted
    assert 'switchyard_unauthorized_requests_total{outcome="throttled"} 5.0' in counted
