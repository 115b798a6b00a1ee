"""Reads recordings: a file, a folder, a ledger's directory or an object store."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from app.experiments.storage.housekeeping import FOLDERS, RECORDINGS
from app.experiments.storage.store import Missing, Store, StoreError, open_store
from app.request_recordings.recorder import RecordedRequest, decode_line

_ENDINGS = (".jsonl", ".jsonl.gz")


class UnreadableRecording(Exception):
    """There is no recording, or a line of it is invalid. The message names the place."""


def read(url: str, base: Path) -> list[RecordedRequest]:
    """Every recorded request, in order of arrival.

    `url`: a file, a directory (a ledger's, or one with recordings), or s3://, gs:// or abfs://; a path may be relative
    to `base`. Raises UnreadableRecording.
    """
    try:
        found = [request for path, data in _files(url, base) for request in _lines(path, data)]
    except StoreError as error:
        raise UnreadableRecording(str(error)) from error
    if not found:
        raise UnreadableRecording(f"{url} holds no recorded requests; an endpoint with `record` has some")
    return sorted(found, key=lambda it: it.at)


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


def _content(store: Store, path: str) -> bytes:
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
