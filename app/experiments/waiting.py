"""Batches on their way from a router into the ledger's directory."""

from collections.abc import Iterator
from typing import NamedTuple

from app.experiments.columns import Exposures
from app.experiments.routers import RouterProgress
from app.experiments.storage.numbers import Numbers
from app.experiments.storage.segments import Footer
from app.exposures.wire import Acknowledgement

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
