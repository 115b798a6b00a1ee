"""From an exposure that has ended to its row. Pure."""

from typing import NamedTuple

from app.engine.usage import Usage
from app.ledger.exposure import Exposure
from app.ledger.open_batch import OpenBatch
from app.ledger.wire import Failure, Flag, Row

_MAX_U8, _MAX_U32 = 2**8 - 1, 2**32 - 1


class Ending(NamedTuple):
    """How a request ended.

    `complete`: the client has a whole answer. `gone`: it closed the connection. `invalid`: the answer has not the form
    that the request asked for.
    """

    status: int
    duration_s: float
    attempts: int = 1
    usage: Usage | None = None
    max_tokens: object = None
    complete: bool = True
    gone: bool = False
    invalid: bool = False

    def failure(self, exposure: Exposure) -> Failure:
        """How the assigned deployment failed. A status of 500 without a failure is a bug of the router's."""
        return Failure.OTHER if exposure.failure is Failure.NONE and self.status >= 500 else exposure.failure


def row_of(exposure: Exposure, ending: Ending, batch: OpenBatch) -> Row:
    """The row, with indexes into `batch`."""
    draw, usage = exposure.draw, ending.usage
    completion_tokens = _u32(usage.completion_tokens) if usage is not None else None
    return Row(
        draw.seq,
        draw.at,
        draw.request,
        exposure.answer_id,
        draw.unit,
        draw.caller,
        batch.plan(draw.scope.plan),
        batch.name(draw.assigned),
        batch.name(exposure.served) if exposure.served else -1,
        draw.reason,
        batch.name(draw.dialect),
        batch.name(draw.task),
        draw.stream,
        ending.status,
        ending.failure(exposure),
        min(ending.attempts, _MAX_U8),
        draw.prompt_bytes,
        _u32(ending.max_tokens),
        _u32(usage.prompt_tokens) if usage is not None else None,
        completion_tokens,
        exposure.first_token,
        ending.duration_s,
        exposure.itl_mean(completion_tokens),
        exposure.itl_max if exposure.first_token is not None else None,
        exposure.finish,
        draw.turn,
        draw.in_flight,
        exposure.is_cold,
        _flags(exposure, ending),
    )


def _flags(exposure: Exposure, ending: Ending) -> int:
    flags: int = exposure.draw.flags
    if ending.gone:
        flags |= Flag.CLIENT_GONE
    if ending.invalid:
        flags |= Flag.INVALID_OUTPUT
    if ending.complete and exposure.path and not (exposure.is_visible or exposure.is_broken):
        flags |= Flag.EMPTY
    return flags


def _u32(value: object) -> int | None:
    """JSON numbers are unbounded; the columns are not."""
    return min(value, _MAX_U32) if type(value) is int and value >= 0 else None
