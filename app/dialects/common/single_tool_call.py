"""`parallel_tool_calls` false, for Responses: vLLM repeats the field in its answer and may call several functions.

The calls after the first are removed here, from whole answers and from streams.
"""

import re
from typing import Any

_INDEX = re.compile(rb'"output_index": ?(\d+)')
_CALL = re.compile(rb'"type": ?"function_call"')


def with_single_call(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A response's output without its function calls after the first."""
    calls = [index for index, item in enumerate(output) if item["type"] == "function_call"]
    return [item for index, item in enumerate(output) if index not in calls[1:]]


class SingleCallFilter:
    """Finds the frames of one stream to leave out."""

    def __init__(self) -> None:
        self._calls: list[int] = []

    def drops(self, frame: bytes) -> bool:
        """Whether a frame is about a function call after the first."""
        if (found := _INDEX.search(frame)) is None:
            return False
        index = int(found[1])
        if _CALL.search(frame) and index not in self._calls:
            self._calls.append(index)
        return index in self._calls[1:]
