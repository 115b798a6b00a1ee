"""Streams that are translated frame by frame."""

from abc import ABC, abstractmethod

from app.dialects.base import MALFORMED_ANSWER_ERRORS
from app.dialects.common.terminating import ErrorFrames, TerminatingStream
from app.engine.errors import MALFORMED_RESPONSE, error_in
from app.engine.usage import Usage
from app.errors import Broken, SwitchyardError
from app.sse import Framer, split


class FrameStream(TerminatingStream, ABC):
    """A `Stream` that translates each SSE frame with `_frame`, except where whole chunks pass unchanged.

    The engine's error event ends it, and so does a frame on which `_frame` fails: with any SwitchyardError, or any of
    MALFORMED_ANSWER_ERRORS. The frames before it, of the same chunk too, are kept.
    """

    def __init__(self, error_frames: ErrorFrames | None) -> None:
        super().__init__(error_frames)
        self._framer = Framer()
        self.usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        frames = self._framer.feed(chunk)
        if not frames or self._ended:
            return b""
        if self._passes(frames):
            return frames
        return b"".join(map(self._next, split(frames)))

    def _next(self, frame: bytes) -> bytes:
        if self._ended:
            return b""
        try:
            if error := error_in(frame):
                raise error
            return self._frame(frame)
        except SwitchyardError as error:
            return self._end(error)
        except MALFORMED_ANSWER_ERRORS:
            return self._end(Broken(MALFORMED_RESPONSE))

    def _end(self, error: SwitchyardError) -> bytes:
        if self.aborts:
            raise error
        return self.fail(error)

    def _passes(self, frames: bytes) -> bool:
        """Whether these whole frames need no translation."""
        return False

    @abstractmethod
    def _frame(self, frame: bytes) -> bytes:
        """The client's frames for one frame; sets `_ended` with the last one."""
