"""Waits until every application runs and answers through the ingress.

Announces the first endpoint that can answer, while others still load.
"""

import http.client
import json
import os
import re
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from app.config.loading import load_document
from app.config.schema import Config, Task
from app.internal_api import EXPERIMENTS, INTERNAL_KEY_HEADER, INTERNAL_KEY_VARIABLE, ROUTER
from app.internal_keys import Purpose, sent
from deployments.invocation import command
from deployments.local import dashboard
from deployments.local.dashboard import Application, StartDisplay
from deployments.local.processes import HOST, LaunchError, NotRunning, Run, raise_if_stopped, run_in_background

_REQUESTS: Mapping[Task, tuple[str, Mapping[str, object]]] = {
    "chat": ("chat/completions", {"messages": [{"role": "user", "content": "Name the capital of France."}]}),
    "completions": ("completions", {"prompt": "The capital of France is", "max_tokens": 20}),
    "responses": ("responses", {"input": "Name the capital of France."}),
    "embeddings": ("embeddings", {"input": "a first sentence"}),
    "rerank": ("rerank", {"query": "a color", "documents": ["blue", "seven"]}),
    "classify": ("classify", {"input": "a first sentence"}),
}
"""Task to its path below /v1 and a body without the model."""


def readiness(port: int) -> Mapping[str, Any]:
    """What the router on `port` answers at `/ready`; empty while it does not answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/ready")
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else {}


def ready_endpoints(port: int) -> list[str]:
    """The endpoints that the router on `port` reports as ready; empty while the router does not answer."""
    endpoints = readiness(port).get("endpoints")
    return [name for name, ready in endpoints.items() if ready] if isinstance(endpoints, dict) else []


def announcement(endpoint: str, config: Config, port: int) -> str:
    """The announcement of an endpoint: its URL, and a request to paste."""
    path, body = _REQUESTS[config.endpoints[endpoint].tasks[0]]
    url = f"http://{HOST}:{port}/v1"
    key = ' -H "Authorization: Bearer $KEY"' if config.access.requires_credentials else ""
    text = shlex.quote(json.dumps({"model": endpoint, **body}))
    request = f"curl {url}/{path}{key} -H 'content-type: application/json' -d {text}"
    return f"The endpoint '{endpoint}' answers already, at {url}:\n  {request}"


READY_S = 900.0
"""The longest start of all applications."""

UNHEALTHY_S = 60.0
"""The time for which an application may be unhealthy during the start."""

ANSWER_S = 60.0
"""The time in which the ingress must route to running replicas."""

DELIVERY_S = 120.0
"""The time in which the routers must apply a change."""


def wait_until_ready(document: Mapping[str, Any], run: Run, stop: threading.Event, display: StartDisplay) -> None:
    """Returns when every application of `document` runs and answers. Raises LaunchError and Stopped."""
    _wait_until_running(document, run, stop, display)
    display.step("Waiting for the ingress")
    _wait_until_answering(document, run.port, stop)


def wait_until_delivered(routers: Sequence[str], run: Run) -> None:
    """Returns when every replica of the applications `routers` has the configuration that was applied last. Raises
    LaunchError if they refuse it, or after DELIVERY_S."""
    deadline = time.monotonic() + DELIVERY_S
    while True:
        states = dashboard.read(run).applications
        applications = [states[name] for name in routers if name in states]
        for application in applications:
            if application.status == "DEPLOY_FAILED":
                reasons = "\n".join(map(last_error, application.messages))
                raise LaunchError(f"The application '{application.name}' cannot be updated:\n{reasons}")
        if all(application.status == "RUNNING" for application in applications):
            break
        if time.monotonic() > deadline:
            raise LaunchError(f"Not every router has it after {DELIVERY_S:.0f} s. Check with: {command('status')}")
        time.sleep(0.2)
    if readiness(run.port).get("configuration") == "refused":
        reason = f"The reason is in the log: {command('doctor')}"
        raise LaunchError(f"The routers refuse the configuration and keep the earlier one. {reason}")


class Failures:
    """Decides when an application that does not run has failed."""

    def __init__(self) -> None:
        self._unhealthy_since: dict[str, float] = {}

    def check(self, application: Application, now: float) -> None:
        """Raises LaunchError if Serve gave up, or after UNHEALTHY_S of bad health. `now`: monotonic seconds."""
        if application.status == "UNHEALTHY":
            since = self._unhealthy_since.setdefault(application.name, now)
        else:
            self._unhealthy_since.pop(application.name, None)
            since = now
        if application.status == "DEPLOY_FAILED" or now - since > UNHEALTHY_S:
            reasons = "\n".join(map(last_error, application.messages))
            raise LaunchError(f"Application '{application.name}' failed ({application.status}):\n{reasons}")


_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): .*", re.MULTILINE)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def last_error(message: str) -> str:
    """What went wrong in the end, of a message with stack traces, which the logs have; the message if it has none."""
    plain = _COLOR.sub("", message)
    errors = list(_ERROR.finditer(plain))
    return plain[errors[-1].start() :].strip() if errors and "Traceback" in plain else message


def _wait_until_running(document: Mapping[str, Any], run: Run, stop: threading.Event, display: StartDisplay) -> None:
    names = [str(application.get("name", "default")) for application in document["applications"]]
    deadline = time.monotonic() + READY_S
    failures = Failures()
    config, said = load_document(document), False
    while True:
        try:
            states = run_in_background(partial(dashboard.read, run), stop).applications
        except NotRunning:  # a busy machine: the dashboard answers later
            states = {}
        display.update({name: states[name].state if name in states else "NOT_STARTED" for name in names})
        waiting = [name for name in names if name not in states or states[name].status != "RUNNING"]
        if not waiting:
            return
        if (
            not said
            and ROUTER not in waiting
            and (ready := run_in_background(partial(ready_endpoints, run.port), stop))
        ):
            display.say(announcement(ready[0], config, run.port))
            said = True
        for name in waiting:
            if name in states:
                failures.check(states[name], time.monotonic())
        if time.monotonic() > deadline:
            raise LaunchError(f"Not ready after {READY_S:.0f} s: {', '.join(waiting)}. See the logs.")
        raise_if_stopped(stop, wait_s=0.5)


def _wait_until_answering(document: Mapping[str, Any], port: int, stop: threading.Event) -> None:
    """Waits for the ingress: Serve knows a running replica at once, HAProxy a moment later."""
    deadline = time.monotonic() + ANSWER_S
    for application in document["applications"]:
        if not str(application.get("import_path")).startswith("deployments."):
            continue  # only our own applications are known to have /health
        prefix = str(application.get("route_prefix") or "/").rstrip("/")
        purpose = Purpose.CONTROLLER if application.get("name") == EXPERIMENTS else Purpose.ENGINE
        while not run_in_background(partial(_answers, port, f"{prefix}/health", purpose), stop):
            if time.monotonic() > deadline:
                raise LaunchError(f"{prefix or '/'} runs, but does not answer on port {port}. See the logs.")
            raise_if_stopped(stop, wait_s=0.1)


def _answers(port: int, path: str, purpose: Purpose) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", path, headers={INTERNAL_KEY_HEADER: sent(os.environ[INTERNAL_KEY_VARIABLE], purpose)})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
