"""Records exposures in the ledger: the draw of a request's arm, and its end."""

import time

from app.access.caller import Caller
from app.dialects.base import Call
from app.exchange.request import CLIENT_CLOSED_REQUEST
from app.exchange.snapshot import Snapshot
from app.ledger.exposure import Arrival, Exposure
from app.ledger.ledger import Ledger
from app.ledger.rows import RequestEnd
from app.routing.traffic import Assignment
from app.telemetry.access_log import Record


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
