"""Analysed requests in the order of their arrival: none is counted while an earlier one is still running.

Fast requests end first. If each counted when it ends, an arm that answers most requests sooner and hangs on the others
would look better until the others end. So the counted requests are a prefix of all arrivals, with every outcome in it
known. A confidence sequence covers its estimand on all prefixes at once, so which of them is counted now may depend on
the outcomes.

A request that has run for longer than `HORIZON_S`, or whose router is gone, holds up no other. Until it ends it is
*unknown*: a comparison allows for any value that it may have (`Collected.reach`). That includes requests whose row was
lost. So nothing false is said where a router was taken for dead, and lives: its requests count once they end.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.arms import ArmAssignment
from app.experiments.analysis.arrays import Growing, Hashes, HashIndex, Ints, Mask, combined
from app.experiments.storage.columns import RowColumns, StartColumns

HORIZON_S = 600.0
"""The longest time in seconds for which a running request holds up later ones."""

MAX_WAITING = 500_000
"""Requests that wait. Above, those that hold them up are unknown: the interval is wider, and memory bounded."""

_REMEMBERED_S = 86400.0
"""The time for which an unknown request may still end. Later it remains unknown."""

LEAST_KEPT = 4096
"""Requests that are remembered before those that are over are looked for."""


class Ended(NamedTuple):
    """Requests that have ended."""

    rows: RowColumns
    placed: ArmAssignment


class Held(NamedTuple):
    """Requests that have ended and wait for one that arrived before them."""

    requests: int
    since: float
    """The arrival of the one that they wait for, Unix seconds. They count once it ends, or `HORIZON_S` later."""


class Arrivals:
    """Starts and rows of one experiment's analysed requests, in any order.

    Routers send their records every second, each in the order of arrival: requests that are not known yet are known
    neither by their starts nor by their rows, and select none.
    """

    def __init__(self, arms: int, *, max_waiting: int = MAX_WAITING, least_kept: int = LEAST_KEPT) -> None:
        self._max_waiting, self._least_kept = max_waiting, least_kept
        self.index = HashIndex()
        self._at = Growing(np.float64)
        self._arm = Growing(np.int8)
        self._router = Growing(np.uint64)
        self._gone: Hashes = np.zeros(0, np.uint64)
        self._open = Growing(np.bool_)
        self._waiting: list[Ended] = []
        self._now = self._holding_since = -np.inf
        """Unix seconds. Running requests from before `_holding_since` hold up no other."""
        self._forgotten: Ints = np.zeros(arms, np.int64)
        self._kept = least_kept

    def start(self, starts: StartColumns, placed: ArmAssignment) -> None:
        """Requests that have started."""
        self._take(starts, placed, is_open=True)

    def end(self, rows: RowColumns, placed: ArmAssignment) -> None:
        """Requests that have ended."""
        position = self._take(rows, placed, is_open=False)
        self._open.values[position] = False
        self._waiting.append(Ended(rows, placed))

    def _take(self, requests: StartColumns | RowColumns, placed: ArmAssignment, *, is_open: bool) -> Ints:
        """The positions of the requests; new ones are added."""
        if not len(requests):
            return np.zeros(0, np.int64)
        key, first = np.unique(_keys(requests), return_index=True)
        known = len(self.index)
        position = self.index.add(key)
        new = first[position >= known]
        self._at.append(requests.at[new])
        self._arm.append(placed.arm[new])
        self._router.append(requests.router[new])
        self._open.append(np.full(len(new), is_open))
        self._now = max(self._now, float(requests.at.max()))
        return position

    def abandon(self, routers: Sequence[int]) -> None:
        """Takes the hashes of the routers that are gone: all of them, each time."""
        self._gone = np.array(routers, np.uint64)

    @property
    def _holding(self) -> Mask:
        """The running requests that hold up later ones."""
        holding = self._open.values & (self._at.values >= self._holding_since)
        return holding & ~np.isin(self._router.values, self._gone) if len(self._gone) else holding

    def release(self, now: float = -np.inf) -> Ended | None:
        """The ended requests that arrived before every running one, and have not been released. `now` in Unix seconds:
        by default, the latest arrival.
        """
        self._now = max(self._now, now)
        too_many = sum(len(ended.rows) for ended in self._waiting) > self._max_waiting
        self._holding_since = max(self._holding_since, self._now if too_many else self._now - HORIZON_S)
        frontier = self._at.values[self._holding].min(initial=np.inf)
        ready, waiting = [], []
        for ended in self._waiting:
            early = ended.rows.at < frontier
            ready.append(Ended(ended.rows.take(early), ended.placed.take(early)))
            if not early.all():
                waiting.append(Ended(ended.rows.take(~early), ended.placed.take(~early)))
        self._waiting = waiting
        self._forget()
        rows = RowColumns.concat([ended.rows for ended in ready])
        if not len(rows):
            return None
        placements = zip(*(ended.placed for ended in ready), strict=True)
        return Ended(rows, ArmAssignment(*(np.concatenate(columns) for columns in placements)))

    @property
    def held(self) -> Held | None:
        """What waits since the last `release`; None if nothing does."""
        count = sum(len(ended.rows) for ended in self._waiting)
        holding = self._at.values[self._holding]
        return Held(count, float(holding.min())) if count and len(holding) else None

    @property
    def running(self) -> Ints:
        """Requests of each arm that have not ended, as far as is known."""
        return self._count(self._open.values)

    @property
    def unknown(self) -> Ints:
        """Those of them, in each arm, that hold up no later ones."""
        return self._count(self._open.values & ~self._holding)

    def _count(self, which: NDArray[np.bool_]) -> Ints:
        counts = np.bincount(self._arm.values[which], minlength=len(self._forgotten))
        return (self._forgotten + counts).astype(np.int64)

    def _forget(self) -> None:
        """Forgets old requests, once they may be many: those that have ended, and those that never will."""
        if len(self.index) <= self._kept:
            return
        at, is_open = self._at.values, self._open.values
        lost = is_open & (at < self._now - _REMEMBERED_S)
        self._forgotten = self._count(lost)
        kept = np.flatnonzero((is_open & ~lost) | (at >= self._now - HORIZON_S))
        self.index.keep(kept)
        for column in (self._at, self._arm, self._router, self._open):
            column.keep(kept)
        self._kept = max(self._least_kept, 2 * len(kept))


def _keys(requests: StartColumns | RowColumns) -> Hashes:
    return combined(requests.router, requests.seq.view(np.int64))
