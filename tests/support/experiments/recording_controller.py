"""A controller of experiments that only stores what routers send, and fails as configured by a test."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.errors import Unavailable
from app.exposures.controller_client import Answer
from app.exposures.wire import (
    Acknowledgement,
    Batch,
    Failure,
    FeedbackItem,
    FinishCode,
    Flag,
    LateKind,
    OverdueRequest,
    Pair,
    Reason,
    Row,
    Skip,
    Start,
    TrafficBlock,
    decode_batch,
    encode_acknowledgement,
)
from tests.support.waiting import wait_until

_OBSERVED = Flag.FORCED | Flag.CARRIED | Flag.INVALID_OUTPUT | Flag.EMPTY | Flag.CLIENT_GONE


@dataclass(frozen=True)
class Seen:
    """A start, row or late request with its names in place of indexes; `item` has the rest."""

    item: Any
    endpoint: str
    plan: str
    assigned: str
    served: str | None = None
    dialect: str = ""
    task: str = ""

    @property
    def reason(self) -> Reason:
        return Reason(self.item.reason)

    @property
    def finish(self) -> FinishCode:
        return FinishCode(self.item.finish)

    @property
    def error(self) -> Failure:
        return Failure(self.item.error)

    @property
    def flags(self) -> Flag:
        """Without what the request's own parameters say about it."""
        return Flag(self.item.flags) & _OBSERVED

    @property
    def kind(self) -> LateKind:
        return LateKind(self.item.kind)


@dataclass(frozen=True)
class SeenPair:
    """A pair with its names in place of indexes; `item` has the rest."""

    item: Pair
    endpoint: str
    primary: str
    shadow: str

    @property
    def error(self) -> Failure:
        return Failure(self.item.error)

    @property
    def skipped(self) -> Skip:
        return Skip(self.item.skipped)


@dataclass
class Keeper:
    """A `ControllerClient`. `durable` False: it never reports anything as durable. `stops` is sent in reply to every
    batch; batches with the number 0 are counted in `idle` and not stored. `failing`: it raises. `hanging`: it does not
    answer. `forgets`: it stores the batch, but fails to acknowledge it.
    """

    failing: bool = False
    hanging: bool = False
    forgets: bool = False
    durable: bool = True
    calls: int = 0
    idle: int = 0
    stops: list[TrafficBlock] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    batches: dict[tuple[str, int], Batch] = field(default_factory=dict)

    async def send(self, batch: bytes) -> bytes:
        self.calls += 1
        if self.hanging:
            await asyncio.sleep(3600)
        if self.failing:
            raise Unavailable("the controller is away")
        decoded = decode_batch(batch)
        if not decoded.number:
            self.idle += 1
            return self._acknowledgement(decoded.router)
        self.raw.append(batch)
        self.batches[decoded.router, decoded.number] = decoded
        if self.forgets:
            raise ConnectionResetError
        return self._acknowledgement(decoded.router)

    def _acknowledgement(self, router: str) -> bytes:
        received = max((number for name, number in self.batches if name == router), default=0)
        return encode_acknowledgement(Acknowledgement(received, received if self.durable else 0, stops=self.stops))

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        raise Unavailable("this controller answers nothing")

    @property
    def starts(self) -> list[Seen]:
        return [_seen(batch, start) for batch in self._in_order for start in batch.starts]

    @property
    def rows(self) -> list[Seen]:
        return [_row(batch, row) for batch in self._in_order for row in batch.rows]

    @property
    def late(self) -> list[Seen]:
        return [_seen(batch, overdue) for batch in self._in_order for overdue in batch.late]

    @property
    def feedback(self) -> list[FeedbackItem]:
        return [item for batch in self._in_order for item in batch.feedback]

    @property
    def pairs(self) -> list[SeenPair]:
        return [_pair(batch, pair) for batch in self._in_order for pair in batch.pairs]

    def wait_for_pairs(self, count: int) -> list[SeenPair]:
        """The pairs, once there are this many."""
        wait_until(lambda: len(self.pairs) >= count, lambda: self.pairs)
        return self.pairs

    @property
    def _in_order(self) -> list[Batch]:
        return [self.batches[key] for key in sorted(list(self.batches))]

    def wait_for(self, *, rows: int = 0, starts: int = 0, late: int = 0) -> Sequence[Seen]:
        """The rows, once there are this many of each."""
        wait_until(
            lambda: len(self.rows) >= rows and len(self.starts) >= starts and len(self.late) >= late,
            lambda: (len(self.starts), len(self.rows), len(self.late)),
        )
        return self.rows

    def the_row(self) -> Seen:
        """The only row, which has the same `seq` as the only start."""
        (row,) = self.wait_for(rows=1)
        (start,) = self.starts
        assert (start.item.seq, start.item.unit, start.assigned) == (row.item.seq, row.item.unit, row.assigned)
        assert (start.plan, start.item.at, start.reason) == (row.plan, row.item.at, row.reason)
        return row


def _seen(batch: Batch, item: Start | OverdueRequest) -> Seen:
    plan = batch.plans[item.plan]
    return Seen(item, plan.endpoint, plan.id, batch.names[item.assigned])


def _pair(batch: Batch, item: Pair) -> SeenPair:
    return SeenPair(item, batch.plans[item.plan].endpoint, batch.names[item.primary], batch.names[item.shadow])


def _row(batch: Batch, item: Row) -> Seen:
    plan, names = batch.plans[item.plan], batch.names
    served = names[item.served] if item.served >= 0 else None
    return Seen(item, plan.endpoint, plan.id, names[item.assigned], served, names[item.dialect], names[item.task])
