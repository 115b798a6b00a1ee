"""`switchyard router` as a process of its own, as operators start it."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.processes.project import ROOT
from tests.support.processes.servers import free_port
from tests.support.waiting import wait_until


@dataclass(frozen=True)
class StandaloneRouter:
    port: int
    log: Path
    process: "subprocess.Popen[bytes]"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def standalone_router(
    document: Mapping[str, Any], directory: Path, umask: int = -1, /, **variables: str
) -> Iterator[StandaloneRouter]:
    """A router with this configuration, stopped at the end by SIGTERM. `variables` are added to the environment."""
    config, port, log = directory / "router.yaml", free_port(), directory / "router.log"
    config.write_text(yaml.safe_dump(dict(document)))
    process = start(config, port, log, umask=umask, **variables)
    router = StandaloneRouter(port, log, process)
    try:
        wait_until(lambda: router.is_listening() or process.poll() is not None, router.log.read_text)
        assert process.poll() is None, router.log.read_text()
        yield router
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def start(
    config: Path, port: int, log: Path, *options: str, umask: int = -1, **variables: str
) -> "subprocess.Popen[bytes]":
    """Starts a router that writes to `log`. `umask`: the process's; -1 for this one's."""
    command = [sys.executable, "-m", "deployments", "router", str(config), "--port", str(port), *options]
    with log.open("wb") as output:
        return subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=output, umask=umask
        )
