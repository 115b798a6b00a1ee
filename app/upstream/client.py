"""The one seam to deployments: HTTP calls.

Every failure on the wire is raised as one of our errors. Timeouts up to the first byte are applied here, those after it
by the exchange.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Self

from pydantic_core import to_json

from app.aio import within
from app.config.schema import Timeouts
from app.engine.answers import QUESTIONS, checked_answer
from app.engine.model import Model
from app.errors import Rejected, Unavailable
from app.internal_api import INTERNAL_KEY_HEADER, NO_ROUTE_HEADER
from app.long_json import written
from app.upstream.failures import failed, incomplete, translated
from app.upstream.http.client import HttpClient, Response
from app.upstream.http.errors import HttpError, NotConnected
from app.upstream.model_cache import FRESH_S, MAX_WAIT_S, CardResponse, ModelCache
from app.upstream.stream import OnHead, ResponseStream
from app.upstream.target import Target

_LONG_ANSWER = 1024 * 1024

_UNKNOWN_S = 0.1
"""Seconds between two attempts at an ingress that does not know the application yet."""

NO_CONTEXT: Mapping[str, str] = {}

Encode = Callable[[Mapping[str, Any], Target], Awaitable[bytes]]
"""Does what `encoded` does for a long body, in a thread."""


class Upstream:
    """The connections to deployments. One per process; an async context manager that opens and closes them.

    Each call POSTs a body with the target's own model name; bytes are sent as they are. `QUESTIONS` are GETs. It raises
    Rejected if the deployment rejects the request and UpstreamError if it fails, both before the first byte of a
    response. `context`: headers of this request in addition to the target's: its trace, its key for the ingress.
    `encode` writes the body.
    """

    def __init__(self, *, model_fresh_s: float = FRESH_S, model_max_wait_s: float = MAX_WAIT_S) -> None:
        """See `ModelCache`; both in seconds."""
        self._open: HttpClient | None = None
        self._models = ModelCache(self._get, fresh_s=model_fresh_s, max_wait_s=model_max_wait_s)

    async def __aenter__(self) -> Self:
        self._open = HttpClient()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._models.close()
        self._http.close()

    @property
    def _http(self) -> HttpClient:
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
        encode: Encode | None = None,
    ) -> bytes:
        """The whole response, by `checked_answer`. `on_head` gets the headers of a response with status 200."""
        with translated(target):
            async with within(timeouts.first_byte_s):
                response = await self._post(target, path, body, request_id, timeouts, context, encode)
                try:
                    if response.status == 404 and path in QUESTIONS:  # a route that engines may have
                        raise Rejected(f"Deployment '{target.name}' does not tell this", status=404)
                    if response.status != 200:
                        raise await failed(response, target)
                    if on_head is not None:
                        on_head(response.headers)
                    answer = await _whole(response)
                finally:
                    response.close()
        # A proxy in between can turn a broken response into one that ends in order.
        if response.media_type.endswith("json") and not answer.rstrip().endswith(b"}"):
            raise incomplete(target)
        check = partial(checked_answer, path, answer, response.media_type, body)
        return await asyncio.to_thread(check) if len(answer) > _LONG_ANSWER else check()

    def stream(
        self,
        target: Target,
        path: str,
        body: Mapping[str, Any] | bytes,
        *,
        request_id: str,
        timeouts: Timeouts,
        context: Mapping[str, str] = NO_CONTEXT,
        on_head: OnHead | None = None,
        encode: Encode | None = None,
    ) -> ResponseStream:
        """The response's chunks as they arrive: see `ResponseStream`. `on_head` as in `unary`."""
        send = partial(self._post, target, path, body, request_id, timeouts, context, encode)
        request = None if isinstance(body, bytes) else body
        return ResponseStream(send, target, path, request, timeouts.first_byte_s, on_head)

    async def _post(
        self,
        target: Target,
        path: str,
        body: Mapping[str, Any] | bytes,
        request_id: str,
        timeouts: Timeouts,
        context: Mapping[str, str],
        encode: Encode | None,
    ) -> Response:
        headers = {**target.headers, **context, "x-request-id": request_id}
        url, connect_s = target.url + path, timeouts.connect_s
        send: Callable[[], Awaitable[Response]]
        if path in QUESTIONS:
            send = partial(self._http.get, url, headers, connect_s)
        else:
            if isinstance(body, bytes):
                data = body
            else:
                data = encoded(body, target) if encode is None else await encode(body, target)
            headers["content-type"] = "application/json"
            send = partial(self._http.post, url, headers, data, connect_s)
        patience = _Patience(timeouts.connect_s)
        while True:
            try:
                response = await send()
            except NotConnected:
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
        with translated(target):
            async with within(timeouts.first_byte_s):
                response = await self._http.get(target.url + path, headers, timeouts.connect_s)
                try:
                    if response.status == 304:
                        return None
                    if NO_ROUTE_HEADER in response.headers:
                        raise Unavailable(f"Deployment '{target.name}' is not available")
                    if response.status != 200:
                        raise await failed(response, target)
                    return CardResponse(await _whole(response), response.headers.get("etag"))
                finally:
                    response.close()

    async def probe(self, target: Target, timeout_s: float) -> bool:
        """Whether the deployment reports that it is healthy."""
        try:
            async with within(timeout_s):
                response = await self._http.get(f"{target.url}/health", target.headers, timeout_s)
        except (HttpError, TimeoutError, ValueError):
            return False
        response.close()
        return response.status < 500 and response.status not in (401, 403)


class _Patience:
    """Retries requests to the ingress of a new node for `wait_s` seconds from the first `wait` on.

    For a moment such an ingress takes no connections, and then knows no application. No application has seen the
    request, so that it may be sent again.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._until: float | None = None

    async def wait(self, target: Target) -> None:
        """Waits for a moment. Raises Unavailable once the time is over."""
        now = asyncio.get_running_loop().time()
        self._until = self._until or now + self._wait_s
        if now >= self._until:
            raise Unavailable(f"Deployment '{target.name}' is not available")
        await asyncio.sleep(_UNKNOWN_S)


def encoded(body: Mapping[str, Any], target: Target) -> bytes:
    """The body as it is sent to the target."""
    return to_json({**body, "model": target.model})


def encoded_in_pieces(body: Mapping[str, Any], target: Target) -> bytes:
    """The same, for a thread: other threads run meanwhile."""
    return written({**body, "model": target.model})


async def _whole(response: Response) -> bytes:
    parts: list[bytes] = []
    while part := await response.read():
        parts.append(part)
    # A join of megabytes lets go of the interpreter's lock.
    return await asyncio.to_thread(b"".join, parts) if sum(map(len, parts)) > _LONG_ANSWER else b"".join(parts)
