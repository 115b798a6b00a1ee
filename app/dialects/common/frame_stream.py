"""Streams that are translated frame by frame."""

from abc import ABC, abstractmethod

from app.dialects.base import MALFORMED_ANSWER_ERRORS
from app.dialects.common.terminating import ErrorFrames, TerminatingStream
from app.engine.answers import EventCheck
from app.engine.errors import MALFORMED_RESPONSE, error_in
from app.engine.usage import Usage
from app.errors import MalformedAnswer, SwitchyardError
from app.sse import Framer, split


class FrameStream(TerminatingStream, ABC):
    """A `Stream` that translates each SSE frame with `_frame`, except where whole chunks pass unchanged.

    The engine's error event ends it, and so does a frame that is no event, or on which `_frame` fails: with any
    SwitchyardError, or any of MALFORMED_ANSWER_ERRORS. The frames before it, of the same chunk too, are kept, and those
    after the last event are dropped.
    """

    check: EventCheck

    def __init__(self, error_frames: ErrorFrames | None, path: str) -> None:
        """`path`: of the engine's stream, see `EventCheck`."""
        super().__init__(error_frames)
        self.check = EventCheck(path)
        self._framer = Framer()
        self.usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        if self._ended or self.failure is not None:
            return b""
        # Only frames that pass are learned. A chunk that repeats one is a whole frame.
        if not self._framer.pending and self.check.repeats(chunk):
            return chunk
        frames = self._framer.feed(chunk)
        if not frames or self.check.repeats(frames):
            return frames
        return self._translated(frames)

    def _translated(self, frames: bytes) -> bytes:
        if self._passes(frames) and self.check.valid(frames):
            self.check.learn(frames)
            return frames
        return b"".join(map(self._next, split(frames)))

    def _next(self, frame: bytes) -> bytes:
        if self._ended or self.check.ended or self.failure is not None:
            return b""
        try:
            if (error := error_in(frame)) is not None:
                raise error
            if self.check.valid(frame) or self.check.valid(frame := self.check.own(frame)):
                return self._frame(frame)
        except SwitchyardError as error:
            self.failure = error
            return b""
        except MALFORMED_ANSWER_ERRORS:
            pass
        self.failure = MalformedAnswer(MALFORMED_RESPONSE)
        return b""

    def _passes(self, frames: bytes) -> bool:
        """Whether these whole frames need no translation. Those that repeat them need none, until `check.forget`."""
        return False

    @abstractmethod
    def _frame(self, frame: bytes) -> bytes:
        """The client's frames for one frame; sets `_ended` with the last one."""
