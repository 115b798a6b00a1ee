"""How many requests an endpoint takes at a time, and how many more may wait for their turn.

Without a bound every request would reach the engines at once, and wait there, out of sight and for ever.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from app.config.schema import Admission
from app.errors import Unavailable

RETRY_AFTER_S = 1.0


@dataclass(slots=True)
class AdmissionQueue:
    """One endpoint's. First come, first served; limits may change from one request to the next."""

    running: int = 0
    _waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @asynccontextmanager
    async def slot(self, endpoint: str, limits: Admission | None) -> AsyncIterator[None]:
        """Holds a place while the block runs; raises Unavailable where the queue is full or the wait too long."""
        if limits is None:
            yield
            return
        if self.running < limits.max_concurrent and not self._waiting:
            self.running += 1
        else:
            await self._queue(endpoint, limits)
        try:
            yield
        finally:
            self._leave(limits)

    async def _queue(self, endpoint: str, limits: Admission) -> None:
        if len(self._waiting) >= limits.max_queued:
            raise Unavailable(
                f"Endpoint '{endpoint}' is at capacity ({self.running} running, {self.waiting} queued)",
                retry_after=RETRY_AFTER_S,
            )
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(limits.max_wait_s):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():  # given at the very moment in which the wait ended
                self._leave(limits)
            elif place in self._waiting:
                self._waiting.remove(place)
            if not isinstance(error, TimeoutError):
                raise
            raise Unavailable(
                f"Timed out after {limits.max_wait_s:g} s waiting for endpoint '{endpoint}'", retry_after=RETRY_AFTER_S
            ) from None

    def _leave(self, limits: Admission) -> None:
        self.running -= 1
        while self._waiting and self.running < limits.max_concurrent:
            place = self._waiting.popleft()
            if not place.done():
                self.running += 1
                place.set_result(None)
