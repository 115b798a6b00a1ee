"""Makes the row of an exposure that has ended. Pure."""

import msgspec

from app.engine.usage import Usage
from app.ledger.exposure import Exposure
from app.ledger.open_batch import OpenBatch
from app.ledger.wire import Failure, Flag

_MAX_U8, _MAX_U16, _MAX_U32 = 2**8 - 1, 2**16 - 1, 2**32 - 1
_NO_FAILURE = Failure.NONE.value


class RequestEnd(msgspec.Struct, frozen=True):
    """The end of a request.

    `complete`: the client has a whole answer. `gone`: it closed the connection.
    `invalid`: the answer does not have the form that the request asked for.
    """

    status: int
    duration_s: float
    attempts: int = 1
    usage: Usage | None = None
    max_tokens: object = None
    complete: bool = True
    gone: bool = False
    invalid: bool = False


def row_of(exposure: Exposure, ending: RequestEnd, batch: OpenBatch) -> tuple[object, ...]:
    """The fields of a `wire.Row`, with indexes into `batch`: a plain tuple is made in half the time."""
    arrival, identity, usage = exposure.arrival, exposure.identity, ending.usage
    assert identity is not None, "starts are recorded before rows"
    names, prompt_tokens, completion_tokens = batch.names, None, None
    if usage is not None:
        prompt_tokens = usage.prompt_tokens if usage.prompt_tokens < _MAX_U32 else _MAX_U32
        completion_tokens = usage.completion_tokens if usage.completion_tokens < _MAX_U32 else _MAX_U32
    first_token, attempts, flags = exposure.first_token, ending.attempts, identity.flags
    prompt_bytes, in_flight, max_tokens = arrival.prompt_bytes, exposure.in_flight, ending.max_tokens
    if max_tokens is not None:
        # JSON numbers are unbounded; the columns are not.
        max_tokens = min(max_tokens, _MAX_U32) if type(max_tokens) is int and max_tokens >= 0 else None
    if ending.gone:
        flags |= Flag.CLIENT_GONE
    if ending.invalid:
        flags |= Flag.INVALID_OUTPUT
    if ending.complete and exposure.path and not (exposure.is_visible or exposure.is_broken):
        flags |= Flag.EMPTY
    failure = exposure.failure
    if ending.status >= 500 and failure == _NO_FAILURE:  # a bug of the router's
        failure = Failure.OTHER.value
    return (
        exposure.seq,
        identity.at,
        identity.request,
        exposure.answer_id,
        identity.unit,
        identity.caller,
        batch.plan(exposure.scope.plan),
        names[arrival.assigned],
        names[exposure.served] if exposure.served else -1,
        identity.reason,
        names[arrival.dialect],
        names[arrival.task],
        arrival.stream,
        ending.status,
        failure,
        attempts if attempts < _MAX_U8 else _MAX_U8,
        prompt_bytes if prompt_bytes < _MAX_U32 else _MAX_U32,
        max_tokens,
        prompt_tokens,
        completion_tokens,
        first_token,
        ending.duration_s,
        exposure.itl_mean(completion_tokens) if first_token is not None else None,
        exposure.itl_max if first_token is not None else None,
        exposure.finish,
        identity.turn,
        in_flight if in_flight < _MAX_U16 else _MAX_U16,
        exposure.is_cold,
        flags,
        names[arrival.group] if arrival.group else -1,
    )
