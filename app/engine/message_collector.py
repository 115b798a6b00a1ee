"""Collects a stream of vLLM's `/v1/messages` into the body of the whole message.

Contract: vLLM 0.29, `entrypoints/anthropic`; and as Anthropic's SDKs collect a message: the `input` of a call that was
cut short has its complete part.
"""

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json, to_json

from app.engine.stream_collector import StreamCollector
from app.sse import Event

_DELTAS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""A delta's type and its only field."""


class MessageCollector(StreamCollector):
    """Collects one message's stream."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__({**body, "stream": True})
        self._message: dict[str, Any] = {}
        self._blocks: list[dict[str, Any]] = []
        self._texts: list[dict[str, list[str]]] = []

    def _is_last(self, event: Event) -> bool:
        return event.type == "message_stop"

    def _add(self, chunk: dict[str, Any]) -> None:
        match chunk["type"]:
            case "message_start":
                self._message = chunk["message"]
            case "content_block_start":
                self._blocks.append(chunk["content_block"])
                self._texts.append({})
            case "content_block_delta":
                delta = chunk["delta"]
                name = _DELTAS[delta["type"]]
                self._texts[chunk["index"]].setdefault(name, []).append(delta[name])
            case "message_delta":
                usage = {**self._message["usage"], **(chunk.get("usage") or {})}
                self._message |= {**chunk["delta"], "usage": usage}

    def _body(self) -> bytes:
        content = [_block(block, texts) for block, texts in zip(self._blocks, self._texts, strict=True)]
        message = {**self._message, "content": content or [{"type": "text", "text": ""}]}
        if message["stop_reason"] is None:
            raise ValueError("the message has no stop reason")
        return to_json({name: value for name, value in message.items() if value is not None})


def _block(block: Mapping[str, Any], texts: Mapping[str, list[str]]) -> dict[str, Any]:
    """A content block with the texts of its deltas."""
    joined = {name: "".join(parts) for name, parts in texts.items()}
    if partial := joined.pop("partial_json", "").strip():
        joined["input"] = from_json(partial, allow_partial=True)
    return {name: value for name, value in {**block, **joined}.items() if value is not None}
