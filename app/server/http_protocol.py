"""HTTP/1.1 as the router's server reads and writes it.

Its name, `PROTOCOL`, is what uvicorn takes for `http`; this module imports uvicorn, which only servers need.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from itertools import starmap
from typing import Any
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from app.aio import DONE

PROTOCOL = "app.server.http_protocol:HeadersFirst"


class Starts:
    """Starts requests, at most `STARTS_AT_ONCE` in a turn of the event loop: when hundreds come at once, those that are
    under way have their tokens between them."""

    def __init__(self) -> None:
        self._started = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, start: Callable[[], None]) -> None:
        """Has the request start, now or in one of the next turns."""
        if self._started == 0:
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._started < STARTS_AT_ONCE:
            self._started += 1
            start()
        else:
            self._waiting.append(start)

    def _next_turn(self) -> None:
        self._started = 0
        for _ in range(min(STARTS_AT_ONCE, len(self._waiting))):
            self.add(self._waiting.popleft())


STARTS_AT_ONCE = 4

_starts: WeakKeyDictionary[ServerState, Starts] = WeakKeyDictionary()
"""By the server: each has an event loop."""


class HeadersFirst(HttpToolsProtocol):
    """uvicorn's protocol, but the trailers of a chunked body are no headers, requests start a few at a time, and
    answers cost less.

    uvicorn appends trailers to the headers, before the application sees these: a client could send an `X-Forwarded-For`
    after the ingress has added its own. RFC 9110, section 6.5.1: a recipient must not merge trailers into headers
    unless it understands them.
    """

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.headers = []  # no longer the request's own list, which keeps what has come so far
        if self.cycle is not None:
            self.cycle.__class__ = PlainCycle  # uvicorn lets no class be named

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """uvicorn's own, which starts a request."""
        if (starts := _starts.get(self.server_state)) is None:
            starts = _starts[self.server_state] = Starts()
        starts.add(partial(super()._start_asgi_task, cycle, app))


class PlainCycle(RequestResponseCycle):
    """uvicorn's response, with little work for what nearly all of them consist of: a plain head, chunks that the client
    takes, or a body of the length that the head announces.

    uvicorn searches every name and value of a head with a regular expression, makes a coroutine of every message, and
    writes the head by itself: a system call more, and a packet.
    """

    _is_plain = False
    _head = b""
    """Of a response whose body has not begun: it is written with that, or as soon as the event loop is free."""

    def send(self, message: Any) -> Awaitable[None]:  # type: ignore[override]
        """Sends a message of ASGI."""
        if not (self.flow.write_paused or self.disconnected or self.response_complete):
            if self._is_plain and self.chunked_encoding and message.get("more_body", False):
                if body := message.get("body"):
                    self.transport.write(b"%b%x\r\n%b\r\n" % (self._head, len(body), body))
                    self._head = b""
                return DONE
            if self._is_plain and (last := self._last(message)) is not None:
                self.transport.write(self._head + last)
                self._head = b""
                self._end()
                return DONE
            if not self.response_started and self._begins_plainly(message):
                asyncio.get_running_loop().call_soon(self._write_head)
                return DONE
        self._write_head()
        return super().send(message)

    def _last(self, message: Any) -> bytes | None:
        """What is written of the last part of a body, which may be all of it. None: uvicorn must look at it."""
        if message["type"] != "http.response.body" or message.get("more_body", False):
            return None
        body: bytes = message.get("body", b"")
        if self.chunked_encoding:
            return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        return body if len(body) == self.expected_content_length else None

    def _end(self) -> None:
        """As uvicorn ends a response."""
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _write_head(self) -> None:
        if self._head and not self.disconnected:
            self.transport.write(self._head)
        self._head = b""

    def _begins_plainly(self, message: Any) -> bool:
        """Takes the head of a response; False if it is none, or has a header that uvicorn must look at."""
        if message["type"] != "http.response.start" or message["status"] != 200 or self.scope["method"] != "POST":
            return False
        try:
            lines = b"".join(starmap(_line, [*self.default_headers, *message["headers"]]))
        except ValueError:
            return False
        head = STATUS_LINE[200] + lines
        if (at := head.find(_LENGTH)) < 0:
            self.chunked_encoding, framing = True, b"transfer-encoding: chunked\r\n"
        elif (length := head[at + len(_LENGTH) : head.index(b"\r", at + 1)]).isdigit():
            self.chunked_encoding, self.expected_content_length, framing = False, int(length), b""
        else:
            return False
        self._is_plain = self.response_started = True
        self.waiting_for_100_continue = False
        self._head = b"%b%b%b\r\n" % (head, b"" if self.keep_alive else b"connection: close\r\n", framing)
        return True


_LENGTH = b"\r\ncontent-length: "
_FRAMING = frozenset({b"connection", b"transfer-encoding"})


@lru_cache(maxsize=1024)
def _line(name: bytes, value: bytes) -> bytes:
    """The line of a header. Raises ValueError for one that is not valid, not in lower case, or changes how the response
    ends, but for its length. Nearly all headers of a response are those of others, too."""
    if HEADER_RE.search(name) or HEADER_VALUE_RE.search(value) or name != name.lower() or name in _FRAMING:
        raise ValueError
    return b"%b: %b\r\n" % (name, value)
