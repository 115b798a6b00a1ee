"""One stream, from a deployment to the client (`Relay`). It survives its engine: when a replica dies or hands its
streams over, another one continues them.

    engine ─► groups of events, each with a mark ─► DeliveredStream.feed ─► whole groups ─► relay, collectors, observers
    engine lost ─► the same request, and the ids of the tokens that the client has ─► another replica ─► the rest

A replica of a model application closes the events of each of its engine's outputs with a mark, which names the tokens
(`app.internal_api.CONTINUATION_HEADER`). Only whole groups pass. A successor treats the request as one that it has
preempted, and sends what follows them. Nothing is kept but the ids: four bytes per token. No dialect knows of it.

Never another deployment: that is another model. What a request that kills engines may do is bounded by the fuse
(`app.routing.resilience.Fuse`): one continuation per request after deaths, and any number after hand-overs.
"""

import asyncio
import logging
import math
import re
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Self, TypeGuard

from msgspec.structs import replace

from app.aio import STOPPED, IdleTimeout, TimeLimit, run_until_blocked, within
from app.dialects.base import MALFORMED_ANSWER_ERRORS, Stream
from app.engine.answers import EventCheck
from app.engine.errors import ENDED_EARLY, MALFORMED_RESPONSE, error_in, error_in_first_chunk
from app.engine.output import CutCalls
from app.errors import (
    Broken,
    Incomplete,
    MalformedAnswer,
    Queued,
    Rejected,
    SwitchyardError,
    TimedOut,
    Unanswered,
    Unavailable,
    UpstreamError,
)
from app.exchange.exchange import Exchange
from app.exchange.observers import Observer
from app.exchange.response import DeploymentNames, EventNames, ResponseWriter, StreamAborted
from app.internal_api import (
    CONTINUATION_HEADER,
    CONTINUATION_MARKED,
    CONTINUATION_NEW,
    MARK_HAND_OVER,
    MARK_NONE,
    MARK_TOKENS,
    REPLICA_HEADER,
)
from app.routing.resilience import AT_ONCE_S
from app.sse import MOST_EVENT
from app.telemetry.logs import event
from app.upstream.client import EngineLost, ResponseStream
from app.upstream.http.connection import Take
from app.upstream.target import Target

_log = logging.getLogger("switchyard")
_MAX_ROLE_BYTES = 64 * 1024

_MARK = b"\n\n" + MARK_TOKENS
_COLON = MARK_TOKENS[0]
_ANY_MARK = re.compile(
    rb"\n\n(?:%b([0-9,]*)|(%b)|%b)(?=\n\n)"
    % (re.escape(MARK_TOKENS), re.escape(MARK_HAND_OVER.strip()), re.escape(MARK_NONE.strip()))
)
_CREATED = re.compile(rb'"created(?:_at)?":[0-9.e+]+')
"""When the answer was created. The quotes in a text are escaped."""


class DeliveredStream:
    """What the client has of one stream, whichever engines it comes from. Pure: chunks in, whole groups out.

    `tokens`: the ids of the tokens whose events have been passed on. `is_marked`: the present engine marks the stream.
    """

    __slots__ = (
        "_created",
        "_failure",
        "_has_begun",
        "_is_handed_over",
        "_is_steady",
        "_is_successor",
        "_pending",
        "engine",
        "is_marked",
        "silent",
        "tokens",
    )

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        """`tokens`: those whose events the client has already, from another router."""
        self.tokens = array("I", tokens)
        self.silent: Callable[[], None] | None = None
        """Called for tokens that have no event yet, such as those of a tool's arguments: their engine works."""
        self.is_marked = False
        self.engine = ""
        """The present engine's name, "" before its response has begun."""
        self._has_begun = bool(self.tokens)
        self._is_successor = self._is_handed_over = self._is_steady = False
        self._failure: UpstreamError | None = None
        self._pending = b""
        self._created: bytes | None = None

    def headers(self) -> Mapping[str, str]:
        """The header that asks for the stream, or for its rest."""
        return {CONTINUATION_HEADER: str(len(self.tokens)) if self._has_begun else CONTINUATION_NEW}

    def tail(self) -> bytes:
        """What follows the request's body: the ids, as little-endian numbers of 32 bits."""
        return self.tokens.tobytes()

    def begin(self, headers: Mapping[str, str]) -> None:
        """Takes the head of an engine's response."""
        self.is_marked = headers.get(CONTINUATION_HEADER) == CONTINUATION_MARKED
        self.engine = headers.get(REPLICA_HEADER, "")
        self._is_successor, self._is_handed_over = bool(self._created), False
        self._is_steady = self.is_marked and not self._is_successor
        self._failure, self._pending = None, b""

    def feed(self, chunk: bytes) -> bytes:
        """The whole groups so far, without their marks. It is on the hot path."""
        if self._is_steady and (at := chunk.find(_MARK)) >= 0:
            # Nearly always it is one group, of one token.
            token = chunk[at + len(_MARK) : -2]
            if token.isdigit() and chunk.endswith(b"\n\n") and chunk[0] != _COLON:
                self.tokens.append(int(token))
                return chunk[: at + 2] if self._created is not None else self._first(chunk[: at + 2])
        return self._groups(self._pending + chunk) if self.is_marked else chunk

    def end(self) -> bytes:
        """What follows the last group when the response ends in order: nothing, or an error that the client has made.

        Raises EngineLost.
        """
        pending, self._pending = self._pending, b""
        if self._is_handed_over:
            raise EngineLost(None)
        if self._failure is None and pending and not isinstance(error := error_in(pending), Rejected):
            self._failure = error if isinstance(error, UpstreamError) else Incomplete(ENDED_EARLY)
        if self._failure is not None:
            raise EngineLost(self._failure)
        return pending

    def _groups(self, data: bytes) -> bytes:
        passed: list[bytes] = []
        known = len(self.tokens)
        data, start = b"\n\n" + data, 2
        for mark in _ANY_MARK.finditer(data):
            self._has_begun = True
            group, start = data[start : mark.start() + 2], mark.end() + 2
            ids, hand_over = mark.groups()
            if hand_over:
                self._is_handed_over = True
            elif ids is None:
                self.is_marked = False
                passed += [group, data[start:]]
                start = len(data)
                break
            elif not ids and isinstance(error := error_in(group), UpstreamError):  # the engine is dying
                self._failure = error
            else:
                passed.append(group)
                if ids:
                    self.tokens.extend(map(int, ids.split(b",")))
        self._pending = data[start:]
        if len(self._pending) > MOST_EVENT:
            raise MalformedAnswer(MALFORMED_RESPONSE)
        self._is_steady = self.is_marked and not (self._pending or self._is_successor)
        events = b"".join(passed)
        if not events and len(self.tokens) > known and self.silent is not None:
            self.silent()
        return self._dated(events)

    def _first(self, events: bytes) -> bytes:
        self._has_begun = True
        return self._dated(events)

    def _dated(self, events: bytes) -> bytes:
        """The events, those of a successor with the first engine's time."""
        if not events:
            return b""
        if self._created is None:
            found = _CREATED.search(events)
            self._created = found[0] if found else b""
        if not self._is_successor:
            return events
        created = self._created
        return b"\n\n".join(_CREATED.sub(created, frame, count=1) for frame in events.split(b"\n\n"))


FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""Before the first call of a successor, and, doubled each time, before further ones: by then there may be another
one."""

_GONE_S = 0.02
"""On a connection that is closed sooner, no replica has worked: the system of one that dies still takes connections."""


class ContinuedStream:
    """A deployment's stream, whichever of its replicas the chunks come from; to be used as a `ResponseStream`.

    From `survive` on, reading takes as long as a successor takes to go on.
    """

    __slots__ = (
        "_call",
        "_delivered",
        "_exchange",
        "_had",
        "_has_ended",
        "_idle",
        "_lost",
        "_lost_at",
        "_response",
        "_resumed",
        "_target",
    )

    def __init__(
        self,
        exchange: Exchange,
        target: Target,
        call: Callable[[DeliveredStream], ResponseStream],
        lost: Callable[[UpstreamError | None, str, bool], Awaitable[None]],
        tokens: Iterable[int] = (),
    ) -> None:
        """`call` makes a call for the stream, or for its rest. `lost` records a lost engine: its failure, None for a
        hand-over, its name, and whether the request had new tokens of it. `tokens`: those that the client has from
        another router."""
        self._exchange, self._target, self._call, self._lost = exchange, target, call, lost
        self._delivered = DeliveredStream(tokens)
        self._had = self._resumed = len(self._delivered.tokens)
        self._response = call(self._delivered)
        self._lost_at = -math.inf
        self._idle: IdleTimeout | None = None

    async def begin(self, *, check: EventCheck | None = None) -> None:
        """See `ResponseStream.begin`. Raises UpstreamError if the engine is lost."""
        try:
            await self._response.begin(check=check)
        except EngineLost as lost:
            failure = self._failure(lost)
            failure.engine = self._delivered.engine
            raise failure from lost
        self._exchange.record.engine = self._delivered.engine

    def survive(self, idle: IdleTimeout, has_ended: Callable[[], bool]) -> None:
        """From now on another engine continues where one is lost, in the block of `idle`, which does not count then.

        `has_ended`: whether the terminal event has been read.
        """
        self._idle, self._has_ended = idle, has_ended
        self._delivered.silent = idle.touch

    @property
    def is_marked(self) -> bool:
        """Whether another engine can continue the stream."""
        return self._delivered.is_marked

    @property
    def tokens_sent(self) -> int | None:
        """How many tokens the client has of this router; None if the stream has no marks."""
        return len(self._delivered.tokens) - self._resumed if self._delivered.is_marked else None

    def unread(self, chunks: bytes) -> None:
        """See `ResponseStream.unread`."""
        self._response.unread(chunks)

    async def check_second_event(self, idle_s: float) -> None:
        """Waits for the second event and raises the engine's error if it is one. The chunks can still be read.

        An engine that cannot follow a schema fails after the event with a chat's role. No status has been sent then.
        """
        received = b""
        try:
            with within(idle_s):
                async for chunk in self:
                    received += chunk
                    if received.count(b"\n\n") > 1 or len(received) > _MAX_ROLE_BYTES:
                        break
        except TimeoutError as error:
            raise TimedOut(STOPPED) from error
        if (failure := error_in_first_chunk(received.partition(b"\n\n")[2])) is not None:
            raise failure
        self.unread(received)

    def close(self) -> None:
        """See `ResponseStream.close`."""
        self._response.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Raises UpstreamError."""
        while True:
            try:
                return await self._response.__anext__()
            except EngineLost as lost:
                if not await self._continued(lost):
                    raise StopAsyncIteration from None

    async def each(self, take: Take) -> bytes:
        """See `ResponseStream.each`. Raises UpstreamError, and the errors of `take`."""
        while True:
            try:
                return await self._response.each(take)
            except EngineLost as lost:
                if not await self._continued(lost):
                    return b""

    async def _continued(self, lost: EngineLost) -> bool:
        """Opens the rest of the stream at another replica; False if the client has all of it. Raises UpstreamError."""
        exchange, has_tokens = self._exchange, len(self._delivered.tokens) > 0
        # A whole answer of which there is nothing yet is simply asked for again.
        if self._idle is None or not (self._delivered.is_marked and (exchange.writer.started or has_tokens)):
            raise self._failure(lost) from lost
        if self._has_ended():
            return False
        loop = asyncio.get_running_loop()
        outcome, successor = "ended", None
        noticed_s = loop.time() - self._idle.last
        exchange.record.engine_lost(_WHY[_reason(lost)], self._delivered.engine, noticed_s)
        self._idle.pause()
        try:
            await self._succeeded(lost)
            outcome, successor = "continued", self._delivered.engine
        except asyncio.CancelledError:
            outcome = "deadline" if loop.time() >= exchange.deadline else "client_gone"
            raise
        finally:
            pause_s = exchange.record.wait_ended(successor)
            labels = exchange.assignment.endpoint, self._target.name
            exchange.state.telemetry.routing.continued(*labels, _reason(lost), outcome, pause_s)
            about = {"request_id": exchange.record.request_id, "endpoint": labels[0], "deployment": labels[1]}
            times = {"noticed_ms": round(noticed_s * 1000, 1), "pause_ms": round(pause_s * 1000, 1)}
            moved = event("stream_moved", **about, reason=_reason(lost), outcome=outcome, **times)
            _log.warning("A stream has lost its engine", extra=moved)
        self._idle.resume()
        return True

    async def _succeeded(self, lost: EngineLost) -> None:
        """Waits for a successor that has begun. Raises UpstreamError if none will.

        The wait ends when a replica takes the stream, or after `wait_s`, wherever the call waits meanwhile. That time
        begins anew with each engine that is lost, and with each that is there, but full.
        """
        loop, settings = asyncio.get_running_loop(), self._exchange.snapshot.config.deployments[self._target.name]
        wait_s, pause_s = settings.continuation.wait_s, FIRST_PAUSE_S
        latest = loop.time() + wait_s
        await self._blame(lost)
        while loop.time() + pause_s <= latest:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S, wait_s / 2)
            try:
                await self._begin(latest)
                return
            except Unavailable as error:
                if not (error.is_fault or isinstance(error, Queued)):
                    latest = loop.time() + wait_s
            except EngineLost as again:
                lost = again
                await self._blame(lost)
                latest, pause_s = loop.time() + wait_s, FIRST_PAUSE_S
            except Rejected as refusal:  # the client's request was right
                raise self._failure(lost) from refusal
        raise self._failure(lost)

    async def _blame(self, lost: EngineLost) -> None:
        """Counts the loss. Raises the engine's failure if the request may not go on."""
        had_tokens = len(self._delivered.tokens) > self._had
        self._exchange.place.failed(self._target.name)
        self._response.close()
        await self._lost(lost.failure, self._delivered.engine, had_tokens)
        if lost.failure is None:
            return
        self._lost_at = asyncio.get_running_loop().time()
        if self._exchange.deaths > 1:
            raise lost.failure

    async def _begin(self, latest: float) -> None:
        """Has a successor go on. Raises Unavailable if none takes the stream now, or until `latest`, where the ingress
        has the call wait for one; EngineLost if it has died; Rejected; TimedOut if it has taken it, and says nothing.
        """
        delivered, loop = self._delivered, asyncio.get_running_loop()
        self._had, sent_at, delivered.engine = len(delivered.tokens), loop.time(), ""
        try:
            with _Wait(latest, loop, delivered):
                await self._check()
                self._response = self._call(delivered)
                await self._response.begin(events=False)
            if not delivered.is_marked:
                raise MalformedAnswer(MALFORMED_RESPONSE)
        except (Unavailable, TimeoutError, TimedOut, Broken) as error:
            if self._is_lost(error, sent_at):
                raise EngineLost(error) from error
            if delivered.engine and isinstance(error, TimedOut):
                raise
            self._response.close()
            if isinstance(error, Unavailable):
                raise
            raise self._unavailable() from error

    async def _check(self) -> None:
        """Raises Unavailable where engines have died in turn, and a check of the deployment does not pass."""
        state, name = self._exchange.state, self._target.name
        if state.fuse.is_blown(name):
            if not await state.health.confirmed(name, self._exchange.snapshot):
                raise self._unavailable()
            state.fuse.reset(name)

    def _is_lost(self, error: Exception, sent_at: float) -> TypeGuard[UpstreamError]:
        """Whether an engine may have died of the call that was made at `sent_at`.

        An engine names itself before it works. Without a name it is the dead one, so soon after a death; and where no
        replica runs, whatever has ended the call is the ingress, at which it has waited.
        """
        if not isinstance(error, Broken | Unanswered):
            return False
        if self._delivered.engine:
            return True
        replicas = self._exchange.state.running.last
        if replicas is not None and replicas.lacks(self._target.app):
            return False
        now = asyncio.get_running_loop().time()
        return isinstance(error, Broken) or (now - sent_at > _GONE_S and now - self._lost_at > AT_ONCE_S)

    def _failure(self, lost: EngineLost) -> UpstreamError:
        """The error of a stream that does not go on. A hand-over is no fault."""
        return lost.failure or self._unavailable(retry_after=1)

    def _unavailable(self, retry_after: float | None = None) -> Unavailable:
        return Unavailable(f"Deployment '{self._target.name}' is not available", retry_after=retry_after)


class _Wait(TimeLimit):
    """Raises TimeoutError at `when` unless an engine has taken the stream."""

    __slots__ = ("_delivered",)

    def __init__(self, when: float, loop: asyncio.AbstractEventLoop, delivered: DeliveredStream) -> None:
        super().__init__(when, loop)
        self._delivered = delivered

    def due(self) -> None:
        if not self._delivered.engine:
            self.pass_now()


_WHY: Mapping[str, str] = {
    "handover": "it was shut down, and handed the stream over",
    "closed": "its connection ended",
    "error": "it failed",
}
"""The reasons of a loss in words."""


def _reason(lost: EngineLost) -> str:
    match lost.failure:
        case None:
            return "handover"
        case Incomplete() | Unanswered():
            return "closed"
    return "error"


class Relay:
    """Relays one deployment stream to the client.

    Each chunk is passed on in the callback that receives it: the request's task only waits for the end, or for a client
    that reads slowly.
    """

    def __init__(
        self,
        stream: Stream,
        names: DeploymentNames,
        writer: ResponseWriter,
        observer: Observer,
        cut: CutCalls | None,
        with_limit: Callable[[SwitchyardError], SwitchyardError],
    ) -> None:
        """`cut` corrects the deployment's stream before anything else reads it. `with_limit`: `Exchange.with_limit`."""
        self._stream, self._writer, self._cut, self._with_limit = stream, writer, cut, with_limit
        self._names = EventNames(names, stream.check)
        self._observer, self._takers = observer, observer.takers
        self._clock = asyncio.get_running_loop().time
        self._rest = b""
        self._signing: asyncio.Future[None] | None = None

    async def run(self, chunks: ContinuedStream, idle_s: float, deadline: float, silent_s: float) -> None:
        """Writes the whole stream and its end. Raises StreamAborted where a failure must break the connection.

        After each `silent_s` seconds without a chunk, while engines are lost or not, the client gets a sign of life.
        """
        end = b""
        try:
            with MalformedAnswerGuard():
                with IdleTimeout(idle_s, deadline, silent_s, self._show_life) as self._idle:
                    chunks.survive(self._idle, lambda: self._stream.has_ended)
                    self._rest = self._translated(await chunks.each(self._pass_on))
                if self._stream.failure is not None:
                    raise self._stream.failure
                if end := self._stream.close():
                    self._writer.fail(Incomplete(ENDED_EARLY), end)
        except SwitchyardError as error:
            failure = self._with_limit(error)
            end = self._stream.fail(failure)
            self._writer.fail(failure, end)
        finally:
            if self._signing is not None:
                self._signing.cancel()
            # A client may hang up at the terminal event, before the deployment's connection has ended.
            is_complete = self._stream.has_ended and self._writer.failure is None
            self._observer.streamed(self._clock(), in_order=is_complete)
            self._writer.record.usage = self._stream.usage
            if self._stream.usage is None or not is_complete:
                self._count_sent()
        if self._writer.failure is not None and self._stream.aborts:
            if self._rest:
                await self._writer.send_chunk(self._rest)
            raise StreamAborted
        await self._writer.end_stream(self._rest, self._names.renamed(end, are_checked=False) if end else b"")

    def _count_sent(self) -> None:
        """Counts what the client had of an answer that the engine has not counted, or not to its end."""
        record = self._writer.record
        tokens, events = self._writer.sent(self._rest)
        if record.usage is None:
            record.sent_tokens, record.sent_events = tokens, events
        else:
            counted = record.usage.completion_tokens
            # Not every event is a token.
            known = tokens if tokens is not None else 0 if counted else events
            record.usage = replace(record.usage, completion_tokens=max(counted, known or 0))

    def _show_life(self) -> None:
        """Sends the client a sign of life, if it has read the last one."""
        if self._stream.has_ended or (self._signing is not None and not self._signing.done()):
            return
        if sign := self._stream.keep_alive:
            sending = self._writer.keep_alive(self._names.renamed(sign, are_checked=False))
            if (unread := run_until_blocked(sending)) is not None:
                self._signing = asyncio.ensure_future(unread)

    def _pass_on(self, chunk: bytes) -> Awaitable[None] | None:
        data = self._translated(chunk)
        if self._stream.failure is not None:
            self._rest = data
            raise self._stream.failure
        return run_until_blocked(self._writer.send_chunk(data)) if data else None

    def _translated(self, chunk: bytes) -> bytes:
        """Translates a chunk for the client, and passes it to the request's observer."""
        if self._cut is not None:
            chunk = self._cut.feed(chunk)
        data = self._stream.feed(chunk)
        self._idle.last = now = self._clock()
        for take in self._takers:
            take(now, chunk)
        if not data:
            return b""
        self._idle.shown = now
        return self._names.renamed(data, are_checked=data is chunk)


class MalformedAnswerGuard:
    """Turns a dialect's exceptions on a malformed answer into MalformedAnswer."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, MALFORMED_ANSWER_ERRORS):
            raise MalformedAnswer(MALFORMED_RESPONSE) from error
