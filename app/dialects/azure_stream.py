"""Azure's streams: OpenAI's chunks, with the usage on the last chunk that has a choice, and no error events.

LangChain's Azure class loses a usage that comes in a chunk without choices; the SDK skips an `error` object in
silence, so a stream that fails must break the connection instead.
"""

import re
from collections.abc import Mapping

from pydantic_core import from_json

from app.dialects.base import dump
from app.dialects.relay import NO_CHOICES
from app.engine import Usage, engine_error, find_usage
from app.errors import Broken, SwitchyardError
from app.sse import DONE, Framer, encode

_FINISHED = re.compile(rb'"finish_reason": ?"')
_ERROR = re.compile(rb'^data: ?(\{"error".*)$', re.MULTILINE)


class UsageOnTheLastChoice:
    """A `Stream` that holds back finished choices until it knows the usage."""

    def __init__(self) -> None:
        self._framer = Framer()
        self._held: list[bytes] = []
        self._ended = False
        self.usage: Usage | None = None
        self.aborts = True
        self.headers: Mapping[str, str] = {}

    def feed(self, chunk: bytes) -> bytes:
        frames = self._framer.feed(chunk)
        if not frames or self._ended:
            return b""
        plain = not self._held and not _FINISHED.search(frames) and b'"error"' not in frames
        if plain and not frames.endswith(DONE) and not NO_CHOICES.search(frames):
            return frames
        return b"".join(self._frame(frame + b"\n\n") for frame in frames.split(b"\n\n") if frame)

    def close(self) -> bytes:
        if not self._ended:
            raise Broken("The deployment ended its answer before it was complete")
        return b""

    def fail(self, error: SwitchyardError) -> bytes:
        self._ended = True
        return b""

    def _frame(self, frame: bytes) -> bytes:
        if self._ended:
            return b""
        if error := _ERROR.match(frame):
            raise engine_error(error[1], status=500)
        if frame == DONE:
            self._ended = True
            return self._release() + DONE
        if NO_CHOICES.search(frame):
            self.usage = find_usage(frame) or self.usage
            return self._release(frame)
        if _FINISHED.search(frame):
            held, self._held = self._held, [frame]
            return b"".join(held)
        return frame

    def _release(self, usage_frame: bytes | None = None) -> bytes:
        held, self._held = self._held, []
        if not held or usage_frame is None:
            return b"".join(held)
        last = from_json(held[0].removeprefix(b"data: "))
        return encode(dump({**last, "usage": from_json(usage_frame.removeprefix(b"data: "))["usage"]}))
