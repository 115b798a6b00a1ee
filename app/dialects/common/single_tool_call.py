"""`parallel_tool_calls` false, on Responses: vLLM tells it back and may call several functions all the same.

The calls after the first are left out here: of a whole answer, and of a stream.
"""

import re
from typing import Any

from pydantic_core import from_json

from app.dialects.json_body import dump
from app.errors import Broken

_INDEX = re.compile(rb'"output_index": ?(\d+)')
_CALL = re.compile(rb'"type": ?"function_call"')
_LAST = re.compile(rb"event: response\.(?:completed|incomplete|failed)\n")


def with_one_call(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A response's output without its function calls after the first."""
    calls = [index for index, item in enumerate(output) if item["type"] == "function_call"]
    return [item for index, item in enumerate(output) if index not in calls[1:]]


def answer_with_one_call(body: bytes) -> bytes:
    """A whole response, which has one function call at most. Raises Broken where it is none."""
    try:
        response = from_json(body)
        response["output"] = with_one_call(response["output"])
    except (ValueError, KeyError, TypeError) as error:
        raise Broken("The deployment's answer makes no sense") from error
    return dump(response)


class OneCall:
    """Follows one stream, frame by frame."""

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
        """What is left of a frame: all of it, nothing, or the whole response with one call. Raises Broken."""
        if self.leaves_out(frame):
            return b""
        if not _LAST.match(frame):
            return frame
        head, mark, data = frame.partition(b"\ndata: ")
        try:
            event = from_json(data)
            event["response"]["output"] = with_one_call(event["response"]["output"])
        except (ValueError, KeyError, TypeError) as error:
            raise Broken("The deployment's answer makes no sense") from error
        return head + mark + dump(event) + b"\n\n"
