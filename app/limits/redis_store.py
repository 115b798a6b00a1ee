"""Limits that several routers count together, in a Redis or Valkey."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from limits.aio.storage import RedisStorage
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from app.limits.store import LEASE_S, Store, StoreFailed

_TIMEOUT_S = 0.5
"""Seconds that a request waits for the store before the store counts as down."""

_CONNECTIONS = 64
_PREFIX = "switchyard"


def shared_store(url: str, *, lease_s: int = LEASE_S, timeout_s: float = _TIMEOUT_S) -> Store:
    """The counts at `url` (redis://, rediss://, valkey:// or valkeys://), connected on first use.

    Raises ValueError if it is not such a URL.
    """
    url = url.replace("valkey", "redis", 1) if url.startswith("valkey") else url
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=_CONNECTIONS,
        timeout=timeout_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        # Retries on a connection that the server has closed; not after a timeout, which may have counted.
        retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
    )
    options: dict[str, Any] = {"connection_pool": pool, "wrap_exceptions": True}
    windows = RedisStorage(f"async+{url}", implementation="redispy", key_prefix=_PREFIX, **options)

    async def close() -> None:
        with _failures():
            await pool.disconnect()

    return Store(windows, _RedisLeases(Redis(connection_pool=pool), lease_s), close)


# A sorted set per key: holder -> when its lease ends, by the server's clock. KEYS: the set.
_ACQUIRE = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""

_HELD = """
return redis.call('ZCOUNT', KEYS[1], '(' .. redis.call('TIME')[1], '+inf')
"""

_RENEW = """
local ends = tonumber(redis.call('TIME')[1]) + ARGV[1]
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', ends, ARGV[i]) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
"""


class _RedisLeases:
    def __init__(self, client: Redis, lease_s: int) -> None:
        self._client, self._lease_s = client, lease_s
        self._acquire = client.register_script(_ACQUIRE)
        self._held_by_all = client.register_script(_HELD)
        self._renew = client.register_script(_RENEW)
        self._held: defaultdict[str, set[str]] = defaultdict(set)

    async def acquire(self, key: str, limit: int, holder: str) -> bool:
        with _failures():
            got = await cast(Awaitable[int], self._acquire(keys=[_lease(key)], args=[limit, self._lease_s, holder]))
        if got:
            self._held[key].add(holder)
        return bool(got)

    async def release(self, key: str, holder: str) -> None:
        held = self._held.get(key, set())
        held.discard(holder)
        if not held:
            self._held.pop(key, None)
        with _failures():
            await self._client.zrem(_lease(key), holder)

    async def held(self, key: str) -> int:
        with _failures():
            return await cast(Awaitable[int], self._held_by_all(keys=[_lease(key)]))

    async def renew(self) -> None:
        held = {key: list(holders) for key, holders in self._held.items()}
        scripts = (self._renew(keys=[_lease(key)], args=[self._lease_s, *holders]) for key, holders in held.items())
        with _failures():
            await asyncio.gather(*cast("Iterator[Awaitable[int]]", scripts))


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise StoreFailed(type(error).__name__) from error


def _lease(key: str) -> str:
    return f"{_PREFIX}:leases:{key}"
