"""The content of vLLM's answers: texts, tool calls, vectors. Reasoning is not part of it.

Contract: vLLM 0.29's routes, as in `output`.
"""

import base64
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from app.sse import Decoder

MALFORMED = (AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that reading a malformed answer raises."""


class ToolCall(NamedTuple):
    """A tool call; the arguments are JSON, as far as the model wrote it."""

    name: str
    arguments: str


@dataclass(slots=True)
class Content:
    """The texts of an answer, and its tool calls, under any keys that distinguish them."""

    texts: defaultdict[Any, str] = field(default_factory=lambda: defaultdict(str))
    names: defaultdict[Any, str] = field(default_factory=lambda: defaultdict(str))
    arguments: defaultdict[Any, str] = field(default_factory=lambda: defaultdict(str))

    @property
    def calls(self) -> list[ToolCall]:
        """The tool calls, by choice and number."""
        return [ToolCall(self.names[key], arguments) for key, arguments in sorted(self.arguments.items())]

    def add_message(self, message: Mapping[str, Any], key: Any) -> None:
        """A chat's message, or a delta of it."""
        self.texts[key] += message.get("content") or ""
        for number, call in enumerate(message.get("tool_calls") or ()):
            of_call = key, call.get("index", number)
            self.names[of_call] += call["function"].get("name") or ""
            self.arguments[of_call] += call["function"].get("arguments") or ""

    def add_call(self, key: Any, name: str, arguments: str) -> None:
        """A whole call, or the beginning of one."""
        self.names[key] += name
        self.arguments[key] += arguments


def content_of(answer: bytes, *, stream: bool) -> Content:
    """The content of a whole answer, or of a stream that has ended. Raises `MALFORMED`."""
    return _streamed(answer) if stream else _whole(from_json(answer))


def vectors_of(answer: bytes) -> list[Sequence[float]]:
    """The vectors of an answer to an embeddings request; of a partial answer, those that are complete. Raises
    `MALFORMED`.
    """
    found: list[Sequence[float]] = []
    for item in from_json(answer, allow_partial=True).get("data", ()):
        if (value := item.get("embedding")) is None:  # cut off
            break
        vector = array("f", base64.b64decode(value, validate=True)) if isinstance(value, str) else array("d", value)
        if found and len(vector) != len(found[0]):
            break
        found.append(vector)
    return found


def _whole(answer: Mapping[str, Any]) -> Content:
    content = Content()
    for number, choice in enumerate(answer.get("choices", ())):
        content.add_message(choice.get("message") or {"content": choice["text"]}, number)
    for number, block in enumerate(answer.get("content", ())):  # a message of Anthropic's
        if block["type"] == "tool_use":
            content.add_call(number, block.get("name") or "", to_json(block.get("input") or {}).decode())
        elif block["type"] == "text":
            content.texts[number] = block["text"]
    for number, item in enumerate(answer.get("output", ())):  # a response
        if item["type"] == "function_call":
            content.add_call(number, item.get("name") or "", item["arguments"])
        elif item["type"] == "message":
            content.texts[number] = "".join(part.get("text") or "" for part in item["content"])
    return content


def _streamed(answer: bytes) -> Content:
    content = Content()
    for event in _events(answer):
        if event.get("type") == "response.completed":
            return _whole(event["response"])
        for choice in event.get("choices", ()):
            content.add_message(choice.get("delta") or {"content": choice.get("text")}, choice["index"])
        if event.get("type") == "content_block_start" and event["content_block"]["type"] == "tool_use":
            content.add_call(event["index"], event["content_block"].get("name") or "", "")
        elif event.get("type") == "content_block_delta":
            delta = event["delta"]
            content.texts[event["index"]] += delta.get("text", "")
            if "partial_json" in delta:
                content.arguments[event["index"]] += delta["partial_json"]
    return content


def _events(stream: bytes) -> Iterator[dict[str, Any]]:
    for event in Decoder().feed(stream):
        if event.data != "[DONE]":
            yield from_json(event.data)
