"""Batches on disk before they are in a segment, for a controller in its router's process: there, no router keeps them.

    write-ahead/<writer>-<n>.batches      encoded batches, each after its length and checksum (big-endian, 4 bytes each)
                                          and the time of its arrival (Unix seconds, 8 bytes), which the two cover, too

A file is there until all of its batches are stored in segments. A process that is killed leaves its files; the next one
takes them over. A lock tells files of a living process from those. A thread of its own writes: the event loop waits for
it only `PATIENCE_S`, and goes on without if the disk hangs.
"""

import asyncio
import fcntl
import logging
import os
import secrets
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from app.experiments.storage.segments import Numbers
from app.experiments.storage.store import synchronise
from app.exposures.wire import READABLE, Batch, decode_batch
from app.private_files import FILE_MODE, make_folder
from app.telemetry.logs import event

FOLDER = "write-ahead"
PATIENCE_S = 0.25
CLOSE_S = 5.0
"""The longest wait for a disk that hangs when the process ends."""

LIMIT_BYTES = 256 * 1024 * 1024
"""The most that waits here for segments; what comes then is only in memory, as in the routers' buffers."""

_FRAME = struct.Struct(">II")
_ARRIVED = struct.Struct(">d")
_log = logging.getLogger("switchyard")


class Left(NamedTuple):
    """A batch that a killed process left."""

    batch: Batch
    arrived: float | None
    """Unix seconds; None if an earlier version wrote it."""


class _Head(msgspec.Struct, frozen=True):
    """What tells a `Batch` from others."""

    router: str
    number: int


class _LogFile:
    """An open, locked file, and its batches by router. The lock ends with the process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        self.batches: dict[str, Numbers] = {}
        self.size = 0

    def has(self, router: str, number: int) -> bool:
        return router in self.batches and number in self.batches[router]

    def add(self, router: str, number: int, size: int) -> None:
        self.batches.setdefault(router, Numbers()).add(number)
        self.size += size

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

    def __init__(self, directory: Path) -> None:
        self._folder = directory / FOLDER
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.thread = ThreadPoolExecutor(1, "write-ahead")
        self._files: list[_LogFile] = []
        self._open: _LogFile | None = None
        self._count = 0
        self._writing: Future[None] | None = None
        self._pending: deque[bytes] = deque()
        self._is_failing = False

    async def add(self, batch: bytes, arrived: float) -> None:
        """Writes an encoded batch durably: with the next one if the disk hangs now, and not if it fails (logged).
        `arrived`: Unix seconds.
        """
        self._pending.append(_ARRIVED.pack(arrived) + batch)
        if self._writing is not None and not self._writing.done():
            self._failed("the disk does not answer")
            while sum(map(len, self._pending)) > LIMIT_BYTES:
                self._pending.popleft()
            return
        batches, self._pending = self._pending, deque()
        self._writing = self.thread.submit(self._add_all, batches)
        await asyncio.wait([asyncio.wrap_future(self._writing)], timeout=PATIENCE_S)

    def release(self, stored: Mapping[str, Numbers]) -> None:
        """Deletes the files all of whose batches are stored, by router, some time soon. Never waits."""
        self.thread.submit(self._release, stored)

    def left(self) -> list[Left]:
        """The batches that killed processes left. Their files are then this process's. Raises OSError."""
        return self.thread.submit(lambda: list(self._left())).result()

    def close(self) -> None:
        """Ends the thread, after what it has still to do; files that remain are left to the next process."""
        wait([self.thread.submit(self._close)], CLOSE_S)
        self.thread.shutdown(wait=False)

    def _add_all(self, batches: Iterable[bytes]) -> None:
        for batch in batches:
            self._add(batch)

    def _add(self, batch: bytes) -> None:
        head = msgspec.msgpack.decode(memoryview(batch)[_ARRIVED.size :], type=_Head)
        if not head.number or any(file.has(head.router, head.number) for file in self._files):
            return
        if sum(file.size for file in self._files) + len(batch) > LIMIT_BYTES:
            return self._failed("more waits for the ledger's directory than is kept here")
        try:
            self._append(head, batch)
        except OSError as error:
            self._open = None  # what is after a torn batch would not be found
            self._failed(str(error))
        else:
            self._is_failing = False
        return None

    def _append(self, head: _Head, batch: bytes) -> None:
        file = self._open = self._open or self._new()
        data = _FRAME.pack(len(batch), zlib.crc32(batch)) + batch
        if os.write(file.descriptor, data) < len(data):
            raise OSError("the disk is full")
        os.fdatasync(file.descriptor)
        file.add(head.router, head.number, len(data))

    def _new(self) -> _LogFile:
        make_folder(self._folder)
        self._count += 1
        path = self._folder / f"{self._name}-{self._count:06d}.batches"
        file = _LogFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, FILE_MODE))
        self._files.append(file)
        fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        synchronise(self._folder)
        return file

    def _release(self, stored: Mapping[str, Numbers]) -> None:
        nothing = Numbers()
        self._open = None  # the next batch begins a file: otherwise one would never be free of batches
        kept: list[_LogFile] = []
        for file in self._files:
            done = all(numbers.is_within(stored.get(router, nothing)) for router, numbers in file.batches.items())
            if not (done and file.delete()):
                kept.append(file)
        self._files = kept

    def _left(self) -> Iterator[Left]:
        own = {file.path for file in self._files}
        for path in sorted(self._folder.glob("*.batches")):
            if path in own:
                continue
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # a living process's
                os.close(descriptor)
                continue
            file = _LogFile(path, descriptor)
            self._files.append(file)
            for data in frames(path.read_bytes()):
                if (left := decoded(data)) is None:
                    unreadable = event("write_ahead_unreadable", file=path.name)
                    _log.warning("A killed process of another version left exposures: they are lost", extra=unreadable)
                    break
                file.add(left.batch.router, left.batch.number, len(data))
                yield left

    def _close(self) -> None:
        for file in self._files:
            os.close(file.descriptor)
        self._files = []

    def _failed(self, why: str) -> None:
        if not self._is_failing:
            _log.warning(
                "Exposures are only in memory until their segment is written: they would be lost with this process",
                extra=event("write_ahead_failed", error=why),
            )
        self._is_failing = True


def waiting(directory: Path) -> list[Left]:
    """The batches that wait in a ledger's directory, for a living process or the next one. Raises OSError."""
    found: list[Left] = []
    for path in sorted((directory / FOLDER).glob("*.batches")):
        with suppress(FileNotFoundError):  # all of it has been stored
            found += [left for data in frames(path.read_bytes()) if (left := decoded(data)) is not None]
    return found


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


def frames(data: bytes) -> Iterator[bytes]:
    """The batches in a file's content, each after its time, up to the first that is incomplete: the process was killed
    while it wrote it.
    """
    at = 0
    while at + _FRAME.size <= len(data):
        size, checksum = _FRAME.unpack_from(data, at)
        batch = data[at + _FRAME.size : at + _FRAME.size + size]
        if len(batch) < size or zlib.crc32(batch) != checksum:
            return
        yield batch
        at += _FRAME.size + size
