"""Commands for the run that this installation has started, in every part of its life. Its router and Ray's dashboard
are made up."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from deployments.cli.main import main
from deployments.cli.options import ExitCode
from deployments.invocation import command
from deployments.local.processes import RUN_DIRECTORY, Phase, Run, exclusive, write_record
from tests.support.processes.servers import free_port, serve

ROUTER: dict[str, Any] = {
    "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"far": 100}}},
    "deployments": {"far": {"url": "http://127.0.0.1:9", "model": "big"}},
}
COMMANDS = (["status"], ["traffic", "chat"], ["keys", "list"])


@dataclass
class LocalRun:
    """`states`: those of the router's application in the next answers of the dashboard; the last one stays. `gone`: the
    router's replicas have ended, and the ingress is still there. `refuses`: the router keeps an earlier configuration.
    """

    directory: Path
    states: list[str] = field(default_factory=lambda: ["RUNNING"])
    deployed: int = 0
    gone: bool = False
    refuses: bool = False
    experiments: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """The paths of the router that were called."""

    @property
    def app(self) -> Starlette:
        routes = [Route("/api/serve/applications/", self._serve, methods=["GET", "PUT"])]
        return Starlette(routes=[*routes, Route("/{path:path}", self._router)])

    async def _serve(self, request: Request) -> Response:
        if request.method == "PUT":
            self.deployed += 1
            return Response()
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        deployments = [{"name": "Router", "user_config": ROUTER}]
        router = {"status": state, "message": "no such file", "deployed_app_config": {"deployments": deployments}}
        return JSONResponse({"applications": {"router": router}})

    async def _router(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        if self.gone:
            return PlainTextResponse("no server", 503)
        if request.url.path == "/api/experiments":
            return JSONResponse({"experiments": self.experiments})
        refused = {"configuration": "refused"} if self.refuses else {}
        return JSONResponse({"keys": [], **refused})

    def record(self, **fields: Any) -> None:
        """Writes the run's record. Without other `fields` it is ready, and its process is this one."""
        run = Run(os.getpid(), "a-run", 8000, "", str(self.directory), str(self.directory / "serve_config.yaml"))
        write_record(self.directory, replace(run, **fields))

    def file(self, **sections: Any) -> str:
        """The configuration, which the run was started with, and other `sections` of the router's part."""
        deployments = [{"name": "Router", "user_config": {**ROUTER, **sections}}]
        router = {"name": "router", "route_prefix": "/", "import_path": "deployments.router:build"}
        path = self.directory / "serve_config.yaml"
        keeper = {"name": "experiments", "import_path": "deployments.experiments:build"}
        keeper["route_prefix"] = "/deployments/experiments"
        path.write_text(yaml.safe_dump({"applications": [{**router, "deployments": deployments}, keeper]}))
        return str(path)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRun]:
    """A run that is ready, of which everything answers on one port."""
    monkeypatch.setenv(RUN_DIRECTORY, str(tmp_path))
    monkeypatch.delenv("SWITCHYARD_URL", raising=False)
    local = LocalRun(tmp_path)
    with serve(local.app) as url:
        local.record(dashboard=url, port=int(url.rpartition(":")[2]))
        yield local


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalRun:
    """A run of which nothing answers."""
    monkeypatch.setenv(RUN_DIRECTORY, str(tmp_path))
    monkeypatch.delenv("SWITCHYARD_URL", raising=False)
    return LocalRun(tmp_path)


def ended() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"phase": Phase.STOPPING}, "The application is stopping. Once it has stopped, start it again with: {serve}"),
        ({"phase": Phase.STARTING}, "The application is starting: {what}. Its terminal says when it is ready"),
        ({}, "{what}. Clean up with: {stop}"),
        ({"pid": ended()}, "The application was killed. Clean up with: {stop}"),
        ({"phase": Phase.STOPPING, "pid": ended()}, "The application was killed. Clean up with: {stop}"),
    ],
    ids=["stopping", "starting", "ready", "killed", "killed while it stopped"],
)
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_run_that_does_not_answer_is_described_in_one_line(
    arguments: list[str], fields: dict[str, Any], said: str, silent: LocalRun, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    silent.record(**{"port": port, "dashboard": f"http://127.0.0.1:{port}", **fields})
    code = main(arguments)
    printed = capsys.readouterr()
    what = f"http://127.0.0.1:{port} cannot be reached ([Errno 111] Connection refused)"
    if arguments == ["status"]:
        what = f"Ray's dashboard at http://127.0.0.1:{port} does not answer ([Errno 111] Connection refused)"
    line = said.format(what=what, serve=command("serve"), stop=command("stop"))
    assert (code, printed.out, printed.err) == (ExitCode.UNREACHABLE, "", f"{line}\n")


@pytest.mark.parametrize("arguments", [["status"], ["deploy"], ["stop"]], ids=" ".join)
def test_a_command_for_another_port_changes_nothing_and_names_the_runs_own(
    arguments: list[str], local: LocalRun, capsys: pytest.CaptureFixture[str]
) -> None:
    file = [local.file()] if arguments == ["deploy"] else []
    port = json.loads((local.directory / "local.json").read_text())["port"]
    assert main([*arguments, *file, "--port", "9"]) == ExitCode.UNREACHABLE
    said = f"Nothing of this installation runs on port 9: its application is on port {port}\n"
    assert capsys.readouterr() == ("", said)
    assert (local.deployed, (local.directory / "local.json").exists()) == (0, True)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_an_ingress_without_a_router_is_no_other_server(
    arguments: list[str], local: LocalRun, capsys: pytest.CaptureFixture[str]
) -> None:
    local.gone = True
    assert main(arguments) == ExitCode.UNREACHABLE
    assert " has no router now: " in capsys.readouterr().err
    local.record(**{**json.loads((local.directory / "local.json").read_text()), "phase": Phase.STOPPING})
    assert main(arguments) == ExitCode.UNREACHABLE
    assert capsys.readouterr().err.startswith("The application is stopping.")


def test_deploy_returns_when_every_router_has_the_change(local: LocalRun, capsys: pytest.CaptureFixture[str]) -> None:
    local.states = ["RUNNING", "DEPLOYING", "DEPLOYING", "RUNNING", "RUNNING"]  # the first is read before the change
    port = json.loads((local.directory / "local.json").read_text())["port"]
    assert main(["deploy", local.file(), "--port", str(port)]) == 0
    assert (local.deployed, local.states) == (1, ["RUNNING"])
    printed = capsys.readouterr().out
    assert printed.startswith("Applied: every router has it; ")
    assert "→" not in printed, "no split has changed"


def test_deploy_prints_each_split_that_it_moves(local: LocalRun, capsys: pytest.CaptureFixture[str]) -> None:
    both = {**ROUTER["deployments"], "near": {"url": "http://127.0.0.1:9", "model": "big"}}
    split = {"tasks": ["chat"], "traffic": {"far": 80, "near": 20}}
    other = {"tasks": ["chat"], "traffic": {"near": 100}}
    assert main(["deploy", local.file(endpoints={"chat": split, "new": other}, deployments=both)]) == 0
    _, *moved = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in moved] == ["chat", "  far   100 % → 80 %", "  near  0 % → 20 %"]


@pytest.mark.parametrize(
    ("state", "refuses", "said"),
    [
        ("DEPLOY_FAILED", False, "The application 'router' cannot be updated:\nno such file\n"),
        (
            "RUNNING",
            True,
            "The routers refuse the configuration and keep the earlier one. "
            f"The reason is in the log: {command('doctor')}\n",
        ),
    ],
)
def test_a_configuration_that_routers_do_not_serve_fails_with_the_reason(
    state: str, refuses: bool, said: str, local: LocalRun, capsys: pytest.CaptureFixture[str]
) -> None:
    local.states, local.refuses = ["RUNNING", "DEPLOYING", state], refuses
    assert main(["deploy", local.file()]) == ExitCode.WRONG
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", said)


def test_a_server_without_keys_says_where_they_are_declared(
    local: LocalRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "list"]) == 0
    printed = capsys.readouterr()
    first, second = printed.err.splitlines()
    assert printed.out == ""
    assert "`access: {keys_file: FILE}` in the router's `user_config`" in first
    file = local.directory / "serve_config.yaml"
    assert second == f"The file is {file}; to apply a change: {command(f'deploy {file}')}"
    other = Path(local.file()).rename(local.directory / "other.yaml")
    local.states = ["RUNNING", "DEPLOYING", "RUNNING"]
    assert main(["deploy", str(other)]) == main(["keys", "list"]) == 0
    assert f"The file is {other}; " in capsys.readouterr().err, "the one that was deployed last"


def test_a_second_run_is_told_what_the_first_one_does(silent: LocalRun, capsys: pytest.CaptureFixture[str]) -> None:
    file = silent.file()
    for phase, said in {
        Phase.STARTING: f"already runs on port 8000 (pid {os.getpid()}). Stop it with: {command('stop')}\n",
        Phase.STOPPING: f"is still stopping. Start again once its terminal (pid {os.getpid()}) is free\n",
    }.items():
        silent.record(phase=phase)
        with exclusive(silent.directory):
            assert main(["serve", file]) == ExitCode.WRONG
        assert capsys.readouterr().err.endswith(said)


def test_the_address_that_was_asked_for_is_the_one_that_is_explained(
    silent: LocalRun, capsys: pytest.CaptureFixture[str]
) -> None:
    other = f"http://127.0.0.1:{free_port()}"
    for arguments in COMMANDS:
        assert main([*arguments, "--url", other]) == ExitCode.UNREACHABLE
        error = capsys.readouterr().err
        assert error.startswith(f"{other} cannot be reached (")
        assert error.endswith("). Correct --url, or start the server there\n")


@pytest.mark.parametrize(
    ("started_at", "continues"), [(1764158400.0, True), (4102444800.0, False)], ids=["an old run", "a new run"]
)
def test_deploy_says_that_an_experiment_continues_an_earlier_run(
    started_at: float, continues: bool, local: LocalRun, capsys: pytest.CaptureFixture[str]
) -> None:
    primary = [{"metric": "error", "minimal_effect": 0.1}]
    experiment = {"endpoint": "chat", "control": "far", "treatments": ["label"], "mode": "aa", "primary": primary}
    local.experiments = [{"experiment": "same", "state": "running", "started_at": started_at}]
    assert main(["deploy", local.file(experiments={"same": experiment})]) == 0
    said = "The experiment same continues its run of 2025-11-26 12:00:00 UTC, whose requests count. To begin anew, give"
    assert (said in capsys.readouterr().out) == continues
    assert main(["deploy", local.file(experiments={"same": {**experiment, "state": "draft"}})]) == 0
    assert "continues" not in capsys.readouterr().out


@pytest.mark.parametrize("key", ["", "sk-one"])
def test_deploy_asks_nothing_without_the_key_that_the_router_requires(
    key: str, local: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router would count it among the requests without valid credentials."""
    monkeypatch.setenv("SWITCHYARD_API_KEY", key)
    primary = [{"metric": "error", "minimal_effect": 0.1}]
    experiment = {"endpoint": "chat", "control": "far", "treatments": ["label"], "mode": "aa", "primary": primary}
    local.experiments = [{"experiment": "same", "state": "running", "started_at": 1764158400.0}]
    (keys := local.directory / "keys.yaml").write_text("keys: []\n")
    assert main(["deploy", local.file(experiments={"same": experiment}, access={"keys_file": str(keys)})]) == 0
    assert ("/api/experiments" in local.asked) == bool(key)


def test_deploy_says_that_an_experiment_stays_paused(local: LocalRun, capsys: pytest.CaptureFixture[str]) -> None:
    primary = [{"metric": "error", "minimal_effect": 0.1}]
    experiment = {"endpoint": "chat", "control": "far", "treatments": ["label"], "mode": "aa", "primary": primary}
    acting = {"state": "paused", "cause": "worse", "text": "label is worse than far in error"}
    local.experiments = [{"experiment": "same", "state": "paused", "started_at": 1764158400.0, "acting": acting}]
    assert main(["deploy", local.file(experiments={"same": experiment})]) == 0
    resume = command("experiments decide same resume --reason TEXT")
    said = (
        f"The experiment same stays paused: label is worse than far in error. To go on: {resume}. To begin anew, give"
    )
    assert said in capsys.readouterr().out
