"""Stores exposures: writes waiting records into the ledger's directory, in rounds, and finds them again.

One round is under way at a time, carried out by `submit`: a slow disk must not hold up the judging of exposures. A
directory that fails costs nothing at first: batches wait here, and routers keep them until they are durable.

The times at which a failed operation is tried again.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from app.config.experiments import LedgerSettings
from app.experiments.contract.journal import FAILED, READ, STOPPED, JournalEntry
from app.experiments.storage import directory, segments
from app.experiments.storage.columns import Exposures, FeedbackColumns, RowColumns, Tables, from_batch, router_hash
from app.experiments.storage.directory import Outcome, Round, carry_out
from app.experiments.storage.gaps import Expired, Gaps, add_lost, waited_entries
from app.experiments.storage.journal import AnalysisSnapshot
from app.experiments.storage.pending import HeldBatch, Waiting, forget
from app.experiments.storage.segments import Footer, Numbers, Segment, date_of
from app.experiments.storage.store import FileStore, StoreError
from app.experiments.storage.write_ahead import WriteAhead
from app.exposures.wire import Batch, FeedbackItem

PAUSES_S = (5.0, 10.0, 20.0, 40.0, 60.0)
"""The delays after the first failure in a row, the second …"""


@dataclass(slots=True)
class Attempts:
    """The outcome of the attempts so far. Times are Unix seconds."""

    failing_since: float | None = None
    """The time of the first failure in a row; None if the last attempt succeeded."""
    error: str | None = None
    retry_at: float = 0.0
    _failures: int = 0

    def allowed(self, now: float) -> bool:
        """Whether it may be tried."""
        return now >= self.retry_at

    def failed(self, error: str, now: float) -> None:
        """Records a failed attempt."""
        self.retry_at = now + PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
        self._failures += 1
        self.error = error
        if self.failing_since is None:
            self.failing_since = now

    def succeeded(self) -> None:
        """Records a successful attempt."""
        self._failures, self.failing_since, self.error = 0, None, None


FLUSH_S = 60.0
FLUSH_RECORDS = 100_000
"""A segment is written once its first batch has waited this long, or it has this many records."""

MAX_QUEUED_ENTRIES = 10_000
"""Entries of the journal that wait for the directory; above it the oldest are dropped."""

LOOK_S = 60.0
"""The interval of the search for segments of other controllers (for a moment there may be two), and for hours to merge.
"""

COMPANY_S = 300.0
"""The time for which another process that has stored something counts as running."""

LASTING = frozenset({"verdict", "alarm"})
"""Kinds of entries after which analyses' states are written without waiting for the next segment: what was reached must
outlive a controller that is killed."""

TIDY_S = 86400.0
CLOSE_S = 30.0
"""The longest wait for a round under way when the keeper closes."""

Submit = Callable[[Callable[[], Outcome]], "Future[Outcome]"]
OpenStore = Callable[[str, Path], FileStore]
States = Callable[[], list[AnalysisSnapshot]]
"""Returns the analyses' states to save."""


class StorageHealth(NamedTuple):
    """The state of the directory. `failing_since`: Unix seconds; None if the last attempt succeeded."""

    failing_since: float | None
    error: str | None

    def warning(self, now: float) -> str:
        """What is said of it at a Unix time; empty if it works."""
        if self.failing_since is None:
            return ""
        return (
            f"The ledger's directory has failed for {now - self.failing_since:.0f} s: {self.error}. Until it can be "
            "written, records wait in memory, and decisions would be lost with the controller"
        )


def at_once(work: Callable[[], Outcome]) -> "Future[Outcome]":
    """Carries out rounds in the calling thread."""
    future: Future[Outcome] = Future()
    future.set_result(work())
    return future


class StorageManager:
    """The directory of one controller. Not thread-safe, except for the rounds that it submits."""

    def __init__(
        self,
        settings: LedgerSettings,
        base: Path,
        tables: Tables,
        now: float,
        *,
        submit: Submit,
        open_store: OpenStore,
        write_ahead: WriteAhead | None = None,
    ) -> None:
        """`write_ahead`: holds the batches that wait, for the next controller."""
        self.settings = settings
        self.waiting = Waiting()
        self.entries: list[JournalEntry] = []
        """The journal: its entries when the directory was opened, and those added since."""
        self.snapshots: dict[str, AnalysisSnapshot] = {}
        """States of an earlier controller's analyses."""
        self.gaps = Gaps()
        """Parts of the directory that could not be used."""
        self.writer = f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
        self._open_store = partial(open_store, settings.url, base)
        self._tables, self._submit, self._write_ahead = tables, submit, write_ahead
        self._store: FileStore | None = None
        self._segments: set[Segment] = set()
        self._footers: dict[Segment, Footer] = {}
        self._queue: list[JournalEntry] = []
        self._journalled = 0
        self._has_reached = False
        """Whether states have to be written, since the journal got an entry of `LASTING`."""
        self._known: set[bytes] = set()
        """Entries of other controllers, encoded."""
        self._news: list[JournalEntry] = []
        self._names = 0
        self._target: Segment | None = None
        self._journal_file: str | None = None
        self._round: tuple[Round, Future[Outcome]] | None = None
        self._looked_at = self._merged_at = now
        self._company_at = -COMPANY_S
        self._tidied_at = now + LOOK_S - TIDY_S
        self._attempts = Attempts()

    @property
    def is_open(self) -> bool:
        """Whether the directory's content has been read."""
        return self._store is not None

    def health(self) -> StorageHealth:
        """The directory's state, for reports and metrics."""
        return StorageHealth(self._attempts.failing_since, self._attempts.error)

    def journal(self, entries: Sequence[JournalEntry]) -> int:
        """Adds entries, which are written with the next round. Returns their number so far: see `durable`."""
        named = [
            msgspec.structs.replace(entry, writer=self.writer, number=number)
            for number, entry in enumerate(entries, self._journalled + 1)
        ]
        self.entries += named
        self._queue = (self._queue + named)[-MAX_QUEUED_ENTRIES:]
        self._journalled += len(named)
        self._has_reached |= any(entry.kind in LASTING for entry in named)
        return self._journalled

    def company(self, now: float) -> str:
        """What is said of another process that records into the directory of a lone router; empty if none does."""
        is_alone = self._write_ahead is not None and not self._write_ahead.is_copy
        if not is_alone or now - self._company_at > COMPANY_S:
            return ""
        return (
            "Another router records into the same ledger: each counts at once what it records itself, and what the "
            "other does up to two minutes later. Give each a `ledger.url` of its own, or both one controller"
        )

    @property
    def writing(self) -> "Future[Outcome] | None":
        """The round under way, if entries wait."""
        return self._round[1] if self._round is not None and self._queue else None

    @property
    def unwritten_since(self) -> float | None:
        """The Unix time since which what is shown may rest on what is only in memory; None if the directory works. An
        entry about a report comes within a second after the report's time."""
        since = self._attempts.failing_since
        return since if since is None else min([since, *(entry.at for entry in self._queue[:1])]) - 1.0

    def news(self) -> list[JournalEntry]:
        """Entries that another controller has added to the journal since the last call."""
        news, self._news = self._news, []
        return news

    @property
    def durable(self) -> int:
        """The number of entries that are in the directory, or were dropped."""
        return self._journalled - len(self._queue)

    def open(self, now: float) -> bool:
        """Reads the directory, except for the exposures. Returns whether it did; after a failure it waits a while."""
        if self.is_open or not self._attempts.allowed(now):
            return self.is_open
        try:
            store = self._open_store()
            contents = directory.contents(store)
            if not contents.entries and not contents.segments:
                with suppress(StoreError):  # a directory that cannot be written yet is not held up by a note
                    Expired().write(store, self.writer, now)
            killed = self._write_ahead.left() if self._write_ahead is not None else []
            present = self._write_ahead.names() if self._write_ahead is not None else None
        except (StoreError, OSError) as error:
            self._attempts.failed(str(error), now)
            return False
        if self._write_ahead is not None and self._write_ahead.has_company:
            self._company_at = now
        self._store = store
        self._segments, self._footers, self.snapshots = contents.segments, contents.footers, contents.snapshots
        self.gaps = contents.gaps
        self.entries = contents.entries + self.entries
        self._known = {msgspec.json.encode(entry) for entry in contents.entries if entry.at > now - TIDY_S - 2 * LOOK_S}
        self.waiting.restore(contents.footers.values(), contents.snapshots.values())
        self.waiting.drop_stored()
        waited = waited_entries(contents.entries, killed, present, self.waiting.stored, now)
        for process in killed:
            for batch, arrived in process.batches:
                self._take_over(batch, now if arrived is None else arrived, now)
        self._succeeded(now)
        add_lost(waited, self.gaps)
        read = _last_numbers(contents.entries, since=now - TIDY_S)
        self.journal([*waited, *([JournalEntry(now, READ, None, read)] if read else [])])
        return True

    def _take_over(self, batch: Batch, arrived: float, now: float) -> None:
        """Holds a batch that a killed process had not stored: its records count from when that had them."""
        router = self.waiting.router(batch.router)
        if batch.number in router.held:
            return
        try:
            exposures = from_batch(batch, self._tables, arrived)
        except ValueError:  # the controller that was killed had refused it, too
            router.refused.add(batch.number)
            return
        self.waiting.hold(HeldBatch(batch.router, batch.number, exposures, now))
        router.update(batch, batch.sent_at)

    def history(self, since: float) -> Iterator[Exposures]:
        """Exposures since a Unix time and maybe before, each batch once; last those that are not stored yet.

        Raises StoreError.
        """
        known: dict[int, Numbers] = {}
        self.gaps.lacking.clear()
        stored = {router_hash(name): batches for name, batches in self.waiting.stored.items()}
        if self._store is not None:
            yield from directory.history(self._store, since, self._tables, known, self.gaps, of=stored)
        for taken in self.waiting:
            yield segments.fresh(taken.exposures, known)

    def find(self, request: int) -> tuple[RowColumns, Tables] | None:
        """The rows of a request id's hash, or of an answer id's, in the newest place with any. Raises StoreError."""
        waiting = RowColumns.concat([taken.exposures.rows for taken in self.waiting])
        hits = (waiting.request == request) | (waiting.answer == request)
        if hits.any():
            return waiting.take(hits), self._tables
        return directory.find(self._store, request) if self._store is not None else None

    def scores(self, rows: RowColumns) -> list[FeedbackItem] | None:
        """The scores of these requests, the oldest first; None if the directory fails, so that some may be missing."""
        try:
            stored = directory.scores(self._store, rows) if self._store is not None else []
        except StoreError:
            return None
        waiting = FeedbackColumns.concat([taken.exposures.feedback for taken in self.waiting])
        return [*stored, *waiting.take(directory.is_of(waiting, rows)).items(self._tables)]

    def step(self, now: float, states: States) -> list[Exposures]:
        """Ends a round that is done, and begins another if there is something to do.

        Returns exposures that another controller has stored since the last step.
        """
        others: list[Exposures] = []
        while True:
            if self._round is not None:
                if not self._round[1].done():
                    return others
                others += self._finish(now)
            if not self.is_open or not self._attempts.allowed(now):
                return others
            round_ = self._next_round(now, states)
            if not round_.has_work:
                return others
            self._begin(round_)

    def close(self, now: float, states: States) -> None:
        """Writes everything that waits, if the directory works."""
        try:
            if self._round is not None:
                self._round[1].result(CLOSE_S)
                self._finish(now)
            if self.open(now):
                segment = self._segment(now) if self.waiting.since is not None else None
                self.journal([JournalEntry(now, STOPPED, None, {"stored": self._stored(segment)})])
                snapshots = self._snapshots(states, segment)
                self._begin(
                    Round(writer=self.writer, now=now, segment=segment, entries=self._entries(), snapshots=snapshots)
                )
                assert self._round is not None
                self._round[1].result(CLOSE_S)
                self._finish(now)
        except TimeoutError:
            return  # routers keep batches that are not durable
        finally:
            if self._write_ahead is not None:
                self._write_ahead.close(all_stored=self.is_open and self.waiting.since is None and not self._queue)

    def _next_round(self, now: float, states: States) -> Round:
        since = self.waiting.since
        full = self.waiting.records >= FLUSH_RECORDS
        flush = since is not None and (full or now - since >= FLUSH_S)
        due, self._has_reached = flush or self._has_reached, False
        segment = self._segment(now) if flush else None
        return Round(
            writer=self.writer,
            now=now,
            segment=segment,
            entries=self._entries(),
            snapshots=self._snapshots(states, segment) if due else [],
            look_since=date_of(now - LOOK_S - FLUSH_S) if now - self._looked_at >= LOOK_S else None,
            merge=self._merge(now),
            tidy_days=self.settings.retention_days if now - self._tidied_at >= TIDY_S else None,
        )

    def _segment(self, now: float) -> tuple[Segment, Exposures, Footer]:
        """All waiting records as a segment. After a failure the same segment again, with the records that came
        meanwhile.
        """
        taken = self.waiting.begin()
        if self._target is None:
            self._target = Segment(date_of(now), self._name())
        batches: dict[str, list[int]] = {}
        for batch in taken:
            batches.setdefault(batch.router, []).append(batch.number)
        routers = {name: router.dump(batches.get(name, ())) for name, router in self.waiting.routers.items()}
        ranges = {name: Numbers(numbers).dump() for name, numbers in batches.items()}
        footer = Footer(written_at=now, batches=ranges, routers=routers)
        return self._target, Exposures.concat([batch.exposures for batch in taken]), footer

    def _snapshots(self, states: States, segment: tuple[Segment, Exposures, Footer] | None) -> list[AnalysisSnapshot]:
        """The states, with the batches and the entries that are in the directory once they are."""
        stored, journal = self._stored(segment), {self.writer: self._journalled}
        return [msgspec.structs.replace(state, stored=stored, journal=journal) for state in states()]

    def _stored(self, segment: tuple[Segment, Exposures, Footer] | None) -> dict[str, list[list[int]]]:
        """The batches in the directory, by router id, once the segment is."""
        if segment is not None:
            return segment[2].stored()
        return {name: batches.dump() for name, batches in self.waiting.stored.items()}

    def _entries(self) -> tuple[str, list[JournalEntry]] | None:
        """Entries to write. After a failure the same file again, with entries added meanwhile."""
        if not self._queue:
            return None
        self._journal_file = self._journal_file or self._name()
        return self._journal_file, list(self._queue)

    def _merge(self, now: float) -> tuple[list[Segment], Segment] | None:
        if now - self._merged_at < LOOK_S:
            return None
        sources = directory.due_for_merging(self._footers, now)
        if not sources:
            self._merged_at = now
            return None
        return sources, Segment(sources[0].date, self._name())

    def _begin(self, round_: Round) -> None:
        store, tables = self._store, self._tables
        assert store is not None
        self._round = round_, self._submit(lambda: carry_out(store, round_, tables))

    def _finish(self, now: float) -> list[Exposures]:
        assert self._round is not None
        (round_, future), self._round = self._round, None
        outcome = future.result()
        if round_.segment is not None:
            self.waiting.end(stored=outcome.stored is not None)
            if outcome.stored is not None:
                self._add(round_.segment[0], outcome.stored)
                self._target = None
                self._release()
        if round_.entries is not None and outcome.journalled:
            self._queue, self._journal_file = self._queue[len(round_.entries[1]) :], None
        self._has_reached |= bool(round_.snapshots) and not outcome.saved
        if round_.merge is not None and outcome.has_merged:
            sources, target = round_.merge
            self._footers = {segment: footer for segment, footer in self._footers.items() if segment not in sources}
            if outcome.merged is not None:
                self._add(target, outcome.merged)
        if outcome.tidied:
            self._tidied_at = now
            forget(self.waiting.routers, now)
            self._footers = {
                segment: footer for segment, footer in self._footers.items() if now - footer.written_at < 2 * TIDY_S
            }
        if outcome.error is not None:
            self._attempts.failed(outcome.error, now)
        else:
            self._succeeded(now)
        self._take_up(outcome.entries)
        return self._others(outcome.committed, now) if outcome.committed is not None else []

    def _succeeded(self, now: float) -> None:
        """Ends a time of failures, which a report of that time is to tell."""
        since, error = self.health()
        self._attempts.succeeded()
        if since is not None:
            self.journal([JournalEntry(now, FAILED, None, {"since": since, "error": error})])

    def _release(self) -> None:
        """Lets go of what was written ahead of the segments."""
        if self._write_ahead is not None:
            done = {name: router.stored.union(router.refused) for name, router in self.waiting.routers.items()}
            self._write_ahead.release(done)

    def _take_up(self, entries: Sequence[JournalEntry]) -> None:
        for entry in entries:
            if (encoded := msgspec.json.encode(entry)) not in self._known:
                self._known.add(encoded)
                self._news.append(entry)
                self.entries.append(entry)

    def _others(self, segments: list[Segment], now: float) -> list[Exposures]:
        """Exposures that another controller stored, and the analyses have not seen."""
        assert self._store is not None
        self._looked_at = now
        exposures: list[Exposures] = []
        counted = {router_hash(name): router.counted for name, router in self.waiting.routers.items()}
        new = [segment for segment in segments if segment not in self._segments]
        try:
            for segment, footer, unseen in directory.unknown(self._store, new, self._tables, counted, self.gaps):
                self._add(segment, footer)
                self.waiting.absorb(footer)
                self._company_at = now
                exposures += [unseen] if unseen is not None else []
        except StoreError as error:
            self._attempts.failed(str(error), now)
        return exposures

    def _add(self, segment: Segment, footer: Footer) -> None:
        self._segments.add(segment)
        self._footers[segment] = footer

    def _name(self) -> str:
        self._names += 1
        return f"{self.writer}-{self._names:06d}"


def _last_numbers(entries: Iterable[JournalEntry], since: float) -> dict[str, int]:
    """The number of the last entry by writer: of each that has an entry since a Unix time, or more entries than were
    read before.
    """
    last, read, at = Counter[str](), Counter[str](), dict[str, float]()
    for entry in entries:
        if entry.number:
            last |= Counter({entry.writer: entry.number})
            at[entry.writer] = entry.at
        if entry.kind == READ:
            read |= Counter(entry.detail)
    return {writer: number for writer, number in last.items() if at[writer] > since or number > read[writer]}
