"""Streams of Responses events: vLLM's, with the response objects in Databricks' words and the right end.

vLLM ends every stream with `response.completed`, names items anew in its last event, and has no event for a failure.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import from_json

from app.dialects.common.single_tool_call import OneCall
from app.dialects.common.terminating import TerminatingStream, error_in
from app.dialects.databricks.errors import error_reply
from app.dialects.json_body import dump
from app.engine.usage import Usage, find_usage
from app.errors import Broken, SwitchyardError
from app.sse import Framer, encode, split

_INTERESTING = re.compile(rb'^event: response\.(?:created|in_progress|completed|output_item\.added)$|"error"|^:', re.M)
Reword = Callable[[dict[str, Any]], dict[str, Any]]


class ResponseStream(TerminatingStream):
    """A `Stream` that takes apart the few events that hold a response object, and passes the others.

    `words` rewords a response object. `one_call`: the events of every function call after the first are left out.
    """

    def __init__(self, words: Reword, *, request_id: str, one_call: bool) -> None:
        super().__init__(self._failure)
        self._words = words
        self._request_id = request_id
        self._one_call = OneCall() if one_call else None
        self._framer = Framer()
        self._response: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._events = 0
        self.usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        frames = self._framer.feed(chunk)
        if not frames or self._ended:
            return b""
        if self._one_call is None and not _INTERESTING.search(frames):
            self._events += frames.count(b"\ndata: ")
            return frames
        return b"".join(self._next(frame) for frame in split(frames))

    def _failure(self, error: SwitchyardError) -> bytes:
        told = from_json(error_reply(error, request_id=self._request_id).body)
        # OpenAI's SDK knows codes of its own.
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        described = {"code": code, "message": told["message"], "param": error.param, "type": told["error_code"]}
        if not self._response:
            return self._event("error", {**described, "type": "error"})
        failed = {**self._response, "status": "failed", "error": described}
        return self._event("response.failed", {"response": failed})

    def _event(self, name: str, fields: Mapping[str, Any]) -> bytes:
        return encode(dump({**fields, "type": name, "sequence_number": self._events}), type=name)

    def _next(self, frame: bytes) -> bytes:
        if self._ended:
            return b""
        try:
            return self._frame(frame)
        except SwitchyardError as error:
            return self.fail(error)

    def _frame(self, frame: bytes) -> bytes:
        if error := error_in(frame):
            raise error
        if self._one_call is not None and self._one_call.leaves_out(frame):
            return b""
        self._events += 1
        head, _, data = frame.partition(b"\ndata: ")
        name = head.removeprefix(b"event: ").decode()
        if not _INTERESTING.match(frame):
            return frame
        try:
            event = from_json(data)
            if name == "response.output_item.added":
                self._items[event["output_index"]] = event["item"]
                return frame
            if name == "response.completed":
                self.usage = find_usage(frame)
            return self._told(name, event)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Broken("The deployment's answer makes no sense") from error

    def _told(self, name: str, event: dict[str, Any]) -> bytes:
        response, last = event["response"], name == "response.completed"
        for index, item in enumerate(response["output"]):
            if (told := self._items.get(index)) is not None and told["type"] == item["type"]:
                item["id"] = told["id"]
        if response["status"] == "incomplete":
            name = "response.incomplete"
        self._response = self._words(response)
        self._ended = last
        return encode(dump({**event, "type": name, "response": self._response}), type=name)
