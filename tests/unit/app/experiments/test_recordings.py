"""A recording becomes a file of the ledger's directory once, and is deleted after the retention time.

Recordings are read from any source, in order of arrival; an invalid one is reported with its place.
"""

import gzip
from functools import partial
from pathlib import Path

import msgspec
import pytest

from app.experiments.recordings import InvalidRecording, RecordingKeeper, UnreadableRecording, read
from app.experiments.storage.directory import FOLDERS, RECORDINGS, tidy
from app.experiments.storage.store import LocalStore, StoreError, open_store
from app.request_recordings.recorder import VERSION, RecordedRequest, RecordingFile, encode_file, encoder

DAY = 86400.0
FILE = RecordingFile(
    version=VERSION, router="0123456789abcdef", number=7, written_at=1_763_000_000.0, lines=gzip.compress(b"{}\n")
)
PATH = "recordings/date=2025-11-13/20251113T021320-0123456789abcdef-000007.jsonl.gz"


def files(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


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
    tidy(store, now=FILE.written_at + 30 * DAY, retention_days=30, writer="w")
    assert files(tmp_path) == [PATH]
    tidy(store, now=FILE.written_at + 31 * DAY, retention_days=30, writer="w")
    assert files(tmp_path) == []


def line(at: float) -> bytes:
    return encoder.encode(
        RecordedRequest(
            at=at,
            endpoint="chat",
            plan="0-abc",
            dialect="openai",
            task="chat",
            stream=True,
            unit="00",
            status=200,
            prompt_bytes=100,
        )
    )


def times(url: Path | str, base: Path = Path("/")) -> list[float]:
    return [recorded.at for recorded in read(str(url), base)]


def test_a_ledgers_directory_a_folder_and_a_file_are_read_in_order_of_arrival(tmp_path: Path) -> None:
    keeper = RecordingKeeper(partial(open_store, str(tmp_path), Path("/")))
    for number, ats in enumerate(([3.0, 1.0], [4.0, 2.0]), 1):
        lines = gzip.compress(b"\n".join(map(line, ats)) + b"\n")
        message = RecordingFile(version=VERSION, router="0" * 16, number=number, written_at=1.8e9, lines=lines)
        keeper.keep(encode_file(message))
    assert times(tmp_path) == [1, 2, 3, 4]
    assert times("recordings", tmp_path) == [1, 2, 3, 4]
    first = sorted(tmp_path.glob("recordings/*/*.gz"))[0]
    assert times(first) == [1, 3]
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(line(5.0) + b"\n\n")
    assert times("plain.jsonl", tmp_path) == [5]


def test_a_ledger_without_recordings_has_none_whatever_else_is_in_it(tmp_path: Path) -> None:
    for folder in FOLDERS - {RECORDINGS}:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "other.jsonl").write_text("{}\n")
    with pytest.raises(UnreadableRecording, match="holds no recorded requests; an endpoint with `record` has some"):
        read(str(tmp_path), Path("/"))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        pytest.param("it.jsonl", line(1.0) + b"\nnonsense\n", "it.jsonl:2: is not a recorded request", id="no JSON"),
        pytest.param("it.jsonl", b'{"at": 1}\n', "it.jsonl:1: is not a recorded request", id="another object"),
        pytest.param("it.jsonl.gz", b"nonsense", "it.jsonl.gz: is not compressed with gzip", id="no gzip"),
        pytest.param("it.jsonl", b"\n", "holds no recorded requests; an endpoint with `record`", id="nothing"),
    ],
)
def test_an_invalid_recording_is_an_error_with_its_place(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableRecording, match=says):
        read(name, tmp_path)


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRecording, match="holds no recorded requests"):
        read("nowhere", tmp_path)
