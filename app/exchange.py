"""READ THIS FIRST. One request's journey, top to bottom:

    bytes in -> dialect.parse -> traffic.assign -> upstream -> dialect.render / stream -> bytes out

`handle` is the journey; everything else in this file is one of its steps. The promises kept here:

- an error before the first byte is a real HTTP status in the dialect's own form; after it, the stream ends with the
  dialect's error event, never in silence;
- a deployment that fails before the first byte is replaced once: by another of the endpoint, else by another of its own
  replicas, as long as retries make no more than a tenth of the load;
- the client going away ends the engine's work;
- every answer names the deployment that gave it, and the request's id.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

from pydantic_core import from_json

from app.access.caller import VISITOR, Caller, credentials, must_use, visible
from app.admission import check_length
from app.answer import Answer, Send
from app.board import Board, Snapshot
from app.breaker import Asked
from app.config import Config, Sticky, Timeouts
from app.content_filter import refuse_hits
from app.deadlines import ClientGone, Lively, Receive, until, while_connected
from app.dialects.base import (
    Call,
    Context,
    Dialect,
    Request,
    Route,
    Served,
    Stream,
    dump,
    value_at,
)
from app.engine import field_named_in, find_usage
from app.errors import (
    BadRequest,
    Broken,
    DeadlinePassed,
    Incomplete,
    InternalError,
    Rejected,
    SwitchyardError,
    TimedOut,
    Unavailable,
    UpstreamError,
)
from app.fold import Fold
from app.intake import GONE, check_headers, headers_of, read_body, request_id
from app.targets import Target
from app.telemetry import Record, where
from app.traffic import DEPLOYMENT_HEADER, Assignment, assign

TIMEOUT_HEADER = "x-request-timeout-s"
"""How long the client will wait for the whole answer, in seconds."""

AGAIN_AFTER_S = 0.1
"""Before the same deployment is asked again: by then the ingress knows which of its replicas has just died."""

LOOKUPS_AT_ONCE = 64
"""Of one request's questions to the engine, so that a batch of thousands leaves connections to the others."""

_log = logging.getLogger("switchyard")
_LONG_BODY = 16 * 1024


_NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What code raises that takes an answer for what it is not."""


class _Abort(Exception):
    """The stream failed and its format has no way to say so."""


Candidates = Sequence[tuple[Dialect, Route]]
"""The dialects that share a method and path. The first that claims a request has it; the last takes what is left."""


async def handle(board: Board, candidates: Candidates, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
    """Serves one HTTP request (ASGI)."""
    headers = headers_of(scope)
    dialect, route = candidates[-1]
    record = Record(dialect.name, route.operation, request_id(headers))
    request = Request(
        method=scope["method"],
        path=scope["path"],
        params=scope.get("path_params", {}),
        query=_query(scope.get("query_string", b"")),
        headers=headers,
        id=record.request_id,
    )
    out = Answer(send, record)
    try:
        if (snapshot := board.snapshot) is None:
            raise Unavailable("The router has no configuration yet", retry_after=1)
        check_headers(scope, snapshot.config.max_header_bytes)
        dialect, route = _claimed(candidates, request, record)
        caller = VISITOR
        if not route.open:  # before the body: a stranger makes nobody read one
            caller = await board.access.caller(headers)
            request = replace(request, body=await read_body(receive, snapshot.config))
            dialect, route = _claimed(candidates, request, record)
        record.caller = caller.name
        if route.local:
            await out.reply(dialect.answer(route.operation, request, visible(caller, snapshot.config)))
            return
        record.endpoint = _addressed(route, request, snapshot.config)
        call = dialect.parse(route.operation, request, Context(snapshot.config, board.random))
        check_length(call.body, snapshot.config.max_messages)
        async with while_connected(receive):
            deadline = asyncio.get_running_loop().time() + _time_allowed(snapshot.config.timeouts, call, headers)
            await _Errand(board, snapshot, dialect, caller, call, out, deadline, len(request.body)).run(request)
    except _Abort:
        pass  # leaving the answer unfinished makes the server break the connection
    except ClientGone:
        record.status, record.error = GONE, "client_gone"
    except asyncio.CancelledError:  # how Serve tells that the client left
        record.status, record.error = GONE, "client_gone"
        raise
    except SwitchyardError as error:
        await out.error(error, dialect.render_error(error, route.operation, request))
    except Exception as error:  # noqa: BLE001  the last line of defence: a defect must not hang or leak
        _log.error("request %s failed in the router\n%s", record.request_id, where(error))
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
    caller: Caller
    call: Call
    out: Answer
    deadline: float
    size: int

    async def run(self, request: Request) -> None:
        """Chooses the deployment, and waits for a place."""
        record = self.out.record
        assignment = self._assign(request.headers)
        record.endpoint, record.reason = assignment.endpoint, assignment.reason
        if (endpoint := self.snapshot.config.endpoints.get(assignment.endpoint)) is not None:
            refuse_hits(endpoint.content_filter, self.call.body)
        gate = self.board.gates[assignment.endpoint]
        async with (
            self.board.access.admit(self.caller, assignment.endpoint, self.call.body, self.out),
            gate.turn(assignment.endpoint, endpoint.admission if endpoint else None),
        ):
            await self._serve(assignment)

    async def _serve(self, assignment: Assignment) -> None:
        """Asks the deployment, and another one if it fails before the first byte."""
        budget = self.board.budgets[assignment.endpoint]
        budget.request()
        # One replacement: more would multiply the load on deployments that already fail.
        first, second = self._candidates(assignment)
        try:
            await self._ask_of(first)
        except DeadlinePassed:
            raise
        except UpstreamError as error:
            if self.out.started or not budget.take():
                raise
            id = self.out.record.request_id
            _log.warning("request %s: %s (%s); trying %s", id, error.message, error.kind, second)
            if second == first:
                await asyncio.sleep(AGAIN_AFTER_S)
            await self._ask_of(second)

    def _candidates(self, assignment: Assignment) -> tuple[str, str]:
        """Who is asked, and who if that one fails: with nobody else the same again, which is another replica."""
        first, *others = self.board.breakers.order([assignment.deployment, *assignment.alternatives])
        return first, (others or [first])[0]

    async def _ask_of(self, name: str) -> None:
        record = self.out.record
        record.deployment = name
        record.attempts += 1
        in_flight = self.board.telemetry.in_flight.labels(record.endpoint, name, record.dialect)
        asked = self.board.breakers.of(name).asked()
        try:
            with in_flight.track_inprogress():
                await (self._stream if self.call.stream else self._unary)(self.snapshot.targets[name])
        except Rejected as error:
            asked.succeeded()
            error.param = error.param or field_named_in(error.message, self.call.body)
            error.value = value_at(self.call.body, error.param)
            raise
        except UpstreamError as error:
            self._judge(asked, error)
            raise
        except BaseException:
            self._judge(asked, self.out.failure)
            raise
        self._judge(asked, self.out.failure)

    def _judge(self, asked: Asked, failure: SwitchyardError | None) -> None:
        if isinstance(failure, UpstreamError) and failure.is_fault:
            asked.failed(self.board.breakers.clock())
        elif self.out.finished:
            asked.succeeded()
        else:
            asked.abandoned()

    def _assign(self, headers: Mapping[str, str]) -> Assignment:
        config = self.snapshot.config
        must_use(self.caller, config, self.call.model or config.defaults.get(self.call.task))
        return assign(
            visible(self.caller, config),
            task=self.call.task,
            model=self.call.model,
            header=headers.get(DEPLOYMENT_HEADER) or self.call.deployment,
            sticky_key=lambda sticky: _sticky_key(sticky, self.call, headers),
            random=self.board.random,
        )

    async def _unary(self, target: Target) -> None:
        async with until(self.deadline):
            served = await self._served(target)
            question = await self._question(target, served)
            self.out.record.max_tokens = question.get("max_tokens")
            asked = time.perf_counter()
            if self.call.path is None:
                body = dump(question)
            elif not self.call.partial:
                body = await self._ask(target, self.call.path, question)
        if self.call.partial:
            body = await self._partial(target, question)
        told = time.perf_counter()
        self.out.record.usage = find_usage(body)
        served = replace(served, total_s=told - self.out.record.started, engine_s=told - asked)
        try:
            reply = self.dialect.render(self.call, body, served)
        except _NONSENSE as error:
            raise self._unreadable(error) from error
        await self.out.reply(reply)

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
        lookup = self.call.fan_out(body) if self.call.fan_out else self.call.lookup
        if lookup is None:
            return body
        places = asyncio.Semaphore(LOOKUPS_AT_ONCE)

        async def ask(path: str, asked: Mapping[str, Any]) -> bytes:
            async with places:
                return await self._ask(target, path, asked)

        answers = await asyncio.gather(*(ask(path, asked) for path, asked in lookup.questions))
        try:
            told = [from_json(answer) for answer in answers]
            return lookup.then(body, told)
        except _NONSENSE as error:
            raise self._unreadable(error) from error

    async def _partial(self, target: Target, question: Mapping[str, Any]) -> bytes:
        """The whole answer, folded from a stream; what has come of it when time is up."""
        fold = Fold(question)
        async with AsyncExitStack() as stack:
            async with until(self.deadline):
                chunks = await stack.enter_async_context(self._open(target, fold.question))
            try:
                async with Lively(self.snapshot.config.timeouts.idle_s, self.deadline) as lively:
                    async for chunk in chunks:
                        fold.feed(chunk)
                        lively.last = asyncio.get_running_loop().time()
            except TimedOut as error:
                if not fold.begun:
                    raise
                self.out.failure, self.out.record.error = error, error.kind
                return fold.so_far()
        return fold.whole()

    async def _stream(self, target: Target) -> None:
        async with AsyncExitStack() as stack:
            async with until(self.deadline):
                served = await self._served(target)
                question = await self._question(target, served)
                self.out.record.max_tokens = question.get("max_tokens")
                chunks = await stack.enter_async_context(self._open(target, question))
            stream = self.dialect.stream(self.call, served)
            await self.out.start_stream(stream.headers)
            await self._relay(chunks, stream)

    def _unreadable(self, error: Exception) -> Broken:
        """What `error` is that a dialect stumbled over in an answer: the deployment's failure, and told where."""
        _log.warning("request %s: an answer that cannot be read\n%s", self.out.record.request_id, where(error))
        return Broken("The deployment's answer makes no sense")

    def _open(self, target: Target, body: Mapping[str, Any]) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        assert self.call.path is not None, "a stream needs an engine"
        timeouts = self.snapshot.config.timeouts
        request_id = self.out.upstream_id()
        return self.board.upstream.stream(target, self.call.path, body, request_id=request_id, timeouts=timeouts)

    async def _relay(self, chunks: AsyncIterator[bytes], stream: Stream) -> None:
        record = self.out.record
        clock = asyncio.get_running_loop().time
        try:
            async with Lively(self.snapshot.config.timeouts.idle_s, self.deadline) as lively:
                async for chunk in chunks:
                    if data := stream.feed(chunk):
                        await self.out.chunk(data)
                    lively.last = clock()
            if end := stream.close():
                self.out.failure = Incomplete("The deployment ended its answer before it was complete")
        except SwitchyardError as error:
            end, self.out.failure = stream.fail(error), error
        except _NONSENSE as error:
            self.out.failure = self._unreadable(error)
            end = stream.fail(self.out.failure)
        record.usage = stream.usage
        if self.out.failure is not None:
            record.error = self.out.failure.kind
            if stream.aborts:
                raise _Abort
        await self.out.end_stream(end)


def _claimed(candidates: Candidates, request: Request, record: Record) -> tuple[Dialect, Route]:
    dialect, route = next(((d, r) for d, r in candidates if d.claims(r, request)), candidates[-1])
    record.dialect, record.operation = dialect.name, route.operation
    return dialect, route


def _addressed(route: Route, request: Request, config: Config) -> str:
    """The endpoint that the path alone tells, so that a request counts for it whose body cannot be read; or nothing."""
    default = config.defaults.get(route.default) if route.default else None
    name = request.params.get("endpoint", default)
    return name if name in config.endpoints else ""


def _time_allowed(timeouts: Timeouts, call: Call, headers: Mapping[str, str]) -> float:
    """Seconds for the whole exchange: the configuration's, unless the client wants to wait less."""
    allowed = min(timeouts.total_s, call.timeout_s or timeouts.total_s)
    if (wish := headers.get(TIMEOUT_HEADER)) is None:
        return allowed
    try:
        seconds = float(wish)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise BadRequest(f"{TIMEOUT_HEADER}: must be a number of seconds above 0", param=TIMEOUT_HEADER)
    return min(allowed, seconds)


def _query(raw: bytes) -> dict[str, str]:
    return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True))


def _sticky_key(sticky: Sticky, call: Call, headers: Mapping[str, str]) -> str | None:
    if sticky.by == "header":
        return headers.get((sticky.name or "").lower())
    return call.user if sticky.by == "user" else next(iter(credentials(headers)), None)
