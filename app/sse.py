"""Server-sent events, without I/O.

Two readers: `Framer` cuts a byte stream at event boundaries and never looks inside, which keeps the pass-through path
cheap; `Decoder` returns the events' fields, for dialects that change them.

Contract: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation, of which we
emit the subset that every client reads: UTF-8, LF only, one `data:` line with one space.
"""

from collections.abc import Iterator
from typing import NamedTuple

from app.long_json import MOST_VALUES, weight

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which readers ignore."""
_CR = 0x0D
_BOUNDARY = b"\n\n"


class Event(NamedTuple):
    """One event: its data lines joined with LF, and its type where the stream named one."""

    data: str
    type: str | None = None


def encode(data: str | bytes, *, type: str | None = None) -> bytes:
    """One event as bytes. `data` is a single line (JSON without raw line feeds)."""
    payload = data.encode() if isinstance(data, str) else data
    head = b"event: %b\n" % type.encode() if type else b""
    return b"%bdata: %b\n\n" % (head, payload)


def has_comment(frames: bytes) -> bool:
    """Whether whole frames hold a comment line. The first search is for what nearly every chunk is: one line.

    `find` where others write `in`, here and wherever each chunk is searched: to find bytes in bytes, `in` first takes
    them for a number, and drops the TypeError, which costs four times the search.
    """
    return frames.startswith(b":") or (frames.find(b"\n") < len(frames) - 2 and frames.find(b"\n:") >= 0)


def split(frames: bytes) -> Iterator[bytes]:
    """The frames in whole frames, without their comment lines: some clients' parsers break on those."""
    with_comments = frames.startswith(b":") or frames.find(b"\n:") >= 0
    for frame in frames.split(b"\n\n"):
        if with_comments:
            frame = b"\n".join(line for line in frame.split(b"\n") if not line.startswith(b":"))
        if frame:
            yield frame + b"\n\n"


MOST_EVENT = 4 * 1024 * 1024
"""Bytes of one event. All that is done with an event is done at once, while the event loop serves nobody else."""

MOST_LINES = 4096
"""Lines of one event that comes in several chunks. The engines' own events have two."""


_SHORT_EVENT = 64 * 1024


class TooLong(ValueError):
    """An event of more than `MOST_EVENT` bytes, `MOST_LINES`, or `MOST_VALUES`."""


class Framer:
    """Passes on whole frames only, with LF line ends: a broken upstream never leaves half a frame on the wire.

    `feed` returns the bytes up to the last frame boundary seen so far, and keeps the rest. A chunk that ends on a
    boundary, the usual case, is returned as it came, without a copy. `is_between`: nothing is kept.
    """

    def __init__(self) -> None:
        self.is_between = True
        self._parts: list[bytes] = []
        self._size = self._lines = 0
        self._has_cr = False

    def feed(self, chunk: bytes) -> bytes:
        """Raises TooLong."""
        if self._has_cr or _CR in chunk:
            chunk = self._normalised(chunk)
        if self.is_between and chunk.endswith(_BOUNDARY):
            return chunk
        if not chunk:
            self.is_between = not (self._parts or self._has_cr)
            return b""
        if (cut := chunk.rfind(_BOUNDARY) + 2) == 1:
            # The boundary may lie between two chunks.
            cut = 1 if chunk.startswith(b"\n") and self._parts and self._parts[-1].endswith(b"\n") else 0
        frames = b"".join([*self._parts, chunk[:cut]]) if cut else b""
        if cut:
            if self._size > _SHORT_EVENT and weight(frames) > MOST_VALUES:
                raise TooLong(f"an event has more than {MOST_VALUES} values")
            self._parts, chunk = [], chunk[cut:]
            self._size = self._lines = 0
        if chunk:
            self._parts.append(chunk)
            self._size += len(chunk)
            self._lines += chunk.count(b"\n")
            if self._size > MOST_EVENT or self._lines > MOST_LINES:
                raise TooLong(f"an event has more than {MOST_EVENT} bytes or {MOST_LINES} lines")
        self.is_between = not (self._parts or self._has_cr)
        return frames

    def _normalised(self, chunk: bytes) -> bytes:
        """With LF for every line end. JSON holds no raw CR, so every one is a line end, or half of CRLF at the end."""
        if self._has_cr:
            chunk = b"\r" + chunk
        self._has_cr = chunk.endswith(b"\r")
        chunk = chunk[:-1] if self._has_cr else chunk
        self.is_between = self.is_between and not self._has_cr
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def datas(frames: bytes) -> list[bytes]:
    """The data of each event in whole frames."""
    if frames.startswith(b"data: ") and frames.count(b"\n") == 2:  # one event, nearly always
        return [frames[6:-2]]
    return [data for frame in frames.split(_BOUNDARY) if (data := _fields(frame)[0]) is not None]


class Decoder:
    """Bytes in any chunking to events. A frame without data (a comment, a keep-alive) is no event."""

    def __init__(self) -> None:
        self._framer = Framer()

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes.

        Raises UnicodeDecodeError on bytes that are not UTF-8, and TooLong.
        """
        events = map(_fields, self._framer.feed(chunk).split(_BOUNDARY))
        return [
            Event(data.decode(), None if type is None else type.decode()) for data, type in events if data is not None
        ]


def _fields(frame: bytes) -> tuple[bytes | None, bytes | None]:
    """The data and the type of a frame, as far as it has them."""
    data: list[bytes] = []
    type = None
    for line in frame.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            type = value
    return (b"\n".join(data) if data else None), type
