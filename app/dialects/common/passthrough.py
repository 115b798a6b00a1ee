"""The pass-through stream: the upstream's events are already the client's.

Whole chunks go on as they came. A chunk is taken apart only when it holds one of three things, found by a substring
search: an error event (the engine's words must become the dialect's), the usage chunk that the client did not ask for
(we did, to count tokens), or a comment (some clients' parsers break on those). Only where a request asks for what the
engine does not keep to, each frame is looked at (`edit`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from app.dialects.common.terminating import ErrorFrames, TerminatingStream, error_in
from app.engine.usage import Usage, find_usage
from app.errors import SwitchyardError
from app.sse import Framer, split

NO_CHOICES = re.compile(rb'"choices": ?\[\]')
_USAGE = re.compile(rb'"usage": ?\{')


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """How a stream ends in this format: what marks the last frame, and how a failure is told."""

    is_terminal: Callable[[bytes], bool]
    error_frames: ErrorFrames


class PassthroughStream(TerminatingStream):
    """A `Stream` that passes on what it gets. `hide_usage`: the client did not ask for the usage chunk.

    `edit` is what becomes of each frame; it raises SwitchyardError on nonsense.
    """

    def __init__(
        self, ending: StreamFormat, *, hide_usage: bool = False, edit: Callable[[bytes], bytes] | None = None
    ) -> None:
        super().__init__(ending.error_frames)
        self._is_terminal = ending.is_terminal
        self._hide_usage = hide_usage
        self._edit = edit
        self._framer = Framer()
        self.usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        if self._ended:
            return b""
        frames = self._framer.feed(chunk)
        if not frames:
            return b""
        if b'"usage":' in frames and (usage := find_usage(frames)):
            # Anthropic tells the prompt's count first and the completion's last.
            before = self.usage or usage
            self.usage = Usage(
                max(before.prompt_tokens, usage.prompt_tokens),
                max(before.completion_tokens, usage.completion_tokens),
            )
        if self._needs_a_look(frames):
            frames = b"".join(self._frame(frame) for frame in split(frames))
        self._ended = self._ended or self._is_terminal(frames)
        return frames

    def _needs_a_look(self, frames: bytes) -> bool:
        return (
            self._edit is not None
            or b'"error"' in frames
            or (self._hide_usage and NO_CHOICES.search(frames) is not None)
            or frames.startswith(b":")
            or b"\n:" in frames
        )

    def _frame(self, frame: bytes) -> bytes:
        if self._ended:
            return b""
        if self._hide_usage and NO_CHOICES.search(frame) and _USAGE.search(frame):
            return b""
        if error := error_in(frame):
            return self.fail(error)
        if self._edit is None:
            return frame
        try:
            return self._edit(frame)
        except SwitchyardError as nonsense:
            return self.fail(nonsense)
