"""`stop_reason` of answers that call a tool: vLLM returns `end_turn` where `tool_choice` names the tool.

Contract: Anthropic's Messages API, "Handling stop reasons": `tool_use` if the model calls a tool.
"""

import re

from pydantic_core import from_json

from app.dialects.json_body import dump

_TOOL_USE = re.compile(rb'"content_block": ?\{[^{]*"type": ?"tool_use"')
_END_TURN = re.compile(rb'("stop_reason": ?)"end_turn"')


def answer_with_tool_use(answer: bytes) -> bytes:
    """A whole message that stops with `tool_use` if it calls a tool."""
    if not _END_TURN.search(answer):
        return answer
    message = from_json(answer)
    if message["stop_reason"] != "end_turn" or all(block["type"] != "tool_use" for block in message["content"]):
        return answer
    return dump({**message, "stop_reason": "tool_use"})


class ToolUse:
    """The same for the frames of one stream."""

    def __init__(self) -> None:
        self._called = False

    def frame(self, frame: bytes) -> bytes:
        """The client's form of a frame."""
        if frame.startswith(b"event: content_block_start\n"):
            self._called = self._called or _TOOL_USE.search(frame) is not None
        if self._called and frame.startswith(b"event: message_delta\n"):
            return _END_TURN.sub(rb'\1"tool_use"', frame)
        return frame
