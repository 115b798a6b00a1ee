"""An HTTP client: requests and their responses.

- Builds the head of a request.
- Name resolution with a short cache.
- Connections to servers, kept between requests.
"""

import asyncio
import socket
import ssl
import time
from base64 import b64encode
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple
from urllib.parse import urljoin

from aiohappyeyeballs import AddrInfoType, start_connection
from yarl import URL

from app.internal_api import INTERNAL_KEY_HEADER, PROBES, SILENT_S
from app.upstream.http.connection import (
    Connection,
    ConnectTimedOut,
    Disconnected,
    Filter,
    Malformed,
    NotConnected,
    Take,
)

_MOST_URLS = 16384
"""Paths of hundreds of replicas."""


class Origin(NamedTuple):
    """The server of a connection. `host` is a name, or an address without brackets."""

    is_tls: bool
    host: str
    port: int


class ParsedUrl(NamedTuple):
    """A parsed URL: the server, the path, and the headers that are the same in every request to it."""

    origin: Origin
    path: str
    fixed: str

    def head(self, method: str, headers: Mapping[str, str], length: int | None) -> bytes:
        """The request line and the headers; `length` is the body's, None without one.

        Raises ValueError for a header that would end its line.
        """
        varying = "\r\n".join(map(": ".join, headers.items()))
        breaks = max(len(headers) - 1, 0)
        if varying.count("\n") != breaks or varying.count("\r") != breaks or "\0" in varying:
            raise ValueError("A header of a request holds a line break or a null byte")
        counted = "" if length is None else f"Content-Length: {length}\r\n"
        end = f"{varying}\r\n\r\n" if headers else "\r\n"
        return f"{method} {self.path} HTTP/1.1\r\n{self.fixed}{counted}{end}".encode()


@lru_cache(_MOST_URLS)
def place(url: str) -> ParsedUrl:
    """Parses a URL. Raises ValueError if it is not an absolute HTTP URL."""
    parsed = URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.raw_host or parsed.port is None:
        raise ValueError("Not a URL of HTTP")
    origin = Origin(parsed.scheme == "https", parsed.raw_host, parsed.port)
    fixed = f"Host: {parsed.host_port_subcomponent}\r\nAccept: */*\r\n"
    if parsed.user or parsed.password:
        credentials = b64encode(f"{parsed.user or ''}:{parsed.password or ''}".encode()).decode()
        fixed += f"Authorization: Basic {credentials}\r\n"
    return ParsedUrl(origin, parsed.raw_path_qs, fixed)


FRESH_S = 10.0
"""Seconds for which a name's addresses are used before it is looked up again."""


class _Found(NamedTuple):
    until: float
    addresses: deque[AddrInfoType]


LookUp = Callable[[str, int], Coroutine[Any, Any, deque[AddrInfoType]]]


class Addresses:
    """Looks names up, once for concurrent connections, and rotates through the addresses. `look_up` raises OSError."""

    def __init__(self, fresh_s: float = FRESH_S, look_up: LookUp | None = None) -> None:
        self._fresh_s, self._look_up = fresh_s, look_up or _looked_up
        self._found: dict[tuple[str, int], _Found] = {}
        self._lookups: dict[tuple[str, int], asyncio.Task[deque[AddrInfoType]]] = {}

    async def of(self, host: str, port: int) -> list[AddrInfoType]:
        """All addresses of a host, in the order in which to try them. Raises OSError."""
        loop, key = asyncio.get_running_loop(), (host, port)
        entry = self._found.get(key)
        if entry is None or entry.until < loop.time():
            if (lookup := self._lookups.get(key)) is None:
                lookup = self._lookups[key] = asyncio.create_task(self._look_up(host, port))
                lookup.add_done_callback(lambda done: self._ended(key, done))
            # Shielded: others wait for the same one.
            entry = self._found[key] = _Found(loop.time() + self._fresh_s, await asyncio.shield(lookup))
        entry.addresses.rotate(-1)
        return list(entry.addresses)

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


KEEP_ALIVE_S = 15.0
"""Seconds for which an idle connection is kept."""

_NEXT_FAMILY_S = 0.25
"""Seconds for which an address is tried before one of the other family is tried in parallel (RFC 8305, 5)."""


_SILENT = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_S - PROBES * (SILENT_S // 5)),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENT_S // 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1000),
)
"""Options of a socket, which fails when the other machine has acknowledged nothing for `SILENT_S` (tcp(7))."""


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
            if connection.is_open and time.monotonic() - since <= self._keep_alive_s:
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
        tls = await asyncio.to_thread(tls_context) if origin.is_tls else None
        name = origin.host.rstrip(".") if origin.is_tls else None  # certificates have no final dot
        sock = await start_connection(addresses, happy_eyeballs_delay=_NEXT_FAMILY_S, interleave=1, loop=loop)
        for level, option, value in _SILENT:
            sock.setsockopt(level, option, value)
        await loop.create_connection(lambda: connection, sock=sock, ssl=tls, server_hostname=name)
        return connection

    def release(self, origin: Origin, connection: Connection) -> None:
        """Takes a connection back after a request; keeps it for the next one if the response was complete."""
        self._busy.discard(connection)
        if self._is_closed or not connection.is_reusable:
            connection.close()
            return
        self._idle.setdefault(origin, []).append((time.monotonic(), connection))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._keep_alive_s, self._sweep)

    def close(self) -> None:
        """Closes all connections, those in use too."""
        self._is_closed = True
        self._addresses.close()
        if self._timer is not None:
            self._timer.cancel()
        for connection in [*self._busy, *(connection for waiting in self._idle.values() for _, connection in waiting)]:
            connection.close()
        self._idle.clear()

    def _sweep(self) -> None:
        """Closes connections that were idle for too long."""
        old = time.monotonic() - self._keep_alive_s
        for origin, waiting in list(self._idle.items()):
            for _, connection in (idle for idle in waiting if idle[0] <= old or not idle[1].is_open):
                connection.close()
            kept = [idle for idle in waiting if idle[0] > old and idle[1].is_open]
            self._idle[origin] = kept
            if not kept:
                del self._idle[origin]
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._keep_alive_s, self._sweep) if self._idle else None


@cache
def tls_context() -> ssl.SSLContext:
    """A context with the system's authorities. Reading them takes tens of milliseconds."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


_MOST_REDIRECTS = 10
_REDIRECTS = frozenset({307, 308})
"""The redirects that keep the method and the body. The others would turn a POST into a GET."""

_LONG_BODY = 1024 * 1024
"""Bytes of a body that are joined in a thread."""

_CREDENTIALS = frozenset({"authorization", INTERNAL_KEY_HEADER})


class Response:
    """The head of a response, and its body as it arrives. `headers` have names in lower case.

    `close` it in any case: the connection then waits for the next request if the body had come to its end, and is
    closed otherwise, which stops the server. `on_close` is told then whether the server had ended it too early.
    """

    __slots__ = ("_connection", "_origin", "_pool", "headers", "on_close", "status")

    def __init__(self, pool: Pool, origin: Origin, connection: Connection) -> None:
        self._pool, self._origin = pool, origin
        self._connection: Connection | None = connection
        self.status, self.headers = connection.status, connection.headers
        self.on_close: Callable[[bool], None] | None = None

    @property
    def media_type(self) -> str:
        return _media_type(self.headers.get("content-type", ""))

    def read(self, most: int | None = None) -> Awaitable[bytes]:
        """The next bytes, as soon as there are any, `most` at a time; b"" after the end. Raises HttpError."""
        assert self._connection is not None, "closed"
        return self._connection.read(most)

    def each(self, take: Take, filter: Filter | None = None) -> Awaitable[bytes]:
        """Calls `take` with each part of the body but the last, which it returns. See `Connection.each`."""
        assert self._connection is not None, "closed"
        return self._connection.each(take, filter)

    def unread(self, part: bytes) -> None:
        """Puts back the part that was read last."""
        assert self._connection is not None, "closed"
        self._connection.unread(part)

    async def whole(self) -> bytes:
        """The rest of the body. Raises HttpError."""
        parts: list[bytes] = []
        while part := await self.read():
            parts.append(part)
        # `bytes.join` of megabytes releases the interpreter's lock.
        return await asyncio.to_thread(b"".join, parts) if sum(map(len, parts)) > _LONG_BODY else b"".join(parts)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if self.on_close is not None:
                self.on_close(connection.has_failed)
            self._pool.release(self._origin, connection)


@lru_cache(maxsize=64)
def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


class HttpClient:
    """A client for one event loop. Follows redirects that keep the request as it is."""

    def __init__(self) -> None:
        self._pool = Pool()

    def close(self) -> None:
        """Closes all connections at once."""
        self._pool.close()

    def post(
        self, url: str, headers: Mapping[str, str], body: bytes, connect_s: float, at_head: bool = False
    ) -> Awaitable[Response]:
        """Sends a POST once: a server may work on a request without answering it. Raises HttpError and ValueError.

        `at_head`: returns the response once its head is there, not when there is something to read."""
        return self._followed("POST", url, headers, body, connect_s, at_head)

    async def get(
        self, url: str, headers: Mapping[str, str], connect_s: float, redirects: int = _MOST_REDIRECTS
    ) -> Response:
        """Sends a GET, again if an idle connection turns out to be closed. Raises HttpError and ValueError."""
        try:
            return await self._followed("GET", url, headers, None, connect_s, redirects=redirects)
        except Disconnected:
            return await self._followed("GET", url, headers, None, connect_s, redirects=redirects)

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, connect_s: float
    ) -> Awaitable[Response]:
        """Sends a request of any method once, and follows no redirect. Raises HttpError and ValueError."""
        return self._followed(method, url, headers, body, connect_s, redirects=0)

    async def _followed(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        connect_s: float,
        at_head: bool = False,
        redirects: int = _MOST_REDIRECTS,
    ) -> Response:
        for _ in range(redirects or 1):
            at = place(url)
            head = at.head(method, headers, None if body is None else len(body))
            connection = self._pool.idle(at.origin) or await self._pool.connected(at.origin, connect_s)
            try:
                connection.send(head, body or b"")
                await (connection.wait_for_head() if at_head else connection.wait_for_response())
            except BaseException:
                self._pool.release(at.origin, connection)
                raise
            response = Response(self._pool, at.origin, connection)
            location = response.headers.get("location") if response.status in _REDIRECTS else None
            if location is None or not redirects:
                return response
            response.close()
            url = urljoin(url, location)
            if not _same_server(at.origin, place(url).origin):
                headers = {name: value for name, value in headers.items() if name not in _CREDENTIALS}
        raise Malformed("The server redirects in circles")


def _same_server(one: Origin, other: Origin) -> bool:
    """Whether a redirect stays on the same server, with TLS or without: credentials may be sent on."""
    return one == other or (one.host == other.host and other.is_tls and not one.is_tls)
