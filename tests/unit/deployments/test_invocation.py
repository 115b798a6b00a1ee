"""Commands that are pasted into a real shell, from wherever the user stands."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments import invocation
from deployments.cli.main import app
from tests.support.processes.project import ROOT

COMMANDS = sorted(
    {str(it.name or it.callback.__name__).rstrip("_") for it in app.registered_commands if it.callback}
    | {str(it.name) for it in app.registered_groups}
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
    monkeypatch.setattr(invocation, "PROGRAM", "not-installed")
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.chdir(ROOT)
    assert invocation.command("--version") == ".venv/bin/python -m deployments --version"


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


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """The string literals of a module that are not docstrings, with the constant parts of f-strings."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(it.body[0].value)
        for it in ast.walk(tree)
        if isinstance(it, documented) and it.body and isinstance(it.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_no_message_of_the_deployments_names_a_command_that_may_not_be_found() -> None:
    """The help's examples are made pasteable when they are shown. A pod's command stays bare."""
    bare = re.compile(rf"(?<!-- )\bswitchyard ({'|'.join(COMMANDS)})\b|\bmake [a-z]|\bpython -m ")
    generated = {"generated.py"}  # files of a repository and the commands of its pods
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in (ROOT / "deployments").rglob("*.py")
        if path.name not in generated and path.name != "invocation.py"
        for line, text in strings(path)
        if bare.search(text) and not text.startswith("Serve language models")
    }
    assert found == set()
