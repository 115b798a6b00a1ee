"""Ends streams exactly once: complete, or with the format's error frames."""

from collections.abc import Callable, Mapping

from app.engine.answers import EventCheck
from app.engine.errors import ENDED_EARLY
from app.errors import Incomplete, SwitchyardError

ErrorFrames = Callable[[SwitchyardError], bytes]


class TerminatingStream:
    """The end of a `Stream`. A subclass that has returned the last frame sets `_ended`.

    `error_frames` renders a failure. None: the format has no error events, and a failure breaks the connection
    (`aborts`).
    """

    check: EventCheck | None = None

    def __init__(self, error_frames: ErrorFrames | None) -> None:
        self._error_frames = error_frames
        self._ended = False
        self.failure: SwitchyardError | None = None
        self.aborts = error_frames is None
        self.headers: Mapping[str, str] = {}

    def close(self) -> bytes:
        if self._ended:
            return b""
        error = self.failure or Incomplete(ENDED_EARLY)
        if self.aborts:
            raise error
        return self.fail(error)

    def fail(self, error: SwitchyardError) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        return self._failed(error)

    def _failed(self, error: SwitchyardError) -> bytes:
        """The last frames of a stream that failed."""
        return b"" if self._error_frames is None else self._error_frames(error)
