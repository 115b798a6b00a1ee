"""The content of the ledger's directory: the journal, the states of analyses, and segments.

- *Reading*, also while another controller merges or deletes segments. Nothing is left out silently: see `Gaps`.
- *Writing*, one round at a time, which may be slow: plain data in, plain data out, in any thread. Old files go, and
  those that failures left behind.
"""

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from app.experiments.contract.journal import STOPPED, JournalEntry
from app.experiments.storage import segments, write_ahead
from app.experiments.storage.columns import NAMES, Exposures, FeedbackColumns, RowColumns, Tables, from_arrow, has_null
from app.experiments.storage.gaps import Claim, Expired, Gaps, find_lost, find_missing, find_removed, last_footer
from app.experiments.storage.journal import (
    JOURNAL,
    SNAPSHOTS,
    AnalysisSnapshot,
    append_entries,
    discard_snapshots,
    entries_of_days,
    latest_snapshots,
    read_entries,
    write_snapshot,
)
from app.experiments.storage.segments import EXPOSURES, KINDS, Footer, Numbers, Segment, date_of
from app.experiments.storage.store import TEMPORARY, Damaged, File, FileStore, Missing, StoreError
from app.exposures import identity
from app.exposures.wire import Failure, FeedbackItem, FinishCode, Flag, Reason
from app.private_files import tighten
from app.telemetry.logs import event

_EARLY_S = 3600.0
UNREADABLE = (Missing, Damaged)
"""Errors of a segment that another controller has merged or deleted, or that is not ours."""


class Contents(NamedTuple):
    """Everything but the exposures."""

    entries: list[JournalEntry]
    snapshots: dict[str, AnalysisSnapshot]
    segments: set[Segment]
    footers: dict[Segment, Footer]
    """Footers of the last two days that have any: they hold everything that a controller knew of routers."""
    gaps: Gaps
    """What the journal lacks. What is wrong with segments, `history` finds."""


def contents(store: FileStore) -> Contents:
    """Raises StoreError."""
    gaps = Gaps()
    snapshots = latest_snapshots(store, gaps.damaged)  # before what they count
    entries = read_entries(store, gaps.damaged)
    find_missing(store, entries, snapshots.values(), gaps)
    find_lost(store, entries, gaps)
    gaps.claims += [Claim(snapshot.at, snapshot.stored) for snapshot in snapshots.values()]
    gaps.claims += [Claim(entry.at, entry.detail.get("stored", {})) for entry in entries if entry.kind == STOPPED]
    committed = segments.committed(store)
    days = sorted({segment.date for segment in committed})[-2:]
    footers = dict(_footers(store, days[0], Gaps())) if days else {}
    return Contents(entries, snapshots, {*committed, *footers}, footers, gaps)


def history(
    store: FileStore,
    since: float,
    tables: Tables,
    known: dict[int, Numbers],
    gaps: Gaps,
    *,
    of: Mapping[int, Numbers] | None = None,
) -> Iterator[Exposures]:
    """Exposures stored since a Unix time, and maybe before: each batch once, in the order of writing.

    Batches by router hash: only those of `of` if it is given, and not those that are `known`, to which the found ones
    are added. What is missing is added to `gaps`, which are those of `contents`. Raises StoreError.
    """
    failed: dict[Segment, tuple[Footer, StoreError]] = {}
    footers: list[Footer] = []
    for segment, footer in _footers(store, date_of(since), gaps):
        footers.append(footer)
        if not _is_known(footer, known):
            try:
                content = segments.read(store, segment, tables)
            except UNREADABLE as error:
                failed[segment] = footer, error
                continue  # the segment into which it was merged comes later
            gaps.note(segment, content.lacking)
            yield segments.fresh(content.exposures, known, of=of)
            segments.known_by(footer, known)
    still_there = {*segments.committed(store, date_of(since))} if failed else set()
    for segment, (footer, cause) in failed.items():
        if segment in still_there and not _is_known(footer, known):
            gaps.add(segment, cause)
    find_removed(store, date_of(since), footers, gaps)


def _day(file: File) -> str:
    """The day of the folder that a file is in; empty if it is in no day's."""
    match = _DAY.search(file.path)
    return match[1] if match else ""


def unknown(
    store: FileStore, listed: list[Segment], tables: Tables, known: dict[int, Numbers], gaps: Gaps
) -> Iterator[tuple[Segment, Footer, Exposures | None]]:
    """The segments among `found` that can be read, each with the exposures of batches that are not `known`. The damaged
    ones are added to `gaps`.
    """
    for segment, footer in _read_footers(store, listed, gaps):
        try:
            content = None if _is_known(footer, known) else segments.read(store, segment, tables)
        except Missing:
            continue
        except Damaged as error:
            gaps.add(segment, error)
            continue
        if content is not None:
            gaps.note(segment, content.lacking)
        yield segment, footer, segments.fresh(content.exposures, known) if content is not None else None
        segments.known_by(footer, known)


def find(store: FileStore, request: int) -> tuple[RowColumns, Tables] | None:
    """The rows of a request id's hash, or of an answer id's, in the newest segment that has any. Raises StoreError."""
    for segment in reversed(segments.committed(store)):
        tables = Tables()
        try:
            with store.open(segment.path(EXPOSURES)) as file:
                parquet = pq.ParquetFile(file, page_checksum_verification=True)
                ids = parquet.read(columns=["request", "answer"])
                hits = (ids.column("request").to_numpy() == request) | (ids.column("answer").to_numpy() == request)
                if hits.any():
                    rows = from_arrow(parquet.read().take(np.flatnonzero(hits)), RowColumns, tables)
                    return rows, tables
        except UNREADABLE:
            continue
    return None


def scores(store: FileStore, rows: RowColumns) -> list[FeedbackItem]:
    """The stored scores of these requests, the oldest first. Raises StoreError."""
    items: list[FeedbackItem] = []
    # A score may come a little before its request has ended.
    for segment in segments.committed(store, date_of(float(rows.at.min()) - _EARLY_S)):
        tables = Tables()
        try:
            with store.open(segment.path("feedback")) as file:
                columns = from_arrow(pq.read_table(file, page_checksum_verification=True), FeedbackColumns, tables)
        except UNREADABLE:
            continue  # most segments have no scores
        items += columns.take(is_of(columns, rows)).items(tables)
    return sorted(items, key=lambda item: item.at)


def is_of(feedback: FeedbackColumns, rows: RowColumns) -> npt.NDArray[np.bool_]:
    """The mask of the scores for one of these requests, by the id of either the request or its answer."""
    return np.isin(feedback.request, np.concatenate([rows.request, rows.answer]))


def _footers(store: FileStore, since: str, gaps: Gaps) -> Iterator[tuple[Segment, Footer]]:
    """Footers of all segments, listed until no new one appears: a segment that was merged in the meantime is found in
    the merged one.
    """
    seen: set[Segment] = set()
    while new := [segment for segment in segments.committed(store, since) if segment not in seen]:
        yield from _read_footers(store, new, gaps)
        seen.update(new)


def _read_footers(store: FileStore, listed: list[Segment], gaps: Gaps) -> list[tuple[Segment, Footer]]:
    footers: list[tuple[Segment, Footer]] = []
    for segment in listed:
        try:
            footers.append((segment, segments.read_footer(store, segment)))
        except Missing:
            continue
        except Damaged as error:
            gaps.add(segment, error)
    return sorted(footers, key=lambda item: (item[1].written_at, item[0]))


def _is_known(footer: Footer, known: Mapping[int, Numbers]) -> bool:
    nothing = Numbers()
    return all(numbers.is_within(known.get(router, nothing)) for router, numbers in segments.batches_of(footer).items())


# Exposures as plain data, for answers in JSON.

_MANAGER = f"{0:016x}"
_HASHES = ("router", "request", "answer", "unit", "caller")
_ENUMS = {"reason": Reason, "finish": FinishCode, "error": Failure}


def exposures_of(rows: RowColumns, tables: Tables) -> list[dict[str, Any]]:
    """One object for each row, by time of arrival. Codes are words there, hashes 16 hexadecimal digits."""
    documents = [
        {name: _plain(name, getattr(rows, name)[index].item(), tables) for name in rows.names()}
        for index in range(len(rows))
    ]
    return sorted(documents, key=lambda row: float(row["at"]))


def scored(exposures: list[dict[str, Any]], items: Iterable[FeedbackItem] | None) -> list[dict[str, Any]]:
    """The exposures with `feedback`: the last score of each metric, of those by its caller or a manager.

    `items` are in the order in which they came, None if they could not be read; `feedback` is then None, too.
    """
    if items is None:
        return [{**row, "feedback": None} for row in exposures]
    scores = [(f"{item.request:016x}", f"{item.caller:016x}", item.metric, item.value) for item in items]
    return [
        {
            **row,
            "feedback": {
                metric: value
                for request, caller, metric, value in scores
                if request in (row["request"], row["answer"]) and caller in (_MANAGER, row["caller"])
            },
        }
        for row in exposures
    ]


def _plain(name: str, value: Any, tables: Tables) -> Any:
    if name == "plan":
        plan = tables.plans[value]
        return {"endpoint": plan.endpoint, "id": plan.id, "weights": plan.weights}
    if name in NAMES:
        return tables.names[value] if value >= 0 else None
    if name in _HASHES:
        return f"{value:016x}"
    if name in _ENUMS:
        return _ENUMS[name](value).name.lower()
    if name == "flags":
        return [flag.name.lower() for flag in Flag if flag & value and flag.name]
    return None if isinstance(value, float) and math.isnan(value) else value


RECORDINGS = "recordings"
"""The folder of recorded requests, which are as old as exposures may become."""

AUDIT = "audit"
"""The folder of the audit log, which is as old as its own retention allows."""

FOLDERS = frozenset({*KINDS, RECORDINGS, AUDIT, JOURNAL, SNAPSHOTS, write_ahead.FOLDER})

MERGED_RECORDS = 500_000
"""The most records of a merged segment, so that merging needs little memory."""

ABANDONED_S = 3600.0
"""The age at which a part without its commit, or a temporary file, counts as left by a crash."""

_log = logging.getLogger("switchyard")
_DAY = re.compile(r"/date=(\d{4}-\d\d-\d\d)/")


def due_for_merging(footers: Mapping[Segment, Footer], now: float) -> list[Segment]:
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


def tidy(store: FileStore, *, now: float, retention_days: int, writer: str) -> None:
    """Deletes segments and recordings older than the retention, which it journals before, and what crashes left behind.
    Raises StoreError.
    """
    oldest = (datetime.fromtimestamp(now, UTC) - timedelta(days=retention_days)).strftime("%Y-%m-%d")
    commits: set[Segment] = set()
    if (footer := last_footer(store, oldest)) is not None:
        Expired(oldest, footer.stored()).write(store, writer, now)
    for file in store.list(RECORDINGS):
        is_abandoned = file.path.endswith(TEMPORARY) and file.modified_at < now - ABANDONED_S
        if is_abandoned or "" < _day(file) < oldest:
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
        append_entries(store, *round_.entries)
        outcome.journalled = True
    for snapshot in round_.snapshots:
        write_snapshot(store, round_.writer, snapshot)
    outcome.saved = True
    if round_.look_since is not None:
        outcome.entries = entries_of_days(store, [round_.look_since, date_of(round_.now)], besides=round_.writer)
        outcome.committed = segments.committed(store, round_.look_since)
    if round_.merge is not None:
        outcome.merged = merge(store, *round_.merge)
        outcome.has_merged = True
    if round_.tidy_days is not None:
        tidy(store, now=round_.now, retention_days=round_.tidy_days, writer=round_.writer)
        discard_snapshots(store, round_.writer, round_.now - ABANDONED_S)
        outcome.tidied = True
