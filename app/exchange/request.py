"""Reads and checks a request: its id, headers, body and constraints."""

import asyncio
import random
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from app.aio import result_within
from app.config.schema import Config, Timeouts
from app.dialects.base import Call
from app.dialects.json_size import check_size, outlined, weight
from app.engine.constraints import (
    CONSTRAINTS,
    MOST_BYTES,
    MOST_CHARACTERS,
    MOST_REPETITIONS,
    too_large_field,
    too_long_field,
    too_repetitive_field,
    unsatisfiable_field,
)
from app.engine.expected import prompts_of
from app.errors import BadRequest, HeadersTooLarge, TooLarge, TooSlow
from app.exchange.content_coding import STEP, BodyDecoder, body_decoder
from app.exchange.deadlines import ClientDisconnected, Receive
from app.exchange.response import REQUEST_ID_HEADER
from app.limits.bodies import BYTES_PER_VALUE, Bodies, Room


def check_constraints(call: Call, size: int) -> None:
    """Raises BadRequest if a schema, expression or grammar in the request admits no answer, or is too long. `size`: the
    body's, in bytes.
    """
    if size > MOST_BYTES and (found := too_large_field(call.body)) is not None:
        name = call.field_names.get(found, found)
        raise BadRequest(f"{name}: a constraint has at most {MOST_BYTES} bytes", param=name)
    if CONSTRAINTS.isdisjoint(call.body):  # most requests
        return
    if (found := too_long_field(call.body)) is not None:
        name = call.field_names.get("structured_outputs", found)
        raise BadRequest(f"{name}: an expression or grammar has at most {MOST_CHARACTERS} characters", param=name)
    if (found := too_repetitive_field(call.body)) is not None:
        name = call.field_names.get(found, found)
        message = f"{name}: the lengths, counts and repetitions of a constraint add up to {MOST_REPETITIONS} at most"
        raise BadRequest(message, param=name)
    if (field := unsatisfiable_field(call.body)) is not None:
        raise impossible(call, field, "is satisfied by no text")


def impossible(call: Call, field: str, reason: str) -> BadRequest:
    """The error for a constraint in vLLM's `field` that no answer keeps, under the client's name for it."""
    name = call.field_names.get(field, field)
    return BadRequest(f"{name}: this schema, expression or grammar {reason}", param=name)


CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that disconnected; logged, never sent."""

_USABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")


def headers_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """The headers by lower-case name. Different values of one header are joined (RFC 9110, 5.3), so that of two keys
    neither is valid: a proxy in front may have checked the other one. The same value twice is one."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name not in headers:
            headers[name] = value
        elif headers[name] != value:
            headers[name] = f"{headers[name]}, {value}"
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


def check_length(body: Mapping[str, Any], limit: int) -> None:
    """Raises BadRequest if a conversation has more than `limit` messages, or a batch more inputs.

    A list of token ids is one input: `max_json_values` bounds it.
    """
    for name in _LISTS:
        if name not in body or not isinstance(items := body[name], list) or len(items) <= limit:
            continue
        if not all(type(item) is int for item in items):
            raise BadRequest(f"{name}: has {len(items)} items, at most {limit} are allowed", param=name)


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


_LISTS = ("messages", "input", "prompt", "queries", "documents")
