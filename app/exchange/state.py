"""The state that all requests share.

Circuit breakers in operation: outcomes of attempts, the router's own check requests, logs and metrics of changes.
"""

import asyncio
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Self

from app.access.guard import Access
from app.activity.request_log import RequestLog
from app.aio import until
from app.answer_cache import AnswerCache
from app.config.schema import Config, Task
from app.control_plane import Replicas, RunningReplicas
from app.dialects.base import EngineRequest
from app.errors import ClientError, DeadlinePassed, SwitchyardError, Unavailable, Unreachable, UpstreamError
from app.exchange.cache_salts import CacheSalts
from app.exchange.snapshot import Snapshot
from app.exposures.log import ExposureLog
from app.mirror.mirrors import Mirrors
from app.request_recordings.recorder import Recorder
from app.routing.admission import AdmissionQueue, UnmetDemand
from app.routing.conversations import PinnedConversations
from app.routing.resilience import Breakers, Fault, Fuse, RetryBudget
from app.routing.traffic import RecentKeys
from app.telemetry.logs import event
from app.telemetry.metrics import Telemetry
from app.telemetry.tracing import ActiveTracing
from app.upstream.balancer import Balancer, Placement
from app.upstream.client import Upstream
from app.upstream.target import Target

# A check is the smallest request that a deployment can serve. It decides whether a suspected breaker opens, it is the
# trial of an open one, and it distinguishes a request that breaks a healthy engine from an engine that is unhealthy.

MAX_CHECK_S = 30.0
"""The timeout of a check, in seconds: a healthy engine takes milliseconds, a busy one some seconds."""

_log = logging.getLogger("switchyard")

_HI = [{"role": "user", "content": "a"}]
_CHECKS: Mapping[Task, EngineRequest] = {
    "completions": EngineRequest("/v1/completions", {"prompt": "a", "max_tokens": 1, "temperature": 0}),
    "chat": EngineRequest("/v1/chat/completions", {"messages": _HI, "max_tokens": 1, "temperature": 0}),
    "responses": EngineRequest("/v1/responses", {"input": "a", "max_output_tokens": 1, "store": False}),
    "embeddings": EngineRequest("/v1/embeddings", {"input": "a"}),
    "rerank": EngineRequest("/v1/rerank", {"query": "a", "documents": ["a"]}),
    "classify": EngineRequest("/classify", {"input": "a"}),
}
"""The check request of each task, in the order in which a deployment's tasks are considered."""


class DeploymentHealth:
    """The breakers of all deployments, kept over changes of the configuration."""

    def __init__(self, upstream: Upstream, telemetry: Telemetry, breakers: Breakers) -> None:
        self._upstream, self._telemetry, self.breakers = upstream, telemetry, breakers
        self._checks: set[asyncio.Task[None]] = set()
        self._confirming: dict[str, asyncio.Task[bool]] = {}

    def configured(self, targets: Mapping[str, Target]) -> None:
        """Adopts the deployments of a new configuration."""
        self.breakers.configure({name: target.url for name, target in targets.items()})

    def order(self, candidates: Sequence[str], snapshot: Snapshot) -> Sequence[str]:
        """`candidates` with those whose breaker is open put last; their trials start when they are due."""
        for name in candidates:
            self._check_if_due(name, snapshot)
        return self.breakers.order(candidates)

    def open(self) -> Sequence[str]:
        """The deployments whose breaker is open."""
        return self.breakers.open()

    def is_open(self, name: str, snapshot: Snapshot) -> bool:
        """Whether the deployment's breaker is open; its trial starts when it is due."""
        self._check_if_due(name, snapshot)
        return self.breakers.of(name).is_open

    def check_open(self, snapshot: Snapshot) -> None:
        """Starts the trials that are due of deployments that may get traffic: without a request, one would be called
        failing for as long."""
        candidates = {
            name
            for endpoint, section in snapshot.config.endpoints.items()
            for name in (*(name for name, weight in section.traffic.items() if weight), *(section.fallback or ()))
            if name not in snapshot.stops.get(endpoint, ())
        }
        for name in candidates.intersection(self.open()):
            self._check_if_due(name, snapshot)

    def period(self, name: str) -> int:
        """A number that changes whenever the deployment's breaker opens or closes."""
        return self.breakers.of(name).period

    def succeeded(self, name: str, period: int | None = None) -> None:
        """Records that the deployment answered a client, if only to reject the request. `period`: that in which a
        request was sent that it served."""
        breaker = self.breakers.of(name)
        was_open = breaker.is_open
        breaker.succeeded(period)
        self.breakers.reached(name)
        if was_open:
            self._report(name, was_open, "request")

    def failed(self, name: str, error: UpstreamError, snapshot: Snapshot) -> None:
        """Records that an attempt ended with `error`."""
        if not error.is_fault:
            return
        fault = Fault.CONNECTION if isinstance(error, Unreachable) else Fault.ANSWER
        now = self.breakers.clock()
        was_open = self.breakers.of(name).is_open
        self.breakers.of(name).failed(fault, now)
        self._report(name, was_open, error.kind)
        self._check_if_due(name, snapshot)
        if fault is Fault.CONNECTION:
            for other in self.breakers.not_reached(name):
                self._report(other, False, error.kind)

    async def is_healthy(self, name: str, snapshot: Snapshot, *, waits: bool = True) -> bool:
        """Whether the deployment serves the smallest request that it can be sent. `waits`: until it has a replica."""
        target, request = snapshot.targets[name], check_request(snapshot.config, name)
        patience = min(snapshot.config.timeouts.first_byte_s, MAX_CHECK_S)
        timeouts = snapshot.config.timeouts.model_copy(update={"first_byte_s": patience})
        try:
            await self._upstream.unary(
                target,
                request.path,
                request.body,
                request_id=f"check-{uuid.uuid4().hex}",
                timeouts=timeouts,
                placement=Placement(waits=waits),
            )
        except ClientError:
            return True  # the deployment answers
        except SwitchyardError as error:
            if isinstance(error, Unavailable) and not error.is_fault:  # busy counts as healthy
                return True
            detail = event("check_failed", deployment=name, path=request.path, kind=error.kind)
            _log.warning("A deployment does not serve the router's own check", extra=detail)
            return False
        return True

    async def confirmed(self, name: str, snapshot: Snapshot) -> bool:
        """`is_healthy`, by one request for all that ask at the same time."""
        check = self._confirming.get(name)
        if check is None:
            check = self._confirming[name] = asyncio.create_task(self.is_healthy(name, snapshot))
            check.add_done_callback(lambda _: self._confirming.pop(name))
        return await asyncio.shield(check)

    async def close(self) -> None:
        """Ends the checks that are under way."""
        checks = [*self._checks, *self._confirming.values()]
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)

    def _check_if_due(self, name: str, snapshot: Snapshot) -> None:
        breaker = self.breakers.of(name)
        if breaker.wants_check(self.breakers.clock()):
            breaker.checking = True
            check = asyncio.create_task(self._check(name, snapshot))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)

    async def _check(self, name: str, snapshot: Snapshot) -> None:
        breaker = self.breakers.of(name)
        was_open, healthy = breaker.is_open, False
        try:
            # The trial of an open one waits for a replica, and so ends as soon as there is one.
            healthy = await self.is_healthy(name, snapshot, waits=was_open)
        finally:
            breaker.checked(healthy, self.breakers.clock())
            self._report(name, was_open, "check")

    def _report(self, name: str, was_open: bool, cause: str) -> None:
        is_open = self.breakers.of(name).is_open
        if is_open == was_open:
            return
        self._telemetry.breaker_open.labels(name).set(int(is_open))
        if is_open:
            _log.warning("Circuit breaker opened", extra=event("breaker_opened", deployment=name, cause=cause))
        else:
            _log.warning("Circuit breaker closed", extra=event("breaker_closed", deployment=name, cause=cause))


class Vacancies:
    """The requests that wait for the first byte of a deployment, and that another one would take.

    Where a replica dies at the wrong moment, the ingress has them wait at Serve's own proxy until there is another, and
    nobody tells the router.
    """

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[Departure]] = defaultdict(set)

    def departure(self, application: str, deadline: float) -> "Departure":
        """Ends the block when no replica of the application is left: raises Unreachable."""
        return Departure(self._waiting[application], deadline)

    def seen(self, replicas: Replicas) -> None:
        """Sends away the requests of applications that have no replica."""
        for application, waiting in self._waiting.items():
            if waiting and replicas.is_vacant(application):
                for departure in list(waiting):
                    departure.leave()


class Departure(until):
    """One such request's wait; see `Vacancies`. Raises DeadlinePassed, too."""

    __slots__ = ("_leaves", "_others")

    def __init__(self, others: "set[Departure]", deadline: float) -> None:
        super().__init__(deadline)
        self._others, self._leaves = others, False

    def __enter__(self) -> Self:
        self._others.add(self)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._others.discard(self)
        try:
            super().__exit__(*raised)
        except DeadlinePassed as passed:
            if self._leaves:
                raise Unreachable("No replica of the deployment is left") from passed
            raise

    def leave(self) -> None:
        """No replica is left."""
        self._leaves = True
        self.pass_now()


def check_request(config: Config, name: str) -> EngineRequest:
    """The smallest request that deployment `name` can serve."""
    tasks = config.deployments[name].tasks
    return next(request for task, request in _CHECKS.items() if task in tasks)


async def _nobody() -> None:
    """There is no other router to ask."""


SHARED_S = 1.0
"""Seconds for which such an answer is reused."""


@dataclass(slots=True, kw_only=True)
class RouterState:
    """The state that all requests share. `snapshot` is replaced, not modified; None before the first configuration."""

    upstream: Upstream
    telemetry: Telemetry
    access: Access
    health: DeploymentHealth
    random: Random
    ledger: ExposureLog
    pins: PinnedConversations
    mirrors: Mirrors
    tracing: ActiveTracing
    salts: CacheSalts
    recorder: Recorder
    """Records requests for a replay."""
    requests: RequestLog = field(default_factory=RequestLog)
    """The last requests, for those who operate the server."""
    snapshot: Snapshot | None = None
    exchange_pins: Callable[[], Awaitable[None]] = _nobody
    """Reads the conversations that other routers have pinned; waits a quarter of a second for them at most."""
    recent_keys: RecentKeys = field(default_factory=RecentKeys)
    no_engine_s: float = 5.0
    """Seconds without a byte after which a client that leaves has left no engine, where there may well be none: its
    deployment starts from zero, or has an open breaker."""
    vacancies: Vacancies = field(default_factory=Vacancies)
    running: RunningReplicas = field(default_factory=lambda: RunningReplicas(None))
    balancer: Balancer = field(default_factory=Balancer)
    """Where applications' requests go, while `running` is what Serve says of replicas' states."""
    shared: AnswerCache[Any] = field(default_factory=lambda: AnswerCache(SHARED_S, time.monotonic))
    """What deployments answer to requests that anybody may send (`Translation.is_shared`)."""
    unserved: UnmetDemand = field(default_factory=UnmetDemand)
    fuse: Fuse = field(default_factory=lambda: Fuse(time.monotonic))
    budgets: defaultdict[str, RetryBudget] = field(default_factory=lambda: defaultdict(RetryBudget))
    queues: defaultdict[str, AdmissionQueue] = field(init=False)

    def config(self) -> Config | None:
        """The configuration in force, None before the first."""
        return self.snapshot.config if self.snapshot is not None else None

    def has_no_engine(self, deployment: str) -> bool:
        """Whether no engine of the deployment can answer, as far as is known: none runs, or its breaker is open."""
        if deployment in self.health.open():
            return True
        replicas = self.running.last
        return replicas is not None and replicas.lacks(self._application(deployment))

    def dead(self) -> frozenset[str]:
        """The engines that do not serve, which the control plane may still list: those that requests have lost in the
        last minute, and those that fail their checks."""
        return frozenset({*self.fuse.dead(), *self.balancer.silent()})

    def is_down(self, deployment: str) -> bool:
        """Whether no replica of the deployment runs, as far as is known, though one is to run at all times."""
        application, replicas = self._application(deployment), self.running.last
        if replicas is None or application is None or not replicas.keeps(application):
            return False
        ids = set(replicas.ids.get(application, ()))
        return replicas.lacks(application) or (bool(ids) and ids <= self.dead())

    def _application(self, deployment: str) -> str | None:
        """The application that serves the deployment; None if it is not known, or none does."""
        settings = self.snapshot.config.deployments.get(deployment) if self.snapshot is not None else None
        return settings.app if settings is not None else None

    def __post_init__(self) -> None:
        self.queues = defaultdict(partial(AdmissionQueue, self.telemetry.routing))
