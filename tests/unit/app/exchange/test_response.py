"""Responses over ASGI."""

import asyncio
from typing import Any

from app.dialects.base import Reply
from app.exchange.response import ResponseWriter
from app.telemetry.logs import Record


def test_a_long_response_is_sent_in_parts_with_its_length() -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    body = bytes(range(256)) * 4096
    writer = ResponseWriter(send, Record("openai", "chat", "id"))
    asyncio.run(writer.send_long(Reply(body), [b"head", memoryview(body)]))
    start, *parts = sent
    assert (b"content-length", str(4 + len(body)).encode()) in start["headers"]
    assert b"".join(part["body"] for part in parts) == b"head" + body
    assert max(len(part["body"]) for part in parts) < len(body) / 2
    assert [part.get("more_body", False) for part in parts] == [True] * (len(parts) - 1) + [False]
    assert writer.finished
