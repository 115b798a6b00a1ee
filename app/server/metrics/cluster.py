"""The cluster's metrics, the same from every router: experiments, replicas, and whether the control plane answers."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress

import msgspec
from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector

from app.config.experiments import is_active
from app.config.schema import Config
from app.errors import SwitchyardError, UpstreamError
from app.experiments.contract.series import METRICS, Series
from app.exposures.controller_client import ControllerClient
from app.server.controller_answers import ask
from app.server.metrics.fleet import KnownFleet
from app.telemetry.logs import event

_log = logging.getLogger("switchyard")

REPLICAS = "switchyard_replicas"
CONTROLLER_UP = "switchyard_experiments_controller_up"
CONTROL_PLANE_UP = "switchyard_control_plane_up"
_HELP = {
    REPLICAS: "Replicas of each application, by state",
    CONTROLLER_UP: "1 if the controller of experiments answered when it was asked last, 0 if not",
    CONTROL_PLANE_UP: "1 if Serve's controller answered when it was asked last, 0 if not",
}

FRESH_S = 5.0
"""Seconds for which an answer is reused: several scrapers cause one call."""

PATIENCE_S = 1.0
"""Seconds that a scrape waits for the controller."""

STALE_S = 60.0
"""Seconds for which the last answer is shown while the controller does not answer; then the series end."""


class ClusterMetrics:
    """The series of experiments, fetched when they are scraped, and of `fleet`, if there is one. `clock`: monotonic
    seconds."""

    def __init__(
        self,
        controller: ControllerClient | None,
        fleet: KnownFleet | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controller, self._fleet, self._clock = controller, fleet, clock
        self._series: list[Series] = []
        self._fetched_at = self._tried_at = float("-inf")
        self._up: list[Series] = []

    async def expose(self, config: Config, endpoints: Collection[str] | None) -> bytes:
        """The metrics in Prometheus' text format: all of them, or the experiments of some endpoints."""
        running = any(is_active(it) for it in config.experiments.values())
        if running or any(it.mirror is not None for it in config.endpoints.values()):
            await self._refresh()
        else:
            self._series, self._up = [], []
        if endpoints is not None:
            return generate_latest(_Families(it for it in self._series if it.labels["endpoint"] in endpoints))
        return generate_latest(_Families([*self._series, *self._up, *await self._control_plane()]))

    async def _control_plane(self) -> list[Series]:
        """The series of the control plane: whether it answers, and the replicas that it listed last."""
        if self._fleet is None:
            return []
        states: Mapping[str, Mapping[str, int]] = {}
        with suppress(UpstreamError):  # the gauge shows it
            states = (await self._fleet.now()).states
        up = Series(CONTROL_PLANE_UP, {}, float(self._fleet.is_source_up))
        replicas = [
            Series(REPLICAS, {"application": application, "state": state}, float(count))
            for application, counted in states.items()
            for state, count in counted.items()
        ]
        return [up, *replicas]

    async def _refresh(self) -> None:
        if self._clock() - self._tried_at < FRESH_S:
            return
        self._tried_at = self._clock()
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await ask(self._controller, "GET", "/series")
            self._series, self._fetched_at = msgspec.json.decode(answer.body, type=list[Series]), self._clock()
            self._up = [Series(CONTROLLER_UP, {}, 1.0)]
        except (SwitchyardError, TimeoutError) as error:
            self._up = [Series(CONTROLLER_UP, {}, 0.0)] if self._controller is not None else []
            if self._clock() - self._fetched_at >= STALE_S:
                self._series = []
            _log.warning(
                "The controller of experiments does not answer", extra=event("controller_unavailable", error=str(error))
            )


class _Families(Collector):
    """Samples as gauges."""

    def __init__(self, samples: Iterable[Series]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for it in self._samples:
            help = METRICS.get(it.metric) or _HELP[it.metric]
            family = families.setdefault(it.metric, Metric(it.metric, help, "gauge"))
            family.add_sample(it.metric, it.labels, it.value)
        yield from families.values()
