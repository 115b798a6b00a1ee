"""Batches on their way from a router into the ledger's directory.

Each router as the controller sees it: its batches, lost rows, and the offset of its clock.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.experiments.storage.columns import Exposures
from app.experiments.storage.journal import AnalysisSnapshot
from app.experiments.storage.segments import Footer, Numbers, RouterRecord
from app.exposures.wire import Acknowledgement, Batch, Lost

FORGOTTEN_S = 30 * 86400.0
"""The time without a batch after which a router process counts as ended."""

CLOCK_TOLERANCE_S = 2.0
"""A clock that is further off is a warning."""

CLOCK_BATCHES = 60
"""The number of latest batches that say how far a clock is off: those of a minute."""

LIVE_S = 30.0
"""The time without a batch after which a router counts as not running: it sends one every second."""

GONE_S = 90.0
"""The time without a batch after which a router's running requests hold up no others: it is gone, since it tries again
every 30 seconds at least. If it lives, what it records counts when it comes.
"""

_GONE_FOR_S = 900.0
"""The time for which that matters: afterwards no request holds up others."""

CLOCK_HEARD_S = 600.0
"""The time after its last batch for which a router's clock is of interest."""


@dataclass(slots=True)
class RouterProgress:
    """One router process."""

    stored: Numbers = field(default_factory=Numbers)
    """Batches that are durably in the directory."""
    refused: Numbers = field(default_factory=Numbers)
    """Batches that are no batches: they are not stored, and need not be."""
    counted: Numbers = field(default_factory=Numbers)
    """Batches that the analyses have seen."""
    oldest: int = 0
    """Every batch below was dropped by the router, or is durable; 0: it has not told yet."""
    waiting: set[int] = field(default_factory=set)
    """Batches that the controller holds and has still to store."""
    lost: dict[tuple[str, str], int] = field(default_factory=dict)
    """The counts by endpoint and deployment, since the router's start."""
    heard_at: float = 0.0
    _sent_before_s: deque[float] = field(default_factory=lambda: deque(maxlen=CLOCK_BATCHES))
    """For each of the latest batches, the router's time of sending less the controller's time of arrival."""

    def update(self, batch: Batch, now: float) -> None:
        """Takes the fields that every batch carries, repeated or not."""
        self.oldest = max(self.oldest, batch.oldest)
        for lost in batch.lost:
            key = (lost.endpoint, lost.deployment)
            self.lost[key] = max(self.lost.get(key, 0), lost.rows)
        self.heard_at = now
        self._sent_before_s.append(batch.sent_at - now)

    @property
    def ahead_s(self) -> float:
        """The router's clock less the controller's, by the batch that took the least time to arrive: a busy controller
        or a slow network is not a wrong clock.
        """
        return max(self._sent_before_s, default=0.0)

    def acknowledgement(self, *, counted_suffices: bool) -> Acknowledgement:
        """`counted_suffices`: the controller has no room for batches now; it asks for them once it has."""
        received = self.counted if counted_suffices else self.held
        floor = max(self.oldest - 1, 0)
        return Acknowledgement(received=received.reach(floor), durable=self.stored.reach(floor))

    @property
    def held(self) -> Numbers:
        """Batches that are stored, or will be if the directory works."""
        return self.stored.union(Numbers(self.waiting))

    def dump(self, storing: Iterable[int]) -> RouterRecord:
        """The state for a footer, with the batches `storing` counted as stored."""
        lost = [Lost(endpoint, deployment, rows) for (endpoint, deployment), rows in sorted(self.lost.items())]
        return RouterRecord(self.stored.union(Numbers(storing)).dump(), lost, self.heard_at, self.oldest)

    def absorb(self, state: RouterRecord) -> None:
        """Takes a footer's state of this router."""
        self.stored.update(Numbers(ranges=state.stored))
        for lost in state.lost:
            key = (lost.endpoint, lost.deployment)
            self.lost[key] = max(self.lost.get(key, 0), lost.rows)
        self.heard_at = max(self.heard_at, state.heard_at)
        self.oldest = max(self.oldest, state.oldest)


def total_lost(routers: Mapping[str, RouterProgress]) -> dict[tuple[str, str], int]:
    """Lost rows by endpoint and deployment, over all routers."""
    total: dict[tuple[str, str], int] = {}
    for router in routers.values():
        for key, rows in router.lost.items():
            total[key] = total.get(key, 0) + rows
    return total


def live(routers: Mapping[str, RouterProgress], now: float) -> int:
    """The number of running router processes."""
    return sum(router.heard_at > now - LIVE_S for router in routers.values())


def gone(routers: Mapping[str, RouterProgress], now: float, *, heard_since: float) -> list[str]:
    """The router processes that have ended of late. `heard_since`: the time since which they could be heard."""
    return sorted(
        name
        for name, router in routers.items()
        if now - _GONE_FOR_S < router.heard_at and max(router.heard_at, heard_since) < now - GONE_S
    )


def forget(routers: dict[str, RouterProgress], now: float) -> None:
    """Drops router processes that have ended; those that lost rows stay, since their losses count."""
    for name in [name for name, router in routers.items() if router.heard_at < now - FORGOTTEN_S]:
        if not routers[name].lost and not routers[name].waiting:
            del routers[name]


def clock_warnings(routers: Mapping[str, RouterProgress], now: float) -> list[str]:
    """One sentence for each router whose clock is off."""
    return [
        f"The clock of router {name} is {abs(router.ahead_s):.1f} s {'ahead of' if router.ahead_s > 0 else 'behind'} "
        "the controller's, and times of its requests with it; synchronise the clocks"
        for name, router in sorted(routers.items())
        if abs(router.ahead_s) > CLOCK_TOLERANCE_S and router.heard_at > now - CLOCK_HEARD_S
    ]


MAX_WAITING_RECORDS = 1_000_000
"""Records held in memory while the directory fails: about 110 MB."""


class HeldBatch(NamedTuple):
    """A batch that is not stored yet."""

    router: str
    number: int
    exposures: Exposures
    taken_at: float


class Waiting:
    """Batches that the controller holds, and its state of each router.

    Above `max_records` it holds no more: batches are counted only. Their routers keep them, and send them again once
    something was stored and `received` goes back.
    """

    def __init__(self, max_records: int = MAX_WAITING_RECORDS) -> None:
        self.routers: dict[str, RouterProgress] = {}
        self.records = 0
        """Records that are held, those that are being written among them."""
        self._max_records = max_records
        self._held: list[HeldBatch] = []
        self._writing: list[HeldBatch] = []
        self._has_passed = False

    def __iter__(self) -> Iterator[HeldBatch]:
        """The batches in the order of arrival."""
        return iter((*self._writing, *self._held))

    @property
    def since(self) -> float | None:
        """Arrival of the first batch that is not being written yet."""
        return self._held[0].taken_at if self._held else None

    def router(self, name: str) -> RouterProgress:
        """The state of a router, which may be new."""
        return self.routers.setdefault(name, RouterProgress())

    def hold(self, taken: HeldBatch) -> None:
        """Keeps a batch until it is stored, if there is room."""
        size = taken.exposures.size
        if self.records and self.records + size > self._max_records:
            self._has_passed = True
            return
        self._held.append(taken)
        self.records += size
        self.router(taken.router).waiting.add(taken.number)

    def acknowledge(self, router: str) -> Acknowledgement:
        """The acknowledgement for a router."""
        return self.routers[router].acknowledgement(counted_suffices=self._has_passed)

    def begin(self) -> list[HeldBatch]:
        """The batches of the next segment: all of them."""
        self._writing, self._held = self._writing + self._held, []
        return self._writing

    def end(self, *, stored: bool) -> None:
        """Ends the writing of the batches of `begin`."""
        if not stored:
            self._writing, self._held = [], self._writing + self._held
            return
        for taken in self._writing:
            self.routers[taken.router].stored.add(taken.number)
        self._drop(self._writing)
        self._writing, self._has_passed = [], False

    def absorb(self, footer: Footer) -> None:
        """Records that the batches of another writer's segment are stored, and that the analyses see them now."""
        for name, ranges in footer.batches.items():
            router = self.router(name)
            router.heard_at = max(router.heard_at, footer.written_at)
            router.stored.update(Numbers(ranges=ranges))
            router.counted.update(Numbers(ranges=ranges))

    def resume(self, footer: Footer) -> None:
        """Takes an earlier controller's state of routers. Nothing is counted yet."""
        self.absorb(footer)
        for name, state in footer.routers.items():
            self.router(name).absorb(state)

    def restore(self, footers: Iterable[Footer], snapshots: Iterable[AnalysisSnapshot]) -> None:
        """Takes what earlier controllers knew. Snapshots outlive a segment that is gone, which nobody may forget."""
        for footer in footers:
            self.resume(footer)
        for snapshot in snapshots:
            for name, ranges in snapshot.stored.items():
                router = self.router(name)
                router.heard_at = max(router.heard_at, snapshot.at)
                router.stored.update(Numbers(ranges=ranges))

    @property
    def stored(self) -> dict[str, Numbers]:
        """The stored batches, by router."""
        return {name: router.stored for name, router in self.routers.items()}

    def drop_stored(self) -> None:
        """Forgets batches that another controller turned out to have stored."""
        stored = [taken for taken in self._held if taken.number in self.routers[taken.router].stored]
        self._held = [taken for taken in self._held if taken.number not in self.routers[taken.router].stored]
        self._drop(stored)

    @property
    def holds_all_counted(self) -> bool:
        """Whether everything that the analyses have seen could be counted again, from here and from the directory."""
        return all(router.counted.is_within(router.held) for router in self.routers.values())

    def recount(self) -> None:
        """Records that the analyses have seen all stored and held batches, and no others."""
        for router in self.routers.values():
            router.counted = router.held

    def _drop(self, batches: list[HeldBatch]) -> None:
        for taken in batches:
            self.records -= taken.exposures.size
            self.routers[taken.router].waiting.discard(taken.number)
