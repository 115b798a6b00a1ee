"""What the directory of the ledger lacks: unreadable or removed files, and columns that other versions did not have.

A file that is gone is noticed, since others tell what the directory held.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from app.experiments.contract.journal import JournalEntry
from app.experiments.storage import segments
from app.experiments.storage.journal import JOURNAL, AnalysisSnapshot, append_entries, entry_of, file_name
from app.experiments.storage.segments import EXPOSURES, Footer, Numbers, Segment, date_of
from app.experiments.storage.store import Damaged, FileStore, Missing, StoreError

FLUSHED_S = 300.0
"""The time after which a record is in a file, where the directory works."""

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


class _Claim(NamedTuple):
    """What the directory held at a Unix time, by what was written then: batches by router id, `Footer.stored`."""

    at: float
    stored: Mapping[str, list[list[int]]]


def find_removed(
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
    expired, footer_before = _expired(store), last_footer(store, day)
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


def last_footer(store: FileStore, day: str) -> Footer | None:
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
        if f"-{EXPIRED}-" in file_name(file):
            with store.open(file.path) as lines:
                entries = [entry for line in lines.read().splitlines() if (entry := entry_of(line)) is not None]
            if entries:
                return msgspec.convert(entries[-1].detail, Expired)
    return None
