"""Whether an answer has the form that its request asked for: JSON, or the call of a tool.

It is parsed as a client would parse it, and not checked against the schema: that is the engine's part, and an answer
that was cut short does not even parse. Contract: vLLM 0.29's routes, as in `output`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from pydantic_core import from_json

from app.engine.forced_calls import forces_a_call
from app.sse import Decoder

_FIELDS = frozenset({"response_format", "structured_outputs", "text", "output_config", "tool_choice"})


class Promise(Enum):
    """What a request asks its answer to be."""

    JSON = auto()
    CALL = auto()


def promised(body: Mapping[str, Any]) -> Promise | None:
    """What vLLM's request `body` asks for; None for most requests."""
    if _FIELDS.isdisjoint(body):
        return None
    if forces_a_call(body):
        return Promise.CALL
    kinds = (_at(body, "response_format", "type"), _at(body, "text", "format", "type"))
    if any(kind in ("json_schema", "json_object") for kind in kinds):
        return Promise.JSON
    schemas = (_at(body, "structured_outputs", "json"), _at(body, "output_config", "format", "schema"))
    return Promise.JSON if any(schema is not None for schema in schemas) else None


def is_kept(promise: Promise, answer: bytes, *, stream: bool) -> bool:
    """Whether a whole answer of the engine's, or a stream that has ended, keeps the promise."""
    try:
        output = _streamed(answer) if stream else _whole(from_json(answer))
        texts, calls = list(output.texts.values()), list(output.calls.values())
        for text in (*calls, *([] if promise is Promise.CALL else texts)):
            from_json(text or "{}")
    except (AttributeError, LookupError, TypeError, ValueError):
        return False
    return bool(calls) or (promise is Promise.JSON and any(text.strip() for text in texts))


@dataclass(slots=True)
class _Output:
    """The texts and the arguments of calls of an answer, under any keys that tell them apart."""

    texts: defaultdict[Any, str] = field(default_factory=lambda: defaultdict(str))
    calls: defaultdict[Any, str] = field(default_factory=lambda: defaultdict(str))

    def add_message(self, message: Mapping[str, Any], key: Any) -> None:
        """A chat's message, or a delta of it."""
        self.texts[key] += message.get("content") or ""
        for number, call in enumerate(message.get("tool_calls") or ()):
            self.calls[key, call.get("index", number)] += call["function"].get("arguments") or ""


def _whole(answer: Mapping[str, Any]) -> _Output:
    output = _Output()
    for number, choice in enumerate(answer.get("choices", ())):
        output.add_message(choice.get("message") or {"content": choice["text"]}, number)
    for number, block in enumerate(answer.get("content", ())):  # a message of Anthropic's
        if block["type"] == "tool_use":
            output.calls[number] = "{}"  # parsed by the engine
        elif block["type"] == "text":
            output.texts[number] = block["text"]
    for number, item in enumerate(answer.get("output", ())):  # a response
        if item["type"] == "function_call":
            output.calls[number] = item["arguments"]
        elif item["type"] == "message":
            output.texts[number] = "".join(part.get("text") or "" for part in item["content"])
    return output


def _streamed(answer: bytes) -> _Output:
    output = _Output()
    for event in _events(answer):
        if event.get("type") == "response.completed":
            return _whole(event["response"])
        for choice in event.get("choices", ()):
            output.add_message(choice.get("delta") or {"content": choice.get("text")}, choice["index"])
        if event.get("type") == "content_block_start" and event["content_block"]["type"] == "tool_use":
            output.calls[event["index"]] += ""
        elif event.get("type") == "content_block_delta":
            delta = event["delta"]
            output.texts[event["index"]] += delta.get("text", "")
            if "partial_json" in delta:
                output.calls[event["index"]] += delta["partial_json"]
    return output


def _events(stream: bytes) -> Iterator[dict[str, Any]]:
    for event in Decoder().feed(stream):
        if event.data != "[DONE]":
            yield from_json(event.data)


def _at(value: Any, *path: str) -> Any:
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value
