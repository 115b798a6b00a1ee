"""Reads and checks a request: its id, headers, body and constraints.

Decompresses request bodies: `Content-Encoding` gzip and deflate (RFC 9110, 8.4.1).
"""

import asyncio
import random
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Protocol

from app.aio import ClientDisconnected, Receive, result_within
from app.config.schema import Config, Timeouts
from app.dialects.base import Call
from app.dialects.bodies import check_large_numbers, members
from app.engine.constraints import refused_constraint
from app.engine.expected import prompts_of
from app.errors import BadRequest, HeadersTooLarge, TooLarge, TooSlow, UnsupportedMediaType
from app.exchange.response import REQUEST_ID_HEADER
from app.limits.bodies import BYTES_PER_VALUE, Bodies, Room
from app.long_json import (
    check_size,
    has_more_items,
    has_only_numbers,
    may_have_large_number,
    outlined,
    weight,
    with_marks,
)

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


_IDENTITY = Identity()


class Inflater:
    """A gzip or deflate body. Never produces more than `limit` bytes, however small its input is."""

    def __init__(self, coding: str, limit: int) -> None:
        self._coding, self._limit, self._size, self._members = coding, limit, 0, 1
        self._stream = zlib.decompressobj(_GZIP) if coding == "gzip" else None
        self._unsure = b""

    def feed(self, part: bytes) -> Iterator[bytes]:
        """Raises TooLarge above the limit, and BadRequest on data that is not of this coding."""
        if self._stream is None and part:
            # Some clients send raw deflate data, without the zlib header that RFC 9110 requires.
            self._stream = zlib.decompressobj(_ZLIB if part[0] & 0x0F == 8 else _RAW)
        if self._coding == "deflate" and not self._size:
            self._keep(part)
        is_full = False  # zlib may hold more of what it has read
        while (part or is_full) and self._stream is not None:
            most = min(STEP, self._limit - self._size + 1)
            try:
                piece = self._stream.decompress(part, most)
            except zlib.error:
                if not self._unsure:
                    raise self._malformed() from None
                # It only looked like the header.
                part, self._unsure, self._stream = self._unsure, b"", zlib.decompressobj(_RAW)
                continue
            self._size += len(piece)
            if piece:
                self._unsure = b""
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

    def _keep(self, part: bytes) -> None:
        if len(self._unsure) > STEP:  # nothing but empty blocks
            raise self._malformed()
        self._unsure += part

    def close(self) -> None:
        """Raises BadRequest if the data ended early."""
        if self._stream is not None and not self._stream.eof:
            raise self._malformed()

    def _malformed(self) -> BadRequest:
        return BadRequest(f"The body is not valid {self._coding} data", param="content-encoding")


def body_decoder(coding: str | None, limit: int) -> BodyDecoder:
    """The decoder for a value of `Content-Encoding`. Raises UnsupportedMediaType."""
    if coding is None:
        return _IDENTITY
    name = coding.strip().lower()
    if name in ("identity", ""):
        return _IDENTITY
    if name in ("gzip", "x-gzip", "deflate"):
        return Inflater(name.removeprefix("x-"), limit)
    raise UnsupportedMediaType(f"Content-Encoding '{name}' is not supported; send gzip, deflate or none")


def check_constraints(call: Call, size: int) -> None:
    """Raises BadRequest if a schema, expression or grammar in the request admits no answer, or is too long. `size`: the
    body's, in bytes.
    """
    if (refused := refused_constraint(call.body, size)) is not None:
        raise refused_field(call.field_names, *refused)


def check_numbers(call: Call, body: bytes) -> None:
    """Raises BadRequest, under the client's name for the field, for a number in the `body` of the call that has more
    than 64 bits, or is infinite once it is read: no engine takes it."""
    if not may_have_large_number(body):
        return
    choice = call.body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    with_tools = kind not in (None, "auto", "none") or body.find(b'"strict"') >= 0  # whose calls follow their schemas
    check_large_numbers(with_marks(body), with_tools=with_tools)


def refused_field(field_names: Mapping[str, str], field: str, reason: str) -> BadRequest:
    """The error for a field of a vLLM request, under the client's name for it."""
    name = field_names.get(field.partition(".")[0], field)
    return BadRequest(f"{name}: {reason}", param=name)


_USABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")


def headers_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """The headers by lower-case name. Different values of one header are joined (RFC 9110, 5.3), so that of two keys
    neither is valid: a proxy in front may have checked the other one. The same value twice is one."""
    raw = scope["headers"]
    headers: dict[str, str] = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}
    if len(headers) < len(raw):
        headers = {}
        for name, value in raw:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            if headers.setdefault(key, text) != text:
                headers[key] = f"{headers[key]}, {text}"
    return headers


def check_headers(scope: Mapping[str, Any], limit: int) -> None:
    """Raises HeadersTooLarge above `limit` bytes."""
    if sum(map(len, chain.from_iterable(scope["headers"]))) > limit:
        raise HeadersTooLarge(f"The headers are larger than {limit} bytes")


def check_body_size(size: int, limit: int) -> None:
    """Raises TooLarge for a body of more than `limit` bytes."""
    if size > limit:
        raise TooLarge(f"The body is larger than {limit} bytes")


async def read_body(receive: Receive, headers: Mapping[str, str], timeouts: Timeouts, limit: int, room: Room) -> bytes:
    """The whole body of at most `limit` bytes, decompressed; `room` holds its memory.

    Raises TooLarge, TooSlow, UnsupportedMediaType, BadRequest, Unavailable, ClientDisconnected.
    """
    decoder = body_decoder(headers.get("content-encoding"), limit)
    try:
        return await result_within(timeouts.body_s, _arriving(receive, decoder, limit, room))
    except TimeoutError:
        raise TooSlow(f"The request body did not arrive within {timeouts.body_s:g} s") from None


async def _arriving(receive: Receive, decoder: BodyDecoder, limit: int, room: Room) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        size += len(part)
        check_body_size(size, limit)
        for piece in decoder.feed(part):
            room.take(len(piece))
            parts.append(piece)
            if len(piece) >= STEP:  # a few bytes may become megabytes
                await asyncio.sleep(0)
        if not message.get("more_body", False):
            decoder.close()
            return parts[0] if len(parts) == 1 else await _joined(parts)


async def read_json(
    receive: Receive, headers: Mapping[str, str], config: Config, limit: int, bodies: Bodies, room: Room
) -> bytes:
    """Like `read_body`: the body, or its outline, is cheap to parse if it is JSON at all. Raises TooLarge, too."""
    body = await read_body(receive, headers, config.timeouts, limit, room)
    if len(body) > _SHORT_BODY:
        outline, values = await bodies.work(len(body), _outlined, body, config.max_json_values)
        room.take(BYTES_PER_VALUE * values)
        return outline
    check_size(body, config.max_json_values)
    room.take(len(body) * 8)
    return body


_SHORT_BODY = 4096
_LONG_BODY = 1024 * 1024


def _outlined(body: bytes, most: int) -> tuple[bytes, int]:
    """The body's outline, and its values for the memory that they take. Raises TooLarge for more than `most`."""
    outline = outlined(body, most)
    return outline, min(weight(outline), most)  # what `weight` finds in texts is none


async def _joined(parts: Sequence[bytes]) -> bytes:
    """`bytes.join` lets other threads run while it copies megabytes."""
    return await asyncio.to_thread(b"".join, parts) if sum(map(len, parts)) > _LONG_BODY else b"".join(parts)


def request_id(headers: Mapping[str, str]) -> str:
    """The client's own id if it is safe in a header and a log line, else a new one."""
    given = headers.get(REQUEST_ID_HEADER)
    return given if given is not None and _USABLE_ID.fullmatch(given) else f"{random.getrandbits(128):032x}"


_NO_NAMES: Mapping[str, str] = {}
_LISTS = frozenset({"messages", "input", "inputs", "prompt", "queries", "documents", "texts"})


def check_length(body: Mapping[str, Any], limit: int, field_names: Mapping[str, str] = _NO_NAMES) -> None:
    """Raises BadRequest if a conversation has more than `limit` messages, or a batch more inputs.

    A list of token ids is one input: `max_json_values` bounds it.
    """
    for name in _LISTS.intersection(body):
        items = body[name]
        if isinstance(items, list) and len(items) > limit and not _has_only_integers(items):
            raise refused_field(field_names, name, f"has {len(items)} items, at most {limit} are allowed")


def check_lists(text: bytes, limit: int) -> None:
    """`check_length` of a JSON text, whatever else is wrong with it. Lists of numbers are not even read."""
    with suppress(ValueError, RecursionError):  # those are `parse`'s to describe
        for name, member in members(text).items():
            if name not in _LISTS or not (value := bytes(member)).startswith(b"[") or has_only_numbers(value):
                continue
            if has_more_items(value, limit):
                raise BadRequest(f"{name}: at most {limit} items are allowed", param=name)


def _has_only_integers(items: Sequence[Any]) -> bool:
    """For millions of items: in pieces, between which other threads can run."""
    pieces = (items[start : start + _ITEMS] for start in range(0, len(items), _ITEMS))
    return all(_INTEGER.issuperset(map(type, piece)) for piece in pieces)


_INTEGER, _ITEMS = frozenset({int}), 16 * 1024


def check_choices(call: Call, limit: int) -> None:
    """Raises BadRequest if several prompts have more than `limit` choices together. Those of one are bounded alone."""
    if call.task != "completions":
        return
    n = call.body.get("n", 1)
    if not isinstance(n, int) or n < 2:  # vLLM rejects the unchecked `n` of an extra
        return
    if (prompts := prompts_of(call.body)) > 1 and n * prompts > limit:
        name = call.field_names.get("n", "n")
        raise BadRequest(
            f"{name}: {n} choices for each of {prompts} prompts; at most {limit} together are allowed", param=name
        )
