"""Writes what routers have recorded into the ledger's directory: a file for each message, whole or not at all.

    recordings/date=2026-11-12/<time>-<router>-<n>.jsonl.gz     JSON lines, a `RecordedRequest` each

Date and time (UTC) are those at which the router ended the file, so that a repeated message replaces its own file.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from app.experiments.storage.housekeeping import RECORDINGS
from app.experiments.storage.store import Store
from app.request_recordings.recorder import VERSION, RecordingFile, decode_file

_ROUTER = re.compile("[0-9a-f]{16}")


class InvalidRecording(ValueError):
    """A router sent something other than a recording of this version."""


class RecordingKeeper:
    """`open_store` opens the ledger's directory; it is called once it is needed."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store = open_store
        self._store: Store | None = None

    def keep(self, data: bytes) -> None:
        """Writes an encoded `RecordingFile` durably. Raises InvalidRecording and StoreError."""
        try:
            file = decode_file(data)
        except msgspec.DecodeError as error:
            raise InvalidRecording(str(error)) from error
        if file.version != VERSION:
            raise InvalidRecording(f"version {file.version}, this controller reads {VERSION}")
        self._store = self._store or self._open_store()
        self._store.write(path_of(file), file.lines)


def path_of(file: RecordingFile) -> str:
    """The path of the file. Raises InvalidRecording if its name would not be valid."""
    try:
        at = datetime.fromtimestamp(file.written_at, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidRecording(f"written_at: {file.written_at} is not a valid time") from error
    if not _ROUTER.fullmatch(file.router):
        raise InvalidRecording("router: is not an id")
    return f"{RECORDINGS}/date={at:%Y-%m-%d}/{at:%Y%m%dT%H%M%S}-{file.router}-{file.number:06d}.jsonl.gz"
