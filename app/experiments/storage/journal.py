"""The journal of the ledger's directory, and the states of analyses.

The journal is a permanent record of what happened: it is the audit log of experiments, and a restarted controller
resumes from it. JSON lines in small files with unique names, `journal/date=2026-11-12/<writer>-<n>.jsonl`, never
changed and never deleted.
"""

import re
import zlib
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from app.experiments.contract.journal import JournalEntry
from app.experiments.storage.segments import date_of
from app.experiments.storage.store import File, FileStore, Missing

JOURNAL = "journal"


def append_entries(store: FileStore, name: str, entries: list[JournalEntry]) -> None:
    """Writes the entries as the file `name`. Raises StoreError."""
    lines = b"".join(sealed(entry) + b"\n" for entry in entries)
    store.write(f"{JOURNAL}/date={date_of(entries[0].at)}/{name}.jsonl", lines)


def read_entries(store: FileStore, damaged: dict[str, str] | None = None) -> list[JournalEntry]:
    """Every entry, in order of time. Lines that are not entries are left out; their files are added to `damaged`, each
    with the reason. Raises StoreError.
    """
    return _read(store, store.list(JOURNAL), {} if damaged is None else damaged)


def entries_of_days(store: FileStore, days: Iterable[str], besides: str) -> list[JournalEntry]:
    """The entries of some days (as `date_of`), without those of the writer `besides`."""
    files = [file for day in sorted(set(days)) for file in store.list(f"{JOURNAL}/date={day}")]
    return _read(store, [file for file in files if not file_name(file).startswith(f"{besides}-")], {})


def _read(store: FileStore, files: Iterable[File], damaged: dict[str, str]) -> list[JournalEntry]:
    journal: list[JournalEntry] = []
    for file in files:
        if not file.path.endswith(".jsonl") or file_name(file).startswith("."):
            continue
        try:
            with store.open(file.path) as lines:
                entries = [entry_of(line) for line in lines.read().splitlines()]
        except Missing:
            continue
        journal += (read := [entry for entry in entries if entry is not None])
        if len(read) < len(entries):
            wrong = len(entries) - len(read)
            what = "is no entry" if wrong == 1 else "are no entries"
            damaged[file.path] = f"{wrong} of its {len(entries)} lines {what}"
    return sorted(journal, key=lambda entry: entry.at)


def file_name(file: File) -> str:
    return file.path.rpartition("/")[2]


def entry_of(line: bytes) -> JournalEntry | None:
    """The entry; None if the line is none, or another than was written."""
    return opened(line, JournalEntry)


_Value = TypeVar("_Value")
_SEAL = re.compile(rb'(.*),"crc32":"([0-9a-f]{8})"}', re.DOTALL)


def sealed(value: msgspec.Struct) -> bytes:
    """A JSON object with the checksum of the rest as its last member."""
    text = msgspec.json.encode(value)
    return b'%b,"crc32":"%08x"}' % (text[:-1], zlib.crc32(text))


def opened(text: bytes, kind: type[_Value]) -> _Value | None:
    """The value; None if the text is not what was written. Earlier versions wrote no checksum."""
    seal = _SEAL.fullmatch(text)
    if seal is not None and zlib.crc32(seal[1] + b"}") != int(seal[2], 16):
        return None
    try:
        return msgspec.json.decode(text, type=kind)
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
    journal: dict[str, int] = {}
    """The number of the last entry of the journal, by its writer."""


def write_snapshot(store: FileStore, writer: str, snapshot: AnalysisSnapshot) -> None:
    """Raises StoreError."""
    store.write(f"{SNAPSHOTS}/{snapshot.experiment}/{writer}.json", sealed(snapshot))


def latest_snapshots(store: FileStore, damaged: dict[str, str] | None = None) -> dict[str, AnalysisSnapshot]:
    """The newest of each experiment. Those that are not what was written are added to `damaged`, with the reason.
    Raises StoreError.
    """
    snapshots: dict[str, AnalysisSnapshot] = {}
    for file in store.list(SNAPSHOTS):
        if not file.path.endswith(".json") or file.path.rpartition("/")[2].startswith("."):
            continue
        try:
            with store.open(file.path) as data:
                snapshot = opened(data.read(), AnalysisSnapshot)
        except Missing:
            continue
        if snapshot is None:
            if damaged is not None:
                damaged[file.path] = "it is not what was written, and the history of verdicts until then is not known"
            continue
        if snapshot.experiment not in snapshots or snapshots[snapshot.experiment].at < snapshot.at:
            snapshots[snapshot.experiment] = snapshot
    return snapshots


def discard_snapshots(store: FileStore, keep: str, before: float) -> None:
    """Deletes other writers' snapshots that are older than `before` (Unix seconds). Raises StoreError."""
    for file in store.list(SNAPSHOTS):
        if file.modified_at < before and not file.path.endswith(f"/{keep}.json"):
            store.delete(file.path)
