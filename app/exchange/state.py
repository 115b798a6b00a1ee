"""What all requests share, and the configuration that one request keeps."""

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from app.access.caller import ConfigViews
from app.access.guard import Access
from app.config.schema import Config, Timeouts
from app.engine.model import Model
from app.routing.admission import AdmissionQueue
from app.routing.circuit_breaker import Breakers
from app.routing.retry_budget import RetryBudget
from app.telemetry.metrics import Telemetry
from app.upstream.target import Target


class Calls(Protocol):
    """The seam to deployments; `upstream.Upstream` is the real one."""

    async def model(self, target: Target, timeouts: Timeouts) -> Model: ...

    async def unary(
        self, target: Target, path: str, body: Mapping[str, Any], *, request_id: str, timeouts: Timeouts
    ) -> bytes: ...

    def stream(
        self, target: Target, path: str, body: Mapping[str, Any], *, request_id: str, timeouts: Timeouts
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The configuration at one moment; a request keeps the one that it started with."""

    config: Config
    targets: Mapping[str, Target]
    views: ConfigViews


@dataclass(slots=True)
class RouterState:
    """What all requests share. `snapshot` is replaced, never modified; None before the first configuration."""

    upstream: Calls
    telemetry: Telemetry
    access: Access
    random: Random
    snapshot: Snapshot | None = None
    breakers: Breakers = field(default_factory=lambda: Breakers(time.monotonic))
    budgets: defaultdict[str, RetryBudget] = field(default_factory=lambda: defaultdict(RetryBudget))
    queues: defaultdict[str, AdmissionQueue] = field(default_factory=lambda: defaultdict(AdmissionQueue))
