"""Reads a request before authentication and routing: its id, header size, body."""

import asyncio
import re
import uuid
from collections.abc import Mapping
from typing import Any

from app.config.schema import Config
from app.errors import BadRequest, HeadersTooLarge, TooLarge, TooSlow
from app.exchange.deadlines import ClientDisconnected, Receive
from app.exchange.response import REQUEST_ID_HEADER

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that disconnected; logged, never sent."""

_USABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")


def headers_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """The headers by lower-case name. Repeated headers are joined (RFC 9110, 5.3), so that of two keys neither is
    valid: a proxy in front may have checked the other one."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def check_headers(scope: Mapping[str, Any], limit: int) -> None:
    """Raises HeadersTooLarge above `limit` bytes."""
    if sum(len(name) + len(value) for name, value in scope["headers"]) > limit:
        raise HeadersTooLarge(f"The headers are larger than {limit} bytes")


async def read_body(receive: Receive, config: Config) -> bytes:
    """The whole body. Raises TooLarge, TooSlow, and ClientDisconnected."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(config.timeouts.body_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                part = message.get("body", b"")
                size += len(part)
                if size > config.max_body_bytes:
                    raise TooLarge(f"The body is larger than {config.max_body_bytes} bytes")
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise TooSlow(f"The request body did not arrive within {config.timeouts.body_s:g} s") from None


def request_id(headers: Mapping[str, str]) -> str:
    """The client's own id if it is safe in a header and a log line, else a new one."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return given if _USABLE_ID.fullmatch(given) else uuid.uuid4().hex


def check_length(body: Mapping[str, Any], limit: int) -> None:
    """Raises BadRequest if a conversation has more than `limit` messages, or a batch more inputs.

    A list of token ids is one input: its length is the engine's to check.
    """
    for name in ("messages", "input", "prompt"):
        items = body.get(name)
        if isinstance(items, list) and len(items) > limit and not all(type(item) is int for item in items):
            raise BadRequest(f"{name}: has {len(items)} items, at most {limit} are allowed", param=name)
