"""Streams of one event per token."""

from abc import ABC, abstractmethod

from app.dialects.common.terminating import ErrorFrames, TerminatingStream
from app.engine.tokens import Step, TokenStream
from app.engine.usage import Usage


class TokenEvents(TerminatingStream, ABC):
    """A `Stream` that renders each of `tokens` as an event."""

    def __init__(self, tokens: TokenStream, error_frames: ErrorFrames | None) -> None:
        super().__init__(error_frames)
        self._tokens = tokens

    @property
    def usage(self) -> Usage | None:
        return self._tokens.usage

    def feed(self, chunk: bytes) -> bytes:
        if self._ended:
            return b""
        events = b"".join(map(self._event, self._tokens.feed(chunk)))
        self.failure = None if self._ended else self._tokens.error
        return events

    @abstractmethod
    def _event(self, step: Step) -> bytes:
        """The frames for one step; sets `_ended` with the last one."""
