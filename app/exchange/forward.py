"""From a parsed call to the written response: engine requests, one retry, timeouts, streams.

It relays a deployment's stream to the client.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing, nullcontext
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace
from pydantic_core import from_json

from app.aio import run_until_blocked, within
from app.config.schema import Timeouts
from app.dialects.base import (
    Call,
    EngineRequest,
    Flow,
    Reply,
    ServingContext,
    Stream,
)
from app.dialects.bodies import value_at
from app.engine.answers import JSON, checked_answer
from app.engine.collectors import CutCalls, StreamCollector, cut_calls
from app.engine.constraints import constrained_field
from app.engine.errors import ENDED_EARLY, NOT_FETCHED, TOO_COSTLY, error_in_first_chunk, field_named_in, media_refused
from app.engine.usage import counted, max_tokens, usage_of_answer
from app.errors import (
    Broken,
    ContextExceeded,
    DeadlinePassed,
    Incomplete,
    MalformedAnswer,
    Rejected,
    SwitchyardError,
    TimedOut,
    Unavailable,
    UpstreamError,
)
from app.exchange.affinity import Place
from app.exchange.deadlines import STOPPED, IdleTimeout, until
from app.exchange.deployment_names import DeploymentNames, EventNames, names_of
from app.exchange.failures import CLIENT_GONE, StreamAborted, malformed_answers
from app.exchange.observers import Observation
from app.exchange.request import check_engine_params, check_salt, impossible
from app.exchange.response import ResponseWriter
from app.exchange.snapshot import Snapshot
from app.exchange.state import RouterState
from app.routing.traffic import Assignment
from app.telemetry.logs import event, where
from app.telemetry.request_trace import RequestSpan
from app.upstream.client import Encode, OnHead, ResponseStream, encoded_in_pieces
from app.upstream.target import Target

# Each chunk is passed on in the callback that receives it: the request's task only waits for the end, or for a client
# that reads slowly.


class Relay:
    """Relays one deployment stream to the client."""

    def __init__(
        self,
        stream: Stream,
        names: DeploymentNames,
        writer: ResponseWriter,
        observation: Observation,
        cut: CutCalls | None,
    ) -> None:
        """`cut` corrects the deployment's stream before anything else reads it."""
        self._stream, self._writer, self._cut = stream, writer, cut
        self._names = EventNames(names, stream.check)
        self._exposure, self._original = observation.exposure, observation.original
        self._span = observation.trace.span if observation.trace is not None else None
        self._clock = asyncio.get_running_loop().time
        self._rest = b""

    async def run(self, chunks: ResponseStream, idle_s: float, deadline: float) -> None:
        """Writes the whole stream and its end. Raises StreamAborted where a failure must break the connection."""
        end, in_order = b"", False
        try:
            with malformed_answers():
                async with IdleTimeout(idle_s, deadline) as self._idle:
                    self._rest = self._translated(await chunks.each(self._pass_on))
                if self._stream.failure is not None:
                    raise self._stream.failure
                if end := self._stream.close():
                    self._writer.fail(Incomplete(ENDED_EARLY))
                in_order = not end
        except SwitchyardError as error:
            end = self._stream.fail(error)
            self._writer.fail(error)
        finally:
            if self._span is not None:
                self._span.stream_ended()
            if self._exposure is not None:
                self._exposure.stream_ended(self._writer.record.deployment, self._clock(), in_order=in_order)
        self._writer.record.usage = self._stream.usage
        if self._writer.failure is not None and self._stream.aborts:
            if self._rest:
                await self._writer.send_chunk(self._rest)
            raise StreamAborted
        await self._writer.end_stream(self._rest, self._names.renamed(end, are_checked=False))

    def _pass_on(self, chunk: bytes) -> Awaitable[None] | None:
        data = self._translated(chunk)
        if self._stream.failure is not None:
            self._rest = data
            raise self._stream.failure
        return run_until_blocked(self._writer.send_chunk(data)) if data else None

    def _translated(self, chunk: bytes) -> bytes:
        """Translates a chunk for the client, and passes it to the request's observers."""
        if self._cut is not None:
            chunk = self._cut.feed(chunk)
        if self._span is not None:
            self._span.chunk(chunk)
        if self._original is not None:
            self._original.chunk(chunk)
        data = self._stream.feed(chunk)
        self._idle.last = now = self._clock()
        if self._exposure is not None:
            self._exposure.chunk(now, chunk)
        return self._names.renamed(data, are_checked=data is chunk) if data else b""


RETRY_SAME_AFTER_S = 0.1
"""Pause before the same engine is called again: by then the ingress knows which of its replicas has failed."""

SHARED_TIMEOUT_S = 5.0
"""The longest wait for an answer that is shared (`Translation.is_shared`)."""

MAX_CONCURRENT_LOOKUPS = 64
"""Lookups in flight per client request: a batch of thousands must not take every connection."""

T = TypeVar("T")

_log = logging.getLogger("switchyard")
_LONG_BODY = 16 * 1024
_LONG_ANSWER = 1024 * 1024
"""Bytes. Copying and searching a longer answer on the event loop would delay other streams."""
_MAX_ROLE_BYTES = 64 * 1024
_NO_LIMIT = nullcontext()


class Forwarder(msgspec.Struct, frozen=True):
    """Forwards one parsed request: calls a deployment, retries once, writes the answer or relays the stream.

    `caller` is the caller's id, `observation` records what happens, `place` selects the replica. `deadline` is in the
    event loop's time, `size` is the request body's in bytes.
    """

    state: RouterState
    snapshot: Snapshot
    caller: str
    call: Call
    writer: ResponseWriter
    observation: Observation
    place: Place
    deadline: float
    size: int

    async def forward(self, assignment: Assignment) -> None:
        """Calls the deployment, and another one if it fails before the first byte."""
        budget = self.state.budgets[assignment.endpoint]
        budget.request(self.caller)
        # One replacement: more would multiply the load on deployments that already fail.
        primary, others = self._candidates(assignment)
        if self.observation.exposure is not None and primary != assignment.deployment:
            self.observation.exposure.diverted()
        try:
            await self._call(primary, assignment)
        except DeadlinePassed:
            raise
        except UpstreamError as error:
            if self.writer.started:
                raise
            fallback = self._replacement(primary, others, error)
            if fallback is None or not budget.take(self.caller):
                self.state.telemetry.routing.retried(assignment.endpoint, primary, error.kind, "withheld")
                raise
            retried = "same" if fallback == primary else "other"
            self.state.telemetry.routing.retried(assignment.endpoint, primary, error.kind, retried)
            self._log_retry(primary, fallback, error)
            if self.snapshot.targets[fallback].url == self.snapshot.targets[primary].url:
                self.place.failed(fallback)  # the fallback's replicas are the same
                await asyncio.sleep(RETRY_SAME_AFTER_S)
            await self._call(fallback, assignment)

    def _log_retry(self, deployment: str, fallback: str, error: UpstreamError) -> None:
        record = self.writer.record
        retry = event(
            "retry",
            request_id=record.request_id,
            endpoint=record.endpoint,
            deployment=deployment,
            fallback=fallback,
            error=error.kind,
            reason=error.message,
        )
        _log.warning("The deployment failed before the first byte; retrying", extra=retry)

    def _candidates(self, assignment: Assignment) -> tuple[str, Sequence[str]]:
        """The primary deployment, and those that may replace it, the best first."""
        candidates = [assignment.deployment, *assignment.alternatives]
        first, *others = self.state.health.order(candidates, self.snapshot)
        return first, others

    def _replacement(self, primary: str, others: Sequence[str], error: UpstreamError) -> str | None:
        """The deployment for the second attempt: the best other one, else the primary again (another replica).

        After a timeout, only one with another URL. The engine may still be working on the request, and nothing but
        another URL makes certain that it does not get the request twice: the ingress chooses among the replicas.
        """
        if not isinstance(error, TimedOut):
            return others[0] if others else primary
        targets = self.snapshot.targets
        return next((name for name in others if targets[name].url != targets[primary].url), None)

    def _call(self, name: str, assignment: Assignment) -> Awaitable[None]:
        """Calls one deployment: an attempt, traced if the request is."""
        target, trace = self.snapshot.targets[name], self.observation.trace
        if trace is None or trace.span is None:
            return self._attempt(target, assignment)
        return self._traced(target, assignment, trace.span)

    async def _traced(self, target: Target, assignment: Assignment, span: RequestSpan) -> None:
        call = span.calling(target.name, target.url)
        try:
            await self._attempt(target, assignment)
        except SwitchyardError as error:
            call.error = error.kind
            raise
        except asyncio.CancelledError:
            call.error = CLIENT_GONE
            raise
        finally:
            call.end()
            if self.writer.failure is not None:
                call.error = self.writer.failure.kind

    async def _attempt(self, target: Target, assignment: Assignment) -> None:
        """Calls one deployment, counts the attempt, and reports its outcome to the circuit breaker."""
        record, health, name = self.writer.record, self.state.health, target.name
        record.deployment = name
        record.attempts += 1
        if name != assignment.deployment:
            record.reason = "failover"
            self.state.telemetry.routing.fell_back(assignment.endpoint, assignment.deployment, name)
        try:
            with self.state.telemetry.working(record):
                await self._serve(target)
        except Rejected as error:
            health.succeeded(name)
            if self.observation.exposure is not None:
                self.observation.exposure.served = name
            self._name_field(error)
            raise
        except UpstreamError as error:
            await self._blame(name, error)
            raise
        finally:
            if self.observation.exposure is not None and self.writer.started:
                self.observation.exposure.served = name
            if isinstance(failure := self.writer.failure, UpstreamError):
                self._failed(name, failure)
            elif self.writer.finished and not self.call.translation.is_shared:
                health.succeeded(name)

    def _name_field(self, error: Rejected) -> None:
        """Finds the field that the engine rejects, and gives it the client's name."""
        if (part := media_refused(error.message, self.call.body)) is not None:
            error.message = f"{part}: endpoint '{self.writer.record.endpoint}' has a model for texts only"
            error.param = part
        param = error.param or field_named_in(error.message, self.call.body)
        error.param, error.value = param, value_at(self.call.body, param)
        if param is None:
            return
        own = self.call.field_names.get(param, param)
        if isinstance(error, ContextExceeded):
            error.named(own)
            return
        if error.message.startswith((NOT_FETCHED, TOO_COSTLY)):
            error.message = f"{own}: {error.message}"  # some dialects have no other place for the field
        elif error.message.startswith(f"{param}:"):
            error.message = own + error.message.removeprefix(param)
        error.param = own

    async def _blame(self, name: str, error: UpstreamError) -> None:
        """Reports an attempt that failed before the first byte; raises BadRequest if the request itself is to blame.

        An engine that follows a schema or grammar fails with an internal error if no text satisfies it, or if following
        it takes too long. Then any other request would succeed, and another deployment would fail as well.
        """
        field = constrained_field(self.call.body)
        suspect = type(error) is Broken and not self.writer.started
        if field is not None and suspect and await self.state.health.is_healthy(name, self.snapshot):
            raise impossible(self.call, field, "is satisfied by no text, or too ambiguous to be followed") from error
        self._failed(name, error)

    def _failed(self, name: str, error: UpstreamError) -> None:
        """Reports a failure of the deployment, unless anybody may ask, and would decide who gets traffic."""
        if isinstance(error, MalformedAnswer):
            malformed = event(
                "malformed_response",
                request_id=self.writer.record.request_id,
                deployment=name,
                traceback=where(error.__cause__ or error),
            )
            _log.warning(error.message, extra=malformed)
        if self.call.translation.is_shared:
            return
        if isinstance(error, Unavailable) and not error.is_fault:
            self.state.unserved.refused(name)
            self.state.telemetry.routing.deployment_refused(self.writer.record.endpoint, name)
        self.state.health.failed(name, error, self.snapshot)
        if self.observation.exposure is not None:
            self.observation.exposure.failed(name, error)

    async def _serve(self, target: Target) -> None:
        serving = await self._serving(target)
        request = await self._engine_request(target, serving)
        if isinstance(request, Reply):
            self.writer.record.usage = request.usage
            await self._send(request, target)
            return
        self._check_params(request)
        self.writer.record.max_tokens = max_tokens(request.body)
        if self.observation.exposure is not None:
            self.observation.exposure.sent(request.path, request.body)
        if self.observation.original is not None:
            self.observation.original.sent(request.path, request.body)
        salted = self._salted(target, request)
        try:
            await (self._streamed if self.call.translation.stream else self._unary)(target, salted, serving)
        except ContextExceeded as error:
            raise await self._counted(target, request, error) from None

    async def _counted(self, target: Target, request: EngineRequest, error: ContextExceeded) -> ContextExceeded:
        """The error with the prompt's length, if the engine tells that."""
        counting = None if error.is_exact else self.call.translation.counting(request)
        if counting is None:
            return error
        try:
            async with until(self.deadline):
                (answer,) = await self._lookup(target, [counting])
            with malformed_answers():
                length = counted(from_json(answer))
        except ContextExceeded as longer:
            return ContextExceeded(error.context, longer.prompt, error.wanted, is_exact=False, status=error.status)
        except SwitchyardError:
            return error
        return ContextExceeded(error.context, length, error.wanted, is_exact=True, status=error.status)

    async def _streamed(self, target: Target, request: EngineRequest, serving: ServingContext) -> None:
        stream = self.call.translation.open_stream(serving)
        with closing(self._open(target, request)) as chunks:
            async with self._in_time():
                await chunks.begin(check=stream.check)
            if constrained_field(request.body) is not None:
                async with until(self.deadline):
                    await self._check_second_event(chunks)
            await self.writer.start_stream(stream.headers)
            cut = cut_calls(request.path, request.body)
            relay = Relay(stream, names_of(target), self.writer, self.observation, cut)
            await relay.run(chunks, self.snapshot.config.timeouts.idle_s, self.deadline)

    def _check_params(self, request: EngineRequest) -> None:
        """Raises BadRequest for a parameter that the endpoint does not allow, whichever dialect passed it."""
        name = self.writer.record.endpoint
        check_engine_params(request.body, name, self.snapshot.config.endpoints.get(name))

    def _salted(self, target: Target, request: EngineRequest) -> EngineRequest:
        """The request with the salt that keeps its prompt apart in the engine's cache. Raises BadRequest."""
        if not (target.takes_salt and self.place.scope):
            return request
        check_salt(request.body)
        return self.state.salts.salted(request, target, self.place.scope)

    async def _serving(self, target: Target) -> ServingContext:
        settings = self.snapshot.config.deployments[target.name]
        if not self.call.translation.needs_model:
            return ServingContext(target.name, settings)
        ask = partial(self.state.upstream.model, target, self.snapshot.config.timeouts)
        async with until(self.deadline):
            model = await (self._shared(target, "", ask) if self.call.translation.is_shared else ask())
        return ServingContext(target.name, settings, model)

    async def _engine_request(self, target: Target, serving: ServingContext) -> EngineRequest | Reply:
        """The main request, after its lookups; or the reply, if the lookups suffice."""
        flow = self.call.translation.engine_requests(serving)
        # Tokenizing a long prompt takes tens of milliseconds, in which the event loop would serve no other stream.
        in_thread = self.call.translation.needs_model and self.size > _LONG_BODY
        if in_thread:
            async with until(self.deadline):
                step = await asyncio.to_thread(_first_step, flow)
        else:
            step = _first_step(flow)
        while not isinstance(step, EngineRequest | Reply):
            if not step:
                async with until(self.deadline):
                    step = await asyncio.to_thread(_next_step, flow, ()) if in_thread else _next_step(flow, ())
                continue
            if self.observation.original is not None:
                self.observation.original.looked_up()
            async with until(self.deadline):
                answers = await self._lookup(target, step)
            with malformed_answers():
                step = _next_step(flow, [from_json(answer) for answer in answers])
        return step

    async def _lookup(self, target: Target, requests: Sequence[EngineRequest]) -> Sequence[bytes]:
        slots = asyncio.Semaphore(MAX_CONCURRENT_LOOKUPS)

        async def post(request: EngineRequest) -> bytes:
            async with slots:
                return await self._post(target, self._salted(target, request))

        return await asyncio.gather(*map(post, requests))

    async def _unary(self, target: Target, request: EngineRequest, serving: ServingContext) -> None:
        record, sent_at = self.writer.record, time.perf_counter()
        if (collector := self.call.translation.collector(request)) is not None:
            answer = await self._collect(target, request.path, collector)
        else:
            ask = partial(self._post, target, request, self._on_head)
            async with self._in_time():
                answer = await (self._shared(target, request.path, ask) if self.call.translation.is_shared else ask())
        received_at = time.perf_counter()
        record.usage = usage_of_answer(answer)
        if self.observation.original is not None:
            self.observation.original.chunk(answer)
        if self.observation.exposure is not None:
            self.observation.exposure.answer(answer)
        if (span := self._span) is not None:
            span.answered(answer)
        serving = replace(serving, total_s=received_at - record.started, engine_s=received_at - sent_at)
        with malformed_answers():
            reply = self.call.translation.reply(answer, serving)
        await self._send(reply, target)

    async def _send(self, reply: Reply, target: Target) -> None:
        names = names_of(target)
        if len(reply.body) > _LONG_ANSWER:
            async with until(self.deadline):
                pieces = await asyncio.to_thread(names.in_long_answer, reply.body)
            # It has begun, so it must end whole; but a client that does not read it holds a slot of the endpoint.
            latest = asyncio.get_running_loop().time() + self.snapshot.config.timeouts.idle_s
            async with until(max(self.deadline, latest)):
                await self.writer.send_long(reply, pieces)
        else:
            await self.writer.send(replace(reply, body=names.in_answer(reply.body)))

    async def _collect(self, target: Target, path: str, collector: StreamCollector) -> bytes:
        """The answer, collected from a stream; at the deadline, the part that the collector returns."""
        cut = cut_calls(path, collector.request)
        with closing(self._open(target, EngineRequest(path, collector.request))) as chunks:
            async with self._in_time():
                await chunks.begin()
            try:
                async with IdleTimeout(self.snapshot.config.timeouts.idle_s, self.deadline) as idle:
                    async for chunk in chunks:
                        collector.feed(chunk if cut is None else cut.feed(chunk))
                        idle.last = asyncio.get_running_loop().time()
            except TimedOut as error:
                if (answer := collector.at_deadline()) is None:
                    raise
                self.writer.fail(error)
                return answer
        return checked_answer(path, collector.complete(), JSON, collector.request)

    def _shared(self, target: Target, path: str, ask: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """The answer to any request for the same, at most a second old."""
        answer: Awaitable[T] = self.state.shared.get((target.name, target.url, path), ask)
        return answer

    def _in_time(self) -> AbstractAsyncContextManager[object]:
        """Limits a call to the deadline; sets no timer where `first_byte_s`, which limits it anyway, ends sooner."""
        latest = asyncio.get_running_loop().time() + self.snapshot.config.timeouts.first_byte_s
        return until(self.deadline) if self.deadline <= latest else _NO_LIMIT

    async def _post(self, target: Target, request: EngineRequest, on_head: OnHead | None = None) -> bytes:
        return await self.state.upstream.unary(
            target,
            request.path,
            request.body,
            request_id=self.writer.upstream_id(),
            timeouts=self._timeouts,
            context=self._context(target),
            on_head=on_head,
            encode=self._encode,
        )

    @property
    def _timeouts(self) -> Timeouts:
        timeouts = self.snapshot.config.timeouts
        if not self.call.translation.is_shared:
            return timeouts
        # A new call each second: those to an engine that hangs must not pile up.
        return timeouts.model_copy(update={"first_byte_s": min(timeouts.first_byte_s, SHARED_TIMEOUT_S)})

    @property
    def _span(self) -> RequestSpan | None:
        return self.observation.trace.span if self.observation.trace is not None else None

    def _context(self, target: Target) -> Mapping[str, str]:
        trace, place = self.observation.trace, self.place.headers(target)
        return {**trace.headers(), **place} if trace is not None and target.takes_trace else place

    @property
    def _on_head(self) -> OnHead | None:
        return self.observation.exposure.head if self.observation.exposure is not None else None

    @property
    def _encode(self) -> Encode | None:
        """Writes a long body in a thread, where the event loop does not wait for it."""
        if self.size <= _LONG_BODY:
            return None
        return lambda body, target: self.state.access.bodies.work(self.size, encoded_in_pieces, body, target)

    def _open(self, target: Target, request: EngineRequest) -> ResponseStream:
        return self.state.upstream.stream(
            target,
            request.path,
            request.body,
            request_id=self.writer.upstream_id(),
            timeouts=self.snapshot.config.timeouts,
            context=self._context(target),
            on_head=self._on_head,
            encode=self._encode,
        )

    async def _check_second_event(self, chunks: ResponseStream) -> None:
        """Waits for the second event and raises the engine's error if it is one. The chunks can still be read.

        An engine that cannot follow a schema fails after the event with a chat's role. No status has been sent then.
        """
        received = b""
        try:
            async with within(self.snapshot.config.timeouts.idle_s):
                async for chunk in chunks:
                    received += chunk
                    if received.count(b"\n\n") > 1 or len(received) > _MAX_ROLE_BYTES:
                        break
        except TimeoutError as error:
            raise TimedOut(STOPPED) from error
        if (failure := error_in_first_chunk(received.partition(b"\n\n")[2])) is not None:
            raise failure
        chunks.unread(received)


_Step = Sequence[EngineRequest] | EngineRequest | Reply


def _first_step(flow: Flow) -> _Step:
    try:
        return next(flow)
    except StopIteration as end:
        result: EngineRequest | Reply = end.value
        return result


def _next_step(flow: Flow, answers: Sequence[Any]) -> _Step:
    try:
        return flow.send(answers)
    except StopIteration as end:
        result: EngineRequest | Reply = end.value
        return result
