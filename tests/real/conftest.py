"""The real application, once for the whole run: Ray Serve, HAProxy, vLLM engines with real weights, the router."""

import secrets
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from app.internal_api import INTERNAL_KEY_HEADER, INTERNAL_KEY_VARIABLE
from deployments.local import processes as leftovers
from tests.support.launcher import launched
from tests.support.project import ROOT


@dataclass(frozen=True)
class Application:
    """A running application: its URL, the OpenAI SDK on it (untyped: its overloads want literal types), the key to
    the models behind the router, and the launcher's run directory."""

    url: str
    sdk: Any
    internal_key: str
    directory: Path

    def engine_metric(self, deployment: str, name: str) -> float:
        """The sum of one of vLLM's own metrics."""
        headers = {INTERNAL_KEY_HEADER: self.internal_key}
        text = httpx.get(f"{self.url}/deployments/{deployment}/metrics", headers=headers).raise_for_status().text
        lines = [line for line in text.splitlines() if line.startswith((name + "{", name + " "))]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def running(self, deployment: str) -> float:
        """Requests that the engine works on, or holds in its queue."""
        waiting = self.engine_metric(deployment, "vllm:num_requests_waiting")
        return self.engine_metric(deployment, "vllm:num_requests_running") + waiting


@pytest.fixture(scope="session")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """Started by the command that users run, stopped the way they stop it."""
    key, directory = secrets.token_urlsafe(16), tmp_path_factory.mktemp("run")
    with launched(ROOT / "serve_config.yaml", directory, {INTERNAL_KEY_VARIABLE: key}) as launcher:
        with openai.OpenAI(base_url=f"{launcher.url}/v1", api_key="unused", max_retries=0, timeout=120) as sdk:
            yield Application(launcher.url, sdk, key, directory)
        engines = {pid for pid in leftovers.processes_of(launcher.run_id) if b"EngineCore" in _name(pid)}
        assert engines, "`stop` finds the engines by the run's marker"
        launcher.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        launcher.process.send_signal(signal.SIGTERM)  # a second signal changes nothing
        assert launcher.process.wait(120) == 0
        launcher.assert_nothing_is_left()
        assert not (launcher.directory / "local.json").exists()


def _name(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def eventually(condition: Callable[[], bool], *, within_s: float) -> bool:
    """Whether `condition()` becomes true in time, checked every 50 ms."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
