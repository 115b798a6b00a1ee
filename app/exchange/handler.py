"""READ THIS FIRST. One request's journey, top to bottom:

    authenticate -> read -> parse -> route -> reserve, queue -> forward -> write

`handle` is the journey. Its steps are methods of `Exchange`; the last, `forward`, calls a deployment, and another one
if it fails: an `Attempt` is one such call. `stream.py` relays a stream, `response.py` writes the answer or the error.
What they guarantee:

- an error before the first byte is a real HTTP status in the dialect's own form; after it, the stream ends with the
  dialect's error event, never in silence;
- for every body, however malicious, the event loop serves others within 50 ms: what is long is parsed and written in a
  thread and in pieces (`app/long_json.py`), after its size and the number of its values have been checked; rights come
  first, and invalid requests count;
- a deployment that fails before the first byte is replaced once: by another of the endpoint, else by another of its
  replicas, as long as retries make no more than a tenth of the load;
- the engine stops working for a client that disconnects;
- every response names the deployment that produced it, the endpoint's plan, and the request's id.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace
from pydantic_core import from_json

from app.aio import IdleTimeout, Receive, until, while_connected
from app.config.schema import Timeouts
from app.dialects.base import EngineRequest, Flow, Reply, ServingContext
from app.engine.answers import JSON, checked_answer
from app.engine.collectors import StreamCollector
from app.engine.constraints import THIS_CONSTRAINT, constrained_field
from app.engine.context import counted
from app.engine.output import cut_calls, max_tokens, usage_of_answer
from app.errors import (
    BadRequest,
    Broken,
    ClientError,
    ContextExceeded,
    DeadlinePassed,
    Death,
    MalformedAnswer,
    Rejected,
    SwitchyardError,
    TimedOut,
    Unavailable,
    Unreachable,
    UpstreamError,
)
from app.exchange.cache_salts import check_salt
from app.exchange.engine_input import check_costs, check_input, check_resumed, is_long_to_count, name_rejected_field
from app.exchange.exchange import Candidates, Exchange
from app.exchange.observers import UNOBSERVED, Observer, observer_of
from app.exchange.request import refused_field
from app.exchange.response import ErrorRenderer, Send, names_of
from app.exchange.state import RouterState
from app.exchange.stream import ContinuedStream, DeliveredStream, MalformedAnswerGuard, Relay
from app.internal_api import REPLICA_HEADER
from app.long_json import LONG_BODY, cost_of
from app.telemetry.logs import event, where
from app.upstream.balancer import Placement
from app.upstream.client import NO_CONTEXT, Encode, ResponseStream, encoded_in_pieces
from app.upstream.target import Target

RETRY_SAME_AFTER_S = 0.1
"""Pause before the same deployment is called again, where no other replica may be known."""

SHARED_TIMEOUT_S = 5.0
"""The longest wait for an answer that is shared (`Translation.is_shared`)."""

MAX_CONCURRENT_LOOKUPS = 64
"""Lookups in flight per client request: a batch of thousands must not take every connection."""

T = TypeVar("T")

_log = logging.getLogger("switchyard")
_LONG_ANSWER = 1024 * 1024
"""Bytes. Copying and searching a longer answer on the event loop would delay other streams."""
_LONG_REQUEST = 256 * 1024
"""Bytes. Some replies repeat the request's texts."""
_WRITTEN_AT_ONCE = 256 * 1024
"""Bytes. The server would hold a longer answer, uncounted, for as long as its client reads nothing."""
_NO_LIMIT = nullcontext()


async def handle(
    state: RouterState,
    candidates: Candidates,
    scope: Mapping[str, Any],
    receive: Receive,
    send: Send,
    *,
    refusal: SwitchyardError | None = None,
) -> None:
    """Serves one HTTP request (ASGI). With a `refusal` it only answers that, in the dialect's form."""
    exchange, observer = Exchange(state, candidates, scope, receive, send), UNOBSERVED
    try:
        async with ErrorRenderer(exchange.writer, exchange.render):
            exchange.claim()
            if refusal is not None:
                raise refusal
            try:
                await exchange.authenticate()
                await exchange.read()
                if exchange.route.local:
                    await exchange.answer()
                    return
                await exchange.parse()
                with while_connected(receive, exchange.is_answered):
                    await exchange.assign()
                    await exchange.check()
                    async with exchange.limits(), exchange.slot():
                        exchange.admitted()
                        observer = observer_of(exchange)
                        await forward(exchange, observer)
            except ClientError as error:
                raise await exchange.refused(error) from None
    finally:
        exchange.end()
        observer.ended()


async def forward(exchange: Exchange, observer: Observer) -> None:
    """Calls the assigned deployment, and another one if it fails before the first byte."""
    state, assignment, targets = exchange.state, exchange.assignment, exchange.snapshot.targets
    budget, retried = state.budgets[assignment.endpoint], state.telemetry.routing.retried
    budget.request(exchange.caller.id)
    candidates = [assignment.deployment, *assignment.alternatives]
    primary, *others = state.health.order(candidates, exchange.snapshot)
    # One replacement: more would multiply the load on deployments that already fail. But after the death of an engine
    # the deployment's other replicas come first: they have the room that another deployment may lack.
    replicas = state.running.last
    may_repeat = replicas is not None and replicas.running(targets[primary].app) > 1
    called, may_replace = primary, True
    while True:
        attempt = Attempt(exchange, observer, targets[called], has_others=bool(others) and called == primary)
        try:
            await attempt.run()
            return
        except DeadlinePassed:
            raise
        except UpstreamError as error:
            if exchange.writer.started or not may_replace:
                raise
            if exchange.deaths > 1:
                # It goes on, to another deployment, if others have lost the same engines: they tell so by and by.
                await asyncio.sleep(RETRY_SAME_AFTER_S)
                if exchange.deaths > 2 or not others or await exchange.suspicion() is not None:
                    raise
            fallback: str | None = primary
            if may_repeat and isinstance(error, Death):
                may_replace = bool(others)
            else:
                fallback, may_replace = _replacement(targets, primary, others, error), False
            may_repeat = False
            # What an engine was working on when it died is no more than that, however much fails afterwards.
            # And one that has reached nobody was no load at all.
            had_it = isinstance(error, Death) and state.fuse.has_taken(called, attempt.sent_at)
            is_free = had_it or (isinstance(error, Unreachable) and fallback != called)
            if fallback is None or not (is_free or budget.take(exchange.caller.id)):
                retried(assignment.endpoint, called, error.kind, "withheld")
                raise
            retried(assignment.endpoint, called, error.kind, "same" if fallback == called else "other")
            _log_retry(exchange, fallback, error)
            exchange.place.failed(called)
            if targets[fallback].url == targets[called].url:  # the fallback's replicas are the same
                await asyncio.sleep(RETRY_SAME_AFTER_S)
            called = fallback


def _replacement(
    targets: Mapping[str, Target], primary: str, others: Sequence[str], error: UpstreamError
) -> str | None:
    """The deployment for another attempt: the best other one, else the primary again (another replica).

    After a timeout, only one with another URL. The engine may still be working on the request, and nothing but another
    URL makes certain that it does not get the request twice: it may be the only replica.
    """
    if not isinstance(error, TimedOut):
        return others[0] if others else primary
    return next((name for name in others if targets[name].url != targets[primary].url), None)


def _log_retry(exchange: Exchange, fallback: str, error: UpstreamError) -> None:
    record = exchange.record
    retry = event(
        "retry",
        request_id=record.request_id,
        endpoint=record.endpoint,
        deployment=record.deployment,
        fallback=fallback,
        error=error.kind,
        reason=error.message,
    )
    _log.warning("The deployment failed before the first byte; retrying", extra=retry)


class Attempt:
    """One call of a deployment for a client's request, with the lookups that precede the main request."""

    __slots__ = (
        "_blamed",
        "_exchange",
        "_has_looked_up",
        "_is_calling",
        "_left_for_others",
        "_observer",
        "_target",
        "sent_at",
    )

    def __init__(self, exchange: Exchange, observer: Observer, target: Target, *, has_others: bool) -> None:
        """`has_others`: another deployment takes the request if this one has no replica."""
        self._exchange, self._observer, self._target = exchange, observer, target
        replicas = exchange.state.running.last if has_others else None
        self._left_for_others = target.app if replicas is not None and replicas.keeps(target.app) else None
        """The deployment's application, if the request need not wait for a replica of it."""
        self._has_looked_up = self._is_calling = False
        self._blamed: UpstreamError | None = None
        self.sent_at = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Answers the client. Raises the error of a deployment that has failed before the first byte."""
        observer, name = self._observer, self._target.name
        self._calls()
        try:
            await self._reported()
        except (SwitchyardError, asyncio.CancelledError) as error:
            observer.failed(name, error)
            if isinstance(error, SwitchyardError):
                self._exchange.attempt_failed(error)
            raise
        finally:
            if (failure := self._exchange.writer.failure) is not None:
                observer.failed(name, failure)
            self._returned()

    def _calls(self) -> None:
        """Tells the observer of a call, unless one is under way."""
        if not self._is_calling:
            self._is_calling = True
            self._observer.called(self._target)

    def _returned(self) -> None:
        if self._is_calling:
            self._is_calling = False
            self._observer.returned()

    async def _reported(self) -> None:
        """Counts the attempt, and reports its outcome to the circuit breaker."""
        exchange, name = self._exchange, self._target.name
        record, writer, state, assignment = exchange.record, exchange.writer, exchange.state, exchange.assignment
        record.deployment, record.engine = name, ""
        record.attempts += 1
        record.sent, period = time.perf_counter(), state.health.period(name)
        if name != assignment.deployment:
            record.reason = "failover"
            state.telemetry.routing.fell_back(assignment.endpoint, assignment.deployment, name)
        try:
            with state.telemetry.working(record):
                await self._serve()
            if writer.failure is None and state.fuse.watches:
                await self._cleared()
        except Rejected as error:
            state.health.succeeded(name)
            exchange.served = name
            if state.fuse.watches:
                await self._cleared()
            name_rejected_field(error, exchange, self._target)
            raise
        except UpstreamError as error:
            await self._blame(error)
            raise
        finally:
            if writer.started:
                exchange.served = name
            if isinstance(failure := writer.failure, UpstreamError):
                await self._died(failure, had_tokens=True)
                self._failed(failure)
            elif writer.is_answered and self._blamed is None and not exchange.call.translation.is_shared:
                state.health.succeeded(name, period)

    async def _cleared(self) -> None:
        """Tells the fuse that an engine has answered the request."""
        self._exchange.state.fuse.answered(await self._exchange.fingerprint(), self._exchange.record.engine)

    async def _blame(self, error: UpstreamError) -> None:
        """Reports an attempt that failed before the first byte; raises BadRequest if the request itself is to blame.

        An engine that follows a schema or grammar fails with an internal error if no text satisfies it, or if following
        it takes too long. Then any other request would succeed, and another deployment would fail as well.
        """
        exchange = self._exchange
        field = constrained_field(exchange.call.body)
        suspect = type(error) is Broken and not exchange.writer.started
        if (
            field is not None
            and suspect
            and await exchange.state.health.is_healthy(self._target.name, exchange.snapshot)
        ):
            reason = f"{THIS_CONSTRAINT} is satisfied by no text, or too ambiguous to be followed"
            raise refused_field(exchange.call.field_names, field, reason) from error
        await self._died(error, had_tokens=False)
        self._failed(error)

    async def _died(self, error: UpstreamError, *, had_tokens: bool) -> None:
        """Notes the engine's death, unless the error tells of none, or has been reported."""
        if error is not self._blamed and isinstance(error, Death):
            # Where no engine has told its name, another server may have ended the connection, or a bad answer.
            name, engine = self._target.name, error.engine
            self._exchange.record.engine = engine or self._exchange.record.engine
            await self._exchange.lost(name, engine, had_tokens=had_tokens, is_certain=bool(engine))

    def _failed(self, error: UpstreamError) -> None:
        """Reports a failure of the deployment, once, unless anybody may ask, and would decide who gets traffic."""
        if error is self._blamed:
            return
        self._blamed = error
        exchange, state, name = self._exchange, self._exchange.state, self._target.name
        if isinstance(error, MalformedAnswer):
            malformed = event(
                "malformed_response",
                request_id=exchange.record.request_id,
                deployment=name,
                traceback=where(error.__cause__ or error),
            )
            _log.warning(error.message, extra=malformed)
        if error.is_fault and error.engine_message and exchange.records_texts:
            engine_error = event(
                "engine_error",
                request_id=exchange.record.request_id,
                endpoint=exchange.record.endpoint,
                deployment=name,
                engine_message=exchange.without_credentials(error.engine_message),
            )
            _log.warning(error.message, extra=engine_error)
        if exchange.call.translation.is_shared:
            return
        if isinstance(error, Unavailable) and not error.is_fault:
            state.unserved.refused(name)
            state.telemetry.routing.deployment_refused(exchange.record.endpoint, name)
        state.health.failed(name, error, exchange.snapshot)

    async def _serve(self) -> None:
        """Makes the lookups and the main request, and writes the answer."""
        exchange = self._exchange
        serving = await self._serving()
        if exchange.call.translation.resumed:
            content_filter = exchange.endpoint.content_filter if exchange.endpoint is not None else None
            check = partial(check_resumed, exchange.call, serving.known_model, content_filter)
            await exchange.state.access.bodies.work(exchange.size, check)
        request = await self._engine_request(serving)
        if isinstance(request, Reply):
            exchange.record.usage = request.usage
            await self._send(request)
            return
        await check_input(exchange, self._target, request)
        exchange.record.max_tokens = max_tokens(request.body)
        self._observer.sent(request, after_lookups=self._has_looked_up)
        salted = self._salted(request)
        try:
            await (self._streamed if exchange.call.translation.stream else self._unary)(salted, serving)
        except ContextExceeded as error:
            raise await self._counted(request, error) from None

    # Before the main request

    async def _serving(self) -> ServingContext:
        exchange, target = self._exchange, self._target
        settings = exchange.snapshot.config.deployments[target.name]
        if not exchange.call.translation.needs_model:
            return ServingContext(target.name, settings)
        ask = partial(exchange.state.upstream.model, target, exchange.snapshot.config.timeouts)
        with until(exchange.deadline):
            model = await (self._shared("", ask) if exchange.call.translation.is_shared else ask())
        return ServingContext(target.name, settings, model)

    async def _engine_request(self, serving: ServingContext) -> EngineRequest | Reply:
        """The main request, after its lookups; or the reply, if the lookups suffice."""
        exchange, deadline = self._exchange, self._exchange.deadline
        flow = exchange.call.translation.engine_requests(serving)
        # Tokenizing a long prompt takes tens of milliseconds, in which the event loop would serve no other stream.
        in_thread = exchange.call.translation.needs_model and exchange.size > LONG_BODY
        if in_thread:
            with until(deadline):
                step = await asyncio.to_thread(_next_step, flow)
        else:
            step = _next_step(flow)
        while not isinstance(step, EngineRequest | Reply):
            if not step:
                with until(deadline):
                    step = await asyncio.to_thread(_next_step, flow, ()) if in_thread else _next_step(flow, ())
                continue
            self._has_looked_up = True
            await check_costs(exchange, self._target, step)
            with until(deadline):
                answers = await self._lookup(step)
            with MalformedAnswerGuard():
                step = _next_step(flow, [from_json(answer) for answer in answers])
        return step

    async def _lookup(self, requests: Sequence[EngineRequest]) -> Sequence[bytes]:
        slots = asyncio.Semaphore(MAX_CONCURRENT_LOOKUPS)

        async def post(request: EngineRequest) -> bytes:
            async with slots:
                return await self._post(self._salted(request))

        return await asyncio.gather(*map(post, requests))

    def _salted(self, request: EngineRequest) -> EngineRequest:
        """The request with the salt that keeps its prompt apart in the engine's cache. Raises BadRequest."""
        if not (self._target.takes_salt and self._exchange.place.scope):
            return request
        check_salt(request.body)
        return self._exchange.state.salts.salted(request, self._target, self._exchange.place.scope)

    async def _counted(self, request: EngineRequest, error: ContextExceeded) -> ContextExceeded:
        """The error with the prompt's length, if the engine tells that."""
        counting = None if error.is_exact else self._exchange.call.translation.counting(request)
        if counting is None or await is_long_to_count(self._exchange, counting, error.context):
            return error
        try:
            with until(self._exchange.deadline):
                (answer,) = await self._lookup([counting])
            with MalformedAnswerGuard():
                length = counted(from_json(answer))
        except ContextExceeded as longer:
            return ContextExceeded(error.context, longer.prompt, error.wanted, is_exact=False, status=error.status)
        except SwitchyardError:
            return error
        return ContextExceeded(error.context, length, error.wanted, is_exact=True, status=error.status)

    # The answer as a stream

    async def _streamed(self, request: EngineRequest, serving: ServingContext) -> None:
        exchange = self._exchange
        stream = exchange.call.translation.open_stream(serving)
        chunks = self._opened(request)
        try:
            with self._in_time():
                await chunks.begin(check=stream.check)
            if exchange.call.translation.resumed and not chunks.is_marked:
                raise BadRequest("resume: streams of this kind cannot be continued", param="resume")
            if constrained_field(request.body) is not None:
                with until(exchange.deadline):
                    await chunks.check_second_event(exchange.snapshot.config.timeouts.idle_s)
            await exchange.writer.start_stream(
                stream.headers, has_ended=lambda: stream.has_ended, tokens_sent=lambda: chunks.tokens_sent
            )
            cut = cut_calls(request.path, request.body)
            relay = Relay(stream, names_of(self._target), exchange.writer, self._observer, cut, exchange.with_limit)
            silent_s = serving.settings.continuation.keep_alive_s
            await relay.run(chunks, exchange.snapshot.config.timeouts.idle_s, exchange.deadline, silent_s)
        finally:
            chunks.close()

    # The answer as a whole

    async def _unary(self, request: EngineRequest, serving: ServingContext) -> None:
        translation, record, sent_at = self._exchange.call.translation, self._exchange.record, time.perf_counter()
        if (collector := translation.collector(request)) is not None:
            answer = await self._collect(request.path, collector)
        else:
            ask = partial(self._post, request, is_main=True)
            with self._in_time():
                answer = await (self._shared(request.path, ask) if translation.is_shared else ask())
        received_at = time.perf_counter()
        record.usage = usage_of_answer(answer)
        self._observer.answered(answer)
        serving = replace(serving, total_s=received_at - record.started, engine_s=received_at - sent_at)
        with MalformedAnswerGuard():
            if len(answer) > _LONG_ANSWER or self._exchange.size > _LONG_REQUEST:
                reply = await asyncio.to_thread(translation.reply, answer, serving)
            else:
                reply = translation.reply(answer, serving)
        await self._send(reply)

    async def _collect(self, path: str, collector: StreamCollector) -> bytes:
        """The answer, collected from a stream; at the deadline, the part that the collector returns."""
        exchange, cut = self._exchange, cut_calls(path, collector.request)
        with closing(self._opened(EngineRequest(path, collector.request))) as chunks:
            with self._in_time():
                await chunks.begin()
            try:
                with IdleTimeout(exchange.snapshot.config.timeouts.idle_s, exchange.deadline) as idle:
                    chunks.survive(idle, lambda: collector.has_ended)
                    async for chunk in chunks:
                        with MalformedAnswerGuard():
                            collector.feed(chunk if cut is None else cut.feed(chunk))
                        idle.last = asyncio.get_running_loop().time()
            except TimedOut as error:
                if (answer := collector.at_deadline()) is None:
                    raise
                exchange.writer.fail(exchange.with_limit(error))
                return answer
        return checked_answer(path, collector.complete(), JSON, collector.request)

    async def _send(self, reply: Reply) -> None:
        exchange, names = self._exchange, names_of(self._target)
        if len(reply.body) > _WRITTEN_AT_ONCE:
            exchange.hold_answer(len(reply.body))
            with until(exchange.deadline):
                pieces = await asyncio.to_thread(names.in_long_answer, reply.body)
            # It has begun, so it must end whole; but a client that does not read it holds a slot of the endpoint.
            latest = asyncio.get_running_loop().time() + exchange.snapshot.config.timeouts.idle_s
            with until(max(exchange.deadline, latest)):
                await exchange.writer.send_long(reply, pieces)
        else:
            await exchange.writer.send(replace(reply, body=names.in_answer(reply.body)))

    # Calls of the upstream

    def _shared(self, path: str, ask: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """The answer to any request for the same, at most a second old."""
        answer: Awaitable[T] = self._exchange.state.shared.get((self._target.name, self._target.url, path), ask)
        return answer

    def _in_time(self) -> AbstractContextManager[object]:
        """Limits a call to the deadline, and to the time for which its deployment has a replica, if another one would
        take it; sets no timer where `first_byte_s`, which limits it anyway, ends sooner."""
        deadline, timeouts = self._exchange.deadline, self._exchange.snapshot.config.timeouts
        if (application := self._left_for_others) is not None:
            return self._exchange.state.vacancies.departure(application, deadline)
        latest = asyncio.get_running_loop().time() + timeouts.first_byte_s
        return until(deadline) if deadline <= latest else _NO_LIMIT

    async def _post(self, request: EngineRequest, *, is_main: bool = False) -> bytes:
        return await self._exchange.state.upstream.unary(
            self._target,
            request.path,
            request.body,
            request_id=self._exchange.writer.upstream_id(),
            timeouts=self._timeouts,
            context=self._context(),
            placement=self._placement(),
            on_head=self._took_head if is_main else None,
            encode=self._encode,
        )

    def _took_head(self, headers: Mapping[str, str]) -> None:
        """Takes the head of a whole answer."""
        self._exchange.record.engine = headers.get(REPLICA_HEADER, "")
        if self._observer.on_head is not None:
            self._observer.on_head(headers)

    def _opened(self, request: EngineRequest) -> ContinuedStream:
        """The answer's stream, for which the deployment's replicas are called under one id."""
        id, target = self._exchange.writer.upstream_id(), self._target

        def call(delivered: DeliveredStream) -> ResponseStream:
            self._calls()
            return self._exchange.state.upstream.stream(
                target,
                request.path,
                request.body,
                request_id=id,
                timeouts=self._exchange.snapshot.config.timeouts,
                context=self._context(),
                placement=self._placement(),
                on_head=self._observer.on_head,
                encode=self._encode,
                groups=delivered if target.continues else None,
            )

        return ContinuedStream(self._exchange, target, call, self._lost, self._exchange.call.translation.resumed)

    async def _lost(self, failure: UpstreamError | None, engine: str, had_tokens: bool) -> None:
        """Records that a stream has lost its engine: see `ContinuedStream`."""
        if failure is not None:
            name = self._target.name
            self._observer.failed(name, failure)
            self._failed(failure)
            await self._exchange.lost(name, engine, had_tokens=had_tokens)
        self._returned()

    @property
    def _timeouts(self) -> Timeouts:
        timeouts = self._exchange.snapshot.config.timeouts
        if not self._exchange.call.translation.is_shared:
            return timeouts
        # A new call each second: those to an engine that hangs must not pile up.
        return timeouts.model_copy(update={"first_byte_s": min(timeouts.first_byte_s, SHARED_TIMEOUT_S)})

    def _context(self) -> Mapping[str, str]:
        return self._exchange.trace.headers() if self._target.takes_trace else NO_CONTEXT

    def _placement(self) -> Placement:
        placement = self._exchange.place.placement(self._target)
        placement.waits, placement.lacks = self._left_for_others is None, self._exchange.record.lacks
        return placement

    @property
    def _encode(self) -> Encode | None:
        """Writes a long body in a thread, where the event loop does not wait for it."""
        cost, bodies = cost_of(self._exchange.request.body), self._exchange.state.access.bodies
        if cost <= LONG_BODY:
            return None
        return lambda body, target: bodies.work(cost, encoded_in_pieces, body, target)


_Step = Sequence[EngineRequest] | EngineRequest | Reply


def _next_step(flow: Flow, answers: Sequence[Any] | None = None) -> _Step:
    """The step after these answers; the first one without any."""
    try:
        return next(flow) if answers is None else flow.send(answers)
    except StopIteration as end:
        result: EngineRequest | Reply = end.value
        return result
