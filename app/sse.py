"""Server-sent events, without I/O.

Two readers: `Framer` cuts a byte stream at event boundaries and never looks inside, which keeps the pass-through path
cheap; `Decoder` returns the events' fields, for dialects that change them.

Contract: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation, of which we
emit the subset that every client reads: UTF-8, LF only, one `data:` line with one space.
"""

from collections.abc import Iterator
from typing import NamedTuple

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


class Framer:
    """Passes on whole frames only, with LF line ends: a broken upstream never leaves half a frame on the wire.

    `feed` returns the bytes up to the last frame boundary seen so far, and keeps the rest. A chunk that ends on a
    boundary, the usual case, is returned as it came, without a copy. `pending` is the part of an incomplete frame that
    has arrived.
    """

    def __init__(self) -> None:
        self.pending = b""

    def feed(self, chunk: bytes) -> bytes:
        if self.pending:
            chunk = self.pending + chunk
            self.pending = b""
        if _CR in chunk:
            # JSON holds no raw CR, so every one is a line end. One at the very end may be half of CRLF.
            held = chunk.endswith(b"\r")
            chunk = chunk[:-1] if held else chunk
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            self.pending = b"\r" if held else b""
        if not self.pending and chunk.endswith(_BOUNDARY):
            return chunk
        cut = chunk.rfind(_BOUNDARY)
        if cut < 0:
            self.pending = chunk + self.pending
            return b""
        self.pending = chunk[cut + 2 :] + self.pending
        return chunk[: cut + 2]


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

        Raises UnicodeDecodeError on bytes that are not UTF-8.
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
