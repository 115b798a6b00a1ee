"""A recording becomes a file of the ledger's directory once, and is deleted after the retention time."""

import gzip
from functools import partial
from pathlib import Path

import msgspec
import pytest

from app.experiments.recordings import InvalidRecording, RecordingKeeper
from app.experiments.storage.store import LocalStore, StoreError, open_store
from app.experiments.storage.writing import tidy
from app.request_recordings.recorder import VERSION, RecordingFile, encode_file

DAY = 86400.0
FILE = RecordingFile(
    version=VERSION, router="0123456789abcdef", number=7, written_at=1_763_000_000.0, lines=gzip.compress(b"{}\n")
)
PATH = "recordings/date=2025-11-13/20251113T021320-0123456789abcdef-000007.jsonl.gz"


def files(directory: Path) -> list[str]:
    return sorted(it.relative_to(directory).as_posix() for it in directory.rglob("*") if it.is_file())


def keeper(directory: Path) -> RecordingKeeper:
    return RecordingKeeper(partial(open_store, str(directory), Path("/")))


def test_a_recording_is_written_once_however_often_it_arrives(tmp_path: Path) -> None:
    for _ in range(2):
        keeper(tmp_path).keep(encode_file(FILE))
    assert files(tmp_path) == [PATH]
    assert (tmp_path / PATH).read_bytes() == FILE.lines


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(encode_file(msgspec.structs.replace(FILE, version=VERSION + 1)), id="another version"),
        pytest.param(encode_file(msgspec.structs.replace(FILE, router="../../../etc")), id="a path"),
        pytest.param(encode_file(msgspec.structs.replace(FILE, written_at=1e300)), id="no time"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InvalidRecording):
        keeper(tmp_path).keep(data)
    assert files(tmp_path) == []


def test_a_failing_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "recordings").write_text("a file")
    with pytest.raises(StoreError):
        keeper(tmp_path).keep(encode_file(FILE))


def test_old_recordings_are_deleted(tmp_path: Path) -> None:
    keeper(tmp_path).keep(encode_file(FILE))
    store = LocalStore(tmp_path)
    tidy(store, now=FILE.written_at + 30 * DAY, retention_days=30)
    assert files(tmp_path) == [PATH]
    tidy(store, now=FILE.written_at + 31 * DAY, retention_days=30)
    assert files(tmp_path) == []
