"""The processes with metrics besides this router: the replicas of all applications, and the proxies before them.

A replica is asked through the control plane and not at the port that serves clients: that one refuses a scrape while
the replica's queue is full, and does not listen any more while the replica finishes its last requests.

- The cluster's metrics, the same from every router: experiments, replicas, and whether the control plane answers.
- Metrics that a thread prepares, for readers that cannot wait for a thread but can poll.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec
from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector

from app.answer_cache import AnswerCache
from app.config.experiments import is_active
from app.config.schema import Config
from app.control_plane import RUNNING, STARTING
from app.errors import NotFound, SwitchyardError, TimedOut, UpstreamError
from app.experiments.contract.series import METRICS, Series
from app.exposures.controller_client import ControllerClient
from app.server.operations import ask
from app.telemetry.logs import event

EVERY_S = 5.0
"""Seconds for which a list is reused: the control plane serves the whole cluster."""

FRESH_S = 1.0
"""Seconds for which a process's metrics are reused, so that their readers do not keep an engine busy."""

PATIENCE_S = 1.0
"""Seconds to wait for a new list before an older one is used."""

REPLICA_TIMEOUT_S = 5.0
"""Seconds, below the 10 s that Prometheus waits by default."""


STOPPING = "STOPPING"
"""The state of a replica that is being stopped and finishes its requests."""


class Replica(NamedTuple):
    """One replica of an application. `node` is its node's IP address, "" before it has one.

    `state`: in the control plane's words. `started_at`: when the control plane began to start it, in Unix seconds.
    `accelerator`: the kind of its node's, such as "H100", if the control plane knows it.
    """

    id: str
    application: str
    node: str
    state: str = RUNNING
    started_at: float | None = None
    accelerator: str | None = None
    can_answer: bool = True
    """Whether its process can be asked: not while it starts."""
    has_time_to_stop: bool = False
    """Whether it is told to stop, and has time for that: one that has failed has none."""

    @property
    def is_draining(self) -> bool:
        """Whether it is being stopped and finishes its requests."""
        return self.state == STOPPING

    @property
    def has_failed(self) -> bool:
        """Whether it is being removed without time for its requests."""
        return self.is_draining and not self.has_time_to_stop


class ApplicationState(NamedTuple):
    """An application as the control plane has it: `arguments` are its `args` in the applied configuration, which may
    hold secrets."""

    status: str
    message: str
    arguments: Mapping[str, Any]


class Fleet(NamedTuple):
    """The processes of all applications. `states`: replicas of each application by state, in the control plane's words.
    `proxies`: the IP addresses of nodes on which a proxy takes clients' requests."""

    replicas: Sequence[Replica] = ()
    states: Mapping[str, Mapping[str, int]] = {}
    proxies: Sequence[str] = ()
    applications: Mapping[str, ApplicationState] = {}


def elder_since(fleet: Fleet, replica: str) -> float:
    """Since when the oldest other replica of its application runs that takes requests, or has taken some, in Unix
    seconds; infinite without one. One that has failed has ended before."""
    own = {one.application for one in fleet.replicas if one.id == replica}
    elders = (
        one
        for one in fleet.replicas
        if one.application in own and one.id != replica and one.state != STARTING and not one.has_failed
    )
    return min((one.started_at for one in elders if one.started_at is not None), default=math.inf)


def is_starting(fleet: Fleet, replica: str) -> bool:
    """Whether the replica gets no requests yet."""
    return any(one.id == replica and one.state == STARTING for one in fleet.replicas)


class FleetSource(Protocol):
    """The seam to the control plane. Its calls raise UpstreamError if there is no answer."""

    async def fleet(self) -> Fleet: ...

    async def engine_card(self, replica: str) -> bytes:
        """What the engine in a replica says of itself: an `app.engine.card.EngineCard` as JSON. Raises NotFound
        for a replica that has ended.
        """
        ...

    async def replica_metrics(self, replica: str, endpoints: Collection[str] | None) -> bytes:
        """The replica's metrics in Prometheus' text format. `endpoints`: for a router, only the samples of these.
        Raises NotFound if there is no such replica.
        """
        ...

    async def proxy_metrics(self, node: str) -> bytes:
        """The proxy's metrics in Prometheus' text format."""
        ...


@dataclass(frozen=True, slots=True)
class FleetTiming:
    """Seconds for which answers are reused."""

    list_s: float = EVERY_S
    metrics_s: float = FRESH_S


DEFAULT_TIMING = FleetTiming()


class KnownFleet:
    """The fleet as the control plane listed it last, also while that does not answer. `clock`: monotonic seconds.

    `is_source_up`: whether the control plane answered the last call that has ended.
    """

    def __init__(
        self,
        source: FleetSource,
        clock: Callable[[], float] = time.monotonic,
        *,
        timing: FleetTiming = DEFAULT_TIMING,
    ) -> None:
        self._source, self._clock = source, clock
        self.is_source_up = False
        self._lists: AnswerCache[Fleet] = AnswerCache(timing.list_s, clock)
        self._answers: AnswerCache[bytes] = AnswerCache(timing.metrics_s, clock)
        self._last: Fleet | None = None
        self._listed_at = -math.inf

    def age_s(self) -> float:
        """How long ago the control plane was asked for what it listed last, in seconds."""
        return round(self._clock() - self._listed_at, 1)

    def outdated(self) -> None:
        """Notes that replicas have changed, so that the control plane is asked for the next answer."""
        self._lists.forget()

    async def now(self) -> Fleet:
        """The fleet, at most some seconds old if the control plane answers. Raises UpstreamError if it never has."""
        try:
            async with asyncio.timeout(PATIENCE_S if self._last is not None else REPLICA_TIMEOUT_S):
                self._last = await self._lists.get("", self._listed)
        except (UpstreamError, TimeoutError) as error:
            if self._last is None:
                raise _in_words(error) from error
        return self._last

    async def _listed(self) -> Fleet:
        asked_at = self._clock()
        try:
            fleet = await self._source.fleet()
        except UpstreamError:
            self.is_source_up = False
            raise
        self.is_source_up, self._listed_at = True, asked_at
        return fleet

    async def replica_metrics(self, replica: str, endpoints: Collection[str] | None) -> bytes:
        """See `FleetSource`."""
        key = (replica, None if endpoints is None else frozenset(endpoints))
        return await self._asked(key, lambda: self._source.replica_metrics(replica, endpoints))

    async def engine_card(self, replica: str) -> bytes:
        """See `FleetSource`."""
        return await self._asked(("card", replica), lambda: self._source.engine_card(replica))

    async def proxy_metrics(self, node: str) -> bytes:
        """See `FleetSource`."""
        return await self._asked(("proxy", node), lambda: self._source.proxy_metrics(node))

    async def _asked(self, key: Hashable, ask: Callable[[], Awaitable[bytes]]) -> bytes:
        try:
            async with asyncio.timeout(REPLICA_TIMEOUT_S):
                return await self._answers.get(key, ask)
        except TimeoutError as error:
            raise TimedOut(f"The answer did not arrive within {REPLICA_TIMEOUT_S:g} s") from error


def _in_words(error: UpstreamError | TimeoutError) -> UpstreamError:
    return error if isinstance(error, UpstreamError) else TimedOut("The control plane did not respond in time")


def not_running(what: str) -> NotFound:
    """The error for a process that does not run, or that the reader may not see."""
    return NotFound(f"No such {what} is running; /metrics/targets lists those that are")


_log = logging.getLogger("switchyard")

REPLICAS = "switchyard_replicas"
CONTROLLER_UP = "switchyard_experiments_controller_up"
CONTROL_PLANE_UP = "switchyard_control_plane_up"
_HELP = {
    REPLICAS: "Replicas of each application, by state",
    CONTROLLER_UP: "1 if the controller of experiments answered when it was asked last, 0 if not",
    CONTROL_PLANE_UP: "1 if Serve's controller answered when it was asked last, 0 if not",
}

CLUSTER_FRESH_S = 5.0
"""Seconds for which an answer is reused: several scrapers cause one call."""
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
        running = any(is_active(experiment) for experiment in config.experiments.values())
        if running or any(endpoint.mirror is not None for endpoint in config.endpoints.values()):
            await self._refresh()
        else:
            self._series, self._up = [], []
        if endpoints is not None:
            return generate_latest(
                _Families(series for series in self._series if series.labels["endpoint"] in endpoints)
            )
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
        if self._clock() - self._tried_at < CLUSTER_FRESH_S:
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
        for sample in self._samples:
            help = METRICS.get(sample.metric) or _HELP[sample.metric]
            family = families.setdefault(sample.metric, Metric(sample.metric, help, "gauge"))
            family.add_sample(sample.metric, sample.labels, sample.value)
        yield from families.values()


# A router of a thousand busy endpoints has 300,000 samples: writing them takes seconds, in which the event loop would
# serve no requests.

AGAIN_S = 0.02
"""Seconds between two polls."""


class PreparedMetrics:
    """Prepares metrics. `make` returns them, of some endpoints or of all. `clock`: monotonic seconds."""

    def __init__(
        self, make: Callable[[Collection[str] | None], bytes], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make, self._clock = make, clock
        self._thread = ThreadPoolExecutor(1, "metrics")
        self._made: dict[frozenset[str] | None, tuple[float | None, Future[bytes]]] = {}
        """The metrics, with the time at which they were first seen to be ready."""

    def look(self, endpoints: Collection[str] | None) -> bytes | None:
        """The metrics; None while they are being prepared: poll again. Raises the error of `make`."""
        key, now = None if endpoints is None else frozenset(endpoints), self._clock()
        self._made = {k: entry for k, entry in self._made.items() if entry[0] is None or now - entry[0] < FRESH_S}
        if key not in self._made:
            self._made[key] = (None, self._thread.submit(self._make, key))
            return None
        seen_at, future = self._made[key]
        if not future.done():
            return None
        if seen_at is None:
            self._made[key] = (now, future)
        return future.result()
