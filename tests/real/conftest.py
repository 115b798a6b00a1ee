"""The real application, once for the whole run: Ray Serve, HAProxy, vLLM engines with real weights, the router."""

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from deployments import leftovers
from deployments.internal_key import HEADER, VARIABLE
from tests.serving import free_port

ROOT = Path(__file__).parents[2]
READY_WITHIN_S = 600


@dataclass(frozen=True)
class Application:
    """A running application: its base URL, the key to the models behind the router, the launcher's run directory."""

    url: str
    internal_key: str
    directory: Path

    @property
    def sdk(self) -> Any:
        """The OpenAI SDK (untyped: its overloads want literal types)."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=120)

    @property
    def async_sdk(self) -> Any:
        """The asynchronous OpenAI SDK."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=120)

    def engine_metric(self, deployment: str, name: str) -> float:
        """The sum of one of vLLM's own metrics."""
        headers = {HEADER: self.internal_key}
        text = httpx.get(f"{self.url}/deployments/{deployment}/metrics", headers=headers).raise_for_status().text
        return sum(
            float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith((name + "{", name + " "))
        )

    def running(self, deployment: str) -> float:
        """Requests that the engine works on, or holds in its queue."""
        waiting = self.engine_metric(deployment, "vllm:num_requests_waiting")
        return self.engine_metric(deployment, "vllm:num_requests_running") + waiting


@pytest.fixture(scope="session")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """Started by the command that users run, stopped the way they stop it."""
    port, key, directory = free_port(), secrets.token_urlsafe(16), tmp_path_factory.mktemp("run")
    command = [sys.executable, "-m", "deployments", "serve", "--config", "serve_config.yaml", "--port", str(port)]
    environment = {**os.environ, VARIABLE: key, leftovers.RUN_DIRECTORY: str(directory)}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said: list[str] = []
    ready = threading.Event()

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line.rstrip())
            if "is ready" in line:
                ready.set()
        ready.set()

    threading.Thread(target=listen, daemon=True).start()
    try:
        assert ready.wait(READY_WITHIN_S), said
        assert process.poll() is None, "\n".join(said)
        yield Application(f"http://127.0.0.1:{port}", key, directory)
        run = leftovers.record(directory)
        assert run is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert leftovers.marked(run.run_id) == []
    finally:
        process.kill()
        leftovers.stop(directory)


def eventually(condition: Any, *, within_s: float) -> bool:
    """Whether `condition()` becomes true in time; asked every 50 ms."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
