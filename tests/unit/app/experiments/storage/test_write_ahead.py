"""Batches on disk ahead of their segments: each is found once after its process was killed, wherever that was."""

import asyncio
import errno
import fcntl
import logging
import os
import resource
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from app.config.experiments import LedgerSettings
from app.experiments.controller import Controller
from app.experiments.offline import RecordedLedger
from app.experiments.storage import segments
from app.experiments.storage.columns import Tables
from app.experiments.storage.gaps import ACCEPTED
from app.experiments.storage.journal import JOURNAL
from app.experiments.storage.segments import Numbers
from app.experiments.storage.store import LocalStore
from app.experiments.storage.write_ahead import FOLDER, HEAD_SIZE, Left, Process, WriteAhead, frames, waiting
from app.exposures.wire import Batch, decode_acknowledgement, encode
from tests.support.experiments.exposures import batch, row, start
from tests.support.experiments.fake_analysis import FakeAnalysis, same_run
from tests.support.experiments.life import failing
from tests.support.waiting import wait_until
from tests.unit.app.experiments.test_controller import configuration

ARRIVED = 1_800_000_000.5


def numbered(number: int, router: str = "one", rows: int = 2) -> Batch:
    return batch(number, router, rows=[row(10 * number + n) for n in range(rows)])


def write(ahead: WriteAhead, *batches: Batch) -> None:
    for sealed in batches:
        ahead.add(encode(sealed), ARRIVED)
    asyncio.run(ahead.written())


def files(directory: Path) -> list[Path]:
    return sorted((directory / FOLDER).glob("*"))


def batches_in(processes: Iterable[Process]) -> list[Left]:
    return [left for process in processes for left in process.batches]


@pytest.fixture
def ahead(tmp_path: Path) -> Iterator[WriteAhead]:
    log = WriteAhead(tmp_path)
    yield log
    log.close()


def killed(directory: Path, *batches: Batch) -> None:
    """A process that writes the batches ahead and is killed."""
    dead = WriteAhead(directory)
    write(dead, *batches)
    dead.close()  # its locks end with it; nothing else is done


def test_a_process_finds_what_killed_ones_left_and_nothing_of_a_living_one(tmp_path: Path, ahead: WriteAhead) -> None:
    killed(tmp_path, numbered(1), numbered(2))
    killed(tmp_path, numbered(1, "two"))
    living = WriteAhead(tmp_path)
    write(living, numbered(1, "three"))
    write(ahead, numbered(1, "four"))
    assert {(batch.router, batch.number, len(batch.rows)) for batch, _ in batches_in(ahead.left())} == {
        ("one", 1, 2),
        ("one", 2, 2),
        ("two", 1, 2),
    }
    assert not living.left(), "they are another process's now"
    assert not ahead.left(), "once is enough"
    living.close()


def test_a_lock_ends_with_its_process_however_it_ends(tmp_path: Path, ahead: WriteAhead) -> None:
    code = (
        "import asyncio, os, signal, sys; from pathlib import Path\n"
        "from app.experiments.storage.write_ahead import WriteAhead\n"
        "ahead = WriteAhead(Path(sys.argv[1])); ahead.add(bytes.fromhex(sys.argv[2]), 5.5)\n"
        "asyncio.run(ahead.written())\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = subprocess.run([sys.executable, "-c", code, str(tmp_path), encode(numbered(3)).hex()], timeout=60)
    assert process.returncode == -9
    assert [(batch.number, arrived) for batch, arrived in batches_in(ahead.left())] == [(3, 5.5)]


def test_a_batch_that_an_earlier_version_left_has_no_time(tmp_path: Path, ahead: WriteAhead) -> None:
    data = encode(numbered(3))
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "1-a-000001.batches").write_bytes(struct.pack(">II", len(data), zlib.crc32(data)) + data)
    assert [(batch.number, arrived) for batch, arrived in batches_in(ahead.left())] == [(3, None)]


def test_a_file_goes_once_all_of_its_batches_are_stored(tmp_path: Path) -> None:
    ahead = WriteAhead(tmp_path)
    killed(tmp_path, numbered(1, "two"))
    ahead.left()
    write(ahead, numbered(1), numbered(2))
    ahead.release({"one": Numbers([1])})
    write(ahead, numbered(3))
    assert len(files(tmp_path)) == 3, "no file is free of batches that are not stored"
    ahead.release({"one": Numbers([1, 2]), "two": Numbers([1])})
    write(ahead, numbered(4))
    wait_until(lambda: len(files(tmp_path)) == 2)
    ahead.release({"one": Numbers([1, 2, 3, 4])})
    wait_until(lambda: len(files(tmp_path)) == 1)
    ahead.close(all_stored=True)
    assert not files(tmp_path), "the last one stays as long as its process"


def test_a_repeated_batch_and_one_that_records_nothing_are_not_written(tmp_path: Path, ahead: WriteAhead) -> None:
    write(ahead, numbered(1), numbered(1), numbered(0), numbered(1))
    (file,) = files(tmp_path)
    assert len(list(frames(file.read_bytes()[HEAD_SIZE:]))) == 1


def test_batches_may_come_while_others_are_written(tmp_path: Path) -> None:
    ahead, numbers = WriteAhead(tmp_path), [*range(1, 3001)]
    for number in numbers:
        ahead.add(encode(numbered(number, rows=0)), ARRIVED)
    ahead.close()
    assert [left.batch.number for left in batches_in(waiting(tmp_path))] == numbers


def test_whatever_was_cut_off_the_batches_before_it_are_found_and_the_others_are_counted(tmp_path: Path) -> None:
    killed(tmp_path, numbered(1, rows=0), numbered(2, rows=0), numbered(3, rows=0))
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    ends = [HEAD_SIZE]
    for data in frames(whole[HEAD_SIZE:]):
        assert data is not None
        ends.append(ends[-1] + 8 + len(data))
    assert ends[-1] == len(whole)
    for size in range(len(whole) + 1):
        file.write_bytes(whole[:size])
        [process] = waiting(tmp_path)
        found = sum(end <= size for end in ends[1:])
        assert len(process.batches) == found
        assert process.damaged == (3 - found if size >= HEAD_SIZE else 1), size


def test_a_batch_that_the_process_did_not_finish_is_not_missed(tmp_path: Path) -> None:
    """It was killed while it wrote, or the disk was full. What it writes next takes the place."""
    killed(tmp_path, numbered(1), numbered(2))
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    for torn in (b"\0", whole[HEAD_SIZE:][:60], os.urandom(50)):
        file.write_bytes(whole + torn)
        [process] = waiting(tmp_path)
        assert [left.batch.number for left in process.batches] == [1, 2], torn
        assert process.damaged == 0


def test_whichever_bit_is_flipped_the_other_batches_are_found_and_the_damage_is_said(tmp_path: Path) -> None:
    killed(tmp_path, numbered(1, rows=0), numbered(2, rows=0), numbered(3, rows=0))
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    for place in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        file.write_bytes(flipped)
        [process] = waiting(tmp_path)
        numbers = [left.batch.number for left in process.batches]
        assert numbers == sorted({1, 2, 3} & set(numbers))
        is_of_head, is_unharmed = place < 8 * HEAD_SIZE, (len(numbers), process.damaged) == (3, 0)
        assert (len(numbers), process.damaged) == (3 if is_of_head else 2, 1) or (is_unharmed and not is_of_head), place


def test_a_batch_of_another_version_is_reported_and_its_file_goes(
    tmp_path: Path, ahead: WriteAhead, caplog: pytest.LogCaptureFixture
) -> None:
    other = numbered(1)
    fields = {name: getattr(other, name) for name in other.__struct_fields__}
    killed(tmp_path, Batch(**{**fields, "version": other.version + 1}))
    with caplog.at_level(logging.WARNING):
        [process] = ahead.left()
    assert (process.batches, process.damaged) == ([], 1)
    assert [getattr(record, "event", "") for record in caplog.records] == ["write_ahead_unreadable"]
    ahead.release({})
    wait_until(lambda: len(files(tmp_path)) == 1)


def test_a_directory_that_fails_is_reported_once_and_raises_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    ahead = WriteAhead(tmp_path)
    with caplog.at_level(logging.WARNING):
        write(ahead, numbered(1), numbered(2))
        ahead.close()
    assert [getattr(record, "event", "") for record in caplog.records] == ["write_ahead_failed"]
    (tmp_path / FOLDER).unlink()
    again = WriteAhead(tmp_path)
    write(again, numbered(3))
    assert len(files(tmp_path)) == 1
    again.close()


def test_on_a_volume_without_locks_a_controller_works_without_copies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(tmp_path, numbered(1))

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refused)
    ahead = WriteAhead(tmp_path, is_copy=True)
    with caplog.at_level(logging.WARNING):
        assert not ahead.left()
        write(ahead, numbered(2), numbered(3))
    assert [getattr(record, "event", "") for record in caplog.records] == ["write_ahead_failed"]
    assert len(files(tmp_path)) == 1, "the killed one's"
    ahead.close()


class World:
    """Controllers, one after another, of one ledger, at a time that goes on by itself (Unix seconds)."""

    def __init__(self, base: Path) -> None:
        self._base, self.ledger, self.now = base, base / "ledger", 1_800_000_000.0
        self.analyses: list[FakeAnalysis] = []
        self._oldest = 1

    def controller(self, *, is_copy: bool = False) -> Controller:
        made = Controller(
            LedgerSettings(url="ledger"),
            base=self._base,
            analysis_factory=self.analysis,
            same_run=same_run,
            clock=lambda: self.now,
            write_ahead=WriteAhead(self.ledger, is_copy=is_copy),
        )
        made.configure(configuration(starts_at=1.0))
        return made

    def analysis(self, *arguments: Any) -> FakeAnalysis:
        self.analyses.append(FakeAnalysis(*arguments))
        return self.analyses[-1]

    def sent(self, to: Controller, *numbers: int) -> None:
        assert to.write_ahead is not None
        for number in numbers:
            self.now += 1.0
            seqs = range(10 * number, 10 * number + 2)
            starts, rows = [start(seq, at=self.now) for seq in seqs], [row(seq, at=self.now) for seq in seqs]
            made = encode(replace(batch(number, "one", starts=starts, rows=rows), oldest=self._oldest))
            self._oldest = decode_acknowledgement(to.ingest(made)).durable + 1
            to.write_ahead.say(self.now, to.health().failing_since, to.storage.durable)
        asyncio.run(to.write_ahead.written())

    def killed(self, controller: Controller) -> None:
        """Ends it without anything else."""
        assert controller.write_ahead is not None
        controller.write_ahead.close()

    def recorded(self, at: float | None = None) -> Sequence[str]:
        """What a reader of the directory says that it lacks, at a time or now."""
        return RecordedLedger("ledger", self._base, self.analysis, at=at, clock=lambda: self.now).missing()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_next_controller_counts_and_stores_each_batch_once(world: World) -> None:
    """Also those whose segment was written when its process was killed, and that are in both places."""
    first = world.controller()
    world.sent(first, 1, 2)
    for file in files(world.ledger):  # as if it were killed before the file went
        shutil.copy(file, file.with_name(f"killed-{file.name}"))
    world.now += 61.0
    first.tick()
    world.sent(first, 3)
    world.killed(first)
    second, analyses = world.controller(), world.analyses
    assert sorted(seq for _, seq in analyses[-1].rows) == [10, 11, 20, 21, 30, 31]
    assert set(analyses[-1].rows.values()) == {1}
    world.sent(second, 3)
    assert set(analyses[-1].rows.values()) == {1}
    world.now += 61.0
    second.tick()
    wait_until(lambda: len(files(world.ledger)) == 1)
    assert not world.recorded()
    second.close()
    assert not files(world.ledger)
    store = LocalStore(world.ledger)
    found = [
        tables.rows for segment in segments.committed(store) for tables in segments.read(store, segment, Tables())[1:2]
    ]
    assert sorted(seq for rows in found for seq in rows.seq.tolist()) == [10, 11, 20, 21, 30, 31]


def test_two_lone_routers_with_one_ledger_say_that_they_are_two(world: World) -> None:
    """One replica's controller that takes over from another says nothing of the kind."""
    told = "Another router records into the same ledger"
    first = world.controller()
    world.sent(first, 1)
    second = world.controller()
    assert any(told in warning for warning in second.warnings())
    assert not any(told in warning for warning in first.warnings())
    world.sent(second, 2)
    world.now += 61.0
    second.tick()
    world.now += 61.0
    first.tick()
    assert any(told in warning for warning in first.warnings())
    second.close()
    world.now += 301.0
    first.tick()
    assert not any(told in warning for warning in first.warnings())
    first.close()
    copies = [world.controller(is_copy=True) for _ in range(2)]
    assert not any(told in warning for copy in copies for warning in copy.warnings())
    for copy in copies:
        copy.close()


def test_what_copies_lack_is_not_lost(world: World) -> None:
    """Routers keep the same batches, and send them again."""
    first = world.controller(is_copy=True)
    world.sent(first, 1, 2)
    first.tick()
    world.killed(first)
    remove_all(files(world.ledger))
    assert not world.recorded()
    second = world.controller(is_copy=True)
    world.sent(second, 1, 2)
    assert sorted(seq for _, seq in world.analyses[-1].rows) == [10, 11, 20, 21]
    second.close()
    assert not world.recorded()


def remove_all(kept: Sequence[Path]) -> None:
    shutil.rmtree(kept[0].parent)


def remove_newest(kept: Sequence[Path]) -> None:
    for file in kept:
        file.unlink()


def remove_oldest(kept: Sequence[Path]) -> None:
    kept[0].unlink()


def empty_oldest(kept: Sequence[Path]) -> None:
    """As a disk without room leaves a file."""
    os.truncate(kept[0], 0)


def cut_oldest(kept: Sequence[Path]) -> None:
    os.truncate(kept[0], kept[0].stat().st_size - 10)


def cut_newest(kept: Sequence[Path]) -> None:
    """To its first batch, as if the process had been killed while it wrote the second one."""
    whole = kept[-1].read_bytes()
    first = next(frame for frame in frames(whole[HEAD_SIZE:]) if frame is not None)
    os.truncate(kept[-1], HEAD_SIZE + 8 + len(first))


def empty_newest(kept: Sequence[Path]) -> None:
    os.truncate(kept[-1], 0)


def behead(kept: Sequence[Path]) -> None:
    os.truncate(kept[-1], 10)


def overwrite(kept: Sequence[Path]) -> None:
    kept[-1].write_bytes(bytes(kept[-1].stat().st_size))


def remove_last(kept: Sequence[Path]) -> None:
    kept[-1].unlink()


def flip(kept: Sequence[Path]) -> None:
    whole = kept[-1].read_bytes()
    kept[-1].write_bytes(whole[:80] + bytes([whole[80] ^ 1]) + whole[81:])


@pytest.mark.parametrize(
    ("harm", "stored"),
    [
        (remove_all, False),
        (remove_all, True),
        (remove_newest, False),
        (remove_newest, True),
        (remove_oldest, False),
        (empty_oldest, False),
        (cut_oldest, False),
        (cut_newest, False),
        (cut_newest, True),
        (remove_last, False),
        *((harm, stored) for harm in (empty_newest, behead, overwrite) for stored in (False, True)),
        (flip, False),
        (flip, True),
    ],
)
def test_batches_that_are_lost_before_they_are_stored_are_missing_for_good(
    world: World, harm: Callable[[Sequence[Path]], None], stored: bool
) -> None:
    first = world.controller()
    world.sent(first, 1, 2)
    if stored:
        world.now += 61.0
        first.tick()
        assert first.write_ahead is not None
        first.write_ahead.left()  # it waits for what the thread has still to do
    else:
        first.tick()
        assert first.write_ahead is not None
        first.write_ahead.release({})
    world.sent(first, 3, 4)
    at = world.now
    world.killed(first)
    assert not world.recorded()
    harm(files(world.ledger))
    for file in files(world.ledger):
        os.utime(file, (world.now, world.now))
    [told] = world.recorded()
    assert "ahead of segments, stored by" in told
    second = world.controller()
    assert [*second.storage.gaps.since(at)] == [told]
    assert not second.storage.gaps.since(at + 3600.0), "what comes later is whole"
    world.now += 61.0
    second.tick()
    world.killed(second)
    third = world.controller()
    assert [*third.storage.gaps.since(at)] == [told] == [*world.recorded()]
    third.close()
    (world.ledger / ACCEPTED).parent.mkdir(exist_ok=True)
    (world.ledger / ACCEPTED).write_text(f"{told}\n")
    last = world.controller()
    assert not last.storage.gaps.since(at)
    last.close()


def test_a_disk_without_room_leaves_what_tells_of_it(world: World) -> None:
    """Whatever was only in memory, and went with the process."""
    first = world.controller()
    world.sent(first, 1)
    assert first.write_ahead is not None
    at, (soft, hard) = world.now, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        world.sent(first, 2, 3, 4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    world.killed(first)
    [told] = world.recorded()
    assert "ahead of segments, stored by" in told
    second = world.controller()
    assert [*second.storage.gaps.since(at)] == [told]
    second.close()


def test_what_came_before_the_batches_that_were_cut_off_is_whole(world: World) -> None:
    first = world.controller()
    world.sent(first, 1, 2)
    before = world.now
    world.sent(first, 3)
    [file] = files(world.ledger)
    world.killed(first)
    whole = file.read_bytes()
    os.truncate(file, len(whole) - 1)
    assert world.recorded(before - 0.5) == []
    assert len(world.recorded(before + 0.5)) == 1


def test_what_came_before_the_disk_failed_is_whole(world: World) -> None:
    first = world.controller()
    world.sent(first, 1)
    assert first.write_ahead is not None
    before = world.now
    with failing(world.ledger / FOLDER):
        first.write_ahead.release({})
        world.sent(first, 2, 3)
    world.killed(first)
    assert world.recorded(before) == []
    assert len(world.recorded()) == 1


@pytest.mark.parametrize("is_copy", [False, True])
def test_the_last_entries_of_a_killed_process_are_missed_in_the_journal(world: World, is_copy: bool) -> None:
    first = world.controller(is_copy=is_copy)
    world.sent(first, 1)
    first.tick()
    world.killed(first)
    assert world.recorded() == []
    kept = sorted((world.ledger / JOURNAL).rglob("*.jsonl"), key=lambda file: file.stat().st_mtime)
    kept[-1].unlink()
    [told] = world.recorded()
    assert "of the journal" in told
    second = world.controller(is_copy=is_copy)
    assert list(second.storage.gaps.since(world.now)) == [told]
    world.killed(second)
    assert told in world.recorded()
    (world.ledger / ACCEPTED).parent.mkdir(exist_ok=True)
    (world.ledger / ACCEPTED).write_text(f"{told}\n")
    assert told not in world.recorded()


def test_a_process_that_has_written_nothing_yet_lacks_nothing(world: World) -> None:
    first = world.controller()
    assert first.write_ahead is not None
    first.write_ahead.release({})
    world.sent(first, 1)
    world.killed(first)
    assert not world.recorded()


def test_a_disk_that_hangs_holds_up_nobody(tmp_path: Path) -> None:
    """A FIFO that nobody reads hangs like a dead network drive: here, the thread is kept busy by one."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ahead = WriteAhead(tmp_path)
    hangs = ahead.thread.submit(pipe.read_bytes)
    write(ahead, numbered(1), numbered(2), numbered(3))
    assert not files(tmp_path)
    pipe.write_bytes(b"")
    hangs.result(60)
    wait_until(lambda: files(tmp_path))
    ahead.left()  # after what the thread had still to do
    write(ahead, numbered(4))
    ahead.close()
    again = WriteAhead(tmp_path)
    assert [batch.number for batch, _ in batches_in(again.left())] == [1, 2, 3, 4]
    again.close()
