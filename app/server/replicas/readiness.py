"""Whether endpoints can be served: `GET /ready`. It never triggers a scale-up from zero.

A request to an application without replicas makes Ray Serve start one. So where there is a control plane, its list of
replicas decides, and no application is probed: one that runs now may be scaled to zero a moment later. Serve checks its
replicas by itself. An application that is scaled to zero is ready, since its first request starts a replica; one that
is starting is not. Servers elsewhere are probed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from app.answer_cache import AnswerCache
from app.config.schema import Config
from app.control_plane import RUNNING, Replicas
from app.server.replicas.running import RunningReplicas
from app.upstream.target import Target

CACHE_S = 1.0
"""Seconds between two probes of a server, however many requests come."""

TIMEOUT_S = 2.0

Probe = Callable[[Target, float], Awaitable[bool]]


class Readiness:
    """The health of deployments. `probe` asks a deployment for its health, within some seconds."""

    def __init__(self, probe: Probe, running: RunningReplicas, clock: Callable[[], float] = time.monotonic) -> None:
        self._probe, self._running = probe, running
        self._known: AnswerCache[Mapping[str, bool]] = AnswerCache(CACHE_S, clock)

    async def of(self, config: Config, targets: Mapping[str, Target]) -> Mapping[str, bool]:
        """Whether each deployment is healthy, or scaled to zero and would start."""
        servers = tuple((name, target.url) for name, target in targets.items())
        return await self._known.get(servers, lambda: self._asked(config, targets))

    async def _asked(self, config: Config, targets: Mapping[str, Target]) -> Mapping[str, bool]:
        replicas = await self._running.now() or self._running.last
        settled = {name: found for name in targets if (found := self._unasked(name, config, replicas)) is not None}
        probed = [target for name, target in targets.items() if name not in settled]
        answers = await asyncio.gather(*(self._probe(target, TIMEOUT_S) for target in probed))
        return {**settled, **{it.name: answer for it, answer in zip(probed, answers, strict=True)}}

    def asleep(self, config: Config) -> list[str]:
        """The deployments that are scaled to zero, by the control plane's last answer."""
        found = self._running.last.asleep if self._running.last is not None else ()
        return [name for name, it in config.deployments.items() if it.app in found]

    def _unasked(self, name: str, config: Config, replicas: Replicas | None) -> bool | None:
        """A deployment's health by the control plane's list; None: probe the deployment."""
        app = config.deployments[name].app
        if app is None or not self._running.is_known:
            return None
        return replicas is not None and (
            replicas.applications.get(app, {}).get(RUNNING, 0) > 0 or app in replicas.asleep
        )


def document(
    config: Config, healthy: Mapping[str, bool], asleep: list[str], open_breakers: list[str]
) -> tuple[bool, dict[str, Any]]:
    """Whether every endpoint has a healthy deployment among those that get traffic, and the answer's body."""
    endpoints = {
        name: any(healthy.get(deployment) for deployment, share in endpoint.traffic.items() if share > 0)
        for name, endpoint in config.endpoints.items()
    }
    ready = all(endpoints.values())
    body: dict[str, Any] = {
        "status": "ready" if ready else "not ready",
        "endpoints": endpoints,
        "deployments": dict(healthy),
        "open_breakers": open_breakers,
    }
    return ready, {**body, "asleep": asleep} if asleep else body
