"""The one seam to deployments: HTTP calls.

Every failure on the wire is raised as one of our errors. Timeouts up to the first byte are applied here, those after it
by the exchange.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

import aiohttp
from pydantic_core import to_json

from app.config.schema import Timeouts
from app.engine.errors import engine_error, error_in_first_chunk
from app.engine.model import Model
from app.errors import Broken, Incomplete, SwitchyardError, TimedOut, Unavailable, Unreachable
from app.internal_api import INTERNAL_KEY_HEADER, NO_ROUTE_HEADER, NO_SERVER_HEADER
from app.time_limit import within
from app.upstream.model_cache import FRESH_S, MAX_WAIT_S, CardResponse, ModelCache
from app.upstream.target import Target

_MAX_ERROR_BYTES = 64 * 1024
_LONG_ANSWER = 1024 * 1024

_BACKPRESSURE = b"Request dropped due to backpressure"
"""Ray Serve's answer, as plain text, when a replica's queue is full (`max_queued_requests`): busy is well."""

_UNKNOWN_S = 0.1
"""Between two attempts at an ingress that does not know the application yet."""

OnHead = Callable[[Mapping[str, str]], None]
"""Is given a deployment's response headers, whose names have no case."""

NO_CONTEXT: Mapping[str, str] = {}


class Upstream:
    """The connections to deployments. One per process; an async context manager that opens and closes them.

    Each call POSTs a body with the target's own model name; bytes are sent as they are. It raises Rejected if the
    deployment rejects the request and UpstreamError if it fails, both before the first byte of a response. `context`:
    headers of this request beside the target's: of its trace, its key for the ingress.
    """

    def __init__(self, *, model_fresh_s: float = FRESH_S, model_max_wait_s: float = MAX_WAIT_S) -> None:
        """See `ModelCache`; both in seconds."""
        self._open: aiohttp.ClientSession | None = None
        self._models = ModelCache(self._get, fresh_s=model_fresh_s, max_wait_s=model_max_wait_s)

    async def __aenter__(self) -> Self:
        self._open = aiohttp.ClientSession(
            # Admission bounds concurrent requests; a second bound here would queue them unseen.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15),
            cookie_jar=aiohttp.DummyCookieJar(),  # cookies of one response must not reach another caller's request
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._models.close()
        await self._session.close()

    @property
    def _session(self) -> aiohttp.ClientSession:
        assert self._open is not None, "entered by the application's lifespan"
        return self._open

    async def unary(
        self,
        target: Target,
        path: str,
        body: Mapping[str, Any],
        *,
        request_id: str,
        timeouts: Timeouts,
        context: Mapping[str, str] = NO_CONTEXT,
        on_head: OnHead | None = None,
    ) -> bytes:
        """The whole response: a JSON object, or empty. `on_head` gets the headers of a response with status 200."""
        with _translated(target):
            async with within(timeouts.first_byte_s):
                response = await self._post(target, path, body, request_id, timeouts, context)
                async with response:
                    if response.status != 200:
                        raise await _error(response, target)
                    if on_head is not None:
                        on_head(response.headers)
                    answer = await _whole(response)
        # A proxy in between can turn a broken response into one that ends in order.
        if response.content_type.endswith("json") and not answer.rstrip().endswith(b"}"):
            raise Incomplete(f"Deployment '{target.name}' ended its response before it was complete")
        return answer

    @asynccontextmanager
    async def stream(
        self,
        target: Target,
        path: str,
        body: Mapping[str, Any] | bytes,
        *,
        request_id: str,
        timeouts: Timeouts,
        context: Mapping[str, str] = NO_CONTEXT,
        on_head: OnHead | None = None,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The response's chunks as they arrive; entered with the first one. `on_head` as in `unary`.

        The iterator raises UpstreamError. Leaving the block early closes the connection, which stops the engine.
        """
        with _translated(target):
            async with within(timeouts.first_byte_s):
                response = await self._post(target, path, body, request_id, timeouts, context)
                try:
                    if response.status != 200:
                        raise await _error(response, target)
                    if on_head is not None:
                        on_head(response.headers)
                    first = await response.content.readany()
                    if (error := error_in_first_chunk(first)) is not None:
                        raise error
                except BaseException:
                    response.close()
                    raise
        try:
            if not first:
                raise Incomplete(f"Deployment '{target.name}' returned an empty response")
            yield _chunks(response, first, target)
        finally:
            # After the body's end the connection is already back in the pool and this does nothing.
            response.close()

    async def _post(
        self,
        target: Target,
        path: str,
        body: Mapping[str, Any] | bytes,
        request_id: str,
        timeouts: Timeouts,
        context: Mapping[str, str],
    ) -> aiohttp.ClientResponse:
        headers = {**target.headers, **context, "content-type": "application/json", "x-request-id": request_id}
        data = body if isinstance(body, bytes) else encoded(body, target)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect_s)
        patience = _Patience(timeouts.connect_s)
        while True:
            try:
                response = await self._session.post(target.url + path, data=data, headers=headers, timeout=limits)
            except aiohttp.ClientConnectorError:
                if INTERNAL_KEY_HEADER not in target.headers:  # not an application behind the ingress of this node
                    raise
            else:
                if NO_ROUTE_HEADER not in response.headers:
                    return response
                response.close()
            await patience.wait(target)

    async def model(self, target: Target, timeouts: Timeouts) -> Model:
        """The model of `target`. Raises UpstreamError if the deployment does not describe it."""
        return await self._models.of(target, timeouts)

    async def _get(self, target: Target, path: str, etag: str | None, timeouts: Timeouts) -> CardResponse | None:
        headers = {**target.headers, **({"if-none-match": etag} if etag else {})}
        with _translated(target):
            async with (
                asyncio.timeout(timeouts.first_byte_s),
                self._session.get(target.url + path, headers=headers) as response,
            ):
                if response.status == 304:
                    return None
                if NO_ROUTE_HEADER in response.headers:
                    raise Unavailable(f"Deployment '{target.name}' is not available")
                if response.status != 200:
                    raise await _error(response, target)
                return CardResponse(await response.read(), response.headers.get("etag"))

    async def probe(self, target: Target, timeout_s: float) -> bool:
        """Whether the deployment reports that it is healthy."""
        limits = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.get(f"{target.url}/health", headers=target.headers, timeout=limits) as response:
                return response.status < 500 and response.status not in (401, 403)
        except (aiohttp.ClientError, TimeoutError):
            return False


class _Patience:
    """The ingress of a new node takes no connections for a moment, and then knows no application.

    Nobody has seen the request: it may be sent again.

    For `wait_s` seconds from the first `wait` on.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._until: float | None = None

    async def wait(self, target: Target) -> None:
        """A moment. Raises Unavailable where there have been enough of them."""
        now = asyncio.get_running_loop().time()
        self._until = self._until or now + self._wait_s
        if now >= self._until:
            raise Unavailable(f"Deployment '{target.name}' is not available")
        await asyncio.sleep(_UNKNOWN_S)


def encoded(body: Mapping[str, Any], target: Target) -> bytes:
    """The body as it is sent to the target."""
    return to_json({**body, "model": target.model})


async def _chunks(response: aiohttp.ClientResponse, first: bytes, target: Target) -> AsyncIterator[bytes]:
    yield first
    with _translated(target):
        while chunk := await response.content.readany():
            yield chunk


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    while part := await response.content.readany():
        parts.append(part)
    # A join of megabytes lets go of the interpreter's lock.
    return await asyncio.to_thread(b"".join, parts) if sum(map(len, parts)) > _LONG_ANSWER else b"".join(parts)


async def _error(response: aiohttp.ClientResponse, target: Target) -> SwitchyardError:
    body = await response.content.read(_MAX_ERROR_BYTES)
    status = response.status
    if status in (401, 403):
        return Broken(f"Deployment '{target.name}' rejected the router's credentials")
    if status == 503 and body == _BACKPRESSURE:
        return Unavailable(f"Deployment '{target.name}' is at capacity", retry_after=1)
    if NO_SERVER_HEADER in response.headers or (status >= 500 and not response.content_type.endswith("json")):
        # Not the engine's own error: the ingress in front of it has no replica.
        return Unavailable(f"Deployment '{target.name}' is not available")
    if status in (429, 503):
        return Unavailable(f"Deployment '{target.name}' is at capacity", retry_after=1)
    return engine_error(body, status)


@contextmanager
def _translated(target: Target) -> Iterator[None]:
    """aiohttp's exceptions as ours, the most specific first. The messages, which clients see, hold no address."""
    name = f"Deployment '{target.name}'"
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise TimedOut(f"Timed out connecting to deployment '{target.name}'") from error
    except (aiohttp.ServerTimeoutError, TimeoutError) as error:
        raise TimedOut(f"{name} did not respond in time") from error
    except aiohttp.ClientConnectorError as error:
        raise Unreachable(f"{name} is not available") from error
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
        raise Unavailable(f"{name} is not available") from error
    except (aiohttp.ClientError, ValueError) as error:
        raise Incomplete(f"{name} ended its response before it was complete") from error
