"""`parallel_tool_calls` false, for Responses: vLLM repeats the field in its answer and may call several functions.

The calls after the first are removed here, from whole answers and from streams.
"""

import re
from typing import Any

from pydantic_core import from_json

from app.dialects.json_body import dump

_INDEX = re.compile(rb'"output_index": ?(\d+)')
_CALL = re.compile(rb'"type": ?"function_call"')
_LAST = re.compile(rb"event: response\.(?:completed|incomplete|failed)\n")


def with_one_call(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A response's output without its function calls after the first."""
    calls = [index for index, item in enumerate(output) if item["type"] == "function_call"]
    return [item for index, item in enumerate(output) if index not in calls[1:]]


def answer_with_one_call(answer: bytes) -> bytes:
    """A whole response with at most one function call."""
    response = from_json(answer)
    response["output"] = with_one_call(response["output"])
    return dump(response)


class OneCall:
    """Filters the frames of one stream."""

    def __init__(self) -> None:
        self._calls: list[int] = []

    def leaves_out(self, frame: bytes) -> bool:
        """Whether a frame is about a function call after the first."""
        if (found := _INDEX.search(frame)) is None:
            return False
        index = int(found[1])
        if _CALL.search(frame) and index not in self._calls:
            self._calls.append(index)
        return index in self._calls[1:]

    def frame(self, frame: bytes) -> bytes:
        """What the client gets for a frame: the frame, nothing, or the last event with at most one call."""
        if self.leaves_out(frame):
            return b""
        if not _LAST.match(frame):
            return frame
        head, separator, data = frame.partition(b"\ndata: ")
        event = from_json(data)
        event["response"]["output"] = with_one_call(event["response"]["output"])
        return head + separator + dump(event) + b"\n\n"
