"""One round of writing to the ledger's directory, which may be slow: plain data in, plain data out, in any thread."""

from dataclasses import dataclass, field

from app.experiments.columns import Exposures, Tables
from app.experiments.storage import housekeeping, journal, segments, snapshots
from app.experiments.storage.entry import Entry
from app.experiments.storage.segments import Footer, Segment, date_of
from app.experiments.storage.snapshots import Snapshot
from app.experiments.storage.store import Store, StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Work in this order. A failure ends the round: the rest would fail, too."""

    writer: str
    now: float
    segment: tuple[Segment, Exposures, Footer] | None = None
    entries: tuple[str, list[Entry]] | None = None
    """The journal file's name, and its lines."""
    snapshots: list[Snapshot] = field(default_factory=list)
    look_since: str | None = None
    """Look for segments from this day on that others have written, and for entries of theirs."""
    merge: tuple[list[Segment], Segment] | None = None
    """The sources, and the segment into which they are merged."""
    tidy_days: int | None = None
    """Delete older files."""

    @property
    def has_work(self) -> bool:
        """Whether there is anything to do."""
        return any((self.segment, self.entries, self.snapshots, self.look_since, self.merge, self.tidy_days))


@dataclass(slots=True)
class Outcome:
    """The result of a round."""

    error: str | None = None
    stored: Footer | None = None
    journalled: bool = False
    saved: bool = False
    """Whether all snapshots are written."""
    found: list[Segment] | None = None
    entries: list[Entry] = field(default_factory=list)
    """Entries of other writers, since the day."""
    has_merged: bool = False
    merged: Footer | None = None
    """None with `has_merged` means that the sources no longer existed."""
    tidied: bool = False


def carry_out(store: Store, round_: Round, tables: Tables) -> Outcome:
    """Carries out the round. Raises no error that a directory can cause."""
    outcome = Outcome()
    try:
        _carry_out(store, round_, tables, outcome)
    except StoreError as error:
        outcome.error = str(error)
    return outcome


def _carry_out(store: Store, round_: Round, tables: Tables, outcome: Outcome) -> None:
    if round_.segment is not None:
        segment, exposures, footer = round_.segment
        outcome.stored = segments.write(store, segment, exposures, tables, footer)
    if round_.entries is not None:
        journal.append(store, *round_.entries)
        outcome.journalled = True
    for snapshot in round_.snapshots:
        snapshots.write(store, round_.writer, snapshot)
    outcome.saved = True
    if round_.look_since is not None:
        outcome.entries = journal.read_days(store, [round_.look_since, date_of(round_.now)], besides=round_.writer)
        outcome.found = segments.committed(store, round_.look_since)
    if round_.merge is not None:
        outcome.merged = housekeeping.merge(store, *round_.merge)
        outcome.has_merged = True
    if round_.tidy_days is not None:
        housekeeping.tidy(store, now=round_.now, retention_days=round_.tidy_days)
        snapshots.discard(store, round_.writer, round_.now - housekeeping.ABANDONED_S)
        outcome.tidied = True
