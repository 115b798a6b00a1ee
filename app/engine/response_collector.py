"""Collects a stream of vLLM's `/v1/responses` into the whole response object.

Contract: vLLM 0.29, `entrypoints/openai/responses`. The last event holds the response, in which a call that was cut
short is text; the items of the stream hold the call as far as it got, once its name is complete.
"""

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json, to_json

from app.engine.stream_collector import StreamCollector
from app.sse import Event


class ResponseCollector(StreamCollector):
    """Collects one response's stream."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__({**body, "stream": True})
        self._response: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}

    def _is_last(self, event: Event) -> bool:
        if event.type != "response.completed":
            return False
        self._response = from_json(event.data)["response"]
        return True

    def _add(self, chunk: dict[str, Any]) -> None:
        if chunk["type"] == "response.output_item.done":
            self._items[chunk["output_index"]] = chunk["item"]

    def _body(self) -> bytes:
        if self._response["status"] == "incomplete":
            return to_json({**self._response, "output": [self._items[index] for index in sorted(self._items)]})
        return to_json(self._response)
