"""Connections to servers, kept between requests."""

import asyncio
import ssl
from functools import cache

from aiohappyeyeballs import start_connection

from app.upstream.http.addresses import Addresses
from app.upstream.http.connection import Connection
from app.upstream.http.errors import ConnectTimedOut, NotConnected
from app.upstream.http.request import Origin

KEEP_ALIVE_S = 15.0
"""Seconds for which an idle connection is kept."""

_NEXT_FAMILY_S = 0.25
"""Seconds for which an address is tried before one of the other family is tried in parallel (RFC 8305, 5)."""


class Pool:
    """As many connections as there are requests at once: admission bounds those, and a bound here would queue them."""

    def __init__(self, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self._keep_alive_s = keep_alive_s
        self._idle: dict[Origin, list[tuple[float, Connection]]] = {}
        self._busy: set[Connection] = set()
        self._addresses = Addresses()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def idle(self, origin: Origin) -> Connection | None:
        """The connection that was used last: the others may then be closed, by age."""
        waiting = self._idle.get(origin)
        while waiting:
            since, connection = waiting.pop()
            if connection.is_open and asyncio.get_running_loop().time() - since <= self._keep_alive_s:
                self._busy.add(connection)
                return connection
            connection.close()
        return None

    async def connected(self, origin: Origin, within_s: float) -> Connection:
        """A new connection. Raises NotConnected and ConnectTimedOut."""
        try:
            async with asyncio.timeout(within_s):
                connection = await self._connect(origin)
        except TimeoutError as error:
            raise ConnectTimedOut("Connecting took too long") from error
        except (OSError, ValueError) as error:
            raise NotConnected("No connection could be made") from error
        if self._is_closed:
            connection.close()
            raise NotConnected("The client is closed")
        self._busy.add(connection)
        return connection

    async def _connect(self, origin: Origin) -> Connection:
        loop = asyncio.get_running_loop()
        addresses = await self._addresses.of(origin.host, origin.port)
        connection = Connection(loop)
        tls = await asyncio.to_thread(_tls) if origin.is_tls else None
        name = origin.host.rstrip(".") if origin.is_tls else None  # certificates have no final dot
        sock = await start_connection(addresses, happy_eyeballs_delay=_NEXT_FAMILY_S, interleave=1, loop=loop)
        await loop.create_connection(lambda: connection, sock=sock, ssl=tls, server_hostname=name)
        return connection

    def release(self, origin: Origin, connection: Connection) -> None:
        """Takes a connection back after a request; keeps it for the next one if the response was complete."""
        self._busy.discard(connection)
        if self._is_closed or not connection.is_reusable:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        self._idle.setdefault(origin, []).append((loop.time(), connection))
        if self._timer is None:
            self._timer = loop.call_later(self._keep_alive_s, self._sweep)

    def close(self) -> None:
        """Closes all connections, those in use too."""
        self._is_closed = True
        self._addresses.close()
        if self._timer is not None:
            self._timer.cancel()
        for connection in [*self._busy, *(it for waiting in self._idle.values() for _, it in waiting)]:
            connection.close()
        self._idle.clear()

    def _sweep(self) -> None:
        """Closes connections that were idle for too long."""
        loop = asyncio.get_running_loop()
        old = loop.time() - self._keep_alive_s
        for origin, waiting in list(self._idle.items()):
            for _, connection in (it for it in waiting if it[0] <= old or not it[1].is_open):
                connection.close()
            kept = [it for it in waiting if it[0] > old and it[1].is_open]
            self._idle[origin] = kept
            if not kept:
                del self._idle[origin]
        self._timer = loop.call_later(self._keep_alive_s, self._sweep) if self._idle else None


@cache
def _tls() -> ssl.SSLContext:
    """A context with the system's authorities. Reading them takes tens of milliseconds."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
