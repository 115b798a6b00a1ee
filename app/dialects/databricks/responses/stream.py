"""Streams of Responses events: vLLM's, with Databricks' response objects and the right last event.

vLLM ends every stream with `response.completed`, renames the items in it, and has no event for a failure.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import from_json

from app.dialects.common.frame_stream import FrameStream
from app.dialects.common.single_tool_call import SingleCallFilter
from app.dialects.common.streamed_items import StreamedItems
from app.dialects.databricks.errors import error_body
from app.dialects.json_body import dump
from app.engine.usage import find_usage
from app.errors import SwitchyardError
from app.sse import encode

_INTERESTING = re.compile(
    rb'^event: response\.(?:created|in_progress|completed|output_item\.(?:added|done))$|"error"|^:', re.M
)
Reword = Callable[[dict[str, Any]], dict[str, Any]]


class ResponseStream(FrameStream):
    """A `Stream` that translates the few events with a response object, and passes the others.

    `reword` translates a response object. `one_call`: the events of every function call after the first are left out.
    """

    def __init__(self, reword: Reword, *, request_id: str, one_call: bool) -> None:
        super().__init__(self._failed_event, "/v1/responses")
        self._reword = reword
        self._request_id = request_id
        self._one_call = SingleCallFilter() if one_call else None
        self._response: dict[str, Any] = {}
        self._items = StreamedItems()
        self._events = 0

    def feed(self, chunk: bytes) -> bytes:
        frames = super().feed(chunk)
        self._events += frames.count(b"\n\n")
        return frames

    def _passes(self, frames: bytes) -> bool:
        return self._one_call is None and not _INTERESTING.search(frames)

    def _failed_event(self, error: SwitchyardError) -> bytes:
        body = error_body(error, request_id=self._request_id)
        # OpenAI's SDK has its own set of codes.
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        described = {"code": code, "message": body["message"], "param": error.param, "type": body["error_code"]}
        if not self._response:
            return self._event("error", {**described, "type": "error"})
        failed = {**self._response, "status": "failed", "error": described}
        return self._event("response.failed", {"response": failed})

    def _event(self, name: str, fields: Mapping[str, Any]) -> bytes:
        return encode(dump({**fields, "type": name, "sequence_number": self._events}), type=name)

    def _frame(self, frame: bytes) -> bytes:
        if self._one_call is not None and self._one_call.drops(frame):
            return b""
        if not _INTERESTING.match(frame):
            return frame
        head, _, data = frame.partition(b"\ndata: ")
        name, event = head.removeprefix(b"event: ").decode(), from_json(data)
        if "item" in event:
            self._items.note(event)
            return frame
        if name == "response.completed":
            self.usage = find_usage(frame)
        return self._response_event(name, event)

    def _response_event(self, name: str, event: dict[str, Any]) -> bytes:
        response = {**event["response"], "output": self._items.output(event["response"])}
        last = name == "response.completed"
        if response["status"] == "incomplete":
            name = "response.incomplete"
        self._response = self._reword(response)
        self._ended = last
        return encode(dump({**event, "type": name, "response": self._response}), type=name)
