"""Decompresses request bodies: `Content-Encoding` gzip and deflate (RFC 9110, 8.4.1)."""

import zlib
from typing import Protocol

from app.errors import BadRequest, TooLarge, UnsupportedMediaType

_GZIP, _ZLIB, _RAW = 31, 15, -15  # zlib's window bits


class BodyDecoder(Protocol):
    """Decodes a body part by part, as it arrives."""

    def feed(self, part: bytes) -> bytes: ...

    def close(self) -> None: ...


class Identity:
    """A body without a content coding."""

    def feed(self, part: bytes) -> bytes:
        """The part itself."""
        return part

    def close(self) -> None:
        """Does nothing: such a body may end anywhere."""


class Inflater:
    """A gzip or deflate body. Never produces more than `limit` bytes, however small its input is."""

    def __init__(self, coding: str, limit: int) -> None:
        self._coding, self._limit, self._size = coding, limit, 0
        self._stream = zlib.decompressobj(_GZIP) if coding == "gzip" else None

    def feed(self, part: bytes) -> bytes:
        """Raises TooLarge above the limit, and BadRequest on data that is not of this coding."""
        if self._stream is None and part:
            # Some clients send raw deflate data, without the zlib header that RFC 9110 requires.
            self._stream = zlib.decompressobj(_ZLIB if part[0] & 0x0F == 8 else _RAW)
        produced: list[bytes] = []
        while part and self._stream is not None:
            try:
                piece = self._stream.decompress(part, self._limit - self._size + 1)
            except zlib.error:
                raise self._malformed() from None
            produced.append(piece)
            self._size += len(piece)
            if self._size > self._limit:
                raise TooLarge(f"The body is larger than {self._limit} bytes once it is decompressed")
            part = self._stream.unconsumed_tail
            if self._stream.eof and (part := self._stream.unused_data):
                if self._coding != "gzip":
                    raise self._malformed()
                self._stream = zlib.decompressobj(_GZIP)  # a gzip file may have several members
        return b"".join(produced)

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
