"""Serve's part of the Ray dashboard's REST API, which a local run listens to on loopback.

The same calls as `serve deploy` and `serve status`, without importing Ray: that alone takes seconds.
Contract: https://docs.ray.io/en/latest/serve/api/index.html#serve-rest-api
"""

import http.client
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app.internal_api import ROUTER
from deployments.local.environment import TOKEN
from deployments.local.errors import LaunchError, Unanswered
from deployments.local.processes import Run

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
    """The running Serve instance. Raises Unanswered if the dashboard cannot be reached."""
    answer = _call(run, "GET")
    found = {name: _application(name, item) for name, item in (answer.get("applications") or {}).items()}
    return Instance(found, _router_config(answer))


def deployed(run: Run) -> dict[str, Any]:
    """The configuration that Serve has deployed, as `deploy` takes it. Raises as `read`."""
    answer = _call(run, "GET")
    configs = [it.get("deployed_app_config") for it in (answer.get("applications") or {}).values()]
    return {
        "http_options": answer.get("http_options") or {},
        "applications": [config for config in configs if isinstance(config, dict)],
    }


def deploy(run: Run, document: Mapping[str, Any], *, wait_s: float = 0.0) -> None:
    """Applies a Serve configuration, and starts Serve if it does not run.

    Waits up to `wait_s` for a dashboard that is still starting, and as long again for Serve.

    Raises LaunchError with Serve's reason, Unanswered if the dashboard cannot be reached.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            _call(run, "PUT", json.dumps(document).encode(), max(wait_s, _TIMEOUT_S))
        except (Unanswered, _StillStarting):
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
        raise Unanswered(f"Ray's dashboard at {run.dashboard} does not answer ({error})") from None
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
    deployments = [it for it in (item.get("deployments") or {}).values() if isinstance(it, dict)]
    messages = dict.fromkeys(str(it["message"]) for it in (item, *deployments) if it.get("message"))
    replicas = [replica for it in deployments for replica in it.get("replicas") or []]
    running = sum(replica.get("state") == "RUNNING" for replica in replicas)
    wanted = sum(it.get("target_num_replicas") or 0 for it in deployments)
    return Application(name, str(item.get("status")), tuple(messages), running, wanted)


def _router_config(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    router = (answer.get("applications") or {}).get(ROUTER) or {}
    for deployment in (router.get("deployed_app_config") or {}).get("deployments") or []:
        config = deployment.get("user_config")
        if isinstance(config, dict):
            return config
    return None
