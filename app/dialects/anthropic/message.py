"""Messages, whole and in streams, where vLLM's differ from Anthropic's.

vLLM returns `end_turn` where `tool_choice` names the tool, leaves out counts of cached tokens that it does not know and
`stop_sequence`, and sends no `ping`. Contract: Anthropic's Messages API, "Handling stop reasons" and "Streaming
messages".
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from app.dialects.common.passthrough import PassthroughStream, StreamFormat
from app.dialects.json_body import dump
from app.sse import encode

_EDITED = re.compile(rb"^event: message_(?:start|delta)$", re.MULTILINE)
_TOOL_USE = re.compile(rb'"content_block": ?\{[^{]*"type": ?"tool_use"')
_PING = encode(b'{"type":"ping"}', type="ping")
_NO_STOP: Mapping[str, Any] = {"stop_reason": None, "stop_sequence": None}
"""Members that Anthropic's messages always have; vLLM leaves them out where they are null."""

_CACHE_COUNTS = ("cache_creation_input_tokens", "cache_read_input_tokens")


def whole_message(answer: bytes, *, manages_context: bool) -> bytes:
    """vLLM's message as Anthropic's; `manages_context`: the request has `context_management`."""
    message = _NO_STOP | from_json(answer)
    called = any(block["type"] == "tool_use" for block in message["content"])
    if called and message["stop_reason"] == "end_turn":
        message["stop_reason"] = "tool_use"
    return dump(_completed(message, manages_context=manages_context))


class MessageStream(PassthroughStream):
    """A `Stream` that edits a message's first and last event, and passes the others."""

    def __init__(self, format: StreamFormat, *, with_tools: bool, manages_context: bool, pings: bool) -> None:
        super().__init__(format)
        self._with_tools, self._manages_context, self._pings = with_tools, manages_context, pings
        self._called = False

    def _passes(self, frames: bytes) -> bool:
        if self._with_tools and not self._called and _TOOL_USE.search(frames):
            self._called = True
        return super()._passes(frames) and not _EDITED.search(frames)

    def _frame(self, frame: bytes) -> bytes:
        if not _EDITED.match(frame):
            return frame
        event = from_json(frame.partition(b"\ndata: ")[2])
        if event["type"] == "message_start":
            event["message"] = _completed(_NO_STOP | event["message"], manages_context=False)
            return encode(dump(event), type="message_start") + (_PING if self._pings else b"")
        event["delta"] = _NO_STOP | event["delta"]
        if self._called and event["delta"].get("stop_reason") == "end_turn":
            event["delta"]["stop_reason"] = "tool_use"
        return encode(dump(_completed(event, manages_context=self._manages_context)), type="message_delta")


def _completed(value: dict[str, Any], *, manages_context: bool) -> dict[str, Any]:
    """A message or its last event, with every count and the list of applied edits, which is always empty."""
    if usage := value.get("usage"):
        value["usage"] = usage | {name: usage.get(name) or 0 for name in _CACHE_COUNTS}
    return {**value, "context_management": {"applied_edits": []}} if manages_context else value
