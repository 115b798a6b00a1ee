"""Serve's part of the Ray dashboard's REST API, which a local run listens to on loopback.

The same calls as `serve deploy` and `serve status`, without importing Ray: that alone takes seconds.
Contract: https://docs.ray.io/en/latest/serve/api/index.html#serve-rest-api

The output of a local run: messages to stderr, on a terminal with a live display, and the "ready" line to stdout.
"""

import contextlib
import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO
from urllib.parse import urlsplit

from app.internal_api import ROUTER
from deployments.local.environment import TOKEN
from deployments.local.processes import LaunchError, Run, Unresponsive

_PATH = "/api/serve/applications/"
_TIMEOUT_S = 30.0
_PROXIES_PENDING = "proxies not available after"
"""Serve's answer when they took it more than a minute. They keep starting, and the same call then succeeds."""


@dataclass(frozen=True)
class Application:
    """One Serve application: `status` as Serve reports it, `messages` are its own and its deployments'."""

    name: str
    status: str
    messages: tuple[str, ...]
    running: int
    wanted: int

    @property
    def state(self) -> str:
        """The status, with the replicas while some are missing."""
        return self.status if self.running >= self.wanted else f"{self.status} ({self.running}/{self.wanted} replicas)"


@dataclass(frozen=True)
class Instance:
    """Everything that Serve runs, and the `user_config` that it has stored for the router (None without one)."""

    applications: Mapping[str, Application]
    router_config: Mapping[str, Any] | None


class _StillStarting(LaunchError):
    """Serve is not ready for this call yet."""


def read(run: Run) -> Instance:
    """The running Serve instance. Raises Unresponsive if the dashboard cannot be reached."""
    answer = _call(run, "GET")
    applications = {name: _application(name, item) for name, item in (answer.get("applications") or {}).items()}
    return Instance(applications, _router_config(answer))


def deployed(run: Run) -> dict[str, Any]:
    """The configuration that Serve has deployed, as `deploy` takes it. Raises as `read`."""
    answer = _call(run, "GET")
    configs = [application.get("deployed_app_config") for application in (answer.get("applications") or {}).values()]
    return {
        "http_options": answer.get("http_options") or {},
        "applications": [config for config in configs if isinstance(config, dict)],
    }


def deploy(run: Run, document: Mapping[str, Any], *, wait_s: float = 0.0) -> None:
    """Applies a Serve configuration, and starts Serve if it does not run.

    Waits up to `wait_s` for a dashboard that is still starting, and as long again for Serve.

    Raises LaunchError with Serve's reason, Unresponsive if the dashboard cannot be reached.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            _call(run, "PUT", json.dumps(document).encode(), max(wait_s, _TIMEOUT_S))
        except (Unresponsive, _StillStarting):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def _call(run: Run, method: str, body: bytes | None = None, timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
    where = urlsplit(run.dashboard)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=timeout_s)
    headers = {"Content-Type": "application/json", **_authorization(run)}
    try:
        connection.request(method, _PATH, body, headers)
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise Unresponsive(f"Ray's dashboard at {run.dashboard} does not answer ({error})") from None
    finally:
        connection.close()
    if response.status != 200:
        rejected = _StillStarting if _PROXIES_PENDING in text else LaunchError
        raise rejected(f"Ray Serve rejected the call ({response.status}): {_reason(text)}")
    try:
        answer = json.loads(text) if text.strip() else {}
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _reason(text: str) -> str:
    """Serve's reason; of a stack trace, its last line."""
    return text.strip().rpartition("\n")[2] if "Traceback (most recent call last)" in text else text.strip()


def _authorization(run: Run) -> dict[str, str]:
    """The token that Ray was started with: the user's own, if the environment names one, else the run's."""
    token = os.environ.get("RAY_AUTH_TOKEN")
    try:
        if not token:
            named = os.environ.get("RAY_AUTH_TOKEN_PATH")
            token = (Path(named) if named else Path(run.directory) / TOKEN).read_text().strip()
    except OSError:
        return {}
    return {"Authorization": f"Bearer {token}"}


def _application(name: str, item: Mapping[str, Any]) -> Application:
    deployments = [
        deployment for deployment in (item.get("deployments") or {}).values() if isinstance(deployment, dict)
    ]
    messages = dict.fromkeys(str(part["message"]) for part in (item, *deployments) if part.get("message"))
    replicas = [replica for deployment in deployments for replica in deployment.get("replicas") or []]
    running = sum(replica.get("state") == "RUNNING" for replica in replicas)
    wanted = sum(deployment.get("target_num_replicas") or 0 for deployment in deployments)
    return Application(name, str(item.get("status")), tuple(messages), running, wanted)


def _router_config(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    router = (answer.get("applications") or {}).get(ROUTER) or {}
    for deployment in (router.get("deployed_app_config") or {}).get("deployments") or []:
        config = deployment.get("user_config")
        if isinstance(config, dict):
            return config
    return None


# Ray and Serve write to sys.stdout and sys.stderr from separate threads. These are redirected to a file, so
# everything here uses the process's original streams.

if TYPE_CHECKING:
    from rich.status import Status


def report(message: str) -> None:
    """Prints `message` to stderr."""
    _write(sys.__stderr__, message)


def announce(message: str) -> None:
    """Prints `message` to stdout: the line that scripts wait for."""
    _write(sys.__stdout__, message)


def _write(stream: TextIO | None, message: str) -> None:
    if stream is not None:
        with contextlib.suppress(OSError):  # the terminal may be closed
            stream.write(message + "\n")
            stream.flush()


@contextlib.contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Redirects sys.stdout and sys.stderr to `log`."""
    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield


EVERY_S = 10.0
"""The longest silence of a start without a terminal."""


class StartDisplay:
    """What a start is doing, and for how long: a spinner on a terminal, else a line for each step and, while one lasts,
    another every `every_s` seconds. Its methods may be called from several threads."""

    def __init__(self, stream: TextIO | None = None, every_s: float = EVERY_S) -> None:
        self._stream = stream or sys.__stderr__
        self._every_s = every_s
        self._started = self._said_at = time.monotonic()
        self._status: Status | None = None
        self._step, self._details = "Starting", ""
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._ticking = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        if self._stream is not None and self._stream.isatty():
            from rich.console import Console

            self._status = Console(file=self._stream).status(self._step)
            self._status.start()
        self._ticking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._ticking.join()
        if self._status is not None:
            self._status.stop()

    def step(self, what: str) -> None:
        """Begins a step, such as "Starting Ray"."""
        self._show(what)

    def say(self, message: str) -> None:
        """Prints `message` as a line that stays, above the spinner if there is one."""
        with self._lock:
            if self._status is not None:
                self._status.console.print(message, markup=False, highlight=False, soft_wrap=True)
            else:
                self._write(message)

    def update(self, states: Mapping[str, str]) -> None:
        """Shows `states`, application name to state: the step is to wait for those that do not run."""
        width = max((len(name) for name in states), default=0)
        details = "".join(f"\n  {name:<{width}}  {state}" for name, state in states.items())
        if waiting := [name for name, state in states.items() if state != "RUNNING"]:
            self._show(f"Waiting for: {', '.join(waiting)}", details)

    def _show(self, step: str, details: str = "") -> None:
        with self._lock:
            is_new, self._step, self._details = step != self._step, step, details
            if self._status is not None:
                self._spin()
            elif is_new:
                self._write(step)

    def _tick(self) -> None:
        while not self._ended.wait(min(1.0, self._every_s)):
            with self._lock:
                if self._status is not None:
                    self._spin()
                elif time.monotonic() - self._said_at >= self._every_s:
                    self._write(f"{self._step} ({self._elapsed()} s so far)")

    def _spin(self) -> None:
        assert self._status is not None
        self._status.update(f"{self._step} ({self._elapsed()} s){self._details}")

    def _elapsed(self) -> int:
        return int(time.monotonic() - self._started)

    def _write(self, line: str) -> None:
        self._said_at = time.monotonic()
        _write(self._stream, line)
