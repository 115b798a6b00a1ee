"""READ THIS FIRST. One request's journey, top to bottom:

    bytes in -> dialect.parse -> traffic.assign -> upstream -> dialect.render / stream -> bytes out

`handle` is the journey; everything else in this file is one of its steps. The promises kept here:

- an error before the first byte is a real HTTP status in the dialect's own form; after it, the stream ends with the
  dialect's error event, never in silence;
- a deployment that fails before the first byte is replaced once, if there is another;
- the client going away ends the engine's work;
- every answer names the deployment that gave it, and the request's id.
"""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol
from urllib.parse import parse_qsl

from app.access import credential
from app.config import Config, Sticky, Timeouts
from app.dialects.base import EVENT_STREAM, Call, Dialect, Reply, Request, Route
from app.engine import find_usage
from app.errors import InternalError, SwitchyardError, TimedOut, TooLarge, Unavailable, UpstreamError
from app.telemetry import Record, Telemetry
from app.traffic import DEPLOYMENT_HEADER, Assignment, assign
from app.upstream import Target

REQUEST_ID_HEADER = "x-request-id"

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_log = logging.getLogger("switchyard")
_USABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")
_GONE = 499  # nginx's code for a client that left; it is logged, never sent


class Calls(Protocol):
    """The seam to deployments; `upstream.Upstream` is the real one."""

    async def unary(
        self, target: Target, path: str, body: Mapping[str, Any], *, request_id: str, timeouts: Timeouts
    ) -> bytes: ...

    def stream(
        self, target: Target, path: str, body: Mapping[str, Any], *, request_id: str, timeouts: Timeouts
    ) -> Any: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The configuration at one moment; a request keeps the one it began with."""

    config: Config
    targets: Mapping[str, Target]


@dataclass(slots=True)
class Board:
    """What all exchanges share. `snapshot` is replaced by reference, never changed; None before the first one."""

    upstream: Calls
    telemetry: Telemetry
    random: Random
    snapshot: Snapshot | None = None


class ClientGone(Exception):
    """The client closed the connection: nobody is there to answer."""


async def handle(
    board: Board, dialect: Dialect, route: Route, scope: Mapping[str, Any], receive: Receive, send: Send
) -> None:
    """Serves one HTTP request (ASGI)."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    record = Record(dialect.name, route.operation, _request_id(headers))
    out = _Out(send, record)
    in_flight = board.telemetry.in_flight.labels(dialect.name)
    in_flight.inc()
    try:
        if (snapshot := board.snapshot) is None:
            raise Unavailable("The router has no configuration yet", retry_after=1)
        body = await _read_body(receive, snapshot.config.max_body_bytes)
        request = Request(
            method=scope["method"],
            path=scope["path"],
            body=body,
            params=scope.get("path_params", {}),
            query=_query(scope.get("query_string", b"")),
            headers=headers,
        )
        if route.local:
            await out.reply(dialect.answer(route.operation, request, snapshot.config))
            return
        call = dialect.parse(route.operation, request)
        async with _while_connected(receive), _deadline(snapshot.config.timeouts.total_s):
            await _forward(board, snapshot, dialect, call, request, out)
    except ClientGone:
        record.status, record.error = _GONE, "client_gone"
    except SwitchyardError as error:
        await out.error(dialect, error)
    except Exception:  # noqa: BLE001  the last line of defence: a defect must not hang or leak
        _log.exception("request %s failed in the router", record.request_id)
        await out.error(dialect, InternalError("The router failed to serve the request"))
    finally:
        in_flight.dec()
        board.telemetry.finish(record)


async def _forward(
    board: Board, snapshot: Snapshot, dialect: Dialect, call: Call, request: Request, out: "_Out"
) -> None:
    record = out.record
    assignment = assign(
        snapshot.config,
        task=call.task,
        model=call.model,
        header=request.headers.get(DEPLOYMENT_HEADER),
        sticky_key=lambda sticky: _sticky_key(sticky, call, request.headers),
        random=board.random,
    )
    record.endpoint, record.reason = assignment.endpoint, assignment.reason
    send_on = _stream if call.stream else _unary
    last = _candidates(assignment)[-1]
    for name in _candidates(assignment):
        record.deployment = name
        record.attempts += 1
        try:
            return await send_on(board, snapshot, snapshot.targets[name], dialect, call, out)
        except UpstreamError as error:
            if name == last or out.started:
                raise
            _log.warning("request %s: %s (%s); trying another", record.request_id, error.message, error.kind)


def _candidates(assignment: Assignment) -> Sequence[str]:
    """The assigned deployment, and the one other that is tried if it fails before the first byte."""
    return (assignment.deployment, *assignment.alternatives[:1])


async def _unary(board: Board, snapshot: Snapshot, target: Target, dialect: Dialect, call: Call, out: "_Out") -> None:
    body = await board.upstream.unary(
        target, call.path, call.body, request_id=out.upstream_id(), timeouts=snapshot.config.timeouts
    )
    out.record.usage = find_usage(body)
    await out.reply(dialect.render(call, body))


async def _stream(board: Board, snapshot: Snapshot, target: Target, dialect: Dialect, call: Call, out: "_Out") -> None:
    stream = dialect.stream(call)
    async with AsyncExitStack() as stack:
        chunks: AsyncIterator[bytes] = await stack.enter_async_context(
            board.upstream.stream(
                target, call.path, call.body, request_id=out.upstream_id(), timeouts=snapshot.config.timeouts
            )
        )
        await out.start_stream()
        between = board.telemetry.per_token.labels(*out.record.labels)
        last = time.perf_counter()
        try:
            async for chunk in chunks:
                if data := stream.feed(chunk):
                    await out.chunk(data)
                now = time.perf_counter()
                between.observe(now - last)
                last = now
            end = stream.close()
            if end:
                out.record.error = "broken"
        except SwitchyardError as error:
            end, out.record.error = stream.fail(error), error.kind
        except TimeoutError:
            end, out.record.error = (
                stream.fail(TimedOut("The answer took longer than this server allows")),
                "timeout",
            )
        out.record.usage = stream.usage
        await out.end_stream(end)


class _Out:
    """The answer's way back: status and headers once, then bytes; it remembers what the record must tell."""

    def __init__(self, send: Send, record: Record) -> None:
        self._send = send
        self.record = record
        self.started = False

    def upstream_id(self) -> str:
        """An id for the engine: the request's, made unique, since clients may send theirs twice at once."""
        return f"{self.record.request_id}-{uuid.uuid4().hex[:8]}"

    async def reply(self, reply: Reply) -> None:
        """A whole response."""
        length = {"content-length": str(len(reply.body))}
        await self._start(reply.status, reply.media_type, {**reply.headers, **length})
        await self._send({"type": "http.response.body", "body": reply.body})

    async def error(self, dialect: Dialect, error: SwitchyardError) -> None:
        """The error as the dialect words it; after the first byte there is nothing left to say."""
        self.record.error = error.kind
        if self.started:
            return
        reply = dialect.render_error(error)
        if error.retry_after is not None:
            retry = {"retry-after": str(max(1, round(error.retry_after)))}
            reply = Reply(reply.body, reply.status, reply.media_type, {**reply.headers, **retry})
        await self.reply(reply)

    async def start_stream(self) -> None:
        """The head of an event stream."""
        self.record.streamed = True
        await self._start(200, EVENT_STREAM, {"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def chunk(self, data: bytes) -> None:
        """Some whole events."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self, data: bytes) -> None:
        """The last events, if any, and the end."""
        await self._send({"type": "http.response.body", "body": data})

    async def _start(self, status: int, media_type: str, headers: Mapping[str, str]) -> None:
        self.started = True
        self.record.status = status
        self.record.first_byte = time.perf_counter()
        told = {"content-type": media_type, **headers, REQUEST_ID_HEADER: self.record.request_id}
        if self.record.deployment:
            told[DEPLOYMENT_HEADER] = self.record.deployment
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


async def _read_body(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise TooLarge(f"The body is larger than {limit} bytes")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


@asynccontextmanager
async def _while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancels the block and raises ClientGone when the client goes away."""
    work = asyncio.current_task()
    assert work is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        work.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone:
            raise
        work.uncancel()
        raise ClientGone from None
    finally:
        watcher.cancel()


@asynccontextmanager
async def _deadline(seconds: float) -> AsyncIterator[None]:
    """Raises TimedOut when the block takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise TimedOut("The answer took longer than this server allows") from error


def _request_id(headers: Mapping[str, str]) -> str:
    """The client's own id where it can stand in a header and a log line, else a new one."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return given if _USABLE_ID.fullmatch(given) else uuid.uuid4().hex


def _query(raw: bytes) -> dict[str, str]:
    return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True))


def _sticky_key(sticky: Sticky, call: Call, headers: Mapping[str, str]) -> str | None:
    if sticky.by == "header":
        return headers.get((sticky.name or "").lower())
    return call.user if sticky.by == "user" else credential(headers)
