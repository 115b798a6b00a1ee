"""The command line without a running application: help, mistakes, exit codes."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deployments.cli.main import commands, main
from deployments.cli.options import ExitCode
from deployments.invocation import command
from deployments.local.processes import RUN_DIRECTORY
from deployments.weights.recipes import MODELS
from tests.support.processes.project import ROOT
from tests.support.processes.servers import serve


def every_command(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command and group with its path, the program itself as the empty one."""
    yield " ".join(path), command
    for name, below in getattr(command, "commands", {}).items():
        yield from every_command(below, (*path, name))


EVERYTHING = dict(every_command(commands()))
COMMANDS = [path for path, command in EVERYTHING.items() if not hasattr(command, "commands")]

ROUTER_PART: dict[str, Any] = {
    "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"far": 100}}},
    "deployments": {"far": {"url": "http://127.0.0.1:9", "model": "big"}},
}


@pytest.fixture(autouse=True)
def nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_DIRECTORY, str(tmp_path / "run"))
    monkeypatch.delenv("SWITCHYARD_URL", raising=False)


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and stderr of a command that prints nothing on stdout."""
    code = main(arguments)
    printed = capsys.readouterr()
    assert printed.out == ""
    return code, printed.err


def help_of(capsys: pytest.CaptureFixture[str], path: str) -> str:
    assert main([*path.split(), "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_explains_itself_with_examples_that_can_be_pasted(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = help_of(capsys, path)
    assert re.search(rf"^ +Examples?:\n +{re.escape(command(path))}\b", shown, re.MULTILINE), shown
    assert shown.startswith(f"Usage: {command(path)} ")


@pytest.mark.parametrize("path", EVERYTHING)
def test_no_help_is_cut_or_shows_its_markup(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = help_of(capsys, path).partition("\n")[2]  # the first line has "[ARGS]..."
    assert "\\" not in shown
    assert "\b" not in shown
    assert [line for line in shown.splitlines() if line.endswith("...")] == []


def test_the_help_lists_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(capsys, "")
    assert all(f"\n  {path.split()[0]}" in shown for path in COMMANDS)
    assert all(f"\n    {code.value}  " in shown for code in ExitCode)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["trafic"], "Did you mean 'traffic'"),
        (["traffic"], f"Missing argument 'ENDPOINT'. See: {command('traffic --help')}\n"),
        (["statuz"], f"No such command 'statuz'. Did you mean 'status'? See: {command('--help')}\n"),
        (["experiments", "decide", "x", "explode"], "Invalid value for 'ACTION': 'explode' is not one of 'promote', "),
        (["experiments", "decide", "x"], "Missing argument 'ACTION'. Choose from: promote, advance, pause, "),
        (["serve", "--port", "0"], "'--port'"),
        (["keys", "create"], "'--name'"),
        (["traffic", "chat", "blue=60", "green=30"], "sum to 90, they must sum to 100: add 10"),
        (["traffic", "chat", "blue"], "'blue': expected NAME=SHARE"),
        (["traffic", "chat", "blue=50", "blue=50"], "'blue' has two shares"),
        (["status", "--url", "ftp://host"], "expected http://HOST:PORT"),
    ],
)
def test_a_wrong_command_line_gets_one_line_and_exit_code_2(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = fails(capsys, *arguments)
    assert code == ExitCode.USAGE
    assert expected in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [["status"], ["traffic", "chat"], ["deploy", str(ROOT / "serve_config.yaml")]])
def test_without_a_running_application_the_fix_is_named(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = fails(capsys, *arguments)
    assert (code, error) == (
        ExitCode.UNREACHABLE,
        f"Nothing is running. Start it with: {command('serve')}\n",
    )


def test_a_server_that_cannot_be_reached_has_an_exit_code_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    code, error = fails(capsys, "status", "--url", "http://127.0.0.1:9")
    assert code == ExitCode.UNREACHABLE
    assert error.startswith("http://127.0.0.1:9 cannot be reached (")


def test_ctrl_c_ends_a_command_without_a_stack_trace() -> None:
    asked = threading.Event()

    async def hang(request: Request) -> Response:
        asked.set()
        await asyncio.sleep(30)
        return Response()

    with serve(Starlette(routes=[Route("/{path:path}", hang)])) as url:
        # The signal as in a terminal: whoever runs the tests in the background ignores it.
        line = ["env", "--default-signal=INT", sys.executable, "-m", "deployments", "status", "--url", url]
        waiting = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            assert asked.wait(60)
            waiting.send_signal(signal.SIGINT)
            said, _ = waiting.communicate(timeout=60)
        finally:
            waiting.kill()
    assert (waiting.returncode, said.strip()) == (ExitCode.INTERRUPTED, "")


def test_stop_without_a_running_application_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop"]) == 0
    assert capsys.readouterr().out == "Nothing is running.\n"


def test_check_reports_ok_or_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(yaml.safe_dump(ROUTER_PART))
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: OK\n"
    file.write_text("{}")
    code, error = fails(capsys, "check", str(file))
    assert code == ExitCode.WRONG
    assert "endpoints: Field required" in error
    assert "deployments: Field required" in error


def test_check_prints_warnings_on_stderr_and_succeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "router.yaml"
    experiment = {"endpoint": "chat", "control": "far", "treatments": ["label"], "mode": "aa"}
    primary = [{"metric": "error", "minimal_effect": 0.1}]
    file.write_text(yaml.safe_dump({**ROUTER_PART, "experiments": {"same": {**experiment, "primary": primary}}}))
    assert main(["check", str(file)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{file}: OK\n"
    assert printed.err.startswith(f"warning: {file}:12: experiments.same: 'chat' has no `sticky`")


def test_check_warns_of_a_shadow_that_answers_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "router.yaml"
    near = {"url": "http://near", "model": "m", "tasks": ["chat"]}
    chat = {"tasks": ["chat"], "traffic": {"far": 90, "near": 10}, "mirror": {"deployment": "near", "percent": 5}}
    deployments = {**ROUTER_PART["deployments"], "near": near}
    file.write_text(yaml.safe_dump({**ROUTER_PART, "deployments": deployments, "endpoints": {"chat": chat}}))
    assert main(["check", str(file)]) == 0
    warning = "endpoints.chat.mirror.deployment: 'near' has 10 % of the traffic, too; the requests"
    assert capsys.readouterr().err.startswith(f"warning: {file}:13: {warning}")


def app(name: str, deployment: str, route_prefix: str = "/", **fields: Any) -> dict[str, Any]:
    """An application of a router alone."""
    deployed = {"name": deployment, "num_replicas": 1, "ray_actor_options": {"num_cpus": 0.2}, **fields}
    path = f"deployments.{name}:build"
    return {"name": name, "route_prefix": route_prefix, "import_path": path, "args": {}, "deployments": [deployed]}


def test_check_of_a_cluster_warns_of_a_ledger_on_a_nodes_own_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = {**ROUTER_PART["endpoints"]["chat"], "ledger": "always"}
    router = {**ROUTER_PART, "endpoints": {"chat": chat}, "access": {"allow_anonymous": True}}
    apps = [app("router", "Router", user_config=router), app("experiments", "Experiments", "/deployments/experiments")]
    served = {"http_options": {"host": "0.0.0.0"}, "applications": apps}
    pod = {"containers": [{"name": "ray", "resources": {"limits": {"cpu": 4, "memory": "8Gi"}}}]}
    group = {"groupName": "cpu", "replicas": 1, "rayStartParams": {"num-cpus": "4"}, "template": {"spec": pod}}
    cluster = {"headGroupSpec": {"rayStartParams": {"num-cpus": "0"}}, "workerGroupSpecs": [group]}
    spec = {"serveConfigV2": yaml.safe_dump(served), "rayClusterConfig": cluster}
    file = tmp_path / "rendered.yaml"
    file.write_text(yaml.safe_dump({"kind": "RayService", "spec": spec}))
    assert main(["check", str(file)]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("warning: serveConfigV2: ledger.url: '.run/ledger' is on a node's own disk")
    assert printed.out == f"{file}: OK\n"


@pytest.mark.parametrize("name", ["serve", "router"])
def test_a_missing_file_is_named_and_nothing_starts(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gone.yaml"
    code, error = fails(capsys, name, str(file))
    assert code == ExitCode.WRONG
    assert error.startswith(f"{file} is missing. " if name == "serve" else f"{file}: No such file")


def test_the_schema_in_the_repository_is_the_one_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((ROOT / "serve_config.schema.json").read_text())


def test_a_word_that_is_no_source_of_weights_fetches_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = fails(capsys, "weights", "--cache", str(tmp_path / "models"), "fetch", "package:tiny-llama")
    assert code == ExitCode.USAGE
    assert error == "'fetch' is not a source: write package:NAME or hf:OWNER/NAME@REVISION\n"
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_model_lists_the_known_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = fails(capsys, "weights", "--cache", str(tmp_path), "package:gone")
    assert code == ExitCode.WRONG
    assert all(name in error for name in MODELS)


def test_a_command_names_the_package_that_an_installation_of_the_router_alone_lacks(tmp_path: Path) -> None:
    code = "import sys; sys.modules['numpy'] = None; from deployments.cli.main import main; sys.exit(main(['weights']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (ExitCode.WRONG, "")
    assert done.stderr == "This command needs the package numpy, which is not installed. Run: make setup\n"


def test_the_help_and_the_check_import_neither_ray_nor_the_router() -> None:
    code = (
        "import sys; from deployments.cli.main import main; main(['--help']); main(['check']);"
        "assert not {'ray', 'vllm', 'torch', 'starlette', 'aiohttp', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60, capture_output=True)
