"""The one seam to deployments: HTTP calls.

Every failure on the wire is raised as one of our errors. Timeouts up to the first byte are applied here, those after it
by the exchange.

- Maps failures of deployments to our errors. Messages, which callers see, hold no address.
- A deployment's response while it arrives.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, Self

from pydantic_core import to_json

from app.aio import within
from app.config.schema import Timeouts
from app.engine.answers import EVENT_STREAM, QUESTIONS, Beginning, EventCheck, checked_answer
from app.engine.errors import ENGINE_DIED, MALFORMED_RESPONSE, engine_error, engine_message, error_in_first_chunk
from app.engine.model import Model
from app.errors import (
    AtCapacity,
    Broken,
    Incomplete,
    MalformedAnswer,
    Queued,
    Rejected,
    SwitchyardError,
    TimedOut,
    Unanswered,
    Unavailable,
    Unreachable,
    UpstreamError,
)
from app.internal_api import (
    HEAD_FIRST_HEADER,
    INTERNAL_KEY_HEADER,
    NO_ROUTE_HEADER,
    NO_SERVER_HEADER,
    REPLICA_HEADER,
)
from app.long_json import written
from app.upstream.balancer import Balancer, Placement, Visit
from app.upstream.http.client import HttpClient, Response
from app.upstream.http.connection import PIECE, ConnectTimedOut, Disconnected, HttpError, Malformed, NotConnected, Take
from app.upstream.model_cache import FRESH_S, MAX_WAIT_S, CardResponse, ModelCache
from app.upstream.target import Target

_MAX_ERROR_BYTES = 64 * 1024

_BACKPRESSURE = b"Request dropped due to backpressure"
"""How Ray Serve's answer begins, as plain text, when the queue of a replica is full (`max_queued_requests`), or that of
its own proxy, where requests wait for a replica: `_NUMBERS` follow there. Busy counts as healthy."""

_NUMBERS = b" ("


class translated:
    """Raises the HTTP client's errors, TimeoutError and ValueError of its block as UpstreamError.

    `engine`: which has the request; the block may set it."""

    __slots__ = ("_target", "engine")

    def __init__(self, target: Target) -> None:
        self._target, self.engine = target, ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, HttpError | TimeoutError | ValueError):
            raised = failure(error, self._target)
            raised.engine = self.engine
            raise raised from error


def failure(error: HttpError | TimeoutError | ValueError, target: Target) -> UpstreamError:
    """Our error for one of the HTTP client, or a timeout."""
    match error:
        case ConnectTimedOut():
            return TimedOut(f"Timed out connecting to deployment '{target.name}'")
        case TimeoutError():
            return TimedOut(f"Deployment '{target.name}' did not respond in time")
        case NotConnected():
            return Unreachable(f"Deployment '{target.name}' is not available")
        case Disconnected():
            return Unanswered(f"Deployment '{target.name}' is not available")
    return incomplete(target)


def incomplete(target: Target) -> Incomplete:
    """The error for a response that ends too early: that of an application of ours, with its engine."""
    early = f"Deployment '{target.name}' ended its response before it was complete"
    return Incomplete(ENGINE_DIED if target.app is not None else early)


async def failed(response: Response, target: Target) -> SwitchyardError:
    """The error for a response with another status than 200."""
    body = b""
    while len(body) < _MAX_ERROR_BYTES and (part := await response.read()):
        body += part
    status = response.status
    if status in (401, 403):
        return Broken(f"Deployment '{target.name}' rejected the router's credentials")
    if status == 503 and body.startswith(_BACKPRESSURE):
        kind = Queued if body.startswith(_NUMBERS, len(_BACKPRESSURE)) else AtCapacity
        return kind(f"Deployment '{target.name}' is at capacity", retry_after=1)
    # Not the engine's own errors: the ingress has no replica, or the replica has closed the connection.
    if status >= 500 and (NO_SERVER_HEADER in response.headers or not response.media_type.endswith("json")):
        gone = {502: Unanswered, 503: Unreachable if NO_SERVER_HEADER in response.headers else Unavailable}
        return gone.get(status, Unavailable)(f"Deployment '{target.name}' is not available")
    if status in (429, 503):
        said = engine_message(body)
        return AtCapacity(f"Deployment '{target.name}' is at capacity", retry_after=1, engine_message=said)
    error = engine_error(body, status)
    if isinstance(error, Incomplete):
        error.engine = response.headers.get(REPLICA_HEADER, "")
    return error


OnHead = Callable[[Mapping[str, str]], None]
"""A callback for a deployment's response headers, by lower-case names."""


class EngineLost(Exception):
    """A stream has lost its engine, and another one can continue it: after a failure, or, without one, a hand-over."""

    def __init__(self, failure: UpstreamError | None) -> None:
        self.failure = failure


class Groups(Protocol):
    """The groups of events in a stream whose engine marks them: see `app.exchange.stream.DeliveredStream`."""

    is_marked: bool

    @property
    def tokens(self) -> Sequence[int]: ...

    def headers(self) -> Mapping[str, str]: ...

    def tail(self) -> bytes: ...

    def begin(self, headers: Mapping[str, str]) -> None: ...

    def feed(self, chunk: bytes) -> bytes: ...

    def end(self) -> bytes: ...


class ResponseStream:
    """`begin`, then iterate over the chunks, or call `each`; `close` in any case.

    Where the deployment marks the stream, chunks are whole `groups` of events without the marks, and the methods that
    read raise EngineLost where they raise Incomplete otherwise.

    A class rather than generators: those are registered with the event loop, which costs as much as sending a request.
    """

    __slots__ = (
        "_first_byte_s",
        "_groups",
        "_on_head",
        "_path",
        "_request",
        "_response",
        "_send",
        "_target",
        "_unread",
    )

    def __init__(
        self,
        send: Callable[[bool], Awaitable[Response]],
        target: Target,
        path: str,
        request: Mapping[str, Any] | None,
        first_byte_s: float,
        on_head: OnHead | None,
        groups: Groups | None = None,
    ) -> None:
        """`request`: the body that `send` sends to `path`, if it is known. `send` is told whether the response's head
        is enough for it to return."""
        self._send, self._target, self._path, self._request = send, target, path, request
        self._first_byte_s, self._on_head, self._groups = first_byte_s, on_head, groups
        self._response: Response | None = None
        self._unread = b""
        """Groups that have been put back."""

    async def begin(self, *, events: bool = True, check: EventCheck | None = None) -> None:
        """Sends the request and waits for the first event; without `events`, for the first chunk, or group, for which
        the time begins with the response: the request may have waited for a replica.

        `check` is that of the events' reader, which learns what to expect, and need not parse the first one twice.
        Raises Rejected and UpstreamError: MalformedAnswer for anything but an event.
        """
        if check is not None and self._request is not None:
            check.expect(self._request)
        with translated(self._target), within(self._first_byte_s) as limit:
            self._response = response = await self._send(not events)
            if not events:
                limit.when = asyncio.get_running_loop().time() + self._first_byte_s
            if response.status != 200:
                raise await failed(response, self._target)
            if self._on_head is not None:
                self._on_head(response.headers)
            if self._groups is not None:
                self._groups.begin(response.headers)
                self._groups = self._groups if self._groups.is_marked else None
            first = await (self._first_event(response, check) if events else self._first_part())
        if first is None:
            raise incomplete(self._target)
        if (error := error_in_first_chunk(first)) is not None:
            raise error
        self.unread(first)

    async def _first_part(self) -> bytes | None:
        """The first chunk, or group, which may have tokens without events; None if the response ends without one."""
        groups = self._groups
        if groups is None:
            return await self._opened.read(PIECE) or None
        known = len(groups.tokens)
        while chunk := await self._opened.read(PIECE):
            if (events := groups.feed(chunk)) or len(groups.tokens) > known:
                return events
        return groups.end() or None

    async def _first_event(self, response: Response, check: EventCheck | None) -> bytes | None:
        """The first chunks, with a whole event; None if the response ends without one."""
        if response.media_type != EVENT_STREAM:
            raise MalformedAnswer(MALFORMED_RESPONSE)
        chunk = await self._read()
        if check is not None and chunk.startswith(b"data: {") and chunk.endswith(b"\n\n") and check.begins(chunk):
            return chunk  # nearly always
        beginning = Beginning(self._path, self._request)
        while chunk:
            if beginning.feed(chunk):
                return beginning.received
            chunk = await self._read()
        return None

    def close(self) -> None:
        """Closes the connection if the response is not complete, which stops the engine."""
        if self._response is not None:
            self._response.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Raises UpstreamError and EngineLost."""
        try:
            chunk = await self._read()
        except HttpError as error:
            raise failure(error, self._target) from error
        if not chunk:
            raise StopAsyncIteration
        return chunk

    def unread(self, chunks: bytes) -> None:
        """Puts chunks back: they are read again."""
        if self._groups is None:
            self._opened.unread(chunks)
        else:
            self._unread = chunks

    async def each(self, take: Take) -> bytes:
        """Calls `take` with each chunk but the last, where it arrives, and returns the last. See `Connection.each`.

        Raises UpstreamError and EngineLost, and the errors of `take`.
        """
        groups, last = self._groups, b""
        try:
            if groups is None:
                return await self._opened.each(take)
            if (first := self._taken()) and (unfinished := take(first)) is not None:
                await unfinished
            last = groups.feed(await self._opened.each(take, groups.feed))
            return last + groups.end()
        except HttpError as error:
            if groups is None:
                raise failure(error, self._target) from error
            raise EngineLost(incomplete(self._target)) from error
        except EngineLost:
            if last and (unfinished := take(last)) is not None:
                await unfinished
            raise

    async def _read(self) -> bytes:
        """The next bytes, or groups; b"" after the end."""
        if self._groups is None:
            return await self._opened.read(PIECE)
        if self._unread:
            return self._taken()
        try:
            while chunk := await self._opened.read(PIECE):
                if events := self._groups.feed(chunk):
                    return events
        except HttpError as error:
            raise EngineLost(incomplete(self._target)) from error
        return self._groups.end()

    def _taken(self) -> bytes:
        chunks, self._unread = self._unread, b""
        return chunks

    @property
    def _opened(self) -> Response:
        assert self._response is not None, "begin has returned"
        return self._response


_LONG_ANSWER = 1024 * 1024

_UNKNOWN_S = 0.1
"""Seconds between two attempts at an ingress that does not know the application yet."""

NO_CONTEXT: Mapping[str, str] = {}


class _Send(Protocol):
    """Sends a request to a URL."""

    def __call__(self, url: str, *, connect_s: float) -> Awaitable[Response]: ...


Encode = Callable[[Mapping[str, Any], Target], Awaitable[bytes]]
"""Does what `encoded` does for a long body, in a thread."""


REACHED_S = 2.0
"""The longest wait for a replica's connection: another one is tried then. Machines of a cluster accept in a
millisecond; one packet may be lost, and comes again after a second."""

CHECK_S = 10.0
"""The timeout of a replica's check. Where hundreds of streams share few cores, an answer may take seconds."""

HEALTH_PATH = "/-/healthz"
"""Serve's own check of a replica, for HAProxy, too."""


class Upstream:
    """The connections to deployments; an async context manager that opens and closes them.

    Each call POSTs a body with the target's own model name; bytes are sent as they are. `QUESTIONS` are GETs. It raises
    Rejected if the deployment rejects the request and UpstreamError if it fails, both before the first byte of a
    response. `context`: headers of this request in addition to the target's. `placement` decides on the replica of an
    application. `encode` writes the body.
    """

    def __init__(
        self,
        balancer: Balancer | None = None,
        *,
        model_fresh_s: float = FRESH_S,
        model_max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        """`balancer`: of the applications' replicas. The others: see `ModelCache`; both in seconds."""
        self._balancer = balancer or Balancer()
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
        placement: Placement | None = None,
        on_head: OnHead | None = None,
        encode: Encode | None = None,
    ) -> bytes:
        """The whole response, by `checked_answer`. `on_head` gets the headers of a response with status 200.

        An error that may be the engine's death has the engine's name, if that has told it."""
        if target.app is not None:
            context = {**context, HEAD_FIRST_HEADER: "1"}
        with translated(target) as call, within(timeouts.first_byte_s):
            response = await self._post(target, path, body, request_id, timeouts, context, placement, encode)
            try:
                if HEAD_FIRST_HEADER in response.headers:
                    call.engine = response.headers.get(REPLICA_HEADER, "")
                    await _read_head(response)
                if response.status == 404 and path in QUESTIONS:  # a route that engines may have
                    raise Rejected(f"Deployment '{target.name}' does not tell this", status=404)
                if response.status != 200:
                    raise await failed(response, target)
                if on_head is not None:
                    on_head(response.headers)
                answer = await response.whole()
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
        placement: Placement | None = None,
        on_head: OnHead | None = None,
        encode: Encode | None = None,
        groups: Groups | None = None,
    ) -> ResponseStream:
        """The response's chunks as they arrive: see `ResponseStream`. `on_head` as in `unary`.

        `groups` asks for marks, with its headers and what follows the body, and takes them out of the stream.
        """
        tail = b""
        if groups is not None:
            context, tail = {**context, **groups.headers()}, groups.tail()
        send = partial(self._post, target, path, body, request_id, timeouts, context, placement, encode, tail)
        request = None if isinstance(body, bytes) else body
        return ResponseStream(send, target, path, request, timeouts.first_byte_s, on_head, groups)

    async def _post(
        self,
        target: Target,
        path: str,
        body: Mapping[str, Any] | bytes,
        request_id: str,
        timeouts: Timeouts,
        context: Mapping[str, str],
        placement: Placement | None,
        encode: Encode | None,
        tail: bytes = b"",
        at_head: bool = False,
    ) -> Response:
        headers = {**target.headers, **context, "x-request-id": request_id}
        send: _Send
        if path in QUESTIONS:
            send = partial(self._http.get, headers=headers)
        else:
            if isinstance(body, bytes):
                data = body
            else:
                data = encoded(body, target) if encode is None else await encode(body, target)
            headers["content-type"] = "application/json"
            send = partial(self._http.post, headers=headers, body=data + tail if tail else data, at_head=at_head)
        return await self._sent(target, path, timeouts.connect_s, send, placement)

    async def _sent(
        self, target: Target, path: str, connect_s: float, send: _Send, placement: Placement | None
    ) -> Response:
        """Sends a request to one of the target's replicas, and to another one if no connection can be made, or if it
        ends without an answer: a killed replica still accepts connections for a moment. Without a replica the request
        goes to the ingress, where it waits for one.
        """
        if target.app is not None:
            placement = placement or Placement()
            failure: HttpError = NotConnected("No replica of the application is known")
            for is_last in (False, True):
                if (visit := self._balancer.visit(target.app, placement)) is None:
                    break
                try:
                    return await _answered(visit, partial(send, visit.url + path, connect_s=min(connect_s, REACHED_S)))
                except (NotConnected, Disconnected) as error:
                    # What the caller has to know is that a replica may have died of the request.
                    failure = failure if isinstance(failure, Disconnected) else error
                    if is_last:
                        raise failure from None
            if isinstance(failure, Disconnected) or (self._balancer.is_known and not placement.waits):
                raise failure
            with self._balancer.lacking(target.app, placement):
                return await self._through_ingress(target, path, connect_s, send)
        return await self._through_ingress(target, path, connect_s, send)

    async def _through_ingress(self, target: Target, path: str, connect_s: float, send: _Send) -> Response:
        """Sends a request to the target's URL. An ingress that has just started is waited for."""
        patience: _Patience | None = None
        while True:
            try:
                response = await send(target.url + path, connect_s=connect_s)
            except NotConnected:
                if INTERNAL_KEY_HEADER not in target.headers:  # not an application behind the ingress of this node
                    raise
            else:
                if NO_ROUTE_HEADER not in response.headers:
                    return response
                response.close()
            patience = patience or _Patience(connect_s)
            await patience.wait(target)

    async def model(self, target: Target, timeouts: Timeouts) -> Model:
        """The model of `target`. Raises UpstreamError if the deployment does not describe it."""
        return await self._models.of(target, timeouts)

    async def _get(self, target: Target, path: str, etag: str | None, timeouts: Timeouts) -> CardResponse | None:
        headers = {**target.headers, **({"if-none-match": etag} if etag else {})}
        with translated(target), within(timeouts.first_byte_s):
            send = partial(self._http.get, headers=headers)
            response = await self._sent(target, path, timeouts.connect_s, send, None)
            try:
                if response.status == 304:
                    return None
                if response.status != 200:
                    raise await failed(response, target)
                return CardResponse(await response.whole(), response.headers.get("etag"))
            finally:
                response.close()

    async def probe(self, target: Target, timeout_s: float) -> bool:
        """Whether the deployment reports that it is healthy."""
        status = await self._status(f"{target.url}/health", target.headers, timeout_s)
        return status is not None and status < 500 and status not in (401, 403)

    async def is_healthy(self, origin: str) -> bool:
        """Whether the replica with this origin is healthy, and does not stop: a `Check`."""
        return await self._status(origin + HEALTH_PATH, NO_CONTEXT, CHECK_S) == 200

    async def _status(self, url: str, headers: Mapping[str, str], timeout_s: float) -> int | None:
        """The status of a GET; None without a response in time."""
        try:
            with within(timeout_s):
                response = await self._http.get(url, headers, timeout_s)
        except (HttpError, TimeoutError, ValueError):
            return None
        response.close()
        return response.status


async def _answered(visit: Visit, send: Callable[[], Awaitable[Response]]) -> Response:
    """The response of a replica, which ends the visit when it is closed. Raises HttpError."""
    try:
        response = await send()
    except ConnectTimedOut as error:
        visit.end(has_failed=True)
        raise NotConnected("The replica's machine does not answer") from error
    except BaseException as error:
        visit.end(has_failed=isinstance(error, HttpError))
        raise
    visit.heard()
    response.on_close = visit.end
    return response


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


async def _read_head(response: Response) -> None:
    """Takes status and media type from the body's first line: see `HEAD_FIRST_HEADER`. Raises HttpError without one."""
    body = b""
    while b"\n" not in body:
        if not (part := await response.read()):
            raise Malformed("The response ended before its head")
        body += part
    line, _, rest = body.partition(b"\n")
    status, _, content_type = line.decode("latin-1").partition(" ")
    response.status, response.headers = int(status), {**response.headers, "content-type": content_type}
    if rest:
        response.unread(rest)
