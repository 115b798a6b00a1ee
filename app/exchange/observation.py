"""Observes requests: exposures for experiments, copies for shadows, lines of recordings, traces."""

import msgspec

from app.access.caller import Caller
from app.dialects.base import Call
from app.exchange import mirroring, recording, written_requests
from app.exchange.affinity import Place
from app.exchange.response import ResponseWriter
from app.exchange.snapshot import Snapshot
from app.exchange.state import RouterState
from app.ledger.exposure import Exposure
from app.ledger.recordings.recorder import PendingRequest
from app.mirror.original import Original
from app.routing.traffic import Assignment
from app.telemetry.tracing.request import Trace


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
    exposure = recording.drawn(state.ledger, snapshot, caller, call, assignment, record, size)
    return Observation(
        exposure,
        mirroring.to_mirror(state, assignment, exposure, size),
        written_requests.arrived(state.recorder, snapshot, call, assignment, record, size),
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
        recording.ended(state.ledger, observation.exposure, writer.record)
    if observation.original is not None:
        mirroring.mirrored(state, snapshot, call, observation.original, writer, place)
    if observation.pending is not None and state.recorder is not None:
        written_requests.answered(state.recorder, observation.pending, writer.record)
