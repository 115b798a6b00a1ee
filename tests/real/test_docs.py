"""Every command and snippet of the pages, run against the real application, and the output that the pages show."""

import io
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path

import httpx
import pytest

from deployments.local import processes
from tests.real.conftest import Application, eventually
from tests.support.clients.documents import Block, blocks, runnable
from tests.support.processes.launcher import deliver
from tests.support.processes.project import ROOT
from tests.support.processes.servers import free_port

pytestmark = [pytest.mark.real, pytest.mark.alone]

URL = "http://127.0.0.1:8000"
"""Where the pages have the application."""

PRELUDE = """set -euo pipefail
export PATH=$PWD:$PATH
make() { command make --silent --assume-old=.venv/.ready BIN="$PWD" "$@"; }
"""
"""`switchyard` is this checkout's, for `make` too, which leaves out the set-up: tests install nothing."""


def settled(application: Application) -> bool:
    """Whether every router has the last configuration."""
    answer = httpx.get(f"{application.url}/api/2.0/serving-endpoints/chat").json()
    return bool(answer["state"]["config_update"] == "NOT_UPDATING")


@pytest.fixture(scope="module", autouse=True)
def restored(application: Application) -> Iterator[None]:
    """The application is used by other tests too: pages that move traffic must not change theirs."""
    yield
    deliver(ROOT / "serve_config.yaml", application.directory)
    assert eventually(lambda: settled(application), within_s=60)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that looks like the checkout, in which commands may write files."""
    directory = tmp_path_factory.mktemp("checkout")
    for entry in ROOT.iterdir():
        if entry.name not in (".git", ".run"):
            (directory / entry.name).symlink_to(entry)
    command = directory / "switchyard"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m deployments "$@"\n')
    command.chmod(0o755)
    return directory


def run_bash(code: str, application: Application, checkout: Path) -> str:
    """What `code` prints. Everything that it started has ended afterwards."""
    variables = {**os.environ, processes.RUN_DIRECTORY: str(application.directory), "no_proxy": "127.0.0.1"}
    shell = subprocess.Popen(
        ["bash", "-c", PRELUDE + code],
        cwd=checkout,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = shell.communicate(timeout=240)
        assert shell.returncode == 0, errors
        return output
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def run_python(code: str, name: str) -> str:
    """What `code` prints. SDKs may warn about themselves."""
    with redirect_stdout(io.StringIO()) as output, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        exec(compile(code, name, "exec"), {"__name__": "__main__"})
    return output.getvalue()


def wait_for_the_middle_of_a_minute() -> None:
    """Limits are counted by the clock's minutes: across the end of one, another request may pass."""
    if (past := time.time() % 60) > 40:
        time.sleep(61 - past)


@pytest.mark.parametrize("block", runnable(), ids=lambda block: block.id)
def test_a_snippet_prints_what_its_page_shows(block: Block, application: Application, checkout: Path) -> None:
    assert eventually(lambda: settled(application), within_s=60)  # an earlier snippet may have moved traffic
    if "_per_minute" in block.code:
        wait_for_the_middle_of_a_minute()
    code = block.code.replace(URL, application.url)
    if block.language == "bash":
        printed = run_bash(re.sub(r"\b9000\b", str(free_port()), code), application, checkout)
    else:
        printed = run_python(code, block.id)
    assert block.shows(printed.replace(application.url, URL)), printed


def test_the_application_starts_as_the_readme_shows(application: Application) -> None:
    (start,) = (block for block in blocks(ROOT / "README.md") if block.language == "console")
    terminal = (application.directory / "terminal").read_text().replace(application.url, URL)
    assert start.code.splitlines()[-1] in terminal
