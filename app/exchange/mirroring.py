"""Passes requests to the mirrors: at the draw of the deployment, and at the end of the response."""

from functools import partial

from app.dialects.base import Call, EngineRequest
from app.engine.collectors import StreamCollector
from app.exchange.affinity import Place
from app.exchange.response import ResponseWriter
from app.exchange.snapshot import Snapshot
from app.exchange.state import RouterState
from app.ledger.exposure import Exposure
from app.mirror.mirrors import ServedRequest
from app.mirror.original import Original
from app.routing.traffic import Assignment

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
