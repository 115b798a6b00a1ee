"""The application as users start it: `switchyard serve` in a separate process."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deployments.local import processes as run_processes
from tests.support.processes.project import ROOT
from tests.support.processes.servers import free_port
from tests.support.waiting import wait_until

READY_WITHIN_S = 600


@dataclass(frozen=True)
class Launcher:
    """One `serve` with its own run directory."""

    process: subprocess.Popen[bytes]
    directory: Path
    port: int
    run_id: str

    @property
    def url(self) -> str:
        """The application's base URL."""
        return f"http://127.0.0.1:{self.port}"

    def assert_nothing_is_left(self) -> None:
        """No process of this run is alive, and nothing listens on its port."""
        assert run_processes.processes_of(self.run_id) == []
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", self.port)) != 0


def command(*arguments: str) -> list[str]:
    """A `switchyard` command line that needs no installation."""
    return [sys.executable, "-m", "deployments", *arguments]


def environment(directory: Path) -> dict[str, str]:
    """This environment, with `directory` as the launcher's run directory."""
    return {**os.environ, run_processes.RUN_DIRECTORY: str(directory)}


def run(*arguments: str, directory: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Runs a `switchyard` command to its end, with `directory` as its run directory."""
    return subprocess.run(
        command(*arguments), cwd=ROOT, env=environment(directory), capture_output=True, text=True, timeout=timeout_s
    )


def deliver(config: Path, directory: Path) -> None:
    """Deploys `config` like `make deploy`, to the application with this run directory. Fails if it is refused."""
    done = run("deploy", str(config), directory=directory, timeout_s=60)
    assert done.returncode == 0, done.stderr


_NORMAL_PRIORITY = {"RAY_worker_niceness": "0"}
"""Ray gives its workers a low priority: beside other tests, engines would hardly get a core, and never start."""


@contextmanager
def launched(
    served: Path | str, directory: Path, variables: Mapping[str, str], port: int | None = None, *options: str
) -> Iterator[Launcher]:
    """Starts a configuration, or a model with its options, on `port` or a free one, waits until it is ready, and always
    cleans up."""
    port, terminal = port or free_port(), directory / "terminal"
    with terminal.open("wb") as output:
        process = subprocess.Popen(
            ["env", "--default-signal=HUP", *command("serve", str(served), "--port", str(port), *options)],
            cwd=ROOT,
            env={**environment(directory), **_NORMAL_PRIORITY, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # this and the signal as in a terminal, whatever the tests run in
        )
    try:
        wait_until(
            lambda: "Switchyard is ready" in terminal.read_text() or process.poll() is not None,
            terminal.read_text,
            within_s=READY_WITHIN_S,
        )
        assert process.poll() is None, terminal.read_text()
        yield Launcher(process, directory, port, json.loads((directory / "local.json").read_text())["run_id"])
    finally:
        process.kill()
        process.wait()
        run_processes.stop(directory)
