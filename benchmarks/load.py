"""The load generator: requests over plain sockets, read as cheaply as Python can, because it runs on the cores under
test.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HOST = "127.0.0.1"


class AnswerFailed(Exception):
    """An answer is not a 200, or breaks off."""


class Stream(asyncio.Protocol):
    """One answer. `end` is part of its last event; an answer that is not streamed counts as one event."""

    def __init__(self, request: bytes, end: bytes = b"[DONE]") -> None:
        self._request = request
        self._end = end
        self._tail = b""
        self._begun = 0.0
        self.done: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        self.times: list[float] = []
        """When each event arrived, in seconds from the request on. Of several in one packet, each counts, all now."""

    def connection_made(self, transport: Any) -> None:  # uvloop's transport is not an asyncio.Transport by type
        self._transport = transport
        self._begun = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.done.done():
            return
        if not self.times and data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
            self.done.set_exception(AnswerFailed(data.decode()))
            self._transport.close()
            return
        self.times += [time.perf_counter() - self._begun] * data.count(b"data: {")
        seen = self._tail + data
        self._tail = seen[-24:]
        if self._end in seen:
            self.times = self.times or [time.perf_counter() - self._begun]
            self.done.set_result(self.times)
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(AnswerFailed(f"a stream did not end after {self._tail!r}: {error}"))


def post(path: str, body: Mapping[str, Any], *headers: str) -> bytes:
    """The HTTP request; each of `headers` is a header line."""
    content = json.dumps(body)
    lines = [f"POST {path} HTTP/1.1", f"host: {HOST}", *headers, "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {len(content)}", "", content]).encode()


@dataclass
class Burst:
    """The results of a number of requests."""

    elapsed_s: float
    answers: list[list[float]]
    """For each request the arrival times of its events, in seconds after the request."""
    failures: list[AnswerFailed]
    """The number of requests without an answer."""

    def first_ms(self) -> list[float]:
        """The time to the first event of each answer."""
        return [times[0] * 1000 for times in self.answers]

    def between_ms(self) -> list[float]:
        """The times between two events of an answer, for all answers."""
        return [(b - a) * 1000 for times in self.answers for a, b in itertools.pairwise(times)]


async def burst(sent: bytes, port: int, *, streams: int, requests: int, end: bytes = b"[DONE]") -> Burst:
    """Sends the request `sent` `requests` times, `streams` at a time."""
    left = iter(range(requests))
    answers: list[list[float]] = []
    failures: list[AnswerFailed] = []
    begun = time.perf_counter()

    async def worker() -> None:
        for _ in left:
            _, stream = await asyncio.get_running_loop().create_connection(lambda: Stream(sent, end), HOST, port)
            try:
                answers.append(await stream.done)
            except AnswerFailed as error:
                failures.append(error)

    await asyncio.gather(*(worker() for _ in range(streams)))
    return Burst(time.perf_counter() - begun, answers, failures)


def p99(values: Sequence[float]) -> float:
    """The 99th percentile of at least one value; with fewer than 100 values, the largest."""
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]
