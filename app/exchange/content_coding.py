"""Decompresses request bodies: `Content-Encoding` gzip and deflate (RFC 9110, 8.4.1)."""

import zlib
from collections.abc import Iterable, Iterator
from typing import Protocol

from app.errors import BadRequest, TooLarge, UnsupportedMediaType

_GZIP, _ZLIB, _RAW = 31, 15, -15  # zlib's window bits

STEP = 256 * 1024
"""Bytes that are decompressed at a time."""

_MOST_MEMBERS = 1000
"""Of a gzip file: each takes as long as some kilobytes."""


class BodyDecoder(Protocol):
    """Decodes a body part by part, as it arrives. A part may become several pieces of at most `STEP` bytes."""

    def feed(self, part: bytes) -> Iterable[bytes]: ...

    def close(self) -> None: ...


class Identity:
    """A body without a content coding."""

    def feed(self, part: bytes) -> Iterable[bytes]:
        """The part itself."""
        return (part,)

    def close(self) -> None:
        """Does nothing: such a body may end anywhere."""


class Inflater:
    """A gzip or deflate body. Never produces more than `limit` bytes, however small its input is."""

    def __init__(self, coding: str, limit: int) -> None:
        self._coding, self._limit, self._size, self._members = coding, limit, 0, 1
        self._stream = zlib.decompressobj(_GZIP) if coding == "gzip" else None

    def feed(self, part: bytes) -> Iterator[bytes]:
        """Raises TooLarge above the limit, and BadRequest on data that is not of this coding."""
        if self._stream is None and part:
            # Some clients send raw deflate data, without the zlib header that RFC 9110 requires.
            self._stream = zlib.decompressobj(_ZLIB if part[0] & 0x0F == 8 else _RAW)
        is_full = False  # zlib may hold more of what it has read
        while (part or is_full) and self._stream is not None:
            most = min(STEP, self._limit - self._size + 1)
            try:
                piece = self._stream.decompress(part, most)
            except zlib.error:
                raise self._malformed() from None
            self._size += len(piece)
            is_full = len(piece) == most
            if self._size > self._limit:
                raise TooLarge(f"The body is larger than {self._limit} bytes once it is decompressed")
            yield piece
            part = self._stream.unconsumed_tail
            is_full = is_full and not self._stream.eof
            if self._stream.eof and (part := self._stream.unused_data):
                self._members += 1
                if self._coding != "gzip" or self._members > _MOST_MEMBERS:
                    raise self._malformed()
                self._stream = zlib.decompressobj(_GZIP)  # a gzip file may have several members

    def close(self) -> None:
        """Raises BadRequest if the data ended early."""
        if self._stream is not None and not self._stream.eof:
            raise self._malformed()

    def _malformed(self) -> BadRequest:
        return BadRequest(f"The body is not valid {self._coding} data", param="content-encoding")


def body_decoder(coding: str | None, limit: int) -> BodyDecoder:
    """The decoder for a value of `Content-Encoding`. Raises UnsupportedMediaType."""
    name = (coding or "identity").strip().lower()
    if name in ("identity", ""):
        return Identity()
    if name in ("gzip", "x-gzip", "deflate"):
        return Inflater(name.removeprefix("x-"), limit)
    raise UnsupportedMediaType(f"Content-Encoding '{name}' is not supported; send gzip, deflate or none")
