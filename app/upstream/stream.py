"""A deployment's response while it arrives."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Self

from app.engine.errors import error_in_first_chunk
from app.errors import Incomplete
from app.time_limit import within
from app.upstream.failures import failed, failure, translated
from app.upstream.http.client import Response
from app.upstream.http.errors import HttpError
from app.upstream.target import Target

OnHead = Callable[[Mapping[str, str]], None]
"""Is given a deployment's response headers, by names in lower case."""


class ResponseStream:
    """An async context manager that is entered with the first chunk, and then the iterator over all of them.

    A class, no generators: those are registered with the event loop, which costs as much as sending a request.
    """

    __slots__ = ("_first", "_first_byte_s", "_on_head", "_response", "_send", "_target")

    def __init__(
        self, send: Callable[[], Awaitable[Response]], target: Target, first_byte_s: float, on_head: OnHead | None
    ) -> None:
        self._send, self._target, self._first_byte_s, self._on_head = send, target, first_byte_s, on_head

    async def __aenter__(self) -> Self:
        with translated(self._target):
            async with within(self._first_byte_s):
                self._response = await self._send()
                try:
                    self._first = await self._begun()
                except BaseException:
                    self._response.close()
                    raise
        return self

    async def _begun(self) -> bytes:
        if self._response.status != 200:
            raise await failed(self._response, self._target)
        if self._on_head is not None:
            self._on_head(self._response.headers)
        first = await self._response.read()
        if not first:
            raise Incomplete(f"Deployment '{self._target.name}' returned an empty response")
        if (error := error_in_first_chunk(first)) is not None:
            raise error
        return first

    async def __aexit__(self, *_: object) -> None:
        self._response.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Raises UpstreamError."""
        if chunk := self._first:
            self._first = b""
            return chunk
        try:
            chunk = await self._response.read()
        except HttpError as error:
            raise failure(error, self._target) from error
        if not chunk:
            raise StopAsyncIteration
        return chunk
