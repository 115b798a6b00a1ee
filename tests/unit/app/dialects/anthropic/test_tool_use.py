"""The stop reason of answers that call a tool."""

import json
from typing import Any

import pytest

from app.dialects.anthropic.tool_use import ToolUse, answer_with_tool_use

TEXT = {"type": "text", "text": '"type": "tool_use"'}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"stop_reason": "end_turn"}}


@pytest.mark.parametrize(
    ("content", "reason", "expected"),
    [
        ([CALL], "end_turn", "tool_use"),
        ([TEXT, CALL], "end_turn", "tool_use"),
        ([TEXT], "end_turn", "end_turn"),
        ([CALL], "max_tokens", "max_tokens"),
        ([CALL], "tool_use", "tool_use"),
    ],
)
def test_a_message_that_calls_a_tool_stops_with_tool_use(
    content: list[dict[str, Any]], reason: str, expected: str
) -> None:
    message = {"content": content, "stop_reason": reason}
    assert json.loads(answer_with_tool_use(json.dumps(message).encode())) == {**message, "stop_reason": expected}


def frame(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()


@pytest.mark.parametrize(
    ("block", "reason", "expected"),
    [(CALL, "end_turn", "tool_use"), (TEXT, "end_turn", "end_turn"), (CALL, "max_tokens", "max_tokens")],
)
def test_a_stream_that_calls_a_tool_stops_with_tool_use(block: dict[str, Any], reason: str, expected: str) -> None:
    edit = ToolUse().frame
    start = frame({"type": "content_block_start", "index": 0, "content_block": block})
    assert edit(start) == start
    end = edit(frame({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 1}}))
    assert end == frame({"type": "message_delta", "delta": {"stop_reason": expected}, "usage": {"output_tokens": 1}})
