"""Records requests for a replay: their arrival, and their end."""

import time

from app.dialects.base import Call
from app.exchange.snapshot import Snapshot
from app.ledger.recordings.recorder import PendingRequest, Recorder
from app.routing.traffic import Assignment
from app.telemetry.access_log import Record

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
