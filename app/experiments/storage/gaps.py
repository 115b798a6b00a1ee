"""What the directory of the ledger lacks: unreadable or removed files, and columns that other versions did not have.

A file that is gone is noticed, since others tell what the directory held.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, groupby
from typing import Any, NamedTuple

import msgspec

from app.experiments.contract.journal import READ, STARTED, STOPPED, WAITED, JournalEntry
from app.experiments.storage import segments
from app.experiments.storage.journal import JOURNAL, SNAPSHOTS, AnalysisSnapshot, append_entries, entry_of, file_name
from app.experiments.storage.segments import EXPOSURES, Footer, Numbers, RouterRecord, Segment, date_of
from app.experiments.storage.store import Damaged, FileStore, Missing, StoreError
from app.experiments.storage.write_ahead import FLUSHED_S, Process
from app.experiments.storage.write_ahead import FOLDER as WRITE_AHEAD

ACCEPTED = "exposures/_lost"
"""A file whose lines are `Removed.sentence` of what its owner knows to be gone: readers of Parquet skip its name."""

_NOUNS = {
    EXPOSURES: ("batch of records", "batches of records"),
    JOURNAL: ("entry of the journal", "entries of the journal"),
    WRITE_AHEAD: ("batch ahead of segments", "batches ahead of segments"),
}
_ACCEPTED = re.compile(rf"(\d+) ({'|'.join(chain(*_NOUNS.values()))}).*?(\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)")
_DAY = re.compile(r"/date=(\d{4}-\d\d-\d\d)/")


class Removed(NamedTuple):
    """Parts of the files in a folder that were written between two Unix times, and are in no file."""

    parts: int
    since: float
    until: float
    folder: str = EXPOSURES
    is_accepted: bool = False

    def sentence(self) -> str:
        """One sentence about them, without its stop. As a line of `ACCEPTED` it says that this is known."""
        last = _iso(self.until)
        one, several = _NOUNS[self.folder]
        if self.parts == 1:
            return f"1 {one}, stored by {last}, is in no file"
        return f"{self.parts} {several}, stored by {last}, are in no file"

    def may_be_in(self, path: str) -> bool:
        """Whether a file may have held some of them."""
        day = _DAY.search(path)
        is_of_folder = path.startswith(f"{self.folder}/")
        return is_of_folder and day is not None and date_of(self.since) <= day[1] <= date_of(self.until)


class Silence(NamedTuple):
    """What is not known of a controller that was killed: what it showed may rest on what it could not write."""

    failing_since: float
    """Since when its directory failed, in Unix seconds; 0: it did not."""
    alive_at: float
    """When it last said that it lived, in Unix seconds."""
    until: float
    """When the next one began, in Unix seconds; infinite if none has."""

    def sentence(self, at: float) -> str:
        """One sentence of a Unix time that it covers, without its stop; empty for others."""
        if at >= self.until and self.until < math.inf:
            return ""
        if 0 < self.failing_since <= at:
            since = _iso(self.failing_since)
            return f"what a controller showed from {since} on is in no file: it was killed before it could write again"
        if self.alive_at < at < math.inf:
            return f"what a controller showed after {_iso(self.alive_at)}, if it still ran, is in no file"
        return ""


class Claim(NamedTuple):
    """What the directory held at a Unix time, by what was written then: batches by router id, as `Footer.stored`."""

    at: float
    stored: Mapping[str, list[list[int]]]
    dropped: Mapping[str, list[list[int]]] = {}
    """Batches that it need not hold: their routers have reported their rows as lost."""


@dataclass(slots=True)
class Gaps:
    """What reading has left out."""

    damaged: dict[str, str] = field(default_factory=dict)
    """Files that cannot be read, each with the reason."""
    lacking: dict[str, Counter[str]] = field(default_factory=dict)
    """By day, columns that files of another version do not have, with the number of their records."""
    removed: dict[tuple[str, float], Removed] = field(default_factory=dict)
    """What was stored and is in no file, by its folder and the time until which it was."""
    expired_before: str = ""
    """The day before which files have been deleted because of their age; empty if none have."""
    silences: list[Silence] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    """What others than segments say of these."""

    def since(self, at: float, until: float = math.inf, experiment: str | None = None) -> list[str]:
        """The parts that may hold something recorded between two Unix times and are missing, each with the reason. What
        the journal lacks from before may count, too: it has what was in force then. `experiment`: other experiments'
        states do not count.
        """
        of_others = f"{SNAPSHOTS}/" if experiment is not None else None
        dated = {
            path: segments.segment_at(path)
            for path in sorted(self.damaged)
            if of_others is None or not path.startswith(of_others) or path.startswith(f"{of_others}{experiment}/")
        }
        last = date_of(until + FLUSHED_S) if math.isfinite(until) else "9"
        damaged = [path for path, segment in dated.items() if segment is None or date_of(at) <= segment.date <= last]
        gone = [
            removed.sentence()
            for removed in self._removed(until)
            if (removed.until >= at or removed.folder == JOURNAL)
            and not removed.is_accepted
            and not any(map(removed.may_be_in, dated))
        ]
        unsaid = filter(None, (silence.sentence(until) for silence in self.silences if silence.until >= at))
        return [*(f"{path}: {self.damaged[path]}" for path in damaged), *gone, *unsaid]

    def known_since(self, at: float, run_began_at: float, until: float = math.inf) -> list[str]:
        """What is missing between two Unix times and makes no report incomplete: what the directory's owner has
        accepted, what was recorded before the run began, and what has been deleted because of its age."""
        gone = [
            removed.sentence()
            for removed in self._removed(until)
            if removed.until >= at
            and (removed.is_accepted or (removed.until < run_began_at and removed.folder != JOURNAL))
        ]
        is_expired = date_of(at) < self.expired_before
        return [*gone, *([f"all from before {self.expired_before}, by `ledger.retention_days`"] if is_expired else [])]

    def _removed(self, until: float) -> list[Removed]:
        return [one for _, one in sorted(self.removed.items()) if one.since <= until]

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


def find_removed(store: FileStore, day: str, footers: Sequence[Footer], gaps: Gaps) -> None:
    """Adds to `gaps` the batches that were stored since a day, by what was written later, and that no footer has.
    Raises StoreError.
    """
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
    expired, footer_before = _expired(store), last_footer(store, day)
    claims = sorted([*_claims_of(footers, footer_before), *gaps.claims], key=lambda claim: claim.at)
    if expired is not None:
        gaps.expired_before = expired.day
        add(expired.stored)
    elif footer_before is None and claims:  # an earlier version deleted without a note
        add(claims[0].stored)
    accepted = _accepted(store, EXPOSURES)
    before = datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp()
    for claim in claims:
        new = add(claim.stored)
        add(claim.dropped)
        if new and date_of(claim.at) >= day:
            known_of = sum(batches for at, batches in accepted if before < at <= claim.at + 1)
            removed = Removed(new, before, claim.at, is_accepted=known_of >= new)
            gaps.removed[EXPOSURES, claim.at] = removed
        before = max(before, claim.at)


def _claims_of(footers: Iterable[Footer], before: Footer | None) -> Iterator[Claim]:
    """The footers' claims, and that of one from `before` all of them.

    Batches that a router no longer keeps have been stored, unless it was there before the ledger, or before a version
    that knew them, or has dropped them: then it tells of lost rows, maybe a little later.
    """
    ordered = sorted(footers, key=lambda footer: footer.written_at)
    ordered = [before, *ordered] if before is not None else ordered
    lives: defaultdict[str, list[RouterRecord]] = defaultdict(list)
    for footer in ordered:
        for name, router in footer.routers.items():
            lives[name].append(router)
    seen = Counter[str]()
    for footer in ordered:
        stored, dropped = footer.stored(), dict[str, list[list[int]]]()
        for name, router in footer.routers.items():
            last = lives[name][seen[name] - 1] if seen[name] else None
            has = lives[name][seen[name] : seen[name] + 2][-1].rows_lost
            seen[name] += 1
            if router.oldest > 1:
                gone = [[1, router.oldest - 1]]
                is_known = footer is ordered[0] or (last is not None and last.oldest == 0)
                if is_known or has > (last.rows_lost if last is not None else 0):
                    dropped[name] = gone
                else:
                    stored[name] = [*router.stored, *gone]
        yield Claim(footer.written_at, stored, dropped)


def last_footer(store: FileStore, day: str) -> Footer | None:
    """The last one that can be read from before a day: of the latest day that has any, since a merged segment has a
    later name than what was written after its hour. Raises StoreError.
    """
    earlier = [segment for segment in segments.committed(store) if segment.date < day]
    for _, of_day in groupby(reversed(earlier), key=lambda segment: segment.date):
        footers: list[Footer] = []
        for segment in of_day:
            with suppress(Missing, Damaged):
                footers.append(segments.read_footer(store, segment))
        if footers:
            return max(footers, key=lambda footer: footer.written_at)
    return None


def find_missing(
    store: FileStore, entries: Iterable[JournalEntry], snapshots: Iterable[AnalysisSnapshot], gaps: Gaps
) -> None:
    """Adds to `gaps` the entries whose numbers are missing, by later ones, and by what else names them. Those of
    earlier versions have no numbers. Raises StoreError.
    """
    named: defaultdict[str, list[tuple[int, bool, float]]] = defaultdict(list)
    """Numbers by writer, each with whether it is only named, and the time."""
    for entry in entries:
        if entry.number:
            named[entry.writer].append((entry.number, False, entry.at))
        if entry.kind == READ:
            for writer, number in entry.detail.items():
                named[writer].append((number, True, entry.at))
    for snapshot in snapshots:
        for writer, number in snapshot.journal.items():
            named[writer].append((number, True, snapshot.at))
    accepted = _accepted(store, JOURNAL)
    for numbers in named.values():
        last, since = 0, 0.0
        for number, is_named, at in sorted(numbers):
            if (missing := number - last - (not is_named)) > 0:
                since = min(since, at)  # a clock may go back
                known_of = sum(parts for known_at, parts in accepted if since < known_at <= at + 1)
                gaps.removed[JOURNAL, at] = Removed(missing, since, at, JOURNAL, known_of >= missing)
            last, since = max(last, number), since if is_named else at


def waited_entries(
    entries: Sequence[JournalEntry],
    killed: Iterable[Process],
    present: Collection[str] | None,
    stored: Mapping[str, Numbers],
    now: float,
) -> list[JournalEntry]:
    """What the journal lacks about processes that were killed: about those that left files, and those that are to have
    left some, but are not `present`. `stored`: batches by router."""
    told = {entry.detail["process"] for entry in entries if entry.kind == WAITED}
    writers = {process: entry.writer for entry in entries if (process := _process_of(entry)) is not None}
    last_of = {entry.writer: entry for entry in sorted(entries, key=lambda entry: entry.number)}
    found = [
        JournalEntry(now, WAITED, None, _about(process, stored) | _lacks(process, writers, last_of))
        for process in killed
        if process.name not in told and (process.has_said or not process.is_copy)
    ]
    ended = {entry.writer for entry in entries if entry.kind == STOPPED}
    for entry in entries:
        process = entry.detail.get("write_ahead") if entry.kind == STARTED else None
        if process is None or present is None or process in told or process in present or entry.writer in ended:
            continue
        last = max(other.at for other in entries if other.writer == entry.writer)
        found.append(JournalEntry(now, WAITED, None, _waited(process, 1, entry.at, min(now, last + FLUSHED_S))))
    return found


def _process_of(entry: JournalEntry) -> str | None:
    """The process whose first entry it is."""
    if entry.kind != STARTED:
        return None
    process: str | None = entry.detail.get("write_ahead", entry.detail.get("copies"))
    return process


def _lacks(process: Process, writers: Mapping[str, str], last_of: Mapping[str, JournalEntry]) -> dict[str, Any]:
    """What the journal lacks of a process's entries, by the last one of each writer. A process that is not among the
    `writers` has written to another journal, or all of that is gone."""
    last = last_of.get(writers.get(process.name, ""))
    missing = process.entries - (last.number if last is not None else 0)
    if missing <= 0 or (last is None and writers):
        return {}
    return {"entries": missing, "entries_since": last.at if last is not None else 0.0}


def _about(process: Process, stored: Mapping[str, Numbers]) -> dict[str, Any]:
    lost = 0 if process.is_copy else process.lacks(stored)
    said = {"alive_at": process.until, "failing_since": process.failing_since} if process.has_said else {}
    return {**_waited(process.name, lost, process.since(lost), process.until), **said}


def _waited(process: str, lost: int, since: float, until: float) -> dict[str, Any]:
    return {"process": process, "lost": lost, "since": since, "until": until}


def find_lost(store: FileStore, entries: Iterable[JournalEntry], gaps: Gaps) -> None:
    """Adds to `gaps` the batches that were lost before they were in a segment, and what else is not known of killed
    processes, by the journal, or by entries that no process has written yet, at infinity. Raises StoreError."""
    add_lost(entries, gaps, {folder: _accepted(store, folder) for folder in (WRITE_AHEAD, JOURNAL)})


def add_lost(
    entries: Iterable[JournalEntry], gaps: Gaps, accepted: Mapping[str, Sequence[tuple[float, int]]] = {}
) -> None:
    """The same for entries that are new, which nobody has accepted."""

    def remove(parts: int, since: float, until: float, folder: str) -> None:
        known = sum(some for known_at, some in accepted.get(folder, ()) if since <= known_at <= until + 1)
        if parts:
            gaps.removed[folder, until] = Removed(parts, since, until, folder, known >= parts)

    for entry in entries:
        if entry.kind == WAITED:
            detail = entry.detail
            remove(detail["lost"], detail["since"], detail["until"], WRITE_AHEAD)
            remove(detail.get("entries", 0), detail.get("entries_since", 0.0), detail["until"], JOURNAL)
            if "alive_at" in detail:
                gaps.silences.append(Silence(detail["failing_since"], detail["alive_at"], entry.at))


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _accepted(store: FileStore, folder: str) -> list[tuple[float, int]]:
    """Unix times and numbers of parts of a folder that are known to be gone."""
    try:
        with store.open(ACCEPTED) as file:
            lines = _ACCEPTED.findall(file.read().decode(errors="replace"))
    except Missing:
        return []
    own = [(parts, time) for parts, noun, time in lines if noun in _NOUNS[folder]]
    return [(datetime.fromisoformat(time).timestamp(), int(parts)) for parts, time in own]


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
        if f"-{EXPIRED}-" in file_name(file):
            with store.open(file.path) as lines:
                entries = [entry for line in lines.read().splitlines() if (entry := entry_of(line)) is not None]
            if entries:
                return msgspec.convert(entries[-1].detail, Expired)
    return None
