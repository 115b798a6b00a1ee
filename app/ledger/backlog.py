"""The batches that a router keeps until they are durable at the controller, within a bound.

Beyond the bound the oldest whole batch is dropped, which is blind to arms, and its rows are counted as lost. Those of a
batch that the controller had received are at risk instead: it cannot be sent again, and is lost if the controller
restarts, or takes back that it has it, before a later batch is durable. A controller stores batches in order.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from app.ledger.acknowledgement import Acknowledgement
from app.ledger.open_batch import Arm
from app.ledger.wire import SealedBatch


class _Kept(NamedTuple):
    batch: SealedBatch
    arms: Mapping[Arm, int]


class Backlog:
    """Batches in the order of their numbers. `limit_bytes` may change at any time.

    `lost` are the dropped rows by arm, since the start. `in_flight` is the number of the batch that is being sent,
    which is never dropped: it may arrive.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.lost: Counter[Arm] = Counter()
        self.in_flight: int | None = None
        self.size = 0
        """The size in bytes."""
        self._kept: deque[_Kept] = deque()
        self._received = 0
        self._at_risk: Counter[Arm] = Counter()
        self._controller: str | None = None
        """The process that sent the last acknowledgement."""

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[SealedBatch]:
        return (kept.batch for kept in self._kept)

    @property
    def oldest(self) -> int:
        """The lowest number that is kept; 0 without any."""
        return self._kept[0].batch.number if self._kept else 0

    def add(self, batch: SealedBatch, arms: Mapping[Arm, int]) -> None:
        """Keeps the newest batch; drops old ones if there is no room for all."""
        self._kept.append(_Kept(batch, arms))
        self.size += batch.size
        while self.size > self.limit_bytes and self._drop_oldest():
            pass

    def next(self) -> SealedBatch | None:
        """The first batch that the controller has not received."""
        return next((it.batch for it in self._kept if it.batch.number > self._received), None)

    def unconfirmed(self) -> SealedBatch | None:
        """The first batch that is not known to be durable: sending it again makes the controller report its state."""
        return self._kept[0].batch if self._kept else None

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Drops durable batches. `received` may go back: the controller has restarted."""
        has_restarted = self._controller not in (None, acknowledgement.controller)
        if has_restarted or acknowledgement.received < self._received:
            self.lost.update(self._at_risk)
            self._at_risk.clear()
        self._received, self._controller = acknowledgement.received, acknowledgement.controller
        while self._kept and self._kept[0].batch.number <= acknowledgement.durable:
            self.size -= self._kept.popleft().batch.size
            self._at_risk.clear()

    def _drop_oldest(self) -> bool:
        at = next((at for at, it in enumerate(self._kept) if it.batch.number != self.in_flight), None)
        if at is None:
            return False
        dropped = self._kept[at]
        del self._kept[at]
        self.size -= dropped.batch.size
        (self._at_risk if dropped.batch.number <= self._received else self.lost).update(dropped.arms)
        return True
