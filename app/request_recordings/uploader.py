"""Sends recorded requests to the controller in the background, in files of about a minute.

A file is kept until the controller has written it. Beyond the bound the oldest file is dropped, and its requests are
counted as lost.
"""

import asyncio
import gzip
import logging
import os
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, Protocol

from app.errors import Broken
from app.exposures.uploader import Backoff
from app.request_recordings.recorder import (
    VERSION,
    Line,
    PendingRequest,
    Recorder,
    RecordingFile,
    Redact,
    encode_file,
    line_of,
)
from app.request_recordings.redactor import Redactor
from app.telemetry.logs import event, where

EVERY_S = 1.0
FILE_S = 60.0
FILE_BYTES = 4 * 1024 * 1024
"""A file ends when its first line has waited this long, or when it has this many bytes."""

MOST_WAITING_BYTES = 16 * 1024 * 1024
"""The most bytes of compressed files that the controller does not have."""

TIMEOUT_S = 10.0
FLUSH_S, AGAIN_S = 10.0, 0.5
"""The longest wait for the last file when the process ends, and the pause between two attempts."""

_log = logging.getLogger("switchyard")

Send = Callable[[bytes], Awaitable[None]]
"""Sends an encoded `RecordingFile`; returns once it is durable. Raises Broken if the file is refused permanently, and
may raise any other error.
"""


class RecordingCounters(Protocol):
    """The counters of the sender: `telemetry.metrics.Telemetry`."""

    def requests_recorded(self, endpoint: str, outcome: str, requests: int) -> None: ...


class _Waiting(NamedTuple):
    message: bytes
    requests: Mapping[tuple[str, str], int]
    """The number of recordings by endpoint and outcome."""


class RecordingSender:
    """One file is under way at a time. After a failure the controller is not called for 1, 2, 4 … 30 seconds."""

    def __init__(
        self,
        recorder: Recorder,
        send: Send,
        observer: RecordingCounters,
        *,
        every_s: float = EVERY_S,
        file_s: float = FILE_S,
        flush_s: float = FLUSH_S,
        most_waiting_bytes: int = MOST_WAITING_BYTES,
        redact: Redact | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recorder, self._send, self._observer = recorder, send, observer
        self._every_s, self._file_s, self._flush_s, self._clock = every_s, file_s, flush_s, clock
        self._most_waiting_bytes = most_waiting_bytes
        self._redactor = Redactor()
        self._redact = redact or self._redactor.redacted
        self._router = os.urandom(8).hex()
        self._number = 0
        self._ended: list[PendingRequest] = []
        self._lines: list[Line] = []
        self._begun_at = 0.0
        self._waiting: deque[_Waiting] = deque()
        self._backoff = Backoff()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sends while the block runs, and the rest at its end."""
        stopping = asyncio.Event()
        task = asyncio.create_task(self._run(stopping))
        try:
            yield
        finally:
            stopping.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._flush_s):
                    await task
                    await self.round(flush=True)
                    while self._waiting:  # a controller that has just started may have no configuration yet
                        await asyncio.sleep(AGAIN_S)
                        await self.round(flush=True)
            self._lose_all()
            self._redactor.close()

    async def _run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), self._every_s)
            try:
                await self.round()
            except Exception as error:  # noqa: BLE001  a bug in one round must not end the recording
                _log.error("Recordings could not be sent", extra=event("recording_failed", traceback=where(error)))

    async def round(self, *, flush: bool = False) -> None:
        """Writes the lines of ended requests, ends the file if it is time, sends waiting files.

        `flush`: ends the file in any case, and tries the controller even if it has failed just now.
        """
        await self._write_lines()
        is_full = sum(len(line.line) for line in self._lines) >= FILE_BYTES
        if self._lines and (flush or is_full or self._clock() - self._begun_at >= self._file_s):
            await self._end_file()
        if flush or self._backoff.allows(self._clock()):
            await self._send_all()

    async def _write_lines(self) -> None:
        self._ended += self._recorder.take()
        if self._ended:
            if not self._lines:
                self._begun_at = self._clock()
            try:
                self._lines += await asyncio.to_thread(self._lines_of, list(self._ended))
            except Exception:  # they would fail again
                self._lose_requests(self._ended)
                self._ended.clear()
                raise
            self._ended.clear()
        lost, self._recorder.lost = self._recorder.lost, Counter()
        for endpoint, requests in lost.items():
            self._observer.requests_recorded(endpoint, "lost", requests)

    def _lines_of(self, pending: list[PendingRequest]) -> list[Line]:
        return [line_of(request, self._redact) for request in pending]

    async def _end_file(self) -> None:
        lines = self._lines
        self._number += 1
        text = b"\n".join(line.line for line in lines) + b"\n"
        file = RecordingFile(
            version=VERSION,
            router=self._router,
            number=self._number,
            written_at=time.time(),
            lines=await asyncio.to_thread(gzip.compress, text, 6),
        )
        self._waiting.append(_Waiting(encode_file(file), Counter((line.endpoint, line.outcome) for line in lines)))
        self._lines = []
        while sum(len(waiting.message) for waiting in self._waiting) > self._most_waiting_bytes:
            self._lose(self._waiting.popleft())

    async def _send_all(self) -> None:
        while self._waiting:
            file = self._waiting[0]
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self._send(file.message)
            except asyncio.CancelledError:
                raise
            except Broken as error:  # it would refuse it again
                _log.error("The controller refused a recording", extra=event("recording_refused", error=str(error)))
                self._lose(self._waiting.popleft())
                continue
            except Exception as error:  # noqa: BLE001  no failure of the controller may end the sender
                if not self._backoff.is_failing:
                    unsent = event("recording_not_sent", error=type(error).__name__)
                    _log.warning("The controller does not take recordings; they wait here", extra=unsent)
                self._backoff.failed(self._clock())
                return
            self._backoff.succeeded()
            self._waiting.popleft()
            for (endpoint, outcome), requests in file.requests.items():
                self._observer.requests_recorded(endpoint, outcome, requests)

    def _lose(self, file: _Waiting) -> None:
        for (endpoint, _), requests in file.requests.items():
            self._observer.requests_recorded(endpoint, "lost", requests)

    def _lose_all(self) -> None:
        """Counts as lost what could not be handed over before the end of the process."""
        for file in self._waiting:
            self._lose(file)
        for line in self._lines:
            self._observer.requests_recorded(line.endpoint, "lost", 1)
        self._lose_requests((*self._ended, *self._recorder.take()))

    def _lose_requests(self, requests: Iterable[PendingRequest]) -> None:
        for request in requests:
            self._observer.requests_recorded(request.scope.endpoint, "lost", 1)
