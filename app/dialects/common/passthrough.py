"""The pass-through stream: the engine's events already have the client's format.

Chunks are forwarded as they came, once `EventCheck` has found valid events in them. A chunk is split into frames only
if a substring search finds one of three things: an error event (it is reworded), a usage chunk that the client did not
ask for (the router asks for it, to count tokens), or a comment (some clients' parsers fail on these); and always if the
frames are edited.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from app.dialects.common.frame_stream import FrameStream
from app.dialects.common.terminating import ErrorFrames
from app.engine.usage import Usage, find_usage
from app.sse import has_comment

NO_CHOICES = re.compile(rb'"choices": ?\[\]')
_USAGE = re.compile(rb'"usage": ?\{')


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """The streams of an engine's `path`, see `EventCheck`, and the frames of a failure in them."""

    path: str
    error_frames: ErrorFrames


class PassthroughStream(FrameStream):
    """A `Stream` that forwards the engine's frames.

    `hide_usage`: the client did not ask for the usage chunk. `edit` rewrites each frame.
    """

    def __init__(
        self, format: StreamFormat, *, hide_usage: bool = False, edit: Callable[[bytes], bytes] | None = None
    ) -> None:
        super().__init__(format.error_frames, format.path)
        self._hide_usage = hide_usage
        self._edit = edit

    def _translated(self, frames: bytes) -> bytes:
        translated = super()._translated(frames)
        self._ended = self._ended or self.check.ended
        return translated

    def _passes(self, frames: bytes) -> bool:
        if with_usage := frames.find(b'"usage":') >= 0:
            self._count(frames)
        return not (
            self._edit is not None
            or frames.find(b'"error"') >= 0
            or (with_usage and self._hide_usage and NO_CHOICES.search(frames) is not None)
            or has_comment(frames)
        )

    def _count(self, frames: bytes) -> None:
        if usage := find_usage(frames):
            # Anthropic reports the prompt's tokens first and the completion's last.
            before = self.usage or usage
            self.usage = Usage(
                max(before.prompt_tokens, usage.prompt_tokens),
                max(before.completion_tokens, usage.completion_tokens),
            )

    def _frame(self, frame: bytes) -> bytes:
        if self._hide_usage and frame.find(b'"usage":') >= 0 and NO_CHOICES.search(frame) and _USAGE.search(frame):
            return b""
        return frame if self._edit is None else self._edit(frame)
