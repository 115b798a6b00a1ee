"""What observes a request from its forwarding to its end: exposures of experiments, mirrors, recordings, traces.

`Observer` has the verbs, each of which does nothing; `Observers` passes them on to several observers.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from app.dialects.base import EngineRequest
from app.engine.collectors import StreamCollector
from app.errors import CLIENT_GONE, SwitchyardError
from app.exchange.exchange import Exchange
from app.exchange.response import CLIENT_CLOSED_REQUEST
from app.exposures.exposure import Arrival, Exposure
from app.exposures.identity import request_hash
from app.exposures.log import RequestEnd
from app.mirror.mirrors import ServedRequest
from app.mirror.original import Original
from app.request_recordings.recorder import PendingRequest
from app.telemetry.request_trace import RequestSpan
from app.upstream.client import OnHead
from app.upstream.target import Target

Take = Callable[[float, bytes], object]
"""Takes a chunk of the deployment's stream, and the event loop's time at which it was passed on."""


class Observer:
    """Observes one request. A verb that a subclass does not define does nothing.

    `on_head` takes the headers of the deployment's response; None if nobody wants them. `takers` take the chunks of its
    stream: they are called directly, since they are on the hot path.
    """

    __slots__ = ()

    on_head: OnHead | None = None
    takers: Sequence[Take] = ()

    def called(self, target: Target) -> None:
        """A deployment is called: the first one, or its replacement."""

    def sent(self, request: EngineRequest, *, after_lookups: bool) -> None:
        """The main request is sent. `after_lookups`: other requests to the engine have preceded it."""

    def answered(self, answer: bytes) -> None:
        """The deployment has answered as a whole."""

    def streamed(self, now: float, *, in_order: bool) -> None:
        """The deployment's stream is over, at `now` in the event loop's time. `in_order`: it was complete."""

    def failed(self, deployment: str, error: SwitchyardError | asyncio.CancelledError) -> None:
        """The call ended with the error, or a stream broke; CancelledError: the client is gone."""

    def returned(self) -> None:
        """The call is over, whether or not it failed."""

    def ended(self) -> None:
        """The response is over, or the client is gone."""


UNOBSERVED = Observer()


class Observers(Observer):
    """Several observers of one request."""

    __slots__ = ("_observers", "on_head", "takers")

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self.on_head = next((observer.on_head for observer in observers if observer.on_head is not None), None)
        self.takers = [take for observer in observers for take in observer.takers]

    def called(self, target: Target) -> None:
        for observer in self._observers:
            observer.called(target)

    def sent(self, request: EngineRequest, *, after_lookups: bool) -> None:
        for observer in self._observers:
            observer.sent(request, after_lookups=after_lookups)

    def answered(self, answer: bytes) -> None:
        for observer in self._observers:
            observer.answered(answer)

    def streamed(self, now: float, *, in_order: bool) -> None:
        for observer in self._observers:
            observer.streamed(now, in_order=in_order)

    def failed(self, deployment: str, error: SwitchyardError | asyncio.CancelledError) -> None:
        for observer in self._observers:
            observer.failed(deployment, error)

    def returned(self) -> None:
        for observer in self._observers:
            observer.returned()

    def ended(self) -> None:
        for observer in self._observers:
            observer.ended()


def observer_of(exchange: Exchange) -> Observer:
    """Whoever observes a request that is about to be forwarded."""
    observers: list[Observer] = []
    if (exposure := _drawn(exchange)) is not None:
        observers.append(ExposureObserver(exchange, exposure))
        if (original := _mirrored(exchange, exposure)) is not None:
            observers.append(MirrorObserver(exchange, original))  # its copy needs the exposure's end
    if (pending := _recorded(exchange)) is not None:
        observers.append(RecordingObserver(exchange, pending))
    if exchange.trace.span is not None:
        observers.append(TraceObserver(exchange.trace.span))
    if len(observers) > 1:
        return Observers(observers)
    return observers[0] if observers else UNOBSERVED


class ExposureObserver(Observer):
    """Records an experiment's exposure in the ledger."""

    __slots__ = ("_exchange", "_exposure", "on_head", "takers")

    def __init__(self, exchange: Exchange, exposure: Exposure) -> None:
        self._exchange, self._exposure = exchange, exposure
        self.on_head, self.takers = exposure.head, (exposure.chunk,)

    def called(self, target: Target) -> None:
        if target.name != self._exposure.arrival.assigned:
            self._exposure.diverted()

    def sent(self, request: EngineRequest, *, after_lookups: bool) -> None:
        self._exposure.sent(request.path, request.body)

    def answered(self, answer: bytes) -> None:
        self._exposure.answer(answer)

    def streamed(self, now: float, *, in_order: bool) -> None:
        self._exposure.stream_ended(self._exchange.record.deployment, now, in_order=in_order)

    def failed(self, deployment: str, error: SwitchyardError | asyncio.CancelledError) -> None:
        if isinstance(error, SwitchyardError):
            self._exposure.failed(deployment, error)

    def ended(self) -> None:
        exchange, exposure, record = self._exchange, self._exposure, self._exchange.record
        exposure.served = exchange.served
        ending = RequestEnd(
            record.status,
            time.perf_counter() - record.started,
            record.attempts,
            record.usage,
            record.max_tokens,
            record.status == 200 and not record.error,
            record.status == CLIENT_CLOSED_REQUEST,
            moves=record.moves,
            pause_s=record.pause_s,
        )
        exchange.state.ledger.finish(exposure, ending)


def _drawn(exchange: Exchange) -> Exposure | None:
    """Records the draw of the request's arm; None if the endpoint is not recorded."""
    snapshot, assignment, call, record = exchange.snapshot, exchange.assignment, exchange.call, exchange.record
    scope = snapshot.recorded.get(assignment.endpoint)
    if assignment.unstopped:
        scope = snapshot.unstopped[assignment.endpoint].scope
    if scope is None or not call.translation.generates:
        return None
    arrival = Arrival(
        record.request_id,
        assignment.key,
        exchange.caller.id,
        assignment.deployment,
        assignment.reason,
        record.dialect,
        call.task,
        call.translation.stream,
        exchange.size,
        call.body,
        record.started,
        exchange.caller.group(snapshot.config.access.groups),
        exchange.state.access.has_several_callers,
        exchange.patience if exchange.patience < snapshot.config.timeouts.total_s else None,
    )
    return exchange.state.ledger.start(scope, arrival)


class MirrorObserver(Observer):
    """Sends a copy to the shadow after the response, if there is an answer to compare it with."""

    __slots__ = ("_exchange", "_original", "takers")

    def __init__(self, exchange: Exchange, original: Original) -> None:
        self._exchange, self._original = exchange, original
        self.takers = (lambda now, chunk: original.chunk(chunk),)

    def sent(self, request: EngineRequest, *, after_lookups: bool) -> None:
        self._original.sent(request.path, request.body, after_lookups=after_lookups)

    def answered(self, answer: bytes) -> None:
        self._original.chunk(answer)

    def ended(self) -> None:
        exchange, original, writer = self._exchange, self._original, self._exchange.writer
        record, snapshot = exchange.record, exchange.snapshot
        target = snapshot.targets[original.mirror.deployment]
        request = EngineRequest(original.path, original.body)
        original.body = dict(exchange.state.salts.salted(request, target, exchange.place.scope).body)
        ended = ServedRequest(
            deployment=exchange.served,
            complete=writer.finished and writer.failure is None and record.status == 200 and not record.error,
            bound=exchange.call.translation.needs_model,
            target=target,
            timeouts=snapshot.config.timeouts,
            new_collector=partial(_collector, exchange, original),
            usage=record.usage,
            placement=exchange.place.placement(target),
        )
        exchange.state.mirrors.ended(original, ended)


_CHOSEN = ("header", "model", "override")


def _mirrored(exchange: Exchange, exposure: Exposure) -> Original | None:
    """The recorder of a request that is to be mirrored, else None."""
    if (mirror := exposure.scope.mirror) is None or exchange.assignment.reason in _CHOSEN:
        return None
    return exchange.state.mirrors.draw(exchange.assignment.endpoint, mirror, exposure, exchange.size)


def _collector(exchange: Exchange, original: Original) -> StreamCollector | None:
    translation = exchange.call.translation
    return None if translation.stream else translation.collector(EngineRequest(original.path, original.body))


class RecordingObserver(Observer):
    """Records a request for a replay."""

    __slots__ = ("_exchange", "_pending")

    def __init__(self, exchange: Exchange, pending: PendingRequest) -> None:
        self._exchange, self._pending = exchange, pending

    def ended(self) -> None:
        pending, record = self._pending, self._exchange.record
        pending.status, pending.usage, pending.max_tokens = record.status, record.usage, record.max_tokens
        self._exchange.state.recorder.end(pending)


_NAMED = ("header", "model")
"""A client that names a deployment measures it, or replays requests: that is not part of the endpoint's load."""


def _recorded(exchange: Exchange) -> PendingRequest | None:
    """Starts the recording of the request; None if it is not recorded."""
    recorder, assignment, call, record = exchange.state.recorder, exchange.assignment, exchange.call, exchange.record
    if (scope := recorder.scopes.get(assignment.endpoint)) is None:
        return None
    if assignment.reason in _NAMED or not call.translation.generates:
        return None
    if (unit := recorder.unit(scope, assignment.key)) is None:
        return None
    record.text = scope.text_of(exchange.size)
    return PendingRequest(
        scope,
        recorder.now(time.perf_counter() - record.started),
        exchange.snapshot.plans.get(assignment.endpoint, ""),
        record.dialect,
        call.task,
        call.translation.stream,
        unit,
        exchange.size,
        call.body,
        request=request_hash(exchange.request.id) if scope.settings.text == "full" else 0,
    )


class TraceObserver(Observer):
    """Notes the calls of deployments, and why the answer ended, on the request's span."""

    __slots__ = ("_span", "takers")

    def __init__(self, span: RequestSpan) -> None:
        self._span = span
        self.takers = (lambda now, chunk: span.chunk(chunk),)

    def called(self, target: Target) -> None:
        self._span.calling(target.name, target.url)

    def answered(self, answer: bytes) -> None:
        self._span.answered(answer)

    def streamed(self, now: float, *, in_order: bool) -> None:
        self._span.stream_ended()

    def failed(self, deployment: str, error: SwitchyardError | asyncio.CancelledError) -> None:
        self._span.calls[-1].error = error.kind if isinstance(error, SwitchyardError) else CLIENT_GONE

    def returned(self) -> None:
        self._span.calls[-1].end()
