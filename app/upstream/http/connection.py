"""One connection to a server, as an asyncio protocol: a request, its response, the next request.

Errors of the HTTP client. Messages hold no header and no body.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser


class HttpError(Exception):
    """A request without a complete response."""


class NotConnected(HttpError):
    """No connection could be made: no server has seen the request."""


class ConnectTimedOut(HttpError):
    """Making the connection took too long."""


class Disconnected(HttpError):
    """The connection ended before the head of a response: the server may have seen the request."""


class Malformed(HttpError):
    """The bytes received are not an HTTP response, or ended before it was complete."""


_MOST_WAITING = 128 * 1024
"""Bytes of a body that are not read yet: beyond them reading pauses, and the server has to wait."""

PIECE = 16 * 1024
"""Bytes of a stream that are handed over at once. What a reader does with each of its events adds up: 16 KiB may be
thousands of comments, or hundreds of events to translate, and then others have their turn."""

_MOST_BESIDE_BODY = 64 * 1024
"""Consecutive bytes that are not part of a body: headers, trailers, the lengths of chunks."""

_SLICE = 256 * 1024
"""Bytes of a request's body that are written at once."""

_CLOSED = "The server closed the connection"
_ENDED = "The response ended before it was complete"
_NO_BODY = frozenset({101, 204, 304})

Take = Callable[[bytes], Awaitable[None] | None]
"""Takes a part of a body; returns an awaitable to wait for before the next part, or None."""

Filter = Callable[[bytes], bytes]
"""Makes of a part of a body what is to be taken; b"": nothing yet."""


class Connection(asyncio.Protocol):
    """Sends one request at a time and buffers its response until it is read.

    Call `send`, `wait_for_response`, then `each`, or `read` until it returns b"", and start again if `is_reusable`. One
    task at a time may wait.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: Any = None  # uvloop's is not an asyncio.Transport by type
        self._parser: Any = HttpResponseParser(self)
        # As lenient as aiohttp's client, since engines and the proxies in front of them differ.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._waiter: asyncio.Future[Awaitable[None] | None] | None = None
        self._take: Take | None = None
        self._filter: Filter | None = None
        self._failure: tuple[type[HttpError], str] | None = None
        self._unsent: memoryview | None = None
        self._may_write = True
        self._is_paused = self._wants_head = False
        self._begin()
        self._is_complete = True

    def _begin(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._has_head = self._is_complete = self._keeps_alive = self._ends_with_connection = False
        self._chunks: list[bytes] = []
        self._waiting = self._beside_body = 0

    @property
    def is_open(self) -> bool:
        """Whether another request can be sent: nothing came since the last response, not even the end."""
        return self._failure is None and not self._transport.is_closing()

    @property
    def has_failed(self) -> bool:
        """Whether the server has broken its response off, or sent something else."""
        return self._failure is not None and not self._is_complete

    @property
    def is_reusable(self) -> bool:
        """Whether the response is complete and leaves the connection for another request."""
        finished = self._is_complete and self._unsent is None and not self._is_paused
        return finished and self._keeps_alive and self.is_open

    def send(self, head: bytes, body: bytes) -> None:
        """Writes a request, the next part of a long body whenever the server has taken the one before.

        Raises Disconnected if the connection is closed by now.
        """
        if not self.is_open:
            raise Disconnected(_CLOSED)
        self._begin()
        if len(body) <= _SLICE:
            self._transport.write(head + body)
            return
        self._unsent = memoryview(body)
        self._transport.write(head)
        self._write_on()

    async def wait_for_response(self) -> None:
        """Waits for the final response's `status` and `headers`, and for some of its body, its end, or its failure:
        without them there is nothing to do. Raises HttpError if there is no head."""
        while not (self._has_head and (self._chunks or self._is_complete or self._failure is not None)):
            await self._arrival()

    async def wait_for_head(self) -> None:
        """Waits for the final response's `status` and `headers` alone: they tell that somebody works on the request.
        Raises HttpError without them."""
        self._wants_head = True
        try:
            while not self._has_head:
                await self._arrival()
        finally:
            self._wants_head = False

    async def read(self, most: int | None = None) -> bytes:
        """The next bytes of the body, as soon as there are any, `most` at a time; b"" after its end.

        Raises HttpError.
        """
        while not self._chunks:
            if self._is_complete:
                return b""
            await self._arrival()
        if most is not None and self._waiting > most:
            await asyncio.sleep(0)
        return self._taken(most)

    async def each(self, take: Take, filter: Filter | None = None) -> bytes:
        """Calls `take` with each part of the body but the last, which it returns: the part that came with the end.
        `filter` changes what `take` gets. A part has `PIECE` bytes at most.

        Both run in the callback that receives the bytes, not in this task: waking a task costs as much as passing a
        part on. Raises HttpError, and the errors of `take`.
        """
        while True:
            if self._is_complete and self._waiting <= PIECE:
                return self._taken()
            unfinished = None
            if self._chunks:
                part = self._taken(PIECE)
                if filter is not None:
                    part = filter(part)
                unfinished = take(part) if part else None
                if unfinished is None and self._chunks:
                    await asyncio.sleep(0)
                    continue
            if unfinished is None:
                self._take, self._filter = take, filter
                try:
                    unfinished = await self._arrival()
                finally:
                    self._take = None
            if unfinished is not None:
                await unfinished

    def unread(self, part: bytes) -> None:
        """Puts back the part that was read last."""
        self._chunks.insert(0, part)
        self._waiting += len(part)

    def _taken(self, most: int | None = None) -> bytes:
        chunks, self._chunks = self._chunks, []
        part = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if most is not None and len(part) > most:
            self._chunks, part = [part[most:]], part[:most]
            self._waiting -= len(part)
            return part
        self._waiting = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return part

    def close(self) -> None:
        """Closes the connection at once, and drops the bytes under way in both directions."""
        if self._transport is not None:
            self._transport.abort()

    def _arrival(self) -> asyncio.Future[Awaitable[None] | None]:
        """A future for the next event that `_take` does not handle. Raises HttpError after a failure."""
        if self._failure is not None:
            failure, message = self._failure
            raise failure(message)
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, failure: type[HttpError], message: str) -> None:
        if self._failure is None:
            self._failure = (failure, message)
        self._wake()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._is_complete:  # no request is under way
            self._fail(Malformed, "The server sent more than its response")
            self.close()
            return
        self._beside_body += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._has_head = self._is_complete = True
            self._keeps_alive = False
        except HttpParserError as error:
            self._keeps_alive = False
            if not self._is_complete:
                self._fail(Malformed, f"The server's response cannot be read: {error}")
                self.close()
        else:
            if self._beside_body > _MOST_BESIDE_BODY:
                self._fail(Malformed, "The server's headers are too long")
                self.close()
            elif self._waiting > _MOST_WAITING and not self._is_paused:
                self._is_paused = True
                self._transport.pause_reading()
            elif self._take is not None and self._chunks and not self._is_complete:
                self._hand_over(self._take)
                return
        if self._chunks or self._is_complete or self._failure is not None or self._wants_head:
            self._wake()

    def _hand_over(self, take: Take) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():  # cancelled: its task will not continue
            return
        try:
            part = self._taken(PIECE)
            if self._filter is not None:
                part = self._filter(part)
            unfinished = take(part) if part else None
        except Exception as error:  # noqa: BLE001  it is raised in the task that waits
            waiter.set_exception(error)
        else:
            if unfinished is not None or self._chunks:  # the task takes the rest, once other tasks have run
                waiter.set_result(unfinished)

    def connection_lost(self, error: Exception | None) -> None:
        self._unsent = self._parser = None  # the parser knows its connection: they would wait for the garbage collector
        self._keeps_alive = False
        if not self._has_head:
            self._fail(Disconnected, _CLOSED)
        elif not self._is_complete and (error is not None or not self._ends_with_connection):
            self._fail(Malformed, _ENDED)
        else:
            self._is_complete = True
            self._wake()

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self._write_on()

    def _write_on(self) -> None:
        while self._may_write and self._unsent is not None and not self._transport.is_closing():
            part, rest = self._unsent[:_SLICE], self._unsent[_SLICE:]
            self._unsent = rest if len(rest) else None
            self._transport.write(part)

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:  # a trailer, or a second response
            return
        key, text = name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape").rstrip(" \t")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        if self._has_head:
            return
        self.status = status = self._parser.get_status_code()
        if status < 200 and status != 101:
            self.headers = {}  # of an interim response; the response itself follows
            return
        self._has_head = True
        self._keeps_alive = self._parser.should_keep_alive()
        codings = self.headers.get("transfer-encoding")
        if codings is not None:
            self._ends_with_connection = codings.rpartition(",")[2].strip().lower() != "chunked"
        else:
            self._ends_with_connection = "content-length" not in self.headers and status not in _NO_BODY

    def on_body(self, body: bytes) -> None:
        if self._is_complete:
            return
        self._chunks.append(body)
        self._waiting += len(body)
        self._beside_body = 0

    def on_message_begin(self) -> None:
        if self._is_complete:  # a second response to one request
            self._keeps_alive = False

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_complete = True
