"""The failures that end a start.

The announcement of the first endpoint that can answer.
"""

import json
import shlex
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from app.config.schema import TASKS, Config, parse
from deployments.local.dashboard import Application
from deployments.local.processes import LaunchError
from deployments.local.readiness import UNHEALTHY_S, Failures, announcement, last_error, ready_endpoints


def application(status: str) -> Application:
    return Application("chat", status, ("The engine failed", "out of memory"), running=0, wanted=1)


def test_a_failed_application_ends_the_start_at_once_with_serves_reasons() -> None:
    with pytest.raises(LaunchError, match=r"Application 'chat' failed \(DEPLOY_FAILED\):\nThe engine failed\nout of"):
        Failures().check(application("DEPLOY_FAILED"), now=0)


def test_of_a_stack_trace_the_last_error_is_said() -> None:
    trace = (
        "The deployment failed to start 3 times in a row. Error:\n\x1b[36mray::ServeReplica\x1b[39m (pid=713)\n"
        'RuntimeError: Traceback (most recent call last):\n  File "a.py", line 1, in start\n'
        "RuntimeError: Failed to create the engine: 1 error\nmax_model_len\n  Input should be an integer\n\n"
    )
    said = "RuntimeError: Failed to create the engine: 1 error\nmax_model_len\n  Input should be an integer"
    assert last_error(trace) == said
    assert last_error("out of memory\n") == "out of memory\n"
    assert last_error("ValueError: no trace") == "ValueError: no trace"


def test_an_unhealthy_application_ends_the_start_after_a_while() -> None:
    failures = Failures()
    failures.check(application("UNHEALTHY"), now=100)
    failures.check(application("UNHEALTHY"), now=100 + UNHEALTHY_S)
    with pytest.raises(LaunchError, match="UNHEALTHY"):
        failures.check(application("UNHEALTHY"), now=101 + UNHEALTHY_S)


def test_an_application_that_recovers_starts_a_new_count() -> None:
    failures = Failures()
    failures.check(application("UNHEALTHY"), now=0)
    failures.check(application("DEPLOYING"), now=UNHEALTHY_S)
    failures.check(application("UNHEALTHY"), now=2 * UNHEALTHY_S)


def test_missing_replicas_are_part_of_the_state() -> None:
    assert application("DEPLOYING").state == "DEPLOYING (0/1 replicas)"
    assert Application("chat", "RUNNING", (), running=2, wanted=2).state == "RUNNING"


def config(task: str, **sections: Any) -> Config:
    deployment = {"app": "a", "model": "m", "tasks": [task]}
    return parse(
        {"endpoints": {"the-one": {"tasks": [task], "traffic": {"d": 100}}}, "deployments": {"d": deployment}}
        | sections
    )


@pytest.mark.parametrize("task", TASKS)
def test_the_request_can_be_pasted_into_a_shell(task: str) -> None:
    said, line = announcement("the-one", config(task), 8000).split("\n")
    assert said == "The endpoint 'the-one' answers already, at http://127.0.0.1:8000/v1:"
    words = shlex.split(line)
    assert words[0] == "curl"
    assert words[1].startswith("http://127.0.0.1:8000/v1/")
    assert json.loads(words[-1])["model"] == "the-one"
    assert "Authorization" not in line


def test_the_announcement_names_the_key_where_one_is_needed() -> None:
    keys = {"keys_file": str(Path("/etc/keys.yaml"))}
    assert '-H "Authorization: Bearer $KEY"' in announcement("the-one", config("chat", access=keys), 8000)
    assert "Bearer" not in announcement("the-one", config("chat", access={**keys, "allow_anonymous": True}), 8000)


class Router(HTTPServer):
    """Answers every GET with `status` and `body`."""

    status, body = 200, b""


class Answer(BaseHTTPRequestHandler):
    server: Router

    def do_GET(self) -> None:
        assert self.path == "/ready"
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def router() -> Iterator[Router]:
    with Router(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


def test_the_router_knows_which_endpoints_can_answer(router: Router) -> None:
    router.status, router.body = 503, b'{"status": "not ready", "endpoints": {"chat": false, "embed": true}}'
    assert ready_endpoints(router.server_port) == ["embed"]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"status": "not configured"}', b'{"endpoints": []}'])
def test_no_endpoint_can_answer_while_the_router_does_not(router: Router, body: bytes) -> None:
    router.status, router.body = 503, body
    assert ready_endpoints(router.server_port) == []
    router.server_close()
    assert ready_endpoints(router.server_port) == []
