"""HTTP/1.1 as the router's server reads and writes it.

Its name, `PROTOCOL`, is what uvicorn takes for `http`; this module imports uvicorn, which only servers need.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from functools import lru_cache
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

PROTOCOL = "app.server.http_protocol:HeadersFirst"


class HeadersFirst(HttpToolsProtocol):
    """uvicorn's protocol, but the trailers of a chunked body are no headers, and answers cost less.

    uvicorn appends trailers to the headers, before the application sees these: a client could send an `X-Forwarded-For`
    after the ingress has added its own. RFC 9110, section 6.5.1: a recipient must not merge trailers into headers
    unless it understands them.
    """

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.headers = []  # no longer the request's own list, which keeps what has come so far
        if self.cycle is not None:
            self.cycle.__class__ = PlainCycle  # uvicorn lets no class be named


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
            if self._is_plain and (body := self._framed(message)) is not None:
                if body := self._head + body:
                    self._head = b""
                    self.transport.write(body)
                if not message.get("more_body", False):
                    self._end()
                return _SENT
            if not self.response_started and self._begins_plainly(message):
                asyncio.get_running_loop().call_soon(self._write_head)
                return _SENT
        self._write_head()
        return super().send(message)

    def _framed(self, message: Any) -> bytes | None:
        """What is written of a body: a chunk, or the whole body if it has the length of the head. None: uvicorn must
        look at it."""
        if message["type"] != "http.response.body":
            return None
        body: bytes = message.get("body", b"")
        has_more = message.get("more_body", False)
        if not self.chunked_encoding:
            return body if not has_more and len(body) == self.expected_content_length else None
        chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        return chunk if has_more else chunk + b"0\r\n\r\n"

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
        headers = [*self.default_headers, *message["headers"]]
        names, values = zip(*headers, strict=True)
        if self.access_log or not _are_plain(names) or b"".join(values).translate(None, _IN_VALUES):
            return False
        if is_chunked := _LENGTH not in names:
            framing = b"transfer-encoding: chunked\r\n"
        elif (length := values[names.index(_LENGTH)]).isdigit():
            self.expected_content_length, framing = int(length), b""
        else:
            return False
        self._is_plain = self.response_started = True
        self.chunked_encoding = is_chunked
        self.waiting_for_100_continue = False
        lines = b"\r\n".join(map(b": ".join, headers))
        end = b"" if self.keep_alive else b"connection: close\r\n"
        self._head = b"%b%b\r\n%b%b\r\n" % (STATUS_LINE[200], lines, end, framing)
        return True


_LENGTH = b"content-length"
_FRAMING = frozenset({b"connection", b"transfer-encoding"})
_IN_VALUES = bytes(byte for byte in range(256) if not HEADER_VALUE_RE.search(bytes([byte])))


@lru_cache(maxsize=256)
def _are_plain(names: tuple[bytes, ...]) -> bool:
    """Whether the names of a head are valid, in lower case, and say nothing that changes how the response ends, but
    its length."""
    is_any_wrong = any(HEADER_RE.search(name) or name != name.lower() or name in _FRAMING for name in names)
    return not is_any_wrong and names.count(_LENGTH) < 2


class _Sent:
    """What is already done, to be awaited."""

    def __await__(self) -> Iterator[None]:
        return iter(())


_SENT = cast(Awaitable[None], _Sent())
