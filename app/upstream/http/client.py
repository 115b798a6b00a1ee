"""An HTTP client: requests and their responses."""

from collections.abc import Awaitable, Mapping
from functools import lru_cache
from urllib.parse import urljoin

from app.internal_api import INTERNAL_KEY_HEADER
from app.upstream.http.connection import Connection, Take
from app.upstream.http.errors import Disconnected, Malformed
from app.upstream.http.pool import Pool
from app.upstream.http.request import Origin, Place, place

_MOST_REDIRECTS = 10
_REDIRECTS = frozenset({307, 308})
"""The redirects that keep the method and the body. The others would turn a POST into a GET."""

_CREDENTIALS = frozenset({"authorization", INTERNAL_KEY_HEADER})


class Response:
    """The head of a response, and its body as it arrives. `headers` have names in lower case.

    `close` it in any case: the connection then waits for the next request if the body had come to its end, and is
    closed otherwise, which stops the server.
    """

    __slots__ = ("_connection", "_origin", "_pool", "headers", "status")

    def __init__(self, pool: Pool, origin: Origin, connection: Connection) -> None:
        self._pool, self._origin = pool, origin
        self._connection: Connection | None = connection
        self.status, self.headers = connection.status, connection.headers

    @property
    def media_type(self) -> str:
        return _media_type(self.headers.get("content-type", ""))

    def read(self) -> Awaitable[bytes]:
        """The next bytes, as soon as there are any; b"" after the end. Raises HttpError."""
        assert self._connection is not None, "closed"
        return self._connection.read()

    def each(self, take: Take) -> Awaitable[bytes]:
        """Calls `take` with each part of the body but the last, which it returns. See `Connection.each`."""
        assert self._connection is not None, "closed"
        return self._connection.each(take)

    def unread(self, part: bytes) -> None:
        """Puts back the part that was read last."""
        assert self._connection is not None, "closed"
        self._connection.unread(part)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
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

    def post(self, url: str, headers: Mapping[str, str], body: bytes, connect_s: float) -> Awaitable[Response]:
        """Sends a POST once: a server may work on a request without answering it. Raises HttpError and ValueError."""
        return self._followed("POST", url, headers, body, connect_s)

    async def get(self, url: str, headers: Mapping[str, str], connect_s: float) -> Response:
        """Sends a GET, again if an idle connection turns out to be closed. Raises HttpError and ValueError."""
        try:
            return await self._followed("GET", url, headers, None, connect_s)
        except Disconnected:
            return await self._followed("GET", url, headers, None, connect_s)

    async def _followed(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, connect_s: float
    ) -> Response:
        for _ in range(_MOST_REDIRECTS):
            at = place(url)
            response = await self._sent(method, at, headers, body, connect_s)
            if response.status not in _REDIRECTS or (location := response.headers.get("location")) is None:
                return response
            response.close()
            url = urljoin(url, location)
            if not _same_server(at.origin, place(url).origin):
                headers = {name: value for name, value in headers.items() if name not in _CREDENTIALS}
        raise Malformed("The server redirects in circles")

    async def _sent(
        self, method: str, at: Place, headers: Mapping[str, str], body: bytes | None, connect_s: float
    ) -> Response:
        head = at.head(method, headers, None if body is None else len(body))
        connection = self._pool.idle(at.origin) or await self._pool.connected(at.origin, connect_s)
        try:
            connection.send(head, body or b"")
            await connection.wait_for_response()
        except BaseException:
            self._pool.release(at.origin, connection)
            raise
        return Response(self._pool, at.origin, connection)


def _same_server(one: Origin, other: Origin) -> bool:
    """Whether a redirect stays on the same server, with TLS or without: credentials may be sent on."""
    return one == other or (one.host == other.host and other.is_tls and not one.is_tls)
