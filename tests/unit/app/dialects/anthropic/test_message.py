"""Messages, whole and in streams, in Anthropic's form."""

import json
from typing import Any

import pytest

from app.dialects.anthropic.dialect import MessageStream, stream_format, whole_message

TEXT = {"type": "text", "text": '"type": "tool_use"'}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"stop_reason": "end_turn"}}
COUNTS = {"input_tokens": 9, "output_tokens": 1}
CASES = [
    ([CALL], "end_turn", "tool_use"),
    ([TEXT, CALL], "end_turn", "tool_use"),
    ([TEXT], "end_turn", "end_turn"),
    ([CALL], "max_tokens", "max_tokens"),
    ([CALL], "tool_use", "tool_use"),
]


def frame(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()


def events(frames: bytes) -> list[dict[str, Any]]:
    return [json.loads(it.partition(b"\ndata: ")[2]) for it in frames.split(b"\n\n") if it]


def whole(content: list[dict[str, Any]], reason: str, usage: dict[str, Any], *, manages_context: bool) -> Any:
    message = {"content": content, "stop_reason": reason, "usage": usage}
    return json.loads(whole_message(json.dumps(message).encode(), manages_context=manages_context))


def streamed(
    content: list[dict[str, Any]], reason: str, usage: dict[str, Any], *, manages_context: bool, pings: bool = False
) -> Any:
    """The events of a stream, in one chunk and byte by byte."""
    start = {"type": "message_start", "message": {"content": [], "stop_reason": None, "usage": usage}}
    blocks = [{"type": "content_block_start", "index": n, "content_block": block} for n, block in enumerate(content)]
    end = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}
    sent: list[dict[str, Any]] = [start, *blocks, end, {"type": "message_stop"}]
    data = b"".join(map(frame, sent))

    def through(chunks: list[bytes]) -> list[dict[str, Any]]:
        stream = MessageStream(stream_format("r"), with_tools=True, manages_context=manages_context, pings=pings)
        return events(b"".join([*map(stream.feed, chunks), stream.close()]))

    at_once = through([data])
    assert through([data[n : n + 1] for n in range(len(data))]) == at_once
    return at_once


@pytest.mark.parametrize(("content", "reason", "expected"), CASES)
def test_an_answer_that_calls_a_tool_stops_with_tool_use(
    content: list[dict[str, Any]], reason: str, expected: str
) -> None:
    message = whole(content, reason, COUNTS, manages_context=False)
    assert (message["content"], message["stop_reason"]) == (content, expected)
    *_, end, _ = streamed(content, reason, COUNTS, manages_context=False)
    assert end["delta"]["stop_reason"] == expected


@pytest.mark.parametrize(
    ("usage", "created", "read"),
    [
        (COUNTS, 0, 0),
        ({**COUNTS, "cache_creation_input_tokens": None, "cache_read_input_tokens": None}, 0, 0),
        ({**COUNTS, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 5}, 3, 5),
    ],
)
def test_every_usage_counts_what_was_cached(usage: dict[str, Any], created: int, read: int) -> None:
    expected = {**COUNTS, "cache_creation_input_tokens": created, "cache_read_input_tokens": read}
    assert whole([TEXT], "end_turn", usage, manages_context=False)["usage"] == expected
    found = streamed([TEXT], "end_turn", usage, manages_context=False)
    assert [it["usage"] for it in (found[0]["message"], found[-2])] == [expected, expected]


@pytest.mark.parametrize(("sent", "expected"), [({}, None), ({"stop_sequence": "a"}, "a")])
def test_every_message_has_a_stop_sequence_or_null(sent: dict[str, Any], expected: str | None) -> None:
    message = {"content": [TEXT], "stop_reason": "end_turn", "usage": COUNTS, **sent}
    assert json.loads(whole_message(json.dumps(message).encode(), manages_context=False))["stop_sequence"] == expected
    stream = MessageStream(stream_format("r"), with_tools=False, manages_context=False, pings=False)
    start = {"type": "message_start", "message": {"content": [], "usage": COUNTS}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn", **sent}, "usage": COUNTS}
    begun, ended = events(stream.feed(frame(start) + frame(end)))
    assert (begun["message"]["stop_reason"], begun["message"]["stop_sequence"]) == (None, None)
    assert ended["delta"] == {"stop_reason": "end_turn", "stop_sequence": expected}


def test_a_stream_has_a_ping_after_its_start_if_the_client_knows_pings() -> None:
    kinds = [it["type"] for it in streamed([TEXT], "end_turn", COUNTS, manages_context=False, pings=True)]
    assert kinds == ["message_start", "ping", "content_block_start", "message_delta", "message_stop"]


@pytest.mark.parametrize("asked", [True, False])
def test_an_answer_says_that_no_edit_of_the_context_was_applied_if_edits_were_asked_for(asked: bool) -> None:
    expected: dict[str, Any] | None = {"applied_edits": []} if asked else None
    assert whole([TEXT], "end_turn", COUNTS, manages_context=asked).get("context_management") == expected
    start, *_, end, _ = streamed([TEXT], "end_turn", COUNTS, manages_context=asked)
    assert end.get("context_management") == expected
    assert "context_management" not in start["message"]
