"""Requests of the minutes in which any arm had a cold replica, of all arms.

A new replica compiles and fills its caches. Leaving out its own requests would flatter the arm that has more of them;
leaving out whole minutes, of both arms, does not. That a minute is cold may be known only after most of its requests
have been counted, so requests wait here for a while.
"""

from collections import deque
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from app.experiments.analysis.evidence.arrays import Floats, Ints, Mask
from app.experiments.analysis.evidence.cells import Block

WAIT_MINUTES = 10
"""A cold request that ends later than that after its arrival marks its minute for later requests only."""

MAX_WAITING = 500_000


class Sums(Protocol):
    """`Cells` or `Totals`."""

    def add(self, block: Block) -> None: ...


S = TypeVar("S", bound=Sums)


class _Waiting(NamedTuple):
    minute: Ints
    block: Block


class ColdMinutes(Generic[S]):
    """Adds the requests of cold minutes to `sums`."""

    def __init__(self, sums: S) -> None:
        self._sums = sums
        self._minutes: Ints = np.zeros(0, np.int64)
        self._waiting: deque[_Waiting] = deque()
        self._rows = 0
        self._latest = 0

    @property
    def minutes(self) -> Ints:
        """The cold minutes, counted from 1970."""
        return self._minutes

    @property
    def sums(self) -> S | None:
        """Sums over all requests of cold minutes; None if no minute is cold."""
        return self._sums if len(self._minutes) else None

    def add(self, at: Floats, cold: Mask, block: Block) -> None:
        """Requests, with the time of their arrival and whether the replica was cold."""
        if not len(at):
            return
        minute = (at // 60).astype(np.int64)
        known = len(self._minutes)
        self._minutes = np.union1d(self._minutes, minute[cold])
        if len(self._minutes) > known:
            self._waiting = deque(self._count(waiting) for waiting in self._waiting)
        self._waiting.append(self._count(_Waiting(minute, block)))
        self._rows += len(at)
        self._latest = max(self._latest, int(minute.max()))
        while self._waiting and (self._rows > MAX_WAITING or self._is_over(self._waiting[0])):
            self._rows -= len(self._waiting.popleft().minute)

    def _is_over(self, waiting: _Waiting) -> bool:
        return self._latest - int(waiting.minute.max(initial=0)) > WAIT_MINUTES

    def _count(self, waiting: _Waiting) -> _Waiting:
        """Counts those of cold minutes; the others keep waiting."""
        cold = np.isin(waiting.minute, self._minutes)
        if not cold.any():
            return waiting
        self._sums.add(waiting.block.take(cold))
        self._rows -= int(cold.sum())
        return _Waiting(waiting.minute[~cold], waiting.block.take(~cold))
