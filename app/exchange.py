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
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Protocol, Self
from urllib.parse import parse_qsl

from app.access import credential
from app.config import Config, Sticky, Timeouts
from app.content_filter import refuse_hits
from app.dialects.base import (
    EVENT_STREAM,
    Call,
    Context,
    Dialect,
    Reply,
    Request,
    Route,
    Served,
    Stream,
    json_object,
    value_at,
)
from app.engine import field_named_in, find_usage
from app.errors import InternalError, Rejected, SwitchyardError, TimedOut, TooLarge, Unavailable, UpstreamError
from app.fold import Fold
from app.model import Model
from app.telemetry import Record, Telemetry
from app.traffic import DEPLOYMENT_HEADER, Assignment, assign
from app.upstream import Target

REQUEST_ID_HEADER = "x-request-id"

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_log = logging.getLogger("switchyard")
_USABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")
_LONG_BODY = 16 * 1024
_GONE = 499  # nginx's code for a client that left; it is logged, never sent


class Calls(Protocol):
    """The seam to deployments; `upstream.Upstream` is the real one."""

    async def model(self, target: Target, timeouts: Timeouts) -> Model: ...

    async def unary(
        self, target: Target, path: str, body: Mapping[str, Any], *, request_id: str, timeouts: Timeouts
    ) -> bytes: ...

    def stream(
        self, target: Target, path: str, body: Mapping[str, Any], *, request_id: str, timeouts: Timeouts
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...


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


class _Abort(Exception):
    """The stream failed and its format has no way to say so."""


class ClientGone(Exception):
    """The client closed the connection: nobody is there to answer."""


Candidates = Sequence[tuple[Dialect, Route]]
"""The dialects that share a method and path. The first that claims a request has it; the last takes what is left."""


async def handle(board: Board, candidates: Candidates, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
    """Serves one HTTP request (ASGI)."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    dialect, route = candidates[-1]
    record = Record(dialect.name, route.operation, _request_id(headers))
    request = Request(
        method=scope["method"],
        path=scope["path"],
        params=scope.get("path_params", {}),
        query=_query(scope.get("query_string", b"")),
        headers=headers,
        id=record.request_id,
    )
    out = _Out(send, record)
    try:
        if (snapshot := board.snapshot) is None:
            raise Unavailable("The router has no configuration yet", retry_after=1)
        request = replace(request, body=await _read_body(receive, snapshot.config.max_body_bytes))
        dialect, route = next(((d, r) for d, r in candidates if d.claims(r, request)), candidates[-1])
        record.dialect, record.operation = dialect.name, route.operation
        if route.local:
            await out.reply(dialect.answer(route.operation, request, snapshot.config))
            return
        call = dialect.parse(route.operation, request, Context(snapshot.config, board.random))
        async with _while_connected(receive):
            deadline = asyncio.get_running_loop().time() + snapshot.config.timeouts.total_s
            await _Errand(board, snapshot, dialect, call, out, deadline, len(request.body)).run(request)
    except _Abort:
        pass  # leaving the answer unfinished makes the server break the connection
    except ClientGone:
        record.status, record.error = _GONE, "client_gone"
    except asyncio.CancelledError:  # how Serve tells that the client left
        record.status, record.error = _GONE, "client_gone"
        raise
    except SwitchyardError as error:
        await out.error(error, dialect.render_error(error, route.operation, request))
    except Exception:  # noqa: BLE001  the last line of defence: a defect must not hang or leak
        _log.exception("request %s failed in the router", record.request_id)
        failure = InternalError("The router failed to serve the request")
        await out.error(failure, dialect.render_error(failure, route.operation, request))
    finally:
        board.telemetry.finish(record)


@dataclass(frozen=True, slots=True)
class _Errand:
    """A parsed call on its way to a deployment and back. `deadline` is the event loop's time, `size` the request's."""

    board: Board
    snapshot: Snapshot
    dialect: Dialect
    call: Call
    out: "_Out"
    deadline: float
    size: int

    async def run(self, request: Request) -> None:
        """Chooses the deployment, and another if that one fails before the first byte."""
        record = self.out.record
        assignment = self._assign(request.headers)
        record.endpoint, record.reason = assignment.endpoint, assignment.reason
        if (endpoint := self.snapshot.config.endpoints.get(assignment.endpoint)) is not None:
            refuse_hits(endpoint.content_filter, self.call.body)
        # One replacement: more would multiply the load on deployments that already fail.
        candidates = (assignment.deployment, *assignment.alternatives[:1])
        for name in candidates:
            record.deployment = name
            record.attempts += 1
            in_flight = self.board.telemetry.in_flight.labels(record.endpoint, name, record.dialect)
            try:
                with in_flight.track_inprogress():
                    await (self._stream if self.call.stream else self._unary)(self.snapshot.targets[name])
                return
            except Rejected as error:
                error.param = error.param or field_named_in(error.message, self.call.body)
                error.value = value_at(self.call.body, error.param)
                raise
            except UpstreamError as error:
                if name == candidates[-1] or self.out.started:
                    raise
                _log.warning("request %s: %s (%s); trying another", record.request_id, error.message, error.kind)

    def _assign(self, headers: Mapping[str, str]) -> Assignment:
        return assign(
            self.snapshot.config,
            task=self.call.task,
            model=self.call.model,
            header=headers.get(DEPLOYMENT_HEADER) or self.call.deployment,
            sticky_key=lambda sticky: _sticky_key(sticky, self.call, headers),
            random=self.board.random,
        )

    async def _unary(self, target: Target) -> None:
        async with _until(self.deadline):
            served = await self._served(target)
            question = await self._question(target, served)
            asked = time.perf_counter()
            body = b""
            if self.call.path and not self.call.partial:
                body = await self._ask(target, self.call.path, question)
        if self.call.partial:
            body = await self._partial(target, question)
        told = time.perf_counter()
        self.out.record.usage = find_usage(body)
        served = replace(served, total_s=told - self.out.record.started, engine_s=told - asked)
        await self.out.reply(self.dialect.render(self.call, body, served))

    async def _served(self, target: Target) -> Served:
        settings = self.snapshot.config.deployments[target.name]
        if not self.call.needs_model:
            return Served(target.name, settings)
        return Served(target.name, settings, await self.board.upstream.model(target, self.snapshot.config.timeouts))

    async def _ask(self, target: Target, path: str, body: Mapping[str, Any]) -> bytes:
        timeouts = self.snapshot.config.timeouts
        return await self.board.upstream.unary(target, path, body, request_id=self.out.upstream_id(), timeouts=timeouts)

    async def _question(self, target: Target, served: Served) -> dict[str, Any]:
        """The call's body, made fit for the deployment, once its lookup has been answered."""
        body = self.call.body
        if self.call.fit is not None:
            # Tokenizing a long prompt takes tens of milliseconds, in which every other stream would stand still.
            long = self.size > _LONG_BODY
            body = await asyncio.to_thread(self.call.fit, body, served) if long else self.call.fit(body, served)
        if (lookup := self.call.lookup) is None:
            return body
        answers = await asyncio.gather(*(self._ask(target, path, asked) for path, asked in lookup.questions))
        return lookup.then(body, [json_object(answer) for answer in answers])

    def _open(self, target: Target, body: Mapping[str, Any]) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        assert self.call.path is not None, "a stream needs an engine"
        timeouts = self.snapshot.config.timeouts
        request_id = self.out.upstream_id()
        return self.board.upstream.stream(target, self.call.path, body, request_id=request_id, timeouts=timeouts)

    async def _partial(self, target: Target, question: Mapping[str, Any]) -> bytes:
        """The unary answer, folded from a stream: what has come of it when time is up."""
        fold = Fold(question)
        async with AsyncExitStack() as stack:
            async with _until(self.deadline):
                chunks = await stack.enter_async_context(self._open(target, fold.question))
            try:
                async with _Lively(self.snapshot.config.timeouts.idle_s, self.deadline) as lively:
                    async for chunk in chunks:
                        fold.feed(chunk)
                        lively.last = asyncio.get_running_loop().time()
            except TimedOut as error:
                if not fold.begun:
                    raise
                self.out.record.error = error.kind
                return fold.so_far()
        return fold.whole()

    async def _stream(self, target: Target) -> None:
        async with AsyncExitStack() as stack:
            async with _until(self.deadline):
                served = await self._served(target)
                chunks = await stack.enter_async_context(self._open(target, await self._question(target, served)))
            stream = self.dialect.stream(self.call, served)
            await self.out.start_stream(stream.headers)
            await self._relay(chunks, stream)

    async def _relay(self, chunks: AsyncIterator[bytes], stream: Stream) -> None:
        record = self.out.record
        clock = asyncio.get_running_loop().time
        try:
            async with _Lively(self.snapshot.config.timeouts.idle_s, self.deadline) as lively:
                async for chunk in chunks:
                    if data := stream.feed(chunk):
                        await self.out.chunk(data)
                    lively.last = clock()
            end = stream.close()
            record.error = "broken" if end else ""
        except SwitchyardError as error:
            end, record.error = stream.fail(error), error.kind
        record.usage = stream.usage
        if record.error and stream.aborts:
            raise _Abort
        await self.out.end_stream(end)


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

    async def error(self, error: SwitchyardError, reply: Reply) -> None:
        """The error as the dialect words it; after the first byte there is nothing left to say."""
        self.record.error = error.kind
        if self.started:
            return
        if error.retry_after is not None:
            retry = {"retry-after": str(max(1, round(error.retry_after)))}
            reply = Reply(reply.body, reply.status, reply.media_type, {**reply.headers, **retry})
        await self.reply(reply)

    async def start_stream(self, headers: Mapping[str, str]) -> None:
        """The head of an event stream."""
        self.record.streamed = True
        await self._start(200, EVENT_STREAM, {"cache-control": "no-cache", "x-accel-buffering": "no", **headers})

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
async def _until(deadline: float) -> AsyncIterator[None]:
    """Raises TimedOut when the block is still running at `deadline` (the event loop's time)."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError as error:
        raise TimedOut("The answer took longer than this server allows") from error


class _Lively:
    """Raises TimedOut when the block outlasts `deadline`, or when `last` has not been moved for `idle_s`.

    One timer per idle period looks at `last`; a timer per chunk would cost more than passing the chunk on.
    """

    def __init__(self, idle_s: float, deadline: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle_s = idle_s
        self._limit = asyncio.timeout_at(deadline)
        self._idle = False
        self.last = self._loop.time()

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._timer = self._loop.call_at(self.last + self._idle_s, self._look)
        return self

    async def __aexit__(self, *raised: Any) -> None:
        self._timer.cancel()
        try:
            await self._limit.__aexit__(*raised)
        except TimeoutError as error:
            what = (
                "The deployment stopped answering" if self._idle else "The answer took longer than this server allows"
            )
            raise TimedOut(what) from error

    def _look(self) -> None:
        due = self.last + self._idle_s
        self._idle = self._loop.time() >= due
        if self._idle:
            self._limit.reschedule(self._loop.time())
        else:
            self._timer = self._loop.call_at(due, self._look)


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
