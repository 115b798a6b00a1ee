"""Recordings are read from any source, in order of arrival; an invalid one is reported with its place."""

import gzip
from functools import partial
from pathlib import Path

import pytest

from app.experiments.recordings import RecordingKeeper, UnreadableRecording, read
from app.experiments.storage.store import open_store
from app.experiments.storage.writing import FOLDERS, RECORDINGS
from app.request_recordings.recorder import VERSION, RecordedRequest, RecordingFile, encode_file, encoder


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
    return [it.at for it in read(str(url), base)]


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
