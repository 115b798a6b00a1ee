"""Streams that are translated frame by frame.

- Ends streams exactly once: complete, or with the format's error frames.
- The pass-through stream: the engine's events already have the client's format.
- Streams of OpenAI's chunks with the usage on the last chunk that has a choice.
- Streams of one event per token.
- The output items of one stream of Responses events.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from app.dialects.base import MALFORMED_ANSWER_ERRORS
from app.dialects.bodies import dump
from app.engine.answers import EventCheck
from app.engine.errors import ENDED_EARLY, MALFORMED_RESPONSE, error_in
from app.engine.output import Usage, find_usage
from app.engine.tokens import Step, TokenStream
from app.errors import Incomplete, MalformedAnswer, SwitchyardError
from app.sse import DONE, KEEP_ALIVE, Framer, encode, has_comment, split

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

    @property
    def has_ended(self) -> bool:
        return self._ended

    @property
    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

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
        if self._framer.is_between and self.check.repeats(chunk):
            return chunk
        frames = self._framer.feed(chunk)
        if not frames or (frames is not chunk and self.check.repeats(frames)):
            return frames
        return self._translated(frames)

    def _translated(self, frames: bytes) -> bytes:
        if self._passes(frames) and self.check.valid(frames):
            if not self.check.ended:
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


# Chunks are forwarded as they came, once `EventCheck` has found valid events, and no comments, in them: some clients'
# parsers fail on those. They are split into frames if a substring search finds an error event (it is reworded), and
# always if the frames are edited. A usage chunk that the client did not ask for (the router does, to count tokens) is
# cut out.

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
        return _without_usage(translated) if self._hide_usage else translated

    def _passes(self, frames: bytes) -> bool:
        if frames.find(b'"usage":') >= 0:
            self._count(frames)
        return self._edit is None and frames.find(b'"error"') < 0

    def _count(self, frames: bytes) -> None:
        usage, before = find_usage(frames), self.usage
        if usage is None or before is None:
            self.usage = usage or before
        else:  # Anthropic reports the prompt's tokens first and the completion's last
            self.usage = Usage(
                max(before.prompt_tokens, usage.prompt_tokens),
                max(before.completion_tokens, usage.completion_tokens),
            )

    def _frame(self, frame: bytes) -> bytes:
        return frame if self._edit is None else self._edit(frame)


def _without_usage(frames: bytes) -> bytes:
    """Whole frames without those that have a usage and no choice."""
    if frames.find(b'"usage":') < 0:  # nearly always
        return frames
    kept, at = b"", 0
    while (found := NO_CHOICES.search(frames, at)) is not None:
        before = frames.rfind(b"\n\n", at, found.start())
        start, end = before + 2 if before >= 0 else at, frames.index(b"\n\n", found.end()) + 2
        kept, at = kept + frames[at : start if _USAGE.search(frames, start, end) else end], end
    return kept + frames[at:]


# Some clients lose the usage of a chunk without choices, or fail on that chunk.

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

    @property
    def keep_alive(self) -> bytes:
        """Azure's SDK and MLflow's client fail on comments: the last event, without its text."""
        return self.check.without_text()

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


# vLLM parses the answer again for the stream's last event: items get new ids there, and a forced call that
# `max_output_tokens` cut short becomes text in the model's markup. The items as they were streamed are right.
# Contract: vLLM 0.29, `entrypoints/openai/responses`.


class StreamedItems:
    """The items in `response.output_item.added` and `response.output_item.done`, by output index."""

    def __init__(self) -> None:
        self._added: dict[int, Mapping[str, Any]] = {}
        self._done: dict[int, Mapping[str, Any]] = {}

    def note(self, event: Mapping[str, Any]) -> None:
        """Takes one of the two events."""
        items = self._added if event["type"] == "response.output_item.added" else self._done
        items[event["output_index"]] = event["item"]

    def output(self, response: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The output of a response object, with the ids and, if it was cut short, the kinds of the streamed items."""
        output: list[dict[str, Any]] = response["output"]
        if response["status"] == "incomplete" and self._added.keys() == self._done.keys():
            done = [dict(self._done[index]) for index in sorted(self._done)]
            if _kinds(done) != _kinds(output):
                return done
        return [self._with_ids(index, item) for index, item in enumerate(output)]

    def _with_ids(self, index: int, item: dict[str, Any]) -> dict[str, Any]:
        streamed = self._added.get(index)
        if streamed is None or streamed["type"] != item["type"]:
            return item
        return {**item, **{key: streamed[key] for key in ("id", "call_id") if key in streamed}}


def _kinds(items: list[dict[str, Any]]) -> list[str]:
    return [item["type"] for item in items]
