"""Whether endpoints can be served: `GET /ready`. It never triggers a scale-up from zero.

A request to an application without replicas makes Ray Serve start one. So where there is a control plane, its list of
replicas decides, and no application is probed: one that runs now may be scaled to zero a moment later. Serve checks its
replicas by itself. An application that is scaled to zero is ready, since its first request starts a replica; one that
is starting is not. Servers elsewhere are probed.

Reports to the control plane the requests for which this router's applications lack replicas.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from app.access.caller import ConfigViews, behind
from app.aio import run_in_background
from app.answer_cache import AnswerCache
from app.config.schema import Config
from app.control_plane import ControlPlane, Replicas, RunningReplicas
from app.errors import UpstreamError
from app.routing.admission import UnmetDemand
from app.telemetry.logs import event
from app.telemetry.periods import Arm
from app.upstream.target import Target


def has_replica(
    replicas: Replicas, config: Config, dead: Collection[str] = frozenset(), wanted: Collection[str] = frozenset()
) -> dict[Arm, bool]:
    """Whether a replica of each deployment runs, by endpoint and deployment. `dead`: engines that have died lately.
    `wanted`: applications for whose replicas requests wait.

    One that is scaled to zero is left out unless a request waits for it: nobody expects it to run.
    """
    return {
        (name, deployment): replicas.serving(app, dead) > 0
        for name, endpoint in config.endpoints.items()
        for deployment in behind(endpoint)
        if (app := config.deployments[deployment].app) is not None and (app not in replicas.asleep or app in wanted)
    }


CACHE_S = 1.0
"""Seconds between two probes of a server, however many requests come."""

TIMEOUT_S = 2.0

Probe = Callable[[Target, float], Awaitable[bool]]


class Readiness:
    """The health of deployments. `probe` asks a deployment for its health, within some seconds."""

    def __init__(self, probe: Probe, running: RunningReplicas, clock: Callable[[], float] = time.monotonic) -> None:
        self._probe, self._running = probe, running
        self._known: AnswerCache[Mapping[str, bool]] = AnswerCache(CACHE_S, clock)

    async def check(self, config: Config, targets: Mapping[str, Target]) -> Mapping[str, bool]:
        """Whether each deployment is healthy, or scaled to zero and would start."""
        servers = tuple((name, target.url) for name, target in targets.items())
        return await self._known.get(servers, lambda: self._asked(config, targets))

    async def _asked(self, config: Config, targets: Mapping[str, Target]) -> Mapping[str, bool]:
        replicas = await self._running.latest()
        settled = {name: answer for name in targets if (answer := self._unasked(name, config, replicas)) is not None}
        probed = [target for name, target in targets.items() if name not in settled]
        answers = await asyncio.gather(*(self._probe(target, TIMEOUT_S) for target in probed))
        return {**settled, **{target.name: answer for target, answer in zip(probed, answers, strict=True)}}

    def asleep(self, config: Config) -> list[str]:
        """The deployments that are scaled to zero, by the control plane's last answer."""
        asleep = self._running.last.asleep if self._running.last is not None else ()
        return [name for name, deployment in config.deployments.items() if deployment.app in asleep]

    def _unasked(self, name: str, config: Config, replicas: Replicas | None) -> bool | None:
        """A deployment's health by the control plane's list; None: probe the deployment."""
        app = config.deployments[name].app
        if app is None or not self._running.is_known:
            return None
        return replicas is not None and (replicas.running(app) > 0 or app in replicas.asleep)


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


DEMAND_EVERY_S = 2.0
"""Seconds, as often as replicas report (`metrics_interval_s` of the examples)."""

_log = logging.getLogger("switchyard")


class UnservedDemand:
    """Reports the counts of `unserved`. `views` returns the configuration in force (None before the first)."""

    def __init__(
        self,
        unserved: UnmetDemand,
        views: Callable[[], ConfigViews | None],
        control: ControlPlane | None,
        every_s: float = DEMAND_EVERY_S,
    ) -> None:
        self._unserved, self._views, self._control, self._every_s = unserved, views, control, every_s
        self._sent: dict[str, int] = {}
        self._is_away = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Reports while the block runs; does nothing without a control plane."""
        if (control := self._control) is None:
            yield
            return

        async def repeat() -> None:
            while True:
                await asyncio.sleep(self._every_s)
                await self.report(control)

        async with run_in_background(repeat()):
            yield

    async def report(self, control: ControlPlane) -> None:
        """Sends the demand; 0 once for an application that has none any more."""
        applications = self._by_application()
        demand = {**dict.fromkeys(self._sent, 0), **applications}
        if not demand:
            return
        try:
            await control.report_unserved(demand)
        except UpstreamError as error:
            if not self._is_away:
                unavailable = event("control_plane_unavailable", error=error.message)
                _log.warning("The control plane does not take the report of unserved requests", extra=unavailable)
            self._is_away = True
            return
        self._sent, self._is_away = applications, False

    def _by_application(self) -> dict[str, int]:
        if (views := self._views()) is None:
            return {}
        counts: dict[str, int] = {}
        for name, count in self._unserved.demand().items():
            deployment = views.config.deployments.get(name)
            if deployment is not None and deployment.app is not None:
                counts[deployment.app] = counts.get(deployment.app, 0) + count
        return counts
