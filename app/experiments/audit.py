"""The audit log on disk: an append-only stream of its own in the ledger's directory.

    audit/date=2026-11-12/<writer>-<n>.jsonl        JSON lines, an `AuditRecord` each, with a checksum

Unlike the journal it is not read at the start: records are found by reading the days that a question is about. It is
bounded by age and by size, so that refused calls cannot fill a disk.
"""

import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TypeVar

import msgspec

from app.errors import BadRequest
from app.experiments.contract.query import choice, unix_seconds
from app.experiments.storage import directory
from app.experiments.storage.journal import opened, sealed
from app.experiments.storage.store import File, FileStore, Missing, StoreError
from app.experiments.unasked_changes import DEPLOY
from app.exposures.audit import OUTCOMES, AuditRecord
from app.exposures.controller_client import Answer

FOLDER = directory.AUDIT
FILE_BYTES = 256 * 1024
"""A file is replaced by itself with more lines up to this size: an object store cannot append."""
MAX_FILES = 4096
"""At most 1 GiB: beyond that the oldest files are deleted, however young they are."""
PAGE, MAX_PAGE = 100, 10_000
EQUAL = ("action", "outcome", "caller", "endpoint", "experiment", "request_id", "address")
"""Fields by which records are found."""
DEPLOYED = "-"
"""In place of a caller: a file that was deployed."""
FILES_AT_ONCE = 100
"""Files of earlier days that one answer reads for its names: an object store takes a moment for each."""
_DAY = re.compile(FOLDER + r"/date=(\d{4}-\d\d-\d\d)/[^/.][^/]*\.jsonl")
_LINES = "application/jsonl"


class Named(msgspec.Struct, frozen=True):
    """What a record can be found by, of what a reader chooses from."""

    caller: str = ""
    endpoint: str = ""
    action: str = ""


_Line = TypeVar("_Line", AuditRecord, Named)
_Days = Mapping[str, Sequence[File]]
_Records = Mapping[str, Mapping[str, AuditRecord]]
"""The records of each day, by their id."""


class AuditTrail:
    """`open_store` opens the ledger's directory once it is needed. `keep_days` returns how old records become. `clock`:
    Unix seconds. Usable in any thread."""

    def __init__(
        self,
        open_store: Callable[[], FileStore],
        keep_days: Callable[[], int],
        clock: Callable[[], float],
        *,
        file_bytes: int = FILE_BYTES,
        max_files: int = MAX_FILES,
    ) -> None:
        self._open_store, self._keep_days, self._clock = open_store, keep_days, clock
        self._file_bytes, self._max_files = file_bytes, max_files
        self._writer = f"{datetime.fromtimestamp(clock(), UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
        self._lock = threading.Lock()
        self._opened: FileStore | None = None
        self._number, self._day, self._lines = 0, "", b""
        self._named: dict[str, frozenset[Named]] = {}
        """What the records of each earlier day have, as far as their files have been read."""
        self._damaged: dict[str, int] = {}
        """Lines that are not what was written, by the path of their file, as far as files have been read."""

    def keep(self, records: Sequence[AuditRecord]) -> None:
        """Writes the records durably. Raises StoreError; then none of them counts as kept."""
        with self._lock:
            day = _date(self._clock())
            if day != self._day or len(self._lines) >= self._file_bytes:
                self._tidy()
                self._number, self._day, self._lines = self._number + 1, day, b""
            lines = self._lines + b"".join(sealed(record) + b"\n" for record in records)
            self._store.write(f"{FOLDER}/date={day}/{self._writer}-{self._number:06d}.jsonl", lines)
            self._lines = lines

    def answer(self, query: Mapping[str, str]) -> Answer:
        """The latest records that match, the latest first: a page of them and the id to ask `before` which for more, or
        as JSON lines. The first page has the `names` by which all records can be found. `damaged` has the files
        read so far with lines that are not what was written, and their number. Raises BadRequest and StoreError."""
        form = choice(query, "format", ("json", "jsonl"))
        if "outcome" in query:
            choice(query, "outcome", OUTCOMES)
        limit = _limit(query)
        days, today = self._days(), _date(self._clock())
        latest = {day: self._records(files) for day, files in days.items() if day >= today}
        records = list(islice(self._matching(query, days, latest), limit))
        if form == "jsonl":
            return Answer(200, b"".join(msgspec.json.encode(record) + b"\n" for record in records), _LINES)
        more = records[-1].id if len(records) == limit else None
        names = {} if "before" in query else {"names": self._names(days, latest)}
        there = {file.path for files in days.values() for file in files}
        self._damaged = {path: lines for path, lines in self._damaged.items() if path in there}
        return Answer(200, msgspec.json.encode({"records": records, "before": more, "damaged": self._damaged, **names}))

    def _names(self, days: _Days, latest: _Records) -> dict[str, list[str]]:
        """The callers, endpoints and actions of all records; those of old ones come with later answers. `latest`: the
        records of the days that may get more."""
        left = FILES_AT_ONCE
        for day in sorted(days.keys() - latest.keys() - self._named.keys(), reverse=True):
            if (left := left - len(days[day])) < 0:
                break
            self._named[day] = frozenset(named for file in days[day] for named in self._read(file, Named))
        for day in self._named.keys() - days.keys():
            del self._named[day]
        every: list[AuditRecord | Named] = [
            *chain(*self._named.values()),
            *chain(*(records.values() for records in latest.values())),
        ]
        return {name: sorted({_value(named, name) for named in every} - {""}) for name in Named.__struct_fields__}

    def _days(self) -> _Days:
        """The files of each day."""
        days: dict[str, list[File]] = {}
        for file in self._store.list(FOLDER):
            if (match := _DAY.fullmatch(file.path)) is not None:
                days.setdefault(match[1], []).append(file)
        return days

    def _records(self, files: Iterable[File]) -> dict[str, AuditRecord]:
        """The records of files by their id: a repeated delivery is one."""
        return {record.id: record for file in files for record in self._read(file, AuditRecord)}

    def _matching(self, query: Mapping[str, str], days: _Days, latest: _Records) -> Iterator[AuditRecord]:
        """The records that match, the latest first. `latest`: those of days that have been read already."""
        since, until = _time(query, "since"), _time(query, "until")
        # A record's day is that of its writing: at midnight, the day after its own.
        earliest = _date(since) if since is not None else ""
        for day in sorted(days, reverse=True):
            if day < earliest:
                return
            records = latest[day] if day in latest else self._records(days[day])
            for id in sorted(records, reverse=True):
                record = records[id]
                if (
                    (since is None or record.at >= since)
                    and (until is None or record.at < until)
                    and ("before" not in query or id < query["before"])
                    and all(_value(record, name) == query[name] for name in EQUAL if name in query)
                ):
                    yield record

    def _read(self, file: File, kind: type[_Line]) -> Iterator[_Line]:
        try:
            with self._store.open(file.path) as content:
                read = [opened(line, kind) for line in content.read().splitlines()]
        except Missing:
            return
        if wrong := read.count(None):
            self._damaged[file.path] = wrong
        yield from (record for record in read if record is not None)

    def _tidy(self) -> None:
        listed = [(_DAY.fullmatch(file.path), file) for file in self._store.list(FOLDER)]
        files = [(day[1], file) for day, file in listed if day is not None]
        oldest = _date(self._clock() - self._keep_days() * 86400)
        files.sort(key=lambda dated: (dated[0], dated[1].modified_at))
        surplus = len(files) - (self._max_files - 1)
        for index, (day, file) in enumerate(files):
            if day < oldest or index < surplus:
                self._store.delete(file.path)

    @property
    def _store(self) -> FileStore:
        if self._opened is None:
            self._opened = self._open_store()
        return self._opened


def decode_records(body: bytes) -> list[AuditRecord]:
    """A router's records. Raises BadRequest."""
    try:
        return msgspec.json.decode(body, type=list[AuditRecord])
    except msgspec.DecodeError as error:
        raise BadRequest(f"These are no records of the audit log: {error}") from None


def unreadable(error: StoreError) -> Answer:
    """The answer while the ledger's directory fails."""
    message = f"The ledger's directory cannot be read: {error}"
    return Answer(503, msgspec.json.encode({"message": message, "param": None}))


def _value(record: AuditRecord | Named, name: str) -> str:
    """What a record is found by."""
    if name == "caller" and record.action == DEPLOY:
        return record.caller or DEPLOYED
    found: str = getattr(record, name)
    return found


def _date(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def _time(query: Mapping[str, str], name: str) -> float | None:
    if (text := query.get(name)) is None:
        return None
    try:
        return unix_seconds(text)
    except ValueError:
        raise BadRequest(f"{name}: '{text}' is no time: Unix seconds, or ISO 8601", param=name) from None


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", str(PAGE))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_PAGE:
        raise BadRequest(f"limit: '{text}' must be a whole number from 1 to {MAX_PAGE}", param="limit")
    return int(text)
