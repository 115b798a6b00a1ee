"""Responses over ASGI."""

import asyncio
from typing import Any

from app.dialects.base import Reply
from app.exchange.response import ResponseWriter
from app.telemetry.logs import Record, Sent


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


def test_tokens_sent_are_told_from_events_before_the_first_text_whenever_somebody_asks() -> None:
    async def send(message: dict[str, Any]) -> None:
        pass

    async def run(pieces: list[bytes], *, ask: bool) -> list[Sent]:
        writer = ResponseWriter(send, Record("openai", "chat", "id", streamed=True))
        asked = []
        for piece in pieces:
            await writer.send_chunk(piece)
            if ask:
                asked.append(writer.sent())
        return [*asked, writer.sent()]

    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    text = b'data: {"choices":[{"delta":{"content":"Hel"}}]}\n\n'
    whole = b'data: {"choices":[{"text":"' + b"long" * 2000 + b'"}]}\n\n'
    start, opened = (b'event: %b\ndata: {"type":"%b"}\n\n' % (name, name) for name in (b"message_start", b"ping"))
    delta = b'data: {"type":"content_block_delta","delta":{"text":"Hel"}}\n\n'
    for pieces in ([start + opened, delta, delta + delta], [start, opened, opened, opened, delta, delta, delta]):
        assert asyncio.run(run(pieces, ask=False)) == [Sent(None, 3)]
    for pieces in ([role, text, text, role], [role + text, text, role], [role, whole, text, text]):
        assert asyncio.run(run(pieces, ask=False)) == [Sent(None, 3)]
    assert [sent.events for sent in asyncio.run(run([role, text, text], ask=True))] == [0, 1, 2, 2]
