"""Observes requests: exposures for experiments, copies for shadows, lines of recordings, traces.

- Records exposures in the ledger: the draw of a request's arm, and its end.
- Passes requests to the mirrors: at the draw of the deployment, and at the end of the response.
- Records requests for a replay: their arrival, and their end.
"""

import time
from functools import partial

import msgspec

from app.access.caller import Caller
from app.dialects.base import Call, EngineRequest
from app.engine.collectors import StreamCollector
from app.exchange.affinity import Place
from app.exchange.request import CLIENT_CLOSED_REQUEST
from app.exchange.response import ResponseWriter
from app.exchange.snapshot import Snapshot
from app.exchange.state import RouterState
from app.exposures.exposure import Arrival, Exposure
from app.exposures.log import Ledger, RequestEnd
from app.mirror.mirrors import ServedRequest
from app.mirror.original import Original
from app.request_recordings.recorder import PendingRequest, Recorder
from app.routing.traffic import Assignment
from app.telemetry.logs import Record
from app.telemetry.request_trace import Trace


def drawn(
    ledger: Ledger,
    snapshot: Snapshot,
    caller: Caller,
    call: Call,
    assignment: Assignment,
    record: Record,
    prompt_bytes: int,
) -> Exposure | None:
    """Records the draw; None if the endpoint is not recorded."""
    scope = snapshot.recorded.get(assignment.endpoint)
    if assignment.unstopped:
        scope = snapshot.unstopped[assignment.endpoint].scope
    if scope is None or not call.translation.generates:
        return None
    arrival = Arrival(
        record.request_id,
        assignment.key,
        caller.id,
        assignment.deployment,
        assignment.reason,
        record.dialect,
        call.task,
        call.translation.stream,
        prompt_bytes,
        call.body,
        record.started,
        caller.group(snapshot.config.access.groups),
    )
    return ledger.start(scope, arrival)


def ended(ledger: Ledger, exposure: Exposure, record: Record) -> None:
    """Records the row of a request whose response is over."""
    status = record.status
    ending = RequestEnd(
        status,
        time.perf_counter() - record.started,
        record.attempts,
        record.usage,
        record.max_tokens,
        status == 200 and not record.error,
        status == CLIENT_CLOSED_REQUEST,
    )
    ledger.finish(exposure, ending)


_CHOSEN = ("header", "model", "override")


def to_mirror(state: RouterState, assignment: Assignment, exposure: Exposure | None, size: int) -> Original | None:
    """The recorder of a request that is to be mirrored, else None. `size`: the body's, in bytes."""
    if exposure is None or (mirror := exposure.scope.mirror) is None or assignment.reason in _CHOSEN:
        return None
    return state.mirrors.draw(assignment.endpoint, mirror, exposure, size)


def mirrored(
    state: RouterState, snapshot: Snapshot, call: Call, original: Original, writer: ResponseWriter, place: Place
) -> None:
    """Sends a copy to the shadow after the response, if there is an answer to compare it with."""
    record, target = writer.record, snapshot.targets[original.mirror.deployment]
    salted = state.salts.salted(EngineRequest(original.path, original.body), target, place.scope)
    original.body = dict(salted.body)
    served = ServedRequest(
        deployment=original.exposure.served,
        complete=writer.finished and writer.failure is None and record.status == 200 and not record.error,
        bound=call.translation.needs_model,
        target=target,
        timeouts=snapshot.config.timeouts,
        new_collector=partial(_collector, call, original),
        usage=record.usage,
        place=place.headers(target),
    )
    state.mirrors.ended(original, served)


def _collector(call: Call, original: Original) -> StreamCollector | None:
    if call.translation.stream:
        return None
    return call.translation.collector(EngineRequest(original.path, original.body))


_NAMED = ("header", "model")
"""A client that names a deployment measures it, or replays requests: that is not part of the endpoint's load."""


def arrived(
    recorder: Recorder | None, snapshot: Snapshot, call: Call, assignment: Assignment, record: Record, prompt_bytes: int
) -> PendingRequest | None:
    """Starts the recording of a request that is about to be forwarded; None if it is not recorded."""
    if recorder is None or (scope := recorder.scope(assignment.endpoint)) is None:
        return None
    if assignment.reason in _NAMED or not call.translation.generates:
        return None
    if (unit := recorder.unit(scope, assignment.key)) is None:
        return None
    return PendingRequest(
        scope,
        recorder.now(time.perf_counter() - record.started),
        snapshot.plans.get(assignment.endpoint, ""),
        record.dialect,
        call.task,
        call.translation.stream,
        unit,
        prompt_bytes,
        call.body,
    )


def answered(recorder: Recorder, request: PendingRequest, record: Record) -> None:
    """Completes the recording: the response is over."""
    request.status, request.usage, request.max_tokens = record.status, record.usage, record.max_tokens
    recorder.end(request)


class Observation(msgspec.Struct, frozen=True):
    """The observers of one request. Each is None where the endpoint, or the request, is not observed in that way."""

    exposure: Exposure | None
    original: Original | None
    pending: PendingRequest | None
    trace: Trace | None


def begin(
    state: RouterState,
    snapshot: Snapshot,
    caller: Caller,
    call: Call,
    assignment: Assignment,
    writer: ResponseWriter,
    size: int,
    trace: Trace | None,
) -> Observation:
    """Starts observing a request that is about to be forwarded. `size`: the body's, in bytes."""
    record = writer.record
    exposure = drawn(state.ledger, snapshot, caller, call, assignment, record, size)
    return Observation(
        exposure,
        to_mirror(state, assignment, exposure, size),
        arrived(state.recorder, snapshot, call, assignment, record, size),
        trace,
    )


def end(
    observation: Observation,
    state: RouterState,
    snapshot: Snapshot,
    call: Call,
    writer: ResponseWriter,
    place: Place,
) -> None:
    """Ends the observation: the response is over."""
    if observation.exposure is not None:
        ended(state.ledger, observation.exposure, writer.record)
    if observation.original is not None:
        mirrored(state, snapshot, call, observation.original, writer, place)
    if observation.pending is not None and state.recorder is not None:
        answered(state.recorder, observation.pending, writer.record)
