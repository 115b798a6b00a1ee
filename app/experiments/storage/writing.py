"""One round of writing to the ledger's directory, which may be slow: plain data in, plain data out, in any thread.

Keeps the directory tidy: merges past hours, deletes old files and those that failures left behind.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from app.experiments.contract.journal import JournalEntry
from app.experiments.storage import journal, segments, write_ahead
from app.experiments.storage import journal as snapshots
from app.experiments.storage.columns import Exposures, Tables, has_null
from app.experiments.storage.journal import AnalysisSnapshot
from app.experiments.storage.reading import UNREADABLE
from app.experiments.storage.segments import EXPOSURES, KINDS, Footer, Numbers, Segment, date_of
from app.experiments.storage.store import TEMPORARY, FileStore, StoreError
from app.exposures import identity
from app.private_files import tighten
from app.telemetry.logs import event

RECORDINGS = "recordings"
"""The folder of recorded requests, which are as old as exposures may become."""

AUDIT = "audit"
"""The folder of the audit log, which is as old as its own retention allows."""

FOLDERS = frozenset({*KINDS, RECORDINGS, AUDIT, journal.FOLDER, snapshots.SNAPSHOTS, write_ahead.FOLDER})

MERGED_RECORDS = 500_000
"""The most records of a merged segment, so that merging needs little memory."""

ABANDONED_S = 3600.0
"""The age at which a part without its commit, or a temporary file, counts as left by a crash."""

_log = logging.getLogger("switchyard")
_DAY = re.compile(RECORDINGS + r"/date=(\d{4}-\d\d-\d\d)/")


def due(footers: Mapping[Segment, Footer], now: float) -> list[Segment]:
    """The segments to merge next: small ones of one past hour, at least two, the oldest hour first."""
    hours: dict[tuple[str, int], list[Segment]] = {}
    for segment, footer in sorted(footers.items(), key=lambda item: item[1].written_at):
        hour = int(footer.written_at // 3600)
        if not footer.merged and hour < int(now // 3600):
            hours.setdefault((segment.date, hour), []).append(segment)
    for _, of_hour in sorted(hours.items()):
        chosen, records = list[Segment](), 0
        for segment in of_hour:
            size = sum(footers[segment].records.values())
            if not chosen or records + size <= MERGED_RECORDS:
                chosen.append(segment)
                records += size
        if len(chosen) > 1:
            return chosen
    return []


def merge(store: FileStore, sources: Sequence[Segment], target: Segment) -> Footer | None:
    """Writes the sources as one segment, each batch once, then deletes them. None: nothing is left to merge. Sources
    that are damaged, or lack columns that cannot be null, stay as they are.

    Raises StoreError; then nothing is lost, though records may be stored twice.
    """
    tables, known, parts, read = Tables(), dict[int, Numbers](), list[Exposures](), dict[Segment, Footer]()
    for source in sources:
        try:
            content = segments.read(store, source, tables)
        except UNREADABLE:
            continue
        if all(has_null(name) for name in content.lacking):
            parts.append(segments.fresh(content.exposures, known))
            segments.known_by(content.footer, known)
            read[source] = content.footer
    if not read:
        return None
    merged = Exposures.concat(parts)
    batches: dict[str, Numbers] = {}
    for footer in read.values():
        for router, ranges in footer.batches.items():
            batches.setdefault(router, Numbers()).update(Numbers(ranges=ranges))
    last = max(read.values(), key=lambda footer: footer.written_at)
    footer = msgspec.structs.replace(
        last, batches={router: numbers.dump() for router, numbers in batches.items()}, merged=True
    )
    written = segments.write(store, target, merged, tables, footer)
    for source in read:
        segments.delete(store, source)
    return written


def tidy(store: FileStore, *, now: float, retention_days: int) -> None:
    """Deletes segments and recordings older than the retention, and what crashes left behind. Raises StoreError."""
    oldest = (datetime.fromtimestamp(now, UTC) - timedelta(days=retention_days)).strftime("%Y-%m-%d")
    commits: set[Segment] = set()
    for file in store.list(RECORDINGS):
        day = _DAY.match(file.path)
        is_abandoned = file.path.endswith(TEMPORARY) and file.modified_at < now - ABANDONED_S
        if is_abandoned or (day is not None and day[1] < oldest):
            store.delete(file.path)
    for kind in KINDS:  # commits first: the remaining files of a segment without one are ignored
        for file in store.list(kind):
            segment = segments.segment_at(file.path)
            if segment is not None and segment.date < oldest:
                store.delete(file.path)
            elif kind == EXPOSURES and segment is not None:
                commits.add(segment)
            elif segment not in commits and file.modified_at < now - ABANDONED_S and _is_ours(file.path):
                store.delete(file.path)


def make_private(directory: Path) -> None:
    """Takes the rights of others away from what an earlier version wrote into a ledger's directory.

    The directory may hold other files, which are not touched; it is itself private if it holds none.
    """
    if not directory.is_dir():
        return
    names = {path.name for path in directory.iterdir()}
    failed = [path for name in sorted(names & FOLDERS) for path in tighten(directory / name)]
    if names <= {*FOLDERS, identity.FILE}:
        failed += tighten(directory)
    if failed:
        _log.warning(
            "Others may be able to read files of the ledger, which are another user's: chmod -R go= them",
            extra=event("ledger_not_private", files=len(failed), first=failed[0]),
        )


def _is_ours(path: str) -> bool:
    return segments.segment_at(path) is not None or path.endswith(TEMPORARY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Work in this order. A failure ends the round: the rest would fail, too."""

    writer: str
    now: float
    segment: tuple[Segment, Exposures, Footer] | None = None
    entries: tuple[str, list[JournalEntry]] | None = None
    """The journal file's name, and its lines."""
    snapshots: list[AnalysisSnapshot] = field(default_factory=list)
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
    committed: list[Segment] | None = None
    entries: list[JournalEntry] = field(default_factory=list)
    """Entries of other writers, since the day."""
    has_merged: bool = False
    merged: Footer | None = None
    """None with `has_merged` means that the sources no longer existed."""
    tidied: bool = False


def carry_out(store: FileStore, round_: Round, tables: Tables) -> Outcome:
    """Carries out the round. Raises no error that a directory can cause."""
    outcome = Outcome()
    try:
        _carry_out(store, round_, tables, outcome)
    except StoreError as error:
        outcome.error = str(error)
    return outcome


def _carry_out(store: FileStore, round_: Round, tables: Tables, outcome: Outcome) -> None:
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
        outcome.committed = segments.committed(store, round_.look_since)
    if round_.merge is not None:
        outcome.merged = merge(store, *round_.merge)
        outcome.has_merged = True
    if round_.tidy_days is not None:
        tidy(store, now=round_.now, retention_days=round_.tidy_days)
        snapshots.discard(store, round_.writer, round_.now - ABANDONED_S)
        outcome.tidied = True
