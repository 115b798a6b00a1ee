"""The content of the ledger's directory: the journal, the states of analyses, and segments.

- *Reading*, also while another controller merges or deletes segments. Nothing is left out silently: `Gaps` has what
  could not be read, and what a file of another version does not have.
- *Writing*, one round at a time, which may be slow: plain data in, plain data out, in any thread. Old files go, and
  those that failures left behind.
"""

import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from app.experiments.contract.journal import JournalEntry
from app.experiments.storage import segments, write_ahead
from app.experiments.storage.columns import NAMES, Exposures, FeedbackColumns, RowColumns, Tables, from_arrow, has_null
from app.experiments.storage.segments import EXPOSURES, KINDS, Footer, Numbers, Segment, date_of
from app.experiments.storage.store import TEMPORARY, Damaged, File, FileStore, Missing, StoreError
from app.exposures import identity
from app.exposures.wire import Failure, FeedbackItem, FinishCode, Flag, Reason
from app.private_files import tighten
from app.telemetry.logs import event

# The journal is a permanent record of what happened: it is the audit log of experiments, and a restarted controller
# resumes from it. JSON lines in small files with unique names, `journal/date=2026-11-12/<writer>-<n>.jsonl`, never
# changed and never deleted.

JOURNAL = "journal"


def append_entries(store: FileStore, name: str, entries: list[JournalEntry]) -> None:
    """Writes the entries as the file `name`. Raises StoreError."""
    lines = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
    store.write(f"{JOURNAL}/date={date_of(entries[0].at)}/{name}.jsonl", lines)


def read_entries(store: FileStore, damaged: dict[str, str] | None = None) -> list[JournalEntry]:
    """Every entry, in order of time. Lines that are not entries are left out; their files are added to `damaged`, each
    with the reason. Raises StoreError.
    """
    return _read_entries(store, store.list(JOURNAL), {} if damaged is None else damaged)


def entries_of_days(store: FileStore, days: Iterable[str], besides: str) -> list[JournalEntry]:
    """The entries of some days (as `date_of`), without those of the writer `besides`."""
    files = [file for day in sorted(set(days)) for file in store.list(f"{JOURNAL}/date={day}")]
    return _read_entries(store, [file for file in files if not _file_name(file).startswith(f"{besides}-")], {})


def _read_entries(store: FileStore, files: Iterable[File], damaged: dict[str, str]) -> list[JournalEntry]:
    journal: list[JournalEntry] = []
    for file in files:
        if not file.path.endswith(".jsonl") or _file_name(file).startswith("."):
            continue
        try:
            with store.open(file.path) as lines:
                entries = [_entry(line) for line in lines.read().splitlines()]
        except Missing:
            continue
        journal += (read := [entry for entry in entries if entry is not None])
        if len(read) < len(entries):
            damaged[file.path] = f"{len(entries) - len(read)} of its {len(entries)} lines are no entries"
    return sorted(journal, key=lambda entry: entry.at)


def _file_name(file: File) -> str:
    return file.path.rpartition("/")[2]


def _entry(line: bytes) -> JournalEntry | None:
    try:
        return msgspec.json.decode(line, type=JournalEntry)
    except msgspec.DecodeError:
        return None


# What an analysis cannot recompute from exposures: its verdicts so far, alarms. One small file for each experiment and
# writer, `state/<experiment>/<writer>.json`, replaced each time.

SNAPSHOTS = "state"


class AnalysisSnapshot(msgspec.Struct, frozen=True):
    """The state of one run's analysis at a Unix time."""

    at: float
    experiment: str
    started_at: float
    state: dict[str, Any]
    stored: dict[str, list[list[int]]] = {}
    """The batches that the directory held, by router id, as `Footer.stored`."""


def write_snapshot(store: FileStore, writer: str, snapshot: AnalysisSnapshot) -> None:
    """Raises StoreError."""
    store.write(f"{SNAPSHOTS}/{snapshot.experiment}/{writer}.json", msgspec.json.encode(snapshot))


def latest_snapshots(store: FileStore) -> dict[str, AnalysisSnapshot]:
    """The newest of each experiment. Other files are left out. Raises StoreError."""
    snapshots: dict[str, AnalysisSnapshot] = {}
    for file in store.list(SNAPSHOTS):
        if not file.path.endswith(".json") or file.path.rpartition("/")[2].startswith("."):
            continue
        try:
            with store.open(file.path) as data:
                snapshot = msgspec.json.decode(data.read(), type=AnalysisSnapshot)
        except (Missing, msgspec.DecodeError):
            continue
        if snapshot.experiment not in snapshots or snapshots[snapshot.experiment].at < snapshot.at:
            snapshots[snapshot.experiment] = snapshot
    return snapshots


def discard_snapshots(store: FileStore, keep: str, before: float) -> None:
    """Deletes other writers' snapshots that are older than `before` (Unix seconds). Raises StoreError."""
    for file in store.list(SNAPSHOTS):
        if file.modified_at < before and not file.path.endswith(f"/{keep}.json"):
            store.delete(file.path)


FLUSHED_S = 300.0
"""The time after which a record is in a file, where the directory works."""

_EARLY_S = 3600.0
UNREADABLE = (Missing, Damaged)
"""Errors of a segment that another controller has merged or deleted, or that is not ours."""


ACCEPTED = "exposures/_lost"
"""A file whose lines are `Removed.sentence` of what its owner knows to be gone: readers of Parquet skip its name."""

_ACCEPTED = re.compile(r"(\d+) .*?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)")


class Removed(NamedTuple):
    """Batches that were written between two Unix times, and are in no file."""

    batches: int
    since: float
    until: float
    is_accepted: bool = False

    def sentence(self) -> str:
        """One sentence about them, without its stop. As a line of `ACCEPTED` it says that this is known."""
        last = datetime.fromtimestamp(self.until, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return f"{self.batches} batches of records, stored by {last}, are in no file"

    def may_be_of(self, day: str) -> bool:
        """Whether a file of that day may have held some of them."""
        return date_of(self.since) <= day <= date_of(self.until)


@dataclass(slots=True)
class Gaps:
    """What reading has left out."""

    damaged: dict[str, str] = field(default_factory=dict)
    """Files that cannot be read, each with the reason."""
    lacking: dict[str, Counter[str]] = field(default_factory=dict)
    """By day, columns that files of another version do not have, with the number of their records."""
    removed: dict[float, Removed] = field(default_factory=dict)
    """Batches that were stored and are in no file, by the time until which they were."""
    expired_before: str = ""
    """The day before which files have been deleted because of their age; empty if none have."""

    def since(self, at: float, until: float = math.inf) -> list[str]:
        """The parts that may hold something recorded between two Unix times and are missing, each with the reason."""
        dated = {path: segments.segment_at(path) for path in sorted(self.damaged)}
        last = date_of(until + FLUSHED_S) if math.isfinite(until) else "9"
        damaged = [path for path, segment in dated.items() if segment is None or date_of(at) <= segment.date <= last]
        days = [segment.date for segment in dated.values() if segment is not None]
        gone = [
            removed.sentence()
            for removed in self._removed(at, until)
            if not removed.is_accepted and not any(map(removed.may_be_of, days))
        ]
        return [*(f"{path}: {self.damaged[path]}" for path in damaged), *gone]

    def known_since(self, at: float, run_began_at: float, until: float = math.inf) -> list[str]:
        """What is missing between two Unix times and makes no report incomplete: what the directory's owner has
        accepted, what was recorded before the run began, and what has been deleted because of its age."""
        gone = [
            removed.sentence()
            for removed in self._removed(at, until)
            if removed.is_accepted or removed.until < run_began_at
        ]
        is_expired = date_of(at) < self.expired_before
        return [*gone, *([f"all from before {self.expired_before}, by `ledger.retention_days`"] if is_expired else [])]

    def _removed(self, at: float, until: float) -> list[Removed]:
        return [one for _, one in sorted(self.removed.items()) if one.until >= at and one.since <= until]

    def lacking_since(self, at: float) -> Counter[str]:
        """The columns that records lack which were stored since a Unix time, with the number of these records."""
        return sum((lacking for day, lacking in self.lacking.items() if day >= date_of(at)), Counter[str]())

    def note(self, segment: Segment, lacking: Counter[str]) -> None:
        """Adds what the records of a segment lack."""
        if lacking:
            self.lacking.setdefault(segment.date, Counter()).update(lacking)

    def add(self, segment: Segment, error: StoreError) -> None:
        """Adds a segment that could not be read."""
        self.damaged[segment.path(EXPOSURES)] = str(error)


class Contents(NamedTuple):
    """Everything but the exposures."""

    entries: list[JournalEntry]
    snapshots: dict[str, AnalysisSnapshot]
    segments: set[Segment]
    footers: dict[Segment, Footer]
    """Footers of the last two days that have any: they hold everything that a controller knew of routers."""
    gaps: Gaps
    """Files of the journal that cannot be read. What is wrong with segments, `history` finds."""


def contents(store: FileStore) -> Contents:
    """Raises StoreError."""
    committed, gaps = segments.committed(store), Gaps()
    days = sorted({segment.date for segment in committed})[-2:]
    footers = dict(_footers(store, days[0], Gaps())) if days else {}
    return Contents(read_entries(store, gaps.damaged), latest_snapshots(store), {*committed, *footers}, footers, gaps)


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
    are added. What cannot be read is added to `gaps`. Raises StoreError.
    """
    failed: dict[Segment, tuple[Footer, StoreError]] = {}
    snapshots = latest_snapshots(store).values()  # before the segments, which they count
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
    gaps.removed |= {one.until: one for one in _removed(store, date_of(since), footers, snapshots, gaps)}


class _Claim(NamedTuple):
    """What the directory held at a Unix time, by what was written then: batches by router id, `Footer.stored`."""

    at: float
    stored: Mapping[str, list[list[int]]]


def _removed(
    store: FileStore, day: str, footers: Sequence[Footer], snapshots: Iterable[AnalysisSnapshot], gaps: Gaps
) -> list[Removed]:
    """Batches that were stored since a day, by what was written later, and that no footer has. Raises StoreError."""
    known: defaultdict[str, Numbers] = defaultdict(Numbers)

    def add(batches: Mapping[str, list[list[int]]]) -> int:
        """Adds to the known batches; returns how many of them are new."""
        new = 0
        for router, ranges in batches.items():
            had, known[router] = len(known[router]), known[router].union(Numbers(ranges=ranges))
            new += len(known[router]) - had
        return new

    for footer in footers:
        add(footer.batches)
        if isinstance(footer, segments.FirstFooter):
            add(footer.stored())
    claims = [
        *(_Claim(footer.written_at, footer.stored()) for footer in footers),
        *(_Claim(snapshot.at, snapshot.stored) for snapshot in snapshots),
    ]
    claims.sort(key=lambda claim: claim.at)
    expired, footer_before = _expired(store), _last_footer(store, day)
    if expired is not None:
        gaps.expired_before = expired.day
        add(expired.stored)
    if footer_before is not None:
        add(footer_before.stored())
    elif expired is None and claims:  # an earlier version deleted without a note
        add(claims[0].stored)
    accepted = _accepted(store)
    removed: list[Removed] = []
    before = datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp()
    for claim in claims:
        new = add(claim.stored)
        if new and date_of(claim.at) >= day:
            known_of = sum(batches for at, batches in accepted if before < at <= claim.at + 1)
            removed.append(Removed(new, before, claim.at, is_accepted=known_of >= new))
        before = max(before, claim.at)
    return removed


def _last_footer(store: FileStore, day: str) -> Footer | None:
    """The last one that can be read from before a day. Raises StoreError."""
    for segment in reversed([segment for segment in segments.committed(store) if segment.date < day]):
        with suppress(Missing, Damaged):
            return segments.read_footer(store, segment)
    return None


def _accepted(store: FileStore) -> list[tuple[float, int]]:
    """Unix times and numbers of batches that are known to be gone."""
    try:
        with store.open(ACCEPTED) as file:
            lines = _ACCEPTED.findall(file.read().decode(errors="replace"))
    except Missing:
        return []
    return [(datetime.fromisoformat(time).timestamp(), int(batches)) for batches, time in lines]


class Expired(msgspec.Struct, frozen=True):
    """What has been deleted because of its age: the day before which, and all batches that had been stored by then.
    Both are empty at the beginning of a ledger, from which on it is known.
    """

    day: str = ""
    stored: dict[str, list[list[int]]] = {}

    def write(self, store: FileStore, writer: str, now: float) -> None:
        """Adds it to the journal. Raises StoreError."""
        entry = JournalEntry(now, EXPIRED, detail=msgspec.to_builtins(self), writer=writer)
        append_entries(store, f"{writer}-{EXPIRED}-{self.day or 'nothing'}", [entry])


EXPIRED = "expired"
"""The kind of its entry in the journal."""


def _expired(store: FileStore) -> Expired | None:
    """The last one. Raises StoreError."""
    for file in reversed(store.list(JOURNAL)):
        if f"-{EXPIRED}-" in _file_name(file):
            with store.open(file.path) as lines:
                entries = [entry for line in lines.read().splitlines() if (entry := _entry(line)) is not None]
            if entries:
                return msgspec.convert(entries[-1].detail, Expired)
    return None


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
                parquet = pq.ParquetFile(file)
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
                columns = from_arrow(pq.read_table(file), FeedbackColumns, tables)
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
    if (footer := _last_footer(store, oldest)) is not None:
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
