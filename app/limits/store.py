"""The store of limits: in this process, or (`redis_store`) in a Redis that several routers share.

The windows are those of the library `limits`, with a clock of our choice in memory. The library does not count
concurrent requests: these are leases, which a router renews while the request runs, so that the leases of a router that
ended abruptly expire.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, Self

from limits.errors import StorageError

from app.limits.sliding_window import PERIOD_S, Window

LEASE_S = 30
"""Seconds for which the concurrent requests of a router that ended abruptly still count."""

RENEW_EVERY_S = LEASE_S / 3
_NO_LIMIT = 2**53  # exact in Lua's numbers


class StoreFailed(Exception):
    """The store did not answer, or answered with an error."""


class Windows(Protocol):
    """Counts per sliding window: the part of the storages of `limits` that is used."""

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool: ...

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]: ...


class Leases(Protocol):
    """Concurrent requests, by key. A holder is one request."""

    async def acquire(self, key: str, limit: int, holder: str) -> bool: ...

    async def release(self, key: str, holder: str) -> None: ...

    async def renew(self) -> None: ...

    async def held(self, key: str) -> int: ...


async def _nothing() -> None: ...


class Store:
    """The counts. Every method raises StoreFailed; a cancelled one may have counted."""

    def __init__(self, windows: Windows, leases: Leases, close: Callable[[], Awaitable[None]] = _nothing) -> None:
        self._windows, self._leases, self.close = windows, leases, close

    @classmethod
    def in_memory(cls, clock: Callable[[], float] = time.time) -> Self:
        """A store in this process. `clock` is in seconds; windows begin at its multiples of 60."""
        return cls(_MemoryWindows(clock), _MemoryLeases())

    async def take(self, key: str, limit: int, cost: int) -> bool:
        """Counts `cost` if it fits into `limit`."""
        with _failures():
            return await self._windows.acquire_sliding_window_entry(key, limit, PERIOD_S, cost)

    async def add(self, key: str, amount: int) -> None:
        """Counts `amount` unconditionally; a negative one is returned to the limit."""
        with _failures():
            await self._windows.acquire_sliding_window_entry(key, _NO_LIMIT, PERIOD_S, amount)

    async def window(self, key: str) -> Window:
        """The current counts."""
        with _failures():
            return Window(*await self._windows.get_sliding_window(key, PERIOD_S))

    async def acquire(self, key: str, limit: int, holder: str) -> bool:
        """Counts one running request, if fewer than `limit` are running."""
        with _failures():
            return await self._leases.acquire(key, limit, holder)

    async def release(self, key: str, holder: str) -> None:
        """Stops counting the request, if it was counted."""
        with _failures():
            await self._leases.release(key, holder)

    async def running(self, key: str) -> int:
        """The number of running requests that are counted."""
        with _failures():
            return await self._leases.held(key)

    async def renew(self) -> None:
        """Renews the leases of the requests that run here; to be called every RENEW_EVERY_S."""
        with _failures():
            await self._leases.renew()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (StorageError, OSError, TimeoutError) as error:
        raise StoreFailed(type(error.__cause__ or error).__name__) from error


class _MemoryWindows:
    """Counts by window number: the current one and the one before."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts: dict[int, Counter[str]] = {}

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        if Window(*await self.get_sliding_window(key, expiry)).used + amount > limit:
            return False
        self._counts.setdefault(int(self._clock() // expiry), Counter())[key] += amount
        return True

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        number, elapsed = divmod(self._clock(), expiry)
        for old in [minute for minute in self._counts if minute < number - 1]:
            del self._counts[old]
        previous, current = (self._counts.get(int(minute), Counter())[key] for minute in (number - 1, number))
        left = expiry - elapsed
        return previous, left if previous else 0.0, current, left + expiry


class _MemoryLeases:
    def __init__(self) -> None:
        self._holders: dict[str, set[str]] = {}

    async def acquire(self, key: str, limit: int, holder: str) -> bool:
        holders = self._holders.setdefault(key, set())
        if len(holders) < limit:
            holders.add(holder)
        return holder in holders

    async def release(self, key: str, holder: str) -> None:
        holders = self._holders.get(key, set())
        holders.discard(holder)
        if not holders:
            self._holders.pop(key, None)

    async def renew(self) -> None:
        """Does nothing: the leases end with the process."""

    async def held(self, key: str) -> int:
        return len(self._holders.get(key, ()))
