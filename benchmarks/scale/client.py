"""Clients that read as cheaply as Python can: streams that record how late each token is, and whole answers."""

import asyncio
import json
import math
import re
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from benchmarks.load import HOST

_SENT = re.compile(rb'"created":(\d+)')
_NOT_A_TOKEN = 1_795_266_774
_LENGTH = re.compile(rb"content-length: ?(\d+)", re.IGNORECASE)


class Token(NamedTuple):
    """When the engine sent a token (on the monotonic clock), and how much later it arrived here. In seconds."""

    sent: float
    late: float


def http(path: str, body: Mapping[str, Any], headers: str = "") -> bytes:
    """A POST of JSON. `headers`: additional ones, each with its line end."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n"
    return f"{head}{headers}\r\n".encode() + data


def streamed(model: str, tokens: int) -> bytes:
    """The request for a streamed chat answer."""
    messages = [{"role": "user", "content": "Tell me a story."}]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return http("/v1/chat/completions", {"model": model, "messages": messages, "max_tokens": tokens, **options})


class _Answer(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self._request = request
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:  # uvloop's transport is not an asyncio.Transport by type
        self.transport = transport
        transport.write(self._request)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(SystemExit("an answer did not end"))

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
        self.transport.close()

    def refused(self, data: bytes) -> bool:
        if (bad := not data.startswith(b"HTTP/1.1 200")) and not self.done.done():
            self.done.set_exception(SystemExit(data[:2000].decode()))
        return bad


class Stream(_Answer):
    """A streamed answer."""

    def __init__(self, request: bytes) -> None:
        super().__init__(request)
        self.tokens: list[Token] = []
        self._tail = b""

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._tail and self.refused(data):
            return
        seen = self._tail + data
        cut = seen.rfind(b"\n\n") + 2
        for stamp_text in _SENT.findall(seen, 0, cut):
            if (stamp := int(stamp_text)) != _NOT_A_TOKEN:
                self.tokens.append(Token(stamp / 1e9, now - stamp / 1e9))
        self._tail = seen[max(cut, 1) :] or b"-"
        if b"[DONE]" in seen or b"event: message_stop" in seen:
            self.end()


class Whole(_Answer):
    """An answer with a length; `may_refuse`: of any status."""

    def __init__(self, request: bytes, *, may_refuse: bool) -> None:
        super().__init__(request)
        self._may_refuse = may_refuse
        self._missing = 0
        self._head = b""

    def data_received(self, data: bytes) -> None:
        if not self._missing:
            self._head += data
            if self._head.find(b"\r\n\r\n") < 0 or (not self._may_refuse and self.refused(self._head)):
                return
            head, _, data = self._head.partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            assert length is not None, "whole answers have a length"
            self._missing = int(length[1])
        self._missing -= len(data)
        if self._missing == 0:
            self.end()


async def stream(port: int, request: bytes) -> list[Token]:
    """The tokens of one streamed answer."""
    _, found = await asyncio.get_running_loop().create_connection(lambda: Stream(request), HOST, port)
    await found.done
    return found.tokens


async def whole(port: int, request: bytes, *, may_refuse: bool = False) -> None:
    """One whole answer; a refusal is an error, unless the server `may_refuse`."""
    made = partial(Whole, request, may_refuse=may_refuse)
    _, found = await asyncio.get_running_loop().create_connection(made, HOST, port)
    await found.done


def p99_ms(late: Iterable[float]) -> float:
    """The 99th percentile, in milliseconds."""
    return ranked(list(late), 0.99) * 1000


def ranked(values: Sequence[float], share: float) -> float:
    """The value that `share` of them do not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1] if values else math.nan


def median(values: Iterable[float]) -> float:
    """The median of any number of values."""
    return statistics.median(list(values))
