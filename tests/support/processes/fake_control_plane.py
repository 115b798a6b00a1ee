"""A control plane in memory: it stores one configuration and delivers it on the test's command."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from app.control_plane import CHANGED_MEANWHILE, Applied, Delivery, Replicas, UpdateInProgress
from app.errors import Conflict, SwitchyardError

CREATED_MS = 1_700_000_000_000


class MemoryControl:
    """`deliver` sends the applied configuration to the router; every call raises `failure` while it is set."""

    def __init__(self, config: Any, take: Callable[[Any], object]) -> None:
        self.config, self._take = config, take
        self.delivery = Delivery.SETTLED
        self.since_ms = CREATED_MS
        self.failure: SwitchyardError | None = None
        self.delivers_at_once = False
        self.replaced = 0
        self._lock = threading.RLock()
        self.running = Replicas({}, {"RUNNING": 1})
        self.unserved: list[dict[str, int]] = []

    async def applied(self) -> Applied:
        self._fail()
        return Applied(self.config, self.delivery, self.since_ms, dict.fromkeys(self.config["endpoints"], CREATED_MS))

    async def replace(self, expected: Any, wanted: Any) -> None:
        self._fail()
        with self._lock:
            if self.config != expected:
                raise Conflict(CHANGED_MEANWHILE)
            if self.delivery is Delivery.DELIVERING:
                raise UpdateInProgress
            self.config, self.delivery = wanted, Delivery.DELIVERING
            self.since_ms += 1000
            self.replaced += 1
            if self.delivers_at_once:
                self.deliver()

    async def replicas(self) -> Replicas:
        self._fail()
        return self.running

    async def report_unserved(self, requests: Mapping[str, int]) -> None:
        self._fail()
        self.unserved.append(dict(requests))

    def deliver(self) -> None:
        self._take(self.config)
        self.delivery = Delivery.SETTLED

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure
