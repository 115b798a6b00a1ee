"""Serve's REST API on a server that answers as Ray 2.60's dashboard does.

The display of a start: lines for a log, a spinner for a terminal.
"""

import http.client
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from deployments.local import dashboard
from deployments.local.dashboard import StartDisplay
from deployments.local.environment import TOKEN
from deployments.local.processes import ROOT, LaunchError, Run, Unresponsive, home
from tests.support.processes import project
from tests.support.processes.servers import serve
from tests.support.waiting import wait_until

USER_CONFIG: dict[str, Any] = {"endpoints": {}, "deployments": {}}
ANSWER: dict[str, Any] = {
    "controller_info": {},
    "applications": {
        "router": {
            "status": "RUNNING",
            "message": "",
            "deployed_app_config": {"deployments": [{"name": "Router", "user_config": USER_CONFIG}]},
            "deployments": {"Router": {"message": "", "target_num_replicas": 1, "replicas": [{"state": "RUNNING"}]}},
        },
        "chat": {
            "status": "DEPLOYING",
            "message": "waiting",
            "deployed_app_config": {},
            "deployments": {
                "Engine": {
                    "message": "no memory",
                    "target_num_replicas": 2,
                    "replicas": [{"state": "STARTING"}, {"state": "RUNNING"}],
                }
            },
        },
    },
}


PENDING = """Traceback (most recent call last):
  File "ray/dashboard/modules/serve/serve_head.py", line 175, in put_all_applications
    client = await serve_start_async(
TimeoutError: HTTP proxies not available after 60s.
"""


class FakeDashboard:
    def __init__(self) -> None:
        self.deployed: Any = None
        self.authorization = ""
        self.error: str | None = None
        self.pending = 0
        """The number of calls for which Serve's proxies are still starting."""
        self.app = Starlette(routes=[Route("/api/serve/applications/", self.handle, methods=["GET", "PUT"])])

    async def handle(self, request: Request) -> Response:
        self.authorization = request.headers.get("authorization", "")
        if self.error is not None:
            return PlainTextResponse(self.error, 400)
        if self.pending:
            self.pending -= 1
            return PlainTextResponse(PENDING, 500)
        if request.method == "PUT":
            self.deployed = json.loads(await request.body())
            return Response()
        return JSONResponse(ANSWER)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[FakeDashboard, str]]:
    fake = FakeDashboard()
    with serve(fake.app) as url:
        yield fake, url


@pytest.fixture
def fake(server: tuple[FakeDashboard, str], monkeypatch: pytest.MonkeyPatch) -> FakeDashboard:
    for variable in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(variable, raising=False)
    server[0].error = server[0].deployed = None
    server[0].pending = 0
    return server[0]


@pytest.fixture
def run(server: tuple[FakeDashboard, str], tmp_path: Path) -> Run:
    (tmp_path / TOKEN).write_text("the-runs-token")
    return Run(1, "id", 8000, server[1], str(tmp_path))


def test_applications_are_read_with_their_replicas_and_messages(fake: FakeDashboard, run: Run) -> None:
    instance = dashboard.read(run)
    assert instance.applications["chat"] == dashboard.Application("chat", "DEPLOYING", ("waiting", "no memory"), 1, 2)
    assert instance.applications["router"].state == "RUNNING"
    assert instance.router_config == USER_CONFIG


def test_calls_carry_the_runs_token_unless_the_environment_names_another(
    fake: FakeDashboard, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard.read(run)
    assert fake.authorization == "Bearer the-runs-token"
    (tmp_path / "other").write_text("of-the-file\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "other"))
    dashboard.read(run)
    assert fake.authorization == "Bearer of-the-file"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-the-variable")
    dashboard.read(run)
    assert fake.authorization == "Bearer of-the-variable"


def test_a_configuration_is_delivered_as_it_is(fake: FakeDashboard, run: Run) -> None:
    dashboard.deploy(run, {"applications": []})
    assert fake.deployed == {"applications": []}


def test_the_call_that_starts_serve_waits_as_long_as_it_is_asked_to(
    fake: FakeDashboard, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    class Connection(http.client.HTTPConnection):
        def __init__(self, host: str, port: int | None, timeout: float) -> None:
            waits.append(timeout)
            super().__init__(host, port, timeout=timeout)

    monkeypatch.setattr(http.client, "HTTPConnection", Connection)
    dashboard.deploy(run, {}, wait_s=200)
    dashboard.deploy(run, {})
    assert waits == [200, 30]


def test_serves_reason_for_a_rejection_is_passed_on(fake: FakeDashboard, run: Run) -> None:
    fake.error = "import_path is wrong\n"
    with pytest.raises(LaunchError, match=r"^Ray Serve rejected the call \(400\): import_path is wrong$"):
        dashboard.deploy(run, {})


def test_serve_may_take_its_time_to_start_proxies(fake: FakeDashboard, run: Run) -> None:
    fake.pending = 2
    dashboard.deploy(run, {"applications": []}, wait_s=60)
    assert (fake.pending, fake.deployed) == (0, {"applications": []})


def test_of_a_stack_trace_the_reason_is_shown(fake: FakeDashboard, run: Run) -> None:
    fake.pending = 1
    reason = r"^Ray Serve rejected the call \(500\): TimeoutError: HTTP proxies not available after 60s\.$"
    with pytest.raises(LaunchError, match=reason):
        dashboard.deploy(run, {"applications": []})


def test_a_dashboard_that_does_not_answer_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(Unresponsive, match=r"^Ray's dashboard at http://127.0.0.1:9 does not answer \(.*refused\)$"):
        dashboard.read(Run(1, "id", 8000, "http://127.0.0.1:9", str(tmp_path)))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_there_is_a_line_for_each_change() -> None:
    stream = io.StringIO()
    with StartDisplay(stream) as display:
        display.update({"router": "RUNNING", "chat": "DEPLOYING", "embed": "DEPLOYING"})
        display.update({"router": "RUNNING", "chat": "DEPLOYING", "embed": "DEPLOYING"})
        display.update({"router": "RUNNING", "chat": "RUNNING", "embed": "DEPLOYING"})
        display.update({"router": "RUNNING", "chat": "RUNNING", "embed": "RUNNING"})
    assert stream.getvalue() == "Waiting for: chat, embed\nWaiting for: embed\n"


def test_a_start_says_at_once_what_it_does_and_is_never_silent_for_long() -> None:
    stream = io.StringIO()
    with StartDisplay(stream, every_s=0.02) as display:
        display.step("Starting Ray")
        assert stream.getvalue() == "Starting Ray\n"
        display.step("Starting Ray")
        wait_until(lambda: stream.getvalue().count("\n") > 3, stream.getvalue)
        display.step("Starting Ray Serve")
        wait_until(lambda: "Starting Ray Serve (0 s so far)" in stream.getvalue(), stream.getvalue)
    step = r"(\w+( \w+)*)\n(\1 \(0 s so far\)\n)+"
    assert re.fullmatch(f"({step})+".replace(r"\1", r"\2"), stream.getvalue())


def test_a_terminal_shows_the_step_and_how_long_the_start_takes() -> None:
    stream = Terminal()
    with StartDisplay(stream, every_s=0.02) as display:
        display.step("Starting Ray")
        wait_until(lambda: re.search(r"Starting Ray \(.*0.* s\)", stream.getvalue()), stream.getvalue)


def test_a_terminal_shows_the_state_of_every_application() -> None:
    stream = Terminal()
    with StartDisplay(stream) as display:
        display.update({"router": "RUNNING", "chat": "DEPLOYING (0/1 replicas)"})
    shown = stream.getvalue()
    assert "router  RUNNING" in shown
    assert "chat    DEPLOYING (0/1 replicas)" in shown


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["log", "terminal"])
def test_a_message_stays_while_others_change(stream: io.StringIO) -> None:
    message = f"It answers: curl http://127.0.0.1/v1 -d '[bold] {'word ' * 40}'"
    with StartDisplay(stream) as display:
        display.say(message)
    assert message in stream.getvalue()


def test_a_checkout_keeps_its_files_at_its_top() -> None:
    assert home() == ROOT == project.ROOT
