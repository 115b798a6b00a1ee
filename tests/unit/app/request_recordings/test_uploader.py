"""Recorded requests reach the controller or are counted as lost, also while the controller fails."""

import gzip
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import Broken, Unavailable
from app.request_recordings.recorder import RecordingFile, Redact, decode_file, decode_line
from app.request_recordings.redaction import redacted
from app.request_recordings.uploader import MOST_WAITING_BYTES, RecordingSender
from tests.unit.app.request_recordings.test_recorder import pending, recorder


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """A sender, its clock, and a controller that fails when the test says so."""

    def __init__(
        self, *, redactor: Redact = redacted, most_waiting_bytes: int = MOST_WAITING_BYTES, **record: Any
    ) -> None:
        self.clock, self.counts = Clock(), Counter[str]()
        self.files: list[RecordingFile] = []
        self.raises: Exception | None = None
        self.attempts = 0
        self.recorder = recorder(**record)
        self.sender = RecordingSender(
            self.recorder,
            self.send,
            self,
            file_s=60,
            flush_s=1.0,
            most_waiting_bytes=most_waiting_bytes,
            redact=redactor,
            clock=self.clock,
        )

    def requests_recorded(self, endpoint: str, outcome: str, requests: int) -> None:
        self.counts[outcome] += requests

    async def send(self, message: bytes) -> None:
        self.attempts += 1
        if self.raises is not None:
            raise self.raises
        self.files.append(decode_file(message))

    def request(self, count: int = 1) -> None:
        for _ in range(count):
            self.recorder.end(pending(self.recorder, {}))

    @property
    def lines(self) -> int:
        return sum(len(lines_of(file)) for file in self.files)


def lines_of(file: RecordingFile) -> list[bytes]:
    lines = gzip.decompress(file.lines).splitlines()
    assert [decode_line(line).endpoint for line in lines] == ["chat"] * len(lines)
    return lines


async def test_a_file_ends_after_its_minute() -> None:
    rig = Rig()
    rig.request(2)
    await rig.sender.round()
    rig.clock.now = 59
    rig.request()
    await rig.sender.round()
    assert rig.files == []
    rig.clock.now = 60
    await rig.sender.round()
    assert [len(lines_of(file)) for file in rig.files] == [3]
    assert rig.counts == {"recorded": 3}
    rig.request()
    await rig.sender.round()
    rig.clock.now = 120
    await rig.sender.round()
    assert [file.number for file in rig.files] == [1, 2]


async def test_a_failing_controller_is_called_at_growing_intervals() -> None:
    rig = Rig()
    rig.raises = Unavailable("away")
    rig.request()
    await rig.sender.round(flush=True)
    for now, attempts in ((0.9, 1), (1.0, 2), (2.9, 2), (3.0, 3), (6.9, 3), (7.0, 4)):
        rig.clock.now = now
        await rig.sender.round()
        assert rig.attempts == attempts
    rig.raises, rig.clock.now = None, 15.0
    await rig.sender.round()
    assert (rig.lines, rig.counts) == (1, {"recorded": 1})


async def test_a_refused_file_is_lost_and_blocks_no_other() -> None:
    rig = Rig()
    rig.raises = Broken("no")
    rig.request(2)
    await rig.sender.round(flush=True)
    assert rig.counts == {"lost": 2}
    rig.raises = None
    rig.request()
    await rig.sender.round(flush=True)
    assert rig.counts == {"lost": 2, "recorded": 1}


async def test_the_end_of_the_process_sends_the_rest_and_counts_failures_as_lost() -> None:
    rig = Rig()
    async with rig.sender.running():
        rig.request(2)
    assert rig.counts == {"recorded": 2}
    lost = Rig()
    lost.raises = Unavailable("away")
    async with lost.sender.running():
        lost.request(3)
    assert lost.counts == {"lost": 3}


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 40)), max_size=20))
async def test_every_request_is_written_down_once_or_counted_as_lost(steps: list[tuple[int, bool, int]]) -> None:
    rig, total = Rig(), 0
    for requests, fails, seconds in steps:
        rig.raises = Unavailable("away") if fails else None
        rig.request(requests)
        total += requests
        rig.clock.now += seconds
        await rig.sender.round()
    async with rig.sender.running():
        pass
    assert rig.lines == rig.counts["recorded"]
    assert rig.counts["recorded"] + rig.counts["lost"] == total


async def test_a_line_that_cannot_be_made_is_lost_and_blocks_no_other() -> None:
    def defect(body: object, patterns: object) -> dict[str, object]:
        raise ZeroDivisionError

    rig = Rig(redactor=defect, text="full", redact=["x"])
    rig.request(2)
    with pytest.raises(ZeroDivisionError):
        await rig.sender.round(flush=True)
    assert rig.counts == {"lost": 2}
    await rig.sender.round(flush=True)
    assert rig.counts == {"lost": 2}


async def test_the_files_that_wait_are_bounded_and_the_oldest_goes_first() -> None:
    rig = Rig(most_waiting_bytes=1000)
    rig.raises = Unavailable("away")
    for _ in range(10):
        rig.request(5)
        await rig.sender.round(flush=True)
    rig.raises = None
    await rig.sender.round(flush=True)
    kept = [file.number for file in rig.files]
    assert 0 < len(kept) < 10
    assert kept == list(range(11 - len(kept), 11))
    assert rig.counts == {"recorded": 5 * len(kept), "lost": 50 - 5 * len(kept)}
