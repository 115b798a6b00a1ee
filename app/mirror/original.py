"""Records a request that is to be mirrored while its client is served.

Buffers answers until they are compared, within a bound for all of them.
"""

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from app.config.endpoints import Mirror
from app.exposures.exposure import Exposure

TAIL_BYTES = 8192
"""Bytes that are kept of an answer's end, which has its token counts."""


class ByteBudget:
    """A number of bytes that several holders share."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    def take(self, size: int) -> bool:
        """Takes `size` bytes; False if there is no room."""
        if self.used + size > self.limit:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        """Returns bytes that a holder took."""
        self.used -= size


class AnswerBuffer:
    """Keeps the beginning of an answer, at most `most` bytes, and its end. The bytes are taken from `room`."""

    def __init__(self, most: int, room: ByteBudget) -> None:
        self.head = bytearray()
        self.total = 0
        self.has_room = True
        """False if the room was full, so that later bytes were dropped."""
        self._most, self._room, self._taken = most, room, 0
        self._tail = b""

    def add(self, chunk: bytes) -> None:
        """Adds a part of the answer."""
        size, room = len(chunk), self._room
        self.total += size
        if self.total <= self._most and self.has_room and room.used + size <= room.limit:  # nearly always
            room.used += size
            self._taken += size
            self.head += chunk
        else:
            self._add_partly(chunk)

    def _add_partly(self, chunk: bytes) -> None:
        if (space := self._most - len(self.head)) > 0 and self.has_room:
            part = chunk if len(chunk) <= space else chunk[:space]
            if self._room.take(len(part)):
                self._taken += len(part)
                self.head += part
            else:
                self.has_room = False
        if not self.is_whole:
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]

    @property
    def is_whole(self) -> bool:
        """Whether everything is kept."""
        return self.total == len(self.head)

    @property
    def tail(self) -> bytes:
        """The last bytes."""
        return bytes(self.head[-TAIL_BYTES:]) + self._tail

    def forget(self) -> None:
        """Drops everything, and returns the room."""
        self._room.give_back(self._taken)
        self._taken, self.head, self._tail = 0, bytearray(), b""


MOST_WHOLE_BYTES = 256 * 1024
"""Bytes of a whole answer. A longer one is not compared; of vectors, those that fit are."""

MOST_STREAM_BYTES = 1024 * 1024
"""Bytes of a stream: its events take several times as much as the text in them."""


class Original:
    """The recorder of one request. `chunk` is on the path of mirrored streams only. Times are in seconds."""

    def __init__(self, endpoint: str, mirror: Mirror, exposure: Exposure, size: int, room: ByteBudget) -> None:
        """`size`: the client's request's, in bytes."""
        self.endpoint, self.mirror, self.exposure, self.size = endpoint, mirror, exposure, size
        self.is_stream = exposure.arrival.stream
        self.path, self.body = "", dict[str, Any]()
        self.kept = AnswerBuffer(MOST_STREAM_BYTES if self.is_stream else MOST_WHOLE_BYTES, room)
        self.takes_several = False
        """Whether the request needed more than one call of the engine."""
        self._sent_at = self._ended_at = 0.0

    def sent(self, path: str, body: Mapping[str, Any], *, after_lookups: bool = False) -> None:
        """Notes the main request to the engine; after a failure, the one to another engine."""
        self.path, self.body = path, dict(body)
        self.takes_several |= after_lookups
        self._sent_at = time.perf_counter()

    def chunk(self, chunk: bytes) -> None:
        """Records a part of the engine's answer, or all of it."""
        self._ended_at = time.perf_counter()
        self.kept.add(chunk)

    def forget_request(self) -> None:
        """Drops the request's content while a copy waits; the ledger has already read it."""
        self.body = {}
        self.exposure.arrival = msgspec.structs.replace(self.exposure.arrival, body={})

    @property
    def duration_s(self) -> float:
        """The time from the call of the engine to the end of its answer."""
        return self._ended_at - self._sent_at

    @property
    def ttft_s(self) -> float | None:
        """The time from the call of the engine to the first token of a stream."""
        first = self.exposure.first_token
        return None if first is None else first + self.exposure.arrival.started - self._sent_at
