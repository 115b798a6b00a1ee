"""Writes what routers have recorded into the ledger's directory: a file for each message, whole or not at all.

    recordings/date=2026-11-12/<time>-<router>-<n>.jsonl.gz     JSON lines, a `RecordedRequest` each

Date and time (UTC) are those at which the router ended the file, so that a repeated message replaces its own file.

Reads recordings: a file, a folder, a ledger's directory or an object store.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from app.errors import NotFound
from app.experiments.storage.directory import FOLDERS, RECORDINGS
from app.experiments.storage.store import FileStore, Missing, StoreError, open_store
from app.exposures.controller_client import Answer
from app.request_recordings.recorder import VERSION, RecordedRequest, RecordingFile, decode_file, decode_line

_ROUTER = re.compile("[0-9a-f]{16}")
SAME_S = 2.0
"""Seconds between two times of arrival of the same request, at most: a router reads its clock twice."""
MOST_SEARCHED = 500
"""Files, from the request's arrival on: those of some hours of one router."""


class InvalidRecording(ValueError):
    """A router sent something other than a recording of this version."""


class RecordingKeeper:
    """`open_store` opens the ledger's directory; it is called once it is needed."""

    def __init__(self, open_store: Callable[[], FileStore]) -> None:
        self._open_store = open_store
        self._store: FileStore | None = None

    def keep(self, data: bytes) -> None:
        """Writes an encoded `RecordingFile` durably. Raises InvalidRecording and StoreError."""
        try:
            file = decode_file(data)
        except msgspec.DecodeError as error:
            raise InvalidRecording(str(error)) from error
        if file.version != VERSION:
            raise InvalidRecording(f"version {file.version}, this controller reads {VERSION}")
        self._directory().write(path_of(file), file.lines)

    def text(self, request: str, at: float) -> Answer:
        """The recorded text of the request with this hash that arrived at `at` (Unix seconds), as `{"body": …}`. Its
        caller chose the id: the same id at another time is another request's.

        Raises NotFound, StoreError, and UnreadableRecording.
        """
        store, name = self._directory(), request.encode()
        # A line is written after its request has ended, and in files of a minute.
        first = f"{datetime.fromtimestamp(at, UTC):%Y%m%dT%H%M%S}"
        later = [file.path for file in store.list(RECORDINGS) if file.path.rpartition("/")[2] >= first]
        for path in later[:MOST_SEARCHED]:
            try:
                data = _content(store, path)
            except Missing:  # deleted in the meantime
                continue
            if name not in data:
                continue
            for line in _lines(path, data):
                if line.request == request and line.body is not None and abs(line.at - at) < SAME_S:
                    return Answer(200, msgspec.json.encode({"body": line.body}))
        raise NotFound(
            "No text of this request is recorded: it is not written yet, is none of the recorded percent, "
            "or had to be left out",
            param="id",
        )

    def _directory(self) -> FileStore:
        self._store = self._store or self._open_store()
        return self._store


def path_of(file: RecordingFile) -> str:
    """The path of the file. Raises InvalidRecording if its name would not be valid."""
    try:
        at = datetime.fromtimestamp(file.written_at, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidRecording(f"written_at: {file.written_at} is not a valid time") from error
    if not _ROUTER.fullmatch(file.router):
        raise InvalidRecording("router: is not an id")
    return f"{RECORDINGS}/date={at:%Y-%m-%d}/{at:%Y%m%dT%H%M%S}-{file.router}-{file.number:06d}.jsonl.gz"


_ENDINGS = (".jsonl", ".jsonl.gz")


class UnreadableRecording(Exception):
    """There is no recording, or a line of it is invalid. The message names the place."""


def read(url: str, base: Path) -> list[RecordedRequest]:
    """Every recorded request, in order of arrival.

    `url`: a file, a directory (a ledger's, or one with recordings), or s3://, gs:// or abfs://; a path may be relative
    to `base`. Raises UnreadableRecording.
    """
    try:
        requests = [request for path, data in _files(url, base) for request in _lines(path, data)]
    except StoreError as error:
        raise UnreadableRecording(str(error)) from error
    if not requests:
        raise UnreadableRecording(f"{url} holds no recorded requests; an endpoint with `record` has some")
    return sorted(requests, key=lambda request: request.at)


def _files(url: str, base: Path) -> Iterator[tuple[str, bytes]]:
    if "://" not in url and (file := base / url).is_file():
        store = open_store(str(file.parent), base)
        yield url, _content(store, file.name)
        return
    store = open_store(url, base)
    for path, _ in store.list(RECORDINGS) or store.list(""):
        if path.partition("/")[0] in FOLDERS - {RECORDINGS}:  # a ledger's other folders have lines of other kinds
            continue
        if path.endswith(_ENDINGS) and not path.rpartition("/")[2].startswith("."):
            try:
                yield path, _content(store, path)
            except Missing:  # deleted in the meantime
                continue


def _content(store: FileStore, path: str) -> bytes:
    with store.open(path) as file:
        data: bytes = file.read()
    if not path.endswith(".gz"):
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableRecording(f"{path}: is not compressed with gzip") from error


def _lines(path: str, data: bytes) -> Iterator[RecordedRequest]:
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield decode_line(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnreadableRecording(f"{path}:{number}: is not a recorded request: {error}") from error
