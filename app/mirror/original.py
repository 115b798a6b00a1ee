"""Records a request that is to be mirrored while its client is served."""

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from app.config.endpoints import Mirror
from app.exposures.exposure import Exposure
from app.mirror.answer_buffer import AnswerBuffer, Room

MOST_WHOLE_BYTES = 256 * 1024
"""Bytes of a whole answer. A longer one is not compared; of vectors, those that fit are."""

MOST_STREAM_BYTES = 1024 * 1024
"""Bytes of a stream: its events take several times as much as the text in them."""


class Original:
    """The recorder of one request. `chunk` is on the path of mirrored streams only. Times are in seconds."""

    def __init__(self, endpoint: str, mirror: Mirror, exposure: Exposure, size: int, room: Room) -> None:
        """`size`: the client's request's, in bytes."""
        self.endpoint, self.mirror, self.exposure, self.size = endpoint, mirror, exposure, size
        self.is_stream = exposure.arrival.stream
        self.path, self.body = "", dict[str, Any]()
        self.kept = AnswerBuffer(MOST_STREAM_BYTES if self.is_stream else MOST_WHOLE_BYTES, room)
        self.takes_several = False
        """Whether the request needed more than one call of the engine."""
        self._sent_at = self._ended_at = 0.0

    def looked_up(self) -> None:
        """Notes a lookup before the engine's main request."""
        self.takes_several = True

    def sent(self, path: str, body: Mapping[str, Any]) -> None:
        """Notes the main request to the engine; after a failure, the one to another engine."""
        self.path, self.body = path, dict(body)
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
