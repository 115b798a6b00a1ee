"""Streams of OpenAI's chunks with the usage on the last chunk that has a choice.

Some clients lose the usage of a chunk without choices, or fail on that chunk.
"""

import re
from collections.abc import Callable
from typing import Any

from pydantic_core import from_json

from app.dialects.common.frame_stream import FrameStream
from app.dialects.common.passthrough import NO_CHOICES
from app.dialects.common.terminating import ErrorFrames
from app.dialects.json_body import dump
from app.engine.usage import find_usage
from app.errors import SwitchyardError
from app.sse import DONE, encode, has_comment

_FINISHED = re.compile(rb'"finish_reason": ?"')
_DATA = b"data: "


def read_chunk(frame: bytes) -> dict[str, Any]:
    """The JSON object in a frame. Raises ValueError if there is none."""
    chunk = from_json(frame.removeprefix(_DATA))
    if not isinstance(chunk, dict):
        raise ValueError("a chunk must be a JSON object")
    return chunk


class LastChoiceUsageStream(FrameStream):
    """A `Stream` that holds back finished choices until the usage arrives.

    `path`: of the engine's stream. `error_frames` None: the format has no error events, and a failure breaks the
    connection. `counts` rewords the usage object. `apart`: the client asked for the usage, and gets it in
    a separate chunk.
    """

    def __init__(
        self,
        path: str,
        error_frames: ErrorFrames | None = None,
        *,
        counts: Callable[[dict[str, Any]], dict[str, Any]] = dict,
        apart: bool = False,
    ) -> None:
        super().__init__(error_frames, path)
        self._counts = counts
        self._apart = apart
        self._held: list[bytes] = []

    def _failed(self, error: SwitchyardError) -> bytes:
        return b"" if self.aborts else self._release() + super()._failed(error)

    def _passes(self, frames: bytes) -> bool:
        if self._held or _FINISHED.search(frames) or frames.find(b'"error"') >= 0 or frames.endswith(DONE):
            return False
        return not NO_CHOICES.search(frames) and not has_comment(frames)

    def _frame(self, frame: bytes) -> bytes:
        if frame == DONE:
            self._ended = True
            return self._release() + DONE
        if NO_CHOICES.search(frame):
            self.usage = find_usage(frame) or self.usage
            return self._release(frame)
        return self._choice(frame)

    def _choice(self, frame: bytes) -> bytes:
        """The frames that the client gets now for a frame with a choice."""
        if _FINISHED.search(frame):
            held, self._held = self._held, [frame]
            return b"".join(held)
        return frame

    def _release(self, usage_frame: bytes | None = None) -> bytes:
        held, self._held = self._held, []
        if usage_frame is None:
            return b"".join(held)
        chunk = read_chunk(usage_frame)
        if "usage" not in chunk:
            return b"".join(held)
        usage = self._counts(chunk["usage"])
        if self._apart:
            return b"".join(held) + encode(dump({**chunk, "usage": usage}))
        return encode(dump({**read_chunk(held[0]), "usage": usage})) if held else b""
