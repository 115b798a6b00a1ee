"""Response objects, whole and in streams, where vLLM's differ from OpenAI's.

vLLM leaves out `error` and `store`, has null for a default `text`, calls every item `completed`, renames the items in a
stream's last event, and ends every stream with `response.completed`. Contract: OpenAI's API reference, Responses.
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from app.dialects.base import Request
from app.dialects.common.passthrough import PassthroughStream, StreamFormat
from app.dialects.common.single_tool_call import SingleCallFilter, with_single_call
from app.dialects.common.streamed_items import StreamedItems
from app.dialects.json_body import dump
from app.errors import SwitchyardError
from app.sse import encode

_EDITED = re.compile(rb"^event: response\.(?:created|in_progress|completed|output_item\.(?:added|done))$", re.MULTILINE)
_TEXT = {"format": {"type": "text"}}


def whole_response(response: dict[str, Any], *, single_tool_call: bool) -> dict[str, Any]:
    """vLLM's response object as OpenAI's; `single_tool_call`: without function calls after the first."""
    output = with_single_call(response["output"]) if single_tool_call else response["output"]
    if response["status"] == "incomplete":
        output = [*output[:-1], *({**item, "status": "incomplete"} for item in output[-1:])]
    return {**response, "error": None, "store": False, "text": response.get("text") or _TEXT, "output": output}


def failed_stream(request: Request, error: Mapping[str, Any]) -> bytes:
    """The events of a response that fails before its first item, as OpenAI streams one whose input is too long: clients
    look for its error's code there, not in a status."""
    fields = from_json(request.body)
    response = {
        "id": f"resp_{request.id}",
        "object": "response",
        "created_at": request.received_at,
        "model": fields.get("model", ""),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": fields.get("instructions"),
        "metadata": fields.get("metadata") or {},
        "output": [],
        "parallel_tool_calls": fields.get("parallel_tool_calls", True),
        "store": False,
        "temperature": fields.get("temperature"),
        "text": fields.get("text") or _TEXT,
        "tool_choice": fields.get("tool_choice") or "auto",
        "tools": fields.get("tools") or [],
        "top_p": fields.get("top_p"),
        "usage": None,
    }
    failed = {**response, "status": "failed", "error": {"code": error["code"], "message": error["message"]}}
    events = {"response.created": response, "response.in_progress": response, "response.failed": failed}
    return b"".join(
        encode(dump({"type": kind, "sequence_number": number, "response": state}), type=kind)
        for number, (kind, state) in enumerate(events.items())
    )


class ResponseStream(PassthroughStream):
    """A `Stream` that edits the few events that hold a response object or a finished item, and passes the others.

    The last item's `response.output_item.done` waits for the next event: only that one shows whether the item was cut
    off.
    """

    def __init__(self, format: StreamFormat, *, single_tool_call: bool) -> None:
        super().__init__(format)
        self._one_call = SingleCallFilter() if single_tool_call else None
        self._items = StreamedItems()
        self._done: bytes = b""

    def _passes(self, frames: bytes) -> bool:
        unedited = self._one_call is None and not self._done and not _EDITED.search(frames)
        return super()._passes(frames) and unedited

    def _failed(self, error: SwitchyardError) -> bytes:
        return self._done + super()._failed(error)

    def _frame(self, frame: bytes) -> bytes:
        if self._one_call is not None and self._one_call.drops(frame):
            return b""
        done, self._done = self._done, b""
        if not _EDITED.match(frame):
            return done + frame
        head, _, data = frame.partition(b"\ndata: ")
        name, event = head.removeprefix(b"event: ").decode(), from_json(data)
        if "item" in event:
            self._items.note(event)
            if name == "response.output_item.added":
                return done + frame
            self._done = frame
            self.check.forget()
            return done
        return self._response(name, event, done)

    def _response(self, name: str, event: dict[str, Any], done: bytes) -> bytes:
        streamed = {**event["response"], "output": self._items.output(event["response"])}
        response = whole_response(streamed, single_tool_call=self._one_call is not None)
        if response["status"] == "incomplete":
            name, done = "response.incomplete", _cut(done)
        return done + encode(dump({**event, "type": name, "response": response}), type=name)


def _cut(done: bytes) -> bytes:
    """An event `response.output_item.done` whose item is incomplete."""
    if not done:
        return b""
    event = from_json(done.partition(b"\ndata: ")[2])
    return encode(dump({**event, "item": {**event["item"], "status": "incomplete"}}), type=event["type"])
