"""The state that all requests share."""

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from app.access.guard import Access
from app.answer_cache import AnswerCache
from app.exchange.deployment_health import DeploymentHealth
from app.exchange.engine_params import CacheSalts
from app.exchange.snapshot import Calls, Snapshot
from app.ledger.ledger import Ledger
from app.ledger.recordings.recorder import Recorder
from app.mirror.mirrors import Mirrors
from app.routing.admission import AdmissionQueue
from app.routing.pinned_conversations import PinnedConversations
from app.routing.recent_keys import RecentKeys
from app.routing.retry_budget import RetryBudget
from app.routing.unserved import Unserved
from app.telemetry.metrics import Telemetry
from app.telemetry.tracing.tracing import Tracing


async def _nobody() -> None:
    """There is no other router to ask."""


SHARED_S = 1.0
"""Seconds for which such an answer is reused."""


@dataclass(slots=True)
class RouterState:
    """The state that all requests share. `snapshot` is replaced, not modified; None before the first configuration."""

    upstream: Calls
    telemetry: Telemetry
    access: Access
    health: DeploymentHealth
    random: Random
    ledger: Ledger
    pins: PinnedConversations
    mirrors: Mirrors
    tracing: Tracing
    salts: CacheSalts
    snapshot: Snapshot | None = None
    exchange_pins: Callable[[], Awaitable[None]] = _nobody
    """Reads the conversations that other routers have pinned; waits a quarter of a second for them at most."""
    recorder: Recorder | None = None
    """Records requests for a replay."""
    recent_keys: RecentKeys = field(default_factory=RecentKeys)
    shared: AnswerCache[Any] = field(default_factory=lambda: AnswerCache(SHARED_S, time.monotonic))
    """What deployments answer to requests that anybody may send (`Translation.is_shared`)."""
    unserved: Unserved = field(default_factory=Unserved)
    budgets: defaultdict[str, RetryBudget] = field(default_factory=lambda: defaultdict(RetryBudget))
    queues: defaultdict[str, AdmissionQueue] = field(init=False)

    def __post_init__(self) -> None:
        self.queues = defaultdict(partial(AdmissionQueue, self.telemetry.routing))
