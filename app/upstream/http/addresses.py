"""Name resolution with a short cache."""

import asyncio
import socket
from collections import deque
from typing import NamedTuple

from aiohappyeyeballs import AddrInfoType

FRESH_S = 10.0
"""Seconds for which a name's addresses are used before it is looked up again."""


class _Found(NamedTuple):
    until: float
    addresses: deque[AddrInfoType]


class Addresses:
    """Looks names up, once for concurrent connections, and rotates through the addresses."""

    def __init__(self, fresh_s: float = FRESH_S) -> None:
        self._fresh_s = fresh_s
        self._found: dict[tuple[str, int], _Found] = {}
        self._lookups: dict[tuple[str, int], asyncio.Task[deque[AddrInfoType]]] = {}

    async def of(self, host: str, port: int) -> list[AddrInfoType]:
        """All addresses of a host, in the order in which to try them. Raises OSError."""
        loop, key = asyncio.get_running_loop(), (host, port)
        found = self._found.get(key)
        if found is None or found.until < loop.time():
            if (lookup := self._lookups.get(key)) is None:
                lookup = self._lookups[key] = asyncio.create_task(_looked_up(host, port))
                lookup.add_done_callback(lambda done: self._ended(key, done))
            # Shielded: others wait for the same one.
            found = self._found[key] = _Found(loop.time() + self._fresh_s, await asyncio.shield(lookup))
        found.addresses.rotate(-1)
        return list(found.addresses)

    def close(self) -> None:
        """Ends the lookups under way."""
        for lookup in self._lookups.values():
            lookup.cancel()

    def _ended(self, key: tuple[str, int], lookup: asyncio.Task[deque[AddrInfoType]]) -> None:
        del self._lookups[key]
        if not lookup.cancelled():
            lookup.exception()  # the task that waited for it may have been cancelled


async def _looked_up(host: str, port: int) -> deque[AddrInfoType]:
    return deque(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))
