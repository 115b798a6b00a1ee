"""Commands that are pasted into a real shell, from wherever the user stands."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from deployments import invocation
from deployments.cli.main import app, main
from deployments.cli.options import ExitCode
from deployments.local.processes import RUN_DIRECTORY, Phase, Run, exclusive, write_record
from tests.support.processes.project import ROOT
from tests.support.processes.servers import free_port

COMMANDS = sorted(
    {
        str(command.name or command.callback.__name__).rstrip("_")
        for command in app.registered_commands
        if command.callback
    }
    | {str(group.name) for group in app.registered_groups}
)
VERSION = "import importlib.metadata; print(importlib.metadata.version('switchyard'))"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder elsewhere, with a name that a shell must quote."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    return folder


def pasted(line: str, cwd: Path) -> str:
    """What the line prints in a shell that stands in `cwd`."""
    done = subprocess.run(["bash", "-c", line], cwd=cwd, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_a_shell_that_does_not_find_the_program_gets_its_path(monkeypatch: pytest.MonkeyPatch, outside: Path) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    expected = subprocess.run([sys.executable, "-c", VERSION], capture_output=True, text=True, check=True).stdout
    for cwd in (ROOT, Path(sys.executable).parent, outside):
        monkeypatch.chdir(cwd)
        assert invocation.program() != "switchyard"
        assert pasted(invocation.command("--version"), cwd) == expected


def test_the_path_is_relative_where_the_program_is_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.chdir(ROOT)
    assert invocation.command("status") == ".venv/bin/switchyard status"
    assert invocation.module("deployments.haproxy") == ".venv/bin/python -m deployments.haproxy"
    monkeypatch.chdir(Path(sys.executable).parent)
    assert invocation.command("status") == "./switchyard status"


def test_a_shell_that_finds_this_very_program_gets_its_name(monkeypatch: pytest.MonkeyPatch, outside: Path) -> None:
    """As in an activated environment, in a pod, or by a link in ~/.local/bin."""
    monkeypatch.chdir(outside)
    script = Path(sys.executable).with_name("switchyard")
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.defpath}")
    assert invocation.command("status") == "switchyard status"
    (outside / "switchyard").symlink_to(script)
    monkeypatch.setenv("PATH", f"{outside}{os.pathsep}{os.defpath}")
    assert invocation.command("status") == "switchyard status"


def test_another_program_of_that_name_is_not_taken_for_this_one(monkeypatch: pytest.MonkeyPatch, outside: Path) -> None:
    other = outside / "switchyard"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{outside}{os.pathsep}{os.defpath}")
    monkeypatch.chdir(outside)
    assert shutil.which("switchyard") == str(other)
    assert invocation.command("status") == f"{Path(sys.executable).with_name('switchyard')} status"


def test_without_an_installed_program_its_module_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.chdir(ROOT)
    assert invocation.program("not-installed") == ".venv/bin/python -m deployments"


def test_a_target_of_the_makefile_can_be_made_from_anywhere(monkeypatch: pytest.MonkeyPatch, outside: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert invocation.make("setup") == "make setup"
    monkeypatch.chdir(outside)
    assert "make setup" in pasted(invocation.make("help"), outside)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run: switchyard stop, then switchyard serve", "run: {} stop, then {} serve"),
        ("`switchyard weights`", "`{} weights`"),
        ("kubectl exec POD -- switchyard doctor", "kubectl exec POD -- switchyard doctor"),
        (
            "/venv/bin/switchyard stop and '/a b/switchyard' stop",
            "/venv/bin/switchyard stop and '/a b/switchyard' stop",
        ),
        ("kubectl -n switchyard get pods", "kubectl -n switchyard get pods"),
        ("Switchyard is ready; the switchyard.", "Switchyard is ready; the switchyard."),
    ],
)
def test_bare_commands_in_a_text_become_pasteable_once(text: str, expected: str) -> None:
    assert invocation.pasteable(text) == expected.replace("{}", invocation.program())
    assert invocation.pasteable(invocation.pasteable(text)) == invocation.pasteable(text)


PLACEHOLDER = re.compile(r"(?<![\w/])[A-Z]{2,}\b")
COMMAND_END = re.compile(r"`|, |; |\. |, or | \(|$", re.MULTILINE)
LOST = re.compile(r"is missing|not in this directory|[Nn]o such|not found|Traceback| See: ")
"""What a command says that does not run where it was pasted."""


def commands_in(text: str) -> set[str]:
    """The commands that a text names, without those that have something to fill in."""
    starts = re.finditer(rf"(?:{invocation.URL_VARIABLE}=\S+ )?{re.escape(invocation.program())} ", text)
    named = (COMMAND_END.split(text[start.start() :], maxsplit=1)[0] for start in starts)
    return {line for line in named if not PLACEHOLDER.search(line.partition(invocation.program())[2])}


@dataclass(frozen=True)
class Stand:
    """A user who stands in `folder`. Nothing runs, but another `serve` is about to start: one more ends at once, after
    it has read its configuration."""

    folder: Path
    directory: Path
    capsys: pytest.CaptureFixture[str]

    def file(self, name: str, text: str | None = None) -> str:
        """A file with a relative path, which a shell must quote."""
        path = self.directory / "a file" / name
        path.parent.mkdir(exist_ok=True)
        if text is not None:
            path.write_text(text)
        return os.path.relpath(path, self.folder)

    def printed(self, *arguments: str) -> str:
        """What the command prints."""
        main(arguments)
        printed = self.capsys.readouterr()
        return printed.out + printed.err

    def paste(self, line: str) -> None:
        """Fails unless the command runs here. One that would wait for the other `serve` has a run of its own."""
        run = self.directory / ("run" if f"{invocation.program()} serve" in line else "other run")
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env={**os.environ, RUN_DIRECTORY: str(run)},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode in (ExitCode.OK, ExitCode.WRONG, ExitCode.UNREACHABLE), f"{line}: {done.stderr}"
        assert not LOST.search(done.stdout + done.stderr), f"{line}: {done.stderr}"


@pytest.fixture(params=["checkout", "below", "outside"])
def stand(
    request: pytest.FixtureRequest, outside: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> Iterator[Stand]:  # fmt: skip
    stand = Stand({"checkout": ROOT, "below": ROOT / "docs", "outside": outside}[request.param], tmp_path, capsys)
    monkeypatch.chdir(stand.folder)
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setenv(RUN_DIRECTORY, str(tmp_path / "run"))
    monkeypatch.delenv(invocation.URL_VARIABLE, raising=False)
    with exclusive(tmp_path / "run"):
        yield stand


def test_every_command_that_is_printed_runs_where_it_was_printed(stand: Stand) -> None:
    keys = ("keys", "create", "--name", "ann", "--file", stand.file("keys.yaml"))
    broken = stand.file("broken.yaml", "endpoints: {}")
    dead = Run(os.getpid(), "a-run", free_port(), "http://127.0.0.1:9", str(stand.directory))
    said = [
        *(
            stand.printed(*arguments)
            for arguments in (["status"], ["traffic", "chat"], ["deploy"], ["check"], ["serve"])
        ),
        *(stand.printed(*arguments) for arguments in (["doctor", broken], ["serve", broken], [*keys], [*keys])),
    ]
    for phase in Phase:
        write_record(stand.directory / "run", replace(dead, phase=phase))
        said += [stand.printed("status"), stand.printed("traffic", "chat"), stand.printed("doctor", broken)]
    printed = {line for text in said for line in commands_in(text)}
    named = {line.partition(f"{invocation.program()} ")[2].partition(" ")[0] for line in printed}
    assert named >= {"serve", "stop", "check", "keys"}
    for line in printed:
        stand.paste(line)


def test_the_examples_of_the_help_name_the_default_configuration_where_it_is_not(stand: Stand) -> None:
    examples = {line for name in ("serve", "deploy", "check") for line in commands_in(stand.printed(name, "--help"))}
    others = ("my_config", "values", "--help", "Qwen")
    default = {example for example in examples if not any(other in example for other in others)}
    assert len(default) == 3
    for line in default:
        stand.paste(line.replace(" deploy", " check"))  # nothing runs to which it could be applied


def test_a_command_is_for_the_server_that_the_user_named(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{free_port()}/a?b&c"
    text = "To go on: switchyard experiments list"
    (line,) = commands_in(invocation.pasteable(text, url))
    done = subprocess.run(["bash", "-c", line], cwd=stand.folder, capture_output=True, text=True, timeout=60)
    assert done.stderr.startswith(f"{url} cannot be reached")
    monkeypatch.setenv(invocation.URL_VARIABLE, url)
    assert invocation.pasteable(text, url) == invocation.pasteable(text)


def test_make_may_have_been_called_from_elsewhere(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make -C` runs its commands in its own directory."""
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setenv(invocation.STANDS, str(outside))
    monkeypatch.chdir(ROOT)
    file = invocation.argument(Path("serve_config.yaml"))
    assert pasted(invocation.command(f"check {file}"), outside) == f"{ROOT / 'serve_config.yaml'}: OK\n"
    assert "make setup" in pasted(invocation.make("help"), outside)


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """The string literals of a module that are not docstrings, with the constant parts of f-strings."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_no_message_of_the_deployments_names_a_command_that_may_not_be_found() -> None:
    """The help's examples are made pasteable when they are shown. A pod's command stays bare."""
    bare = re.compile(rf"(?<!-- )\bswitchyard ({'|'.join(COMMANDS)})\b|\bmake [a-z]|\bpython -m ")
    generated = {"generated.py"}  # files of a repository and the commands of its pods
    places = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in (ROOT / "deployments").rglob("*.py")
        if path.name not in generated and path.name != "invocation.py"
        for line, text in strings(path)
        if bare.search(text) and not text.startswith("Serve language models")
    }
    assert places == set()
