"""A deployment's response while it arrives."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from app.aio import within
from app.engine.answers import EVENT_STREAM, Beginning, EventCheck
from app.engine.errors import MALFORMED_RESPONSE, error_in_first_chunk
from app.errors import MalformedAnswer
from app.upstream.failures import failed, failure, incomplete, translated
from app.upstream.http.client import Response
from app.upstream.http.connection import Take
from app.upstream.http.errors import HttpError
from app.upstream.target import Target

OnHead = Callable[[Mapping[str, str]], None]
"""A callback for a deployment's response headers, by lower-case names."""


class ResponseStream:
    """`begin`, then iterate over the chunks, or call `each`; `close` in any case.

    A class rather than generators: those are registered with the event loop, which costs as much as sending a request.
    """

    __slots__ = ("_first_byte_s", "_on_head", "_path", "_request", "_response", "_send", "_target")

    def __init__(
        self,
        send: Callable[[], Awaitable[Response]],
        target: Target,
        path: str,
        request: Mapping[str, Any] | None,
        first_byte_s: float,
        on_head: OnHead | None,
    ) -> None:
        """`request`: the body that `send` sends to `path`, if it is known."""
        self._send, self._target, self._path, self._request = send, target, path, request
        self._first_byte_s, self._on_head = first_byte_s, on_head
        self._response: Response | None = None

    async def begin(self, *, events: bool = True, check: EventCheck | None = None) -> None:
        """Sends the request and waits for the first event, or for the first chunk of a body without `events`.

        `check` is that of the events' reader, which learns what to expect, and need not parse the first one twice.
        Raises Rejected and UpstreamError: MalformedAnswer for anything but an event.
        """
        if check is not None:
            check.expect(self._request)
        with translated(self._target):
            async with within(self._first_byte_s):
                self._response = response = await self._send()
                if response.status != 200:
                    raise await failed(response, self._target)
                if self._on_head is not None:
                    self._on_head(response.headers)
                first = await (self._first_event(response, check) if events else response.read())
        if not first:
            raise incomplete(self._target)
        if (error := error_in_first_chunk(first)) is not None:
            raise error
        response.unread(first)

    async def _first_event(self, response: Response, check: EventCheck | None) -> bytes:
        """The first chunks, with a whole event; b"" if the response ends without one."""
        if response.media_type != EVENT_STREAM:
            raise MalformedAnswer(MALFORMED_RESPONSE)
        chunk = await response.read()
        if check is not None and chunk.startswith(b"data: {") and chunk.endswith(b"\n\n") and check.begins(chunk):
            return chunk  # nearly always
        beginning = Beginning(self._path, self._request)
        while chunk:
            if beginning.feed(chunk):
                return beginning.received
            chunk = await response.read()
        return b""

    def close(self) -> None:
        """Closes the connection if the response is not complete, which stops the engine."""
        if self._response is not None:
            self._response.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Raises UpstreamError."""
        try:
            chunk = await self._opened.read()
        except HttpError as error:
            raise failure(error, self._target) from error
        if not chunk:
            raise StopAsyncIteration
        return chunk

    def unread(self, chunks: bytes) -> None:
        """Puts chunks back: they are read again."""
        self._opened.unread(chunks)

    async def each(self, take: Take) -> bytes:
        """Calls `take` with each chunk but the last, where it arrives, and returns the last. See `Connection.each`.

        Raises UpstreamError, and the errors of `take`.
        """
        try:
            return await self._opened.each(take)
        except HttpError as error:
            raise failure(error, self._target) from error

    @property
    def _opened(self) -> Response:
        assert self._response is not None, "begin has returned"
        return self._response
