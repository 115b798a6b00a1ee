"""Framing: whole frames only, in any chunking."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.sse import Decoder, Event, Framer, encode, has_comment

STREAM = (
    b': keep-alive\n\ndata: {"a":1}\n\nevent: message\ndata: {"b":"\xc3\xa9\xf0\x9f\x98\x80"}\n\n'
    b"data: first\ndata: second\n\nid: 7\ndata:no space\n\ndata: [DONE]\n\n"
)
EVENTS = [
    Event('{"a":1}'),
    Event('{"b":"é😀"}', "message"),
    Event("first\nsecond"),
    Event("no space"),
    Event("[DONE]"),
]


def cut(data: bytes, points: list[int]) -> list[bytes]:
    edges = [0, *sorted(points), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


chunkings = st.lists(st.integers(0, len(STREAM)), max_size=12)


@given(chunkings)
def test_any_chunking_decodes_to_the_same_events(points: list[int]) -> None:
    decoder = Decoder()
    assert [event for part in cut(STREAM, points) for event in decoder.feed(part)] == EVENTS


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_decodes_to_the_same_events(line_end: bytes) -> None:
    decoder = Decoder()
    data = STREAM.replace(b"\n", line_end) + b"\n"
    assert [event for byte in data for event in decoder.feed(bytes([byte]))] == EVENTS


@given(chunkings)
def test_the_framer_passes_on_every_byte_at_frame_boundaries(points: list[int]) -> None:
    framer = Framer()
    passed = [framer.feed(part) for part in cut(STREAM, points)]
    assert b"".join(passed) == STREAM
    assert all(not part or part.endswith(b"\n\n") for part in passed)
    assert framer.pending == b""


@given(st.lists(st.integers(0, 2 * len(STREAM)), max_size=12))
def test_the_framer_turns_crlf_into_lf_in_any_chunking(points: list[int]) -> None:
    framer = Framer()
    data = STREAM.replace(b"\n", b"\r\n")
    assert b"".join(framer.feed(part) for part in cut(data, [min(p, len(data)) for p in points])) == STREAM


def test_the_framer_keeps_half_a_frame() -> None:
    framer = Framer()
    assert framer.feed(b"data: 1\n\ndata: 2") == b"data: 1\n\n"
    assert framer.pending == b"data: 2"
    assert framer.feed(b"\n") == b""
    assert framer.feed(b"\n") == b"data: 2\n\n"


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (b"", False),
        (b"data: 1\n\n", False),
        (b"event: a\ndata: :1\n\n", False),
        (b": ping\n\n", True),
        (b"data: 1\n\n: ping\n\n", True),
        (b"data: 1\n: ping\n\n", True),
    ],
)
def test_comments_are_found_wherever_a_line_begins(frames: bytes, expected: bool) -> None:
    assert has_comment(frames) is expected


def test_encoded_events_decode_to_themselves() -> None:
    decoder = Decoder()
    data = encode('{"x":"é"}') + encode(b"{}", type="response.created")
    assert decoder.feed(data) == [Event('{"x":"é"}'), Event("{}", "response.created")]


def test_bytes_that_are_not_utf8_are_rejected() -> None:
    with pytest.raises(UnicodeDecodeError):
        Decoder().feed(b"data: \xff\n\n")
