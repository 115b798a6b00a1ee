"""Batches on disk before they are in a segment: so a controller that is killed has counted nothing that the next one
does not count from the same moment on.

    write-ahead/<writer>-<n>.batches      a `Head`, and encoded batches, each after its length and checksum (big-endian,
                                          4 bytes each) and the time of its arrival (Unix seconds, 8 bytes), which the
                                          two cover, too

A file is there until all of its batches are stored in segments, a process's last one until it ends. So a process that
is killed leaves at least one; the next process takes them over. A lock tells files of a living process from those. A
thread of its own writes: others wait for it only `PATIENCE_S`, and go on without if the disk hangs.

The head says how many batches follow, so that a file that was cut is not taken for one whose process was killed while
it wrote. It is written in place, which works on a full disk, too: there the process says after each report that it
shows, and once a second, that it lives, and since when it cannot write what it shows.

A lone router keeps no batches besides, and what its files lack is lost. A controller that routers send to has copies
here, in files whose names begin with `copy-`: what these lack, its routers send again.
"""

import asyncio
import fcntl
import itertools
import logging
import math
import os
import secrets
import struct
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from app.experiments.storage.segments import Numbers
from app.experiments.storage.store import synchronise
from app.exposures.wire import READABLE, Batch, decode_batch
from app.private_files import FILE_MODE, make_folder
from app.telemetry.logs import event

FOLDER = "write-ahead"
_COPY = "copy-"
PATIENCE_S = 0.25
CLOSE_S = 5.0
"""The longest wait for a disk that hangs when the process ends."""

FLUSHED_S = 300.0
"""The time after which a record is in a segment, where the directory works."""

LIMIT_BYTES = 256 * 1024 * 1024
"""The most that waits here for segments; what comes then is only in memory, as in the routers' buffers."""

MAGIC = b"SYWA"
_HEAD = struct.Struct(">4sIIIIddd")
_CHECKSUM = struct.Struct(">I")
HEAD_SIZE = _HEAD.size + _CHECKSUM.size
_FRAME = struct.Struct(">II")
_ARRIVED = struct.Struct(">d")
_log = logging.getLogger("switchyard")


class Left(NamedTuple):
    """A batch that a killed process left."""

    batch: Batch
    arrived: float | None
    """Unix seconds; None if an earlier version wrote it."""


class Head(NamedTuple):
    """What a file says of itself and its process."""

    batches: int = 0
    """How many follow."""
    missed: int = 0
    """Batches that the process could not write, and that were in no segment yet."""
    entries: int = 0
    """How many entries it had written to the journal."""
    is_followed: bool = False
    """Whether the process has begun another file since."""
    alive_at: float = 0.0
    """When the process last said that it lived, in Unix seconds."""
    failing_since: float = 0.0
    """Since when it could not write all that it showed, in Unix seconds; 0: it could."""
    missed_since: float = 0.0
    """When the first of those that are missed came, in Unix seconds."""

    def encode(self) -> bytes:
        """The start of a file."""
        data = _HEAD.pack(MAGIC, *self)
        return data + _CHECKSUM.pack(zlib.crc32(data))


def head_of(data: bytes) -> Head | None:
    """The head of a file with this content; None if it is damaged. Raises ValueError if an earlier version wrote the
    file, which wrote no heads."""
    if len(data) >= HEAD_SIZE and _CHECKSUM.unpack_from(data, _HEAD.size)[0] == zlib.crc32(data[: _HEAD.size]):
        magic, *said = _HEAD.unpack_from(data)
        if magic == MAGIC:
            return Head(*said)
    if _end_of_frame(data, 0) is not None:
        raise ValueError("a file of an earlier version")
    return None


@dataclass(slots=True)
class Process:
    """What the files of a process hold that is killed, or may still run."""

    name: str
    batches: list[Left] = field(default_factory=list)
    damaged: int = 0
    """Batches that cannot be read, or were never written."""
    until: float = 0.0
    """When it last said that it lived, or took a batch, in Unix seconds; of an earlier version, when its last file was
    written."""
    failing_since: float = 0.0
    """As in its last `Head`, and so is the next one."""
    entries: int = 0
    damaged_since: float = math.inf
    """A Unix time before which none of the damaged ones came."""
    has_said: bool = False
    """Whether it has said that it lived: earlier versions do not."""

    @property
    def is_copy(self) -> bool:
        """Whether routers had the same batches."""
        return self.name.startswith(_COPY)

    def harm(self, damaged: int, since: float | None) -> None:
        """Notes damaged batches. `since`: a Unix time before which none of them came; None: as long as records wait for
        a segment before the process's end."""
        if damaged:
            self.damaged += damaged
            self.damaged_since = min(self.damaged_since, self.until - FLUSHED_S if since is None else since)

    def since(self, lost: int) -> float:
        """A Unix time before which nothing was lost of what `lacks` says."""
        if lost <= self.damaged:
            return min(self.damaged_since, self.until)
        return min([self.until - FLUSHED_S, *(left.arrived for left in self.batches if left.arrived is not None)])

    def lacks(self, stored: Mapping[str, Numbers]) -> int:
        """How many batches are lost: neither stored, by router, nor here, although their router kept them when it sent
        the last one that is here; and at least the damaged ones."""
        here: dict[str, list[Batch]] = {}
        for left in self.batches:
            here.setdefault(left.batch.router, []).append(left.batch)
        lacking = 0
        for router, batches in here.items():
            numbers = {batch.number for batch in batches}
            kept = Numbers(ranges=[[max(batch.oldest for batch in batches) or min(numbers), max(numbers)]])
            has = Numbers(numbers).union(stored.get(router, Numbers()))
            lacking += len(kept.union(has)) - len(has)
        return max(lacking, self.damaged)


class _BatchName(msgspec.Struct, frozen=True):
    """What tells a `Batch` from others."""

    router: str
    number: int


class _LogFile:
    """An open, locked file, and its batches by router. The lock ends with the process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        self.batches: dict[str, Numbers] = {}
        self.head = Head()
        self.size = 0

    def has(self, router: str, number: int) -> bool:
        return router in self.batches and number in self.batches[router]

    def note(self, router: str, number: int) -> None:
        self.batches.setdefault(router, Numbers()).add(number)

    def say(self, head: Head) -> None:
        """Writes another head. Raises OSError."""
        if os.pwrite(self.descriptor, head.encode(), 0) < HEAD_SIZE:
            raise OSError("the disk is full")
        self.head = head
        self.size = max(self.size, HEAD_SIZE)

    def append(self, batch: bytes) -> None:
        """Writes a batch after its time durably. Raises OSError."""
        data = _FRAME.pack(len(batch), zlib.crc32(batch)) + batch
        end = max(self.size, HEAD_SIZE)
        if os.pwrite(self.descriptor, data, end) < len(data):
            raise OSError("the disk is full")
        self.size = end + len(data)
        self.say(self.head._replace(batches=self.head.batches + 1))
        os.fdatasync(self.descriptor)

    def delete(self) -> bool:
        """Returns whether it is gone."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError:
            return False
        os.close(self.descriptor)
        return True


class WriteAhead:
    """The files of one process in a ledger's directory of this machine."""

    def __init__(self, directory: Path, *, is_copy: bool = False) -> None:
        """`is_copy`: routers keep the batches, too."""
        self._folder, self.is_copy = directory / FOLDER, is_copy
        self.name = f"{_COPY if is_copy else ''}{os.getpid()}-{secrets.token_hex(4)}"
        """The start of its files' names."""
        self.thread = ThreadPoolExecutor(1, "write-ahead")
        self._files: list[_LogFile] = []
        self._open: _LogFile | None = None
        self._last: _LogFile | None = None
        self._count = 0
        self._writing: Future[None] | None = None
        self._pending: deque[bytes] = deque()
        self._lock = threading.Lock()
        """Of what is pending: it is added in one thread, and taken in another."""
        self._missed: dict[str, Numbers] = {}
        self._missed_since = 0.0
        self._said = Head()
        """What the head of the last file is to say, but for its own batches."""
        self._is_to_say = False
        self.has_company = False
        """Whether `left` has seen files of another living process."""
        self._is_failing = False

    def add(self, batch: bytes, arrived: float) -> None:
        """Has an encoded batch written durably, unless that fails (logged). `arrived`: Unix seconds. Never waits."""
        with self._lock:
            self._pending.append(_ARRIVED.pack(arrived) + batch)
            while sum(map(len, self._pending)) > LIMIT_BYTES:
                self._pending.popleft()
        self._writing = self.thread.submit(self._add_pending)

    async def written(self, patience_s: float = PATIENCE_S) -> None:
        """Returns once all that was added or said is on disk or has failed; after `patience_s` if the disk hangs."""
        if self._writing is None or self._writing.done():
            return
        done, _ = await asyncio.wait([asyncio.wrap_future(self._writing)], timeout=patience_s)
        if not done:
            self._failed("the disk does not answer")

    def say(self, now: float, failing_since: float | None, entries: int) -> None:
        """Says on disk that this process lives at a Unix time, since when the directory fails, and how many entries it
        has written to the journal. Never waits."""
        self._said = Head(entries=entries, alive_at=now, failing_since=failing_since or 0.0)
        if not self._is_to_say:
            self._is_to_say = True
            self._writing = self.thread.submit(self._say_pending)

    def release(self, stored: Mapping[str, Numbers]) -> None:
        """Deletes the files all of whose batches are stored, by router, some time soon. Never waits."""
        self.thread.submit(self._release, stored)

    def left(self) -> list[Process]:
        """What killed processes left. Their files are then this process's, which begins its own. Raises OSError."""
        return self.thread.submit(self._left).result()

    def names(self) -> set[str]:
        """The processes that have a file. Raises OSError."""
        return {_process_of(path) for path in self._folder.glob(_FILES)}

    def close(self, *, all_stored: bool = False) -> None:
        """Ends the thread, after what it has still to do; files that remain are left to the next process. `all_stored`:
        so says the journal, durably."""
        wait([self.thread.submit(self._close, all_stored)], CLOSE_S)
        self.thread.shutdown(wait=False)

    def _add_pending(self) -> None:
        while (batch := self._next()) is not None:
            self._add(batch)

    def _next(self) -> bytes | None:
        with self._lock:
            return self._pending.popleft() if self._pending else None

    def _add(self, batch: bytes) -> None:
        name = msgspec.msgpack.decode(memoryview(batch)[_ARRIVED.size :], type=_BatchName)
        if not name.number or any(file.has(name.router, name.number) for file in self._files):
            return
        try:
            if sum(file.size for file in self._files) + len(batch) > LIMIT_BYTES:
                raise OSError("more waits for the ledger's directory than is kept here")
            file = self._open = self._open or self._new()
            file.append(batch)
            file.note(name.router, name.number)
        except OSError as error:
            self._missed_since = self._missed_since if self._missed else _ARRIVED.unpack_from(batch)[0]
            self._missed.setdefault(name.router, Numbers()).add(name.number)
            if not self._say():
                self._open = None  # an empty file tells of it, too
            self._failed(str(error))
        else:
            self._is_failing = False

    def _say_pending(self) -> None:
        self._is_to_say = False  # first: what is said from now on is not read here
        self._say()

    def _say(self) -> bool:
        """Writes what is to be said, and returns whether that was possible."""
        if self._last is None:
            return False
        missed = sum(map(len, self._missed.values()))
        said = self._said._replace(missed=missed, missed_since=self._missed_since if missed else 0.0)
        try:
            self._last.say(said._replace(batches=self._last.head.batches))
        except OSError:
            return False
        return True

    def _new(self) -> _LogFile:
        if self._last is not None and not self._last.size:
            return self._last
        make_folder(self._folder)
        self._count += 1
        path = self._folder / f"{self.name}-{self._count:06d}.batches"
        file = _LogFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
        try:
            fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a volume without locks: nobody could tell this process's files from a killed one's
            file.delete()
            raise
        last, self._last = self._last, file
        self._files.append(file)
        if last is not None:
            with suppress(OSError):
                last.say(last.head._replace(is_followed=True))
        file.say(self._said)
        synchronise(self._folder)
        return file

    def _release(self, stored: Mapping[str, Numbers]) -> None:
        nothing = Numbers()
        for router, numbers in list(self._missed.items()):
            if numbers.is_within(stored.get(router, nothing)):
                del self._missed[router]
        if self._open is not None and self._open.batches:
            self._open = None  # the next batch begins a file: otherwise one would never be free of batches
        kept: list[_LogFile] = []
        for file in self._files:
            done = all(numbers.is_within(stored.get(router, nothing)) for router, numbers in file.batches.items())
            if not done or file is self._last or not file.delete():
                kept.append(file)
        self._files = kept

    def _left(self) -> list[Process]:
        processes: dict[str, Process] = {}
        own = {file.path for file in self._files}
        for path in sorted(self._folder.glob(_FILES)):
            if path in own:
                continue
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # a living process's
                self.has_company = True
                os.close(descriptor)
                continue
            except OSError:
                os.close(descriptor)
                if not self.is_copy:
                    raise
                continue
            file = _LogFile(path, descriptor)
            self._files.append(file)
            for left in _add_batches(processes, path):
                file.note(left.batch.router, left.batch.number)
            file.size = os.fstat(descriptor).st_size
        try:
            self._open = self._open or self._new()
        except OSError as error:
            self._failed(str(error))
        return list(processes.values())

    def _close(self, all_stored: bool) -> None:
        for file in self._files:
            if not (all_stored and file is self._last and file.delete()):
                os.close(file.descriptor)
        self._files = []

    def _failed(self, why: str) -> None:
        if not self._is_failing:
            then = "count again only once routers repeat them" if self.is_copy else "are lost"
            _log.warning(
                "Exposures are only in memory until their segment is written: if this process is killed, they %s",
                then,
                extra=event("write_ahead_failed", error=why),
            )
        self._is_failing = True


def waiting(directory: Path) -> list[Process]:
    """What waits in a ledger's directory, for a living process or the next one. Raises OSError."""
    processes: dict[str, Process] = {}
    for path in sorted((directory / FOLDER).glob(_FILES)):
        with suppress(FileNotFoundError):  # all of it has been stored
            _add_batches(processes, path)
    return list(processes.values())


_FILES = "*.batches"


def _process_of(path: Path) -> str:
    return path.name.rpartition("-")[0]


def _is_last(path: Path) -> bool:
    """Whether there is no later file of the same process."""
    return not any(other > path for other in path.parent.glob(f"{_process_of(path)}-{_FILES}"))


def _add_batches(processes: dict[str, Process], path: Path) -> list[Left]:
    """Reads a file of one of the processes, by name. Returns what has been added. Raises OSError."""
    data, name = path.read_bytes(), _process_of(path)
    process = processes.setdefault(name, Process(name))
    head: Head | None = None
    try:
        head = head_of(data)
    except ValueError:
        batches, expected = [*frames(data)], 0
    else:
        batches = [*frames(data[HEAD_SIZE:])]
        expected = head.batches if head is not None else len(batches) + 1  # nobody knows whether it has been cut
    read = [decoded(frame) if frame is not None else None for frame in batches]
    added = [left for left in read if left is not None]
    process.batches += added
    arrived = [left.arrived for left in added if left.arrived is not None]
    process.until = max([process.until, *arrived, path.stat().st_mtime if head is None else head.alive_at])
    if damaged := max(expected, len(batches)) - len(added):
        before = [*itertools.takewhile(lambda left: left is not None, read)][-1:] if head is not None else []
        process.harm(damaged, before[0].arrived if before and before[0] is not None else None)
        unreadable = event("write_ahead_unreadable", file=path.name, batches=damaged)
        _log.warning("Batches of exposures are damaged, or of another version: they are lost", extra=unreadable)
    if head is not None:
        process.has_said = True
        if _is_last(path):  # now: one that lives may just have begun another file
            process.failing_since, process.entries = head.failing_since, head.entries
            process.harm(head.missed, head.missed_since)
            if head.is_followed:
                last, process.until = process.until, process.until + FLUSHED_S
                process.harm(1, last)
    return added


def decoded(data: bytes) -> Left | None:
    """The batch; None if another version wrote it. Earlier ones wrote no time."""
    for skipped in (_ARRIVED.size, 0):
        try:
            batch = decode_batch(data[skipped:])
        except msgspec.DecodeError:
            continue
        if batch.version in READABLE:
            return Left(batch, _ARRIVED.unpack_from(data)[0] if skipped else None)
    return None


def frames(data: bytes) -> Iterator[bytes | None]:
    """The batches in a file's content after its head, each after its time, and None for what is damaged between two of
    them. A batch that is cut off at the end is neither: the process was killed while it wrote it, or the disk was full.
    """
    at = 0
    while at + _FRAME.size <= len(data):
        end = _end_of_frame(data, at)
        if end is None and (rest := data[at + _FRAME.size :]) and zlib.crc32(rest) == _FRAME.unpack_from(data, at)[1]:
            end = len(data)  # the last one's length is damaged, and nothing else
        if end is not None:
            yield data[at + _FRAME.size : end]
            at = end
            continue
        at = next((later for later in range(at + 1, len(data)) if _end_of_frame(data, later) is not None), len(data))
        if at < len(data):
            yield None


def _end_of_frame(data: bytes, at: int) -> int | None:
    """The end of the batch whose length is there; None if none begins there."""
    if at + _FRAME.size > len(data):
        return None
    size, checksum = _FRAME.unpack_from(data, at)
    end = at + _FRAME.size + int(size)
    if not _ARRIVED.size < size <= len(data) - at - _FRAME.size:
        return None
    return end if zlib.crc32(memoryview(data)[at + _FRAME.size : end]) == checksum else None
