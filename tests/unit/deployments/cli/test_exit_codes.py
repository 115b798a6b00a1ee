"""The table of exit codes in docs/reference/command-line.md holds for every command."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from deployments.cli.main import commands, main
from deployments.cli.options import ExitCode
from deployments.local.processes import RUN_DIRECTORY
from tests.support.processes.project import ROOT
from tests.support.processes.servers import serve

LINES: Mapping[str, str] = {
    "serve": "",
    "init": "My-Model",
    "deploy": "",
    "stop": "",
    "check": "",
    "schema": "",
    "status": "",
    "traffic": "chat",
    "mirror": "chat",
    "audit": "",
    "doctor": "",
    "router": "router.yaml",
    "weights": "package:none",
    "keys create": "--name me",
    "keys rotate": "--name me --file keys.yaml",
    "keys list": "",
    "keys internal": "",
    "demo traffic": "chat --minutes 0.01 --rate 20",
    "k8s new": "cluster --values values.yaml",
    "k8s render": "cluster",
    "experiments list": "",
    "experiments report": "x",
    "experiments history": "x",
    "experiments planner": "x",
    "experiments aa": "x",
    "experiments decide": "x pause --reason r",
    "experiments watch": "",
    "experiments explain": "chat key",
    "experiments request": "id",
    "experiments feedback": "id thumbs true",
    "experiments export": "x",
    "experiments replay": "recording --arms blue,green",
}
"""Every command, with arguments that are right."""

OF_A_FILE = {
    "serve": "gone.yaml",
    "check": "gone.yaml",
    "doctor": "gone.yaml",
    "router": "gone.yaml",
    "init": "./gone",
    "weights": "package:gone",
    "keys rotate": "--name me --file gone.yaml",
    "k8s new": "cluster --values gone.yaml",
    "k8s render": "gone",
    "experiments report": "x --ledger gone",
    "experiments replay": "gone --arms blue,green --url http://127.0.0.1:9",
}
"""Commands that read a file or a model, which does not exist."""


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if (below := getattr(command, "commands", None)) is None:
        yield " ".join(path), command
    for name, inner in (below or {}).items():
        yield from leaves(inner, (*path, name))


COMMANDS = dict(leaves(commands()))
OF_A_SERVER = [
    path for path, command in COMMANDS.items() if any("--url" in parameter.opts for parameter in command.params)
]
OF_A_SERVER.remove("experiments replay")  # it reads its recording first
OF_A_RUN = [*OF_A_SERVER, "deploy"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which nothing runs, with a valid configuration and a recording."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(RUN_DIRECTORY, str(tmp_path / "run"))
    monkeypatch.delenv("SWITCHYARD_URL", raising=False)
    (tmp_path / "serve_config.yaml").write_text((ROOT / "serve_config.yaml").read_text())
    return tmp_path


class Server:
    """Gives every request the same answer."""

    def __init__(self) -> None:
        self.status = 200
        self.url = ""
        self.app = Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "POST", "PUT"])])

    async def _answer(self, _: Request) -> Response:
        if self.status == 200:
            return HTMLResponse("<html>")
        return JSONResponse({"error": {"message": "no"}}, self.status)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    with serve(server.app) as server.url:
        yield server


def run(path: str, arguments: str) -> int:
    return main([*path.split(), *shlex.split(arguments)])


def test_every_command_is_known_here() -> None:
    assert LINES.keys() == COMMANDS.keys()


@pytest.mark.parametrize("path", COMMANDS)
def test_its_help_is_0_and_an_unknown_option_2_in_one_line(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, "--help") == ExitCode.OK
    capsys.readouterr()
    assert run(path, f"{LINES[path]} --nonsense") == ExitCode.USAGE
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_that_has_json_in_another_way_says_how(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = {option for parameter in COMMANDS[path].params for option in parameter.opts}
    if "--format" in options:
        assert run(path, f"{LINES[path]} --json") == ExitCode.USAGE
        assert capsys.readouterr().err.startswith("No such option: --json. Write --format json. See: ")


@pytest.mark.parametrize("path", OF_A_FILE)
def test_a_missing_file_is_1_and_is_named(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, OF_A_FILE[path]) == ExitCode.WRONG
    printed = capsys.readouterr()
    assert "gone" in printed.out + printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("path", OF_A_RUN)
def test_without_a_run_it_is_3_in_one_line(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, LINES[path]) == ExitCode.UNREACHABLE
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("path", OF_A_SERVER)
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (None, ExitCode.UNREACHABLE),
        (401, ExitCode.DENIED),
        (403, ExitCode.DENIED),
        (404, ExitCode.WRONG),
        (503, ExitCode.UNREACHABLE),
        (200, ExitCode.WRONG),
    ],
)
def test_the_answer_of_a_server_decides(
    server: Server, path: str, status: int | None, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    """`status` None: nobody listens; 200: a page of another program."""
    server.status = status or 0
    status_code = run(path, f"{LINES[path]} --url {server.url if status else 'http://127.0.0.1:9'}")
    is_client = (path, status) == ("demo traffic", 200)  # which asks no router, but the model
    assert status_code == (ExitCode.UNREACHABLE if is_client else code)
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    assert printed.err.count("\n") >= 1


@pytest.mark.parametrize("path", ["serve", "init"])
def test_an_option_in_the_place_of_the_model_is_2(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, "--enforce-eager") == ExitCode.USAGE
    assert capsys.readouterr().err == "--enforce-eager is for a model: name the model first\n"


def test_to_stop_what_does_not_run_is_done() -> None:
    assert run("stop", "") == ExitCode.OK
