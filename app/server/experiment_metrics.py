"""The controller's numbers on every router's `/metrics`: all routers show the same ones."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec
from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector

from app.config.experiment_checks import is_active
from app.config.schema import Config
from app.errors import SwitchyardError
from app.experiments.series import METRICS, Series
from app.ledger.controller_client import ControllerClient
from app.server.controller_answers import ask
from app.telemetry.logs import event

_log = logging.getLogger("switchyard")

PLAN_INFO = "switchyard_plan_info"

FRESH_S = 5.0
"""How long an answer is used again: several scrapers ask once."""

PATIENCE_S = 1.0
"""How long a scrape waits for the controller."""

STALE_S = 60.0
"""For how long the last answer stands in for a controller that does not answer; then the series end."""


class ExperimentMetrics:
    """The series of experiments, fetched when they are scraped. `clock` is monotonic."""

    def __init__(self, controller: ControllerClient | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._controller, self._clock = controller, clock
        self._series: list[Series] = []
        self._fetched_at = self._tried_at = float("-inf")

    async def expose(self, config: Config, plans: Mapping[str, str], endpoints: Collection[str] | None) -> bytes:
        """In Prometheus' text format: all of them, or those of some endpoints. `plans`: each endpoint's plan's id."""
        running = any(is_active(it) for it in config.experiments.values())
        if running or any(it.mirror is not None for it in config.endpoints.values()):
            await self._refresh()
        else:
            self._series = []
        samples = [*self._series, *_plans(plans)]
        return generate_latest(_Families(samples if endpoints is None else _of(samples, endpoints)))

    async def _refresh(self) -> None:
        if self._clock() - self._tried_at < FRESH_S:
            return
        self._tried_at = self._clock()
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await ask(self._controller, "GET", "/series")
            self._series, self._fetched_at = msgspec.json.decode(answer.body, type=list[Series]), self._clock()
        except (SwitchyardError, TimeoutError) as error:
            if self._clock() - self._fetched_at >= STALE_S:
                self._series = []
            _log.warning(
                "The controller of experiments does not answer", extra=event("controller_unavailable", error=str(error))
            )


def _plans(plans: Mapping[str, str]) -> Iterator[Series]:
    for endpoint, plan in plans.items():
        yield Series(PLAN_INFO, {"endpoint": endpoint, "plan": plan}, 1.0)


def _of(samples: Iterable[Series], endpoints: Collection[str]) -> list[Series]:
    return [it for it in samples if it.labels["endpoint"] in endpoints]


class _Families(Collector):
    """Samples as gauges."""

    def __init__(self, samples: Iterable[Series]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for it in self._samples:
            help = METRICS.get(it.metric, "1 for the plan that this router serves")
            family = families.setdefault(it.metric, Metric(it.metric, help, "gauge"))
            family.add_sample(it.metric, it.labels, it.value)
        yield from families.values()
