"""Admission: bounds the requests that an endpoint serves at a time, and those that may queue.

Without a bound every request would go to the engines at once and wait there, invisible and without a timeout.

Counts requests for which no replica had room: waiting at this router, or refused. Autoscalers treat them as demand.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from app.config.schema import Admission
from app.errors import AtCapacity

# A refused request counts for `COUNTED_S`, so that the demand lasts longer than the delay after which replicas are
# added. Clients repeat refused requests after a second or two, and the same request must not count twice: only the
# busiest moment of the last `COUNTED_S` counts.

COUNTED_S = 15.0
"""Seconds. Three times the recommended `upscale_delay_s`."""

MOMENT_S = 1.0
"""Seconds, the `Retry-After` of a refusal: refusals that are further apart may be of the same request."""


class UnmetDemand:
    """The unserved requests of each deployment. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: Counter[str] = Counter()
        self._refused: dict[str, deque[tuple[float, int]]] = {}

    @contextmanager
    def waiting(self, deployment: str) -> Iterator[None]:
        """Counts a request for the deployment as waiting while the block runs."""
        self._waiting[deployment] += 1
        try:
            yield
        finally:
            self._waiting[deployment] -= 1

    def refused(self, deployment: str) -> None:
        """Counts a request that was refused, by the deployment or by its endpoint's queue."""
        now = self._clock()
        moments = self._refused.setdefault(deployment, deque())
        if moments and now - moments[-1][0] < MOMENT_S:
            moments[-1] = (moments[-1][0], moments[-1][1] + 1)
        else:
            moments.append((now, 1))
        self._forget(moments, now)

    def demand(self) -> dict[str, int]:
        """The number of requests for which each deployment has no room; deployments with 0 are left out."""
        now = self._clock()
        counts = Counter({name: count for name, count in self._waiting.items() if count > 0})
        for name, moments in list(self._refused.items()):
            self._forget(moments, now)
            if moments:
                counts[name] += max(count for _, count in moments)
            else:
                del self._refused[name]
        return dict(counts)

    @staticmethod
    def _forget(moments: deque[tuple[float, int]], now: float) -> None:
        while moments and moments[0][0] <= now - COUNTED_S:
            moments.popleft()


RETRY_AFTER_S = 1.0


class AdmissionObserver(Protocol):
    """Counts requests that find no free slot; it is not called for the others."""

    def waited(self, endpoint: str, seconds: float) -> None:
        """Records that a request has left the queue, with a slot or without."""

    def refused(self, endpoint: str, cause: str) -> None:
        """Counts a request that got no slot: the queue was ``full``, or its time was over (``timeout``)."""


@dataclass(slots=True)
class AdmissionQueue:
    """One endpoint's queue: first in, first out. Limits may change between requests."""

    observer: AdmissionObserver | None = None
    running: int = 0
    _waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @asynccontextmanager
    async def slot(
        self, endpoint: str, limits: Admission, deployment: str = "", unserved: UnmetDemand | None = None
    ) -> AsyncIterator[None]:
        """Holds a slot while the block runs. Raises AtCapacity if the queue is full or the wait too long.

        `unserved` counts a request for `deployment` that has to wait, or is refused.
        """
        if self.running < limits.max_concurrent and not self._waiting:
            self.running += 1
        else:
            unserved = unserved if unserved is not None else UnmetDemand()
            try:
                with unserved.waiting(deployment):
                    await self._queue(endpoint, limits)
            except AtCapacity:
                unserved.refused(deployment)
                raise
        try:
            yield
        finally:
            self._leave(limits)

    async def _queue(self, endpoint: str, limits: Admission) -> None:
        if len(self._waiting) >= limits.max_queued:
            if self.observer is not None:
                self.observer.refused(endpoint, "full")
            raise AtCapacity(
                f"Endpoint '{endpoint}' is at capacity ({self.running} running, {self.waiting} queued)",
                retry_after=RETRY_AFTER_S,
            )
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(slot)
        since = time.perf_counter()
        try:
            async with asyncio.timeout(limits.max_wait_s):
                await slot
        except BaseException as error:
            if slot.done() and not slot.cancelled():  # granted at the moment the wait ended
                self._leave(limits)
            elif slot in self._waiting:
                self._waiting.remove(slot)
            if not isinstance(error, TimeoutError):
                raise
            if self.observer is not None:
                self.observer.refused(endpoint, "timeout")
            raise AtCapacity(
                f"Timed out after {limits.max_wait_s:g} s waiting for endpoint '{endpoint}'", retry_after=RETRY_AFTER_S
            ) from None
        finally:
            if self.observer is not None:
                self.observer.waited(endpoint, time.perf_counter() - since)

    def _leave(self, limits: Admission) -> None:
        self.running -= 1
        while self._waiting and self.running < limits.max_concurrent:
            slot = self._waiting.popleft()
            if not slot.done():
                self.running += 1
                slot.set_result(None)
