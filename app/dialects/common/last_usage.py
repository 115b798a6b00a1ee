"""Streams of OpenAI's chunks with the usage on the last chunk that has a choice.

Some clients lose a usage that comes in a chunk without choices, or break on it.
"""

import re
from collections.abc import Callable
from typing import Any

from pydantic_core import from_json

from app.dialects.common.passthrough import NO_CHOICES
from app.dialects.common.terminating import ErrorFrames, TerminatingStream, error_in
from app.dialects.json_body import dump
from app.engine.usage import Usage, find_usage
from app.errors import Broken, SwitchyardError
from app.sse import DONE, Framer, encode, split

_FINISHED = re.compile(rb'"finish_reason": ?"')
_DATA = b"data: "


def read_chunk(frame: bytes) -> dict[str, Any]:
    """The JSON object in a frame. Raises Broken where there is none."""
    try:
        value = from_json(frame.removeprefix(_DATA))
    except ValueError as error:
        raise Broken("The deployment's answer makes no sense") from error
    if not isinstance(value, dict):
        raise Broken("The deployment's answer makes no sense")
    return value


class LastChoiceUsageStream(TerminatingStream):
    """A `Stream` that holds back finished choices until it knows the usage.

    `error_frames` tells a failure; without it the format has no words for one, and the connection must break. `counts`
    rewords the usage object. `apart`: the client asked for the usage in a chunk of its own, and gets it there.
    """

    def __init__(
        self,
        error_frames: ErrorFrames | None = None,
        *,
        counts: Callable[[dict[str, Any]], dict[str, Any]] = dict,
        apart: bool = False,
    ) -> None:
        super().__init__(error_frames)
        self._counts = counts
        self._apart = apart
        self._framer = Framer()
        self._held: list[bytes] = []
        self.usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        frames = self._framer.feed(chunk)
        if not frames or self._ended:
            return b""
        if self._passes(frames):
            return frames
        return b"".join(self._next(frame) for frame in split(frames))

    def _failed(self, error: SwitchyardError) -> bytes:
        return b"" if self.aborts else self._release() + super()._failed(error)

    def _passes(self, frames: bytes) -> bool:
        """Whether these frames go on as they are."""
        if self._held or _FINISHED.search(frames) or b'"error"' in frames or frames.endswith(DONE):
            return False
        return not NO_CHOICES.search(frames) and not frames.startswith(b":") and b"\n:" not in frames

    def _next(self, frame: bytes) -> bytes:
        if self._ended:
            return b""
        try:
            return self._frame(frame)
        except SwitchyardError as error:
            if self.aborts:
                raise
            return self.fail(error)

    def _frame(self, frame: bytes) -> bytes:
        if error := error_in(frame):
            raise error
        if frame == DONE:
            self._ended = True
            return self._release() + DONE
        if NO_CHOICES.search(frame):
            self.usage = find_usage(frame) or self.usage
            return self._release(frame)
        return self._choice(frame)

    def _choice(self, frame: bytes) -> bytes:
        """What leaves for a frame with a choice."""
        if _FINISHED.search(frame):
            held, self._held = self._held, [frame]
            return b"".join(held)
        return frame

    def _release(self, usage_frame: bytes | None = None) -> bytes:
        held, self._held = self._held, []
        if usage_frame is None:
            return b"".join(held)
        told = read_chunk(usage_frame)
        if "usage" not in told:
            return b"".join(held)
        usage = self._counts(told["usage"])
        if self._apart:
            return b"".join(held) + encode(dump({**told, "usage": usage}))
        return encode(dump({**read_chunk(held[0]), "usage": usage})) if held else b""
