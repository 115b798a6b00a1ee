import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import from_json

from app.access.caller import Caller, credentials, must_use, visible
from app.config.schema import Sticky
from app.dialects.base import Call, Dialect, Request, Served, Stream
from app.dialects.json_body import dump, value_at
from app.engine.completion_collector import Fold
from app.engine.errors import field_named_in
from app.engine.usage import find_usage
from app.errors import Broken, DeadlinePassed, Incomplete, Rejected, SwitchyardError, TimedOut, UpstreamError
from app.exchange.deadlines import Lively, until
from app.exchange.response import Answer
from app.exchange.state import Board, Snapshot
from app.routing.circuit_breaker import Asked
from app.routing.content_filter import refuse_hits
from app.routing.traffic import DEPLOYMENT_HEADER, Assignment, assign
from app.telemetry.access_log import where
from app.upstream.target import Target

_log = logging.getLogger("switchyard")

AGAIN_AFTER_S = 0.1
"""Before the same deployment is asked again: by then the ingress knows which of its replicas has just died."""

LOOKUPS_AT_ONCE = 64
"""Of one request's questions to the engine, so that a batch of thousands leaves connections to the others."""

_LONG_BODY = 16 * 1024

_NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What code raises that takes an answer for what it is not."""


class _Abort(Exception):
    """The stream failed and its format has no way to say so."""


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


def _sticky_key(sticky: Sticky, call: Call, headers: Mapping[str, str]) -> str | None:
    if sticky.by == "header":
        return headers.get((sticky.name or "").lower())
    return call.user if sticky.by == "user" else next(iter(credentials(headers)), None)
