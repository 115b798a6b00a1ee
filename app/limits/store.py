"""Where limits are counted: in this process, or in a Redis or Valkey that several routers share.

Windows are those of the library `limits`. It has nothing for requests at a time: these are leases, which a router
renews while the request runs, so that those of a router that died end by themselves.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, Self, cast

from limits.aio.storage import MemoryStorage, RedisStorage
from limits.errors import StorageError
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from app.limits.windows import PERIOD_S, Window

LEASE_S = 30
"""How long the requests of a router that died count on."""
RENEW_EVERY_S = LEASE_S / 3

_TIMEOUT_S = 0.5
"""How long a request waits for the store before it is taken for down."""
_CONNECTIONS = 64
_NO_LIMIT = 2**53  # exact in Lua's numbers
_PREFIX = "switchyard"


class StoreFailed(Exception):
    """The store did not answer, or not sensibly."""


class Leases(Protocol):
    """Requests at a time, by key. A holder is one request."""

    async def acquire(self, key: str, limit: int, holder: str) -> bool: ...

    async def release(self, key: str, holder: str) -> None: ...

    async def renew(self) -> None: ...


class Store:
    """The counts. Every method raises StoreFailed; a cancelled one may have counted."""

    def __init__(
        self, windows: MemoryStorage | RedisStorage, leases: Leases, close: Callable[[], Awaitable[None]]
    ) -> None:
        self._windows, self._leases, self.close = windows, leases, close

    @classmethod
    def in_memory(cls) -> Self:
        """This process's own."""

        async def nothing() -> None: ...

        return cls(MemoryStorage(), _MemoryLeases(), nothing)

    @classmethod
    def shared(cls, url: str) -> Self:
        """That at `url` (redis://, rediss://, valkey:// or valkeys://); it is connected to when it is first needed."""
        url = url.replace("valkey", "redis", 1) if url.startswith("valkey") else url
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=_TIMEOUT_S,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 1),  # a connection that the server has closed meanwhile
        )
        client = Redis(connection_pool=pool)
        storage = RedisStorage(
            f"async+{url}",
            wrap_exceptions=True,
            implementation="redispy",
            key_prefix=_PREFIX,
            connection_pool=pool,  # type: ignore[arg-type]  # which it documents and does not type
        )
        return cls(storage, _RedisLeases(client), pool.disconnect)

    async def take(self, key: str, limit: int, cost: int) -> bool:
        """Counts `cost` if it fits into `limit`."""
        with _failures():
            return await self._windows.acquire_sliding_window_entry(key, limit, PERIOD_S, cost)

    async def add(self, key: str, amount: int) -> None:
        """Counts `amount`, whether it fits or not; a negative one is given back."""
        with _failures():
            await self._windows.acquire_sliding_window_entry(key, _NO_LIMIT, PERIOD_S, amount)

    async def window(self, key: str) -> Window:
        """The counts as they are."""
        with _failures():
            return Window(*await self._windows.get_sliding_window(key, PERIOD_S))

    async def acquire(self, key: str, limit: int, holder: str) -> bool:
        """Counts one request that runs from here on, if it is not the `limit` + 1st."""
        with _failures():
            return await self._leases.acquire(key, limit, holder)

    async def release(self, key: str, holder: str) -> None:
        """The request has ended; nothing happens where it had not been counted."""
        with _failures():
            await self._leases.release(key, holder)

    async def renew(self) -> None:
        """Says that the requests which were counted here still run: to be called every RENEW_EVERY_S."""
        with _failures():
            await self._leases.renew()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (StorageError, RedisError, OSError, TimeoutError) as error:
        cause = error.__cause__ or error
        raise StoreFailed(type(cause).__name__) from error


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
        """Nothing: they end with the process."""


# A sorted set per key: holder -> when its lease ends, by the server's clock. KEYS: the set.
_ACQUIRE = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""
_RENEW = """
local ends = tonumber(redis.call('TIME')[1]) + ARGV[1]
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', ends, ARGV[i]) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
"""


class _RedisLeases:
    def __init__(self, client: Redis) -> None:
        self._client = client
        self._acquire = client.register_script(_ACQUIRE)
        self._renew = client.register_script(_RENEW)
        self._held: defaultdict[str, set[str]] = defaultdict(set)

    async def acquire(self, key: str, limit: int, holder: str) -> bool:
        got = await cast(Awaitable[int], self._acquire(keys=[_lease(key)], args=[limit, LEASE_S, holder]))
        if got:
            self._held[key].add(holder)
        return bool(got)

    async def release(self, key: str, holder: str) -> None:
        held = self._held.get(key, set())
        held.discard(holder)
        if not held:
            self._held.pop(key, None)
        await self._client.zrem(_lease(key), holder)

    async def renew(self) -> None:
        held = {key: list(holders) for key, holders in self._held.items()}
        scripts = (self._renew(keys=[_lease(key)], args=[LEASE_S, *holders]) for key, holders in held.items())
        await asyncio.gather(*cast("Iterator[Awaitable[int]]", scripts))


def _lease(key: str) -> str:
    return f"{_PREFIX}:leases:{key}"
