"""Framing: whole frames only, in any chunking."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.long_json import MOST_VALUES
from app.sse import MOST_EVENT, MOST_LINES, Decoder, Event, Framer, TooLong, encode, has_comment

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
    assert framer.is_between


@given(st.lists(st.integers(0, 2 * len(STREAM)), max_size=12))
def test_the_framer_turns_crlf_into_lf_in_any_chunking(points: list[int]) -> None:
    framer = Framer()
    data = STREAM.replace(b"\n", b"\r\n")
    assert b"".join(framer.feed(part) for part in cut(data, [min(p, len(data)) for p in points])) == STREAM


def test_the_framer_keeps_half_a_frame() -> None:
    framer = Framer()
    assert framer.feed(b"data: 1\n\ndata: 2") == b"data: 1\n\n"
    assert not framer.is_between
    assert framer.feed(b"\n") == b""
    assert framer.feed(b"\n") == b"data: 2\n\n"
    assert framer.is_between


@pytest.mark.parametrize(
    ("piece", "most"), [(b"a", MOST_EVENT), (b"data: a\n", 8 * MOST_LINES), (b"[],", 3 * MOST_VALUES // 9)]
)
def test_an_event_that_is_too_long_for_the_event_loop_is_refused_while_it_comes(piece: bytes, most: int) -> None:
    size = 16_000 // len(piece) * len(piece)

    def fed(total: int) -> bytes:
        framer, data = Framer(), piece * (total // len(piece)) + b"\n\n"
        return b"".join(framer.feed(data[at : at + size]) for at in range(0, len(data), size))

    assert len(fed(most - size)) > most - 2 * size
    with pytest.raises(TooLong):
        fed(most + 2 * size)


@given(st.lists(st.sampled_from([b"\n", b"\r", b"a", b"data: 1\n"]), max_size=40), st.lists(st.integers(0, 80)))
def test_what_is_passed_on_does_not_depend_on_the_chunks(parts: list[bytes], points: list[int]) -> None:
    data, framer = b"".join(parts), Framer()
    passed = b"".join(framer.feed(part) for part in cut(data, [min(point, len(data)) for point in points]))
    whole = data.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert passed == whole[: whole.rfind(b"\n\n") + 2] if b"\n\n" in whole else passed == b""


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
