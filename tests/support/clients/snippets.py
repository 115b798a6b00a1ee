"""The commands and snippets of the pages, as a reader runs them against a running application."""

import io
import os
import re
import signal
import subprocess
import threading
import time
import warnings
from contextlib import redirect_stdout, suppress
from pathlib import Path
from termios import tcsetwinsize

from deployments.local import processes
from tests.support.clients.documents import Block
from tests.support.processes.project import ROOT
from tests.support.processes.servers import free_port

URL = "http://127.0.0.1:8000"
"""The application's address in the pages."""

PRELUDE = """set -euo pipefail
make() { command make --silent --assume-old=.venv/.ready "$@"; }
"""
"""Makes `make` skip the set-up: tests install nothing."""


def checkout(directory: Path) -> Path:
    """Makes `directory` look like the checkout: one in which commands may write files."""
    for entry in ROOT.iterdir():
        if entry.name not in (".git", ".run"):
            (directory / entry.name).symlink_to(entry)
    return directory


def run(block: Block, url: str, run_directory: Path, checkout: Path) -> str:
    """The block's output on the application at `url`, which was started from `run_directory`."""
    if "_per_minute" in block.code:
        _wait_for_the_middle_of_a_minute()
    code = block.code.replace(URL, url)
    if block.language == "bash":
        printed = _run_bash(re.sub(r"\b9000\b", str(free_port()), code), run_directory, checkout)
    else:
        printed = _run_python(code, block.id)
    return printed.replace(url, URL)


def _run_bash(code: str, run_directory: Path, checkout: Path) -> str:
    """What a terminal shows of `code`: its output and its errors. Ends everything that it started."""
    variables = {**os.environ, processes.RUN_DIRECTORY: str(run_directory), "no_proxy": "127.0.0.1"}
    ours, terminal = os.openpty()
    tcsetwinsize(terminal, (50, 200))
    shell = subprocess.Popen(
        ["bash", "-c", PRELUDE + code],
        cwd=checkout,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    end = threading.Timer(240, os.killpg, (shell.pid, signal.SIGKILL))
    end.start()
    try:
        shown = _read(ours)
        assert shell.wait() == 0, shown
        return shown
    finally:
        end.cancel()
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        os.close(ours)


def _read(terminal: int) -> str:
    """Everything that is written to a terminal until its last program ends."""
    pieces = []
    with suppress(OSError):  # the end of a terminal
        while piece := os.read(terminal, 65536):
            pieces.append(piece)
    return b"".join(pieces).decode().replace("\r\n", "\n")


def _run_python(code: str, name: str) -> str:
    """The output of `code`. SDKs may emit warnings."""
    with redirect_stdout(io.StringIO()) as output, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        exec(compile(code, name, "exec"), {"__name__": "__main__"})
    return output.getvalue()


def _wait_for_the_middle_of_a_minute() -> None:
    """Limits count by clock minutes: across a minute's end, one more request may pass."""
    if (past := time.time() % 60) > 40:
        time.sleep(61 - past)
