"""The seam of a stream that outlives its engine: what the client sees, wherever the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import Incomplete, UpstreamError
from app.exchange.stream import DeliveredStream
from app.internal_api import CONTINUATION_HEADER
from app.upstream.client import EngineLost
from tests.support.engine.marked import FAILED, Group, grouped, rest
from tests.unit.app.dialects.test_laws import BREAKING, CONVERSATIONS, Conversation, open_stream

MARKED = {CONTINUATION_HEADER: "marked"}
STREAMS = [conversation for conversation in (*CONVERSATIONS, *BREAKING) if b"\r" not in conversation.upstream]
each = pytest.mark.parametrize("conversation", STREAMS, ids=lambda conversation: conversation.name)
fractions = st.lists(st.floats(0, 1), max_size=6)


def wire(groups: list[Group]) -> bytes:
    return b"".join(group.marked for group in groups)


def fed(continuation: DeliveredStream, data: bytes, points: list[float]) -> bytes:
    """What the continuation passes on of an engine's bytes, cut at these points."""
    edges = sorted({0, len(data), *(int(point * len(data)) for point in points)})
    return b"".join(continuation.feed(data[start:end]) for start, end in pairwise(edges))


def successor(continuation: DeliveredStream, groups: list[Group]) -> list[Group]:
    """What the next engine sends, by the request that it gets."""
    asked = continuation.headers()[CONTINUATION_HEADER]
    continuation.begin(MARKED)
    return groups if asked == "new" else rest(groups, int(asked))


@each
def test_a_stream_cut_at_any_byte_goes_on_as_if_nothing_had_happened(conversation: Conversation) -> None:
    groups = grouped(conversation.upstream)
    whole = wire(groups)
    for cut in range(len(whole) + 1):
        continuation = DeliveredStream()
        continuation.begin(MARKED)
        passed = fed(continuation, whole[:cut], [0.5])
        if not passed.endswith(groups[-1].events):
            passed += fed(continuation, wire(successor(continuation, groups)), [])
        assert continuation.end() == b""
        assert passed == conversation.upstream
        assert list(continuation.tokens) == [id for group in groups for id in group.ids]


@each
@given(cuts=st.lists(st.floats(0, 0.99), max_size=4), points=fractions)
def test_any_number_of_engines_and_any_chunking_give_the_client_the_same(
    conversation: Conversation, cuts: list[float], points: list[float]
) -> None:
    groups, stream, continuation = grouped(conversation.upstream), open_stream(conversation), DeliveredStream()
    sent = b""
    for cut in (*cuts, 1):
        data = wire(successor(continuation, groups))
        passed = fed(continuation, data[: int(cut * len(data))], points)
        assert b":t " not in passed
        sent += stream.feed(passed)
    assert sent + stream.close() == conversation.client
    assert stream.usage == conversation.usage


def test_tokens_without_events_are_a_sign_of_life() -> None:
    signs: list[int] = []
    continuation = DeliveredStream()
    continuation.silent = lambda: signs.append(len(continuation.tokens))
    continuation.begin(MARKED)
    parts = [b"data: a\n\n:t 1\n\n", b":t 2\n\n", b":t 3,4\n\n", b":t \n\n", b"data: b", b"\n\n:t 5\n\n"]
    assert b"".join(map(continuation.feed, parts)) == b"data: a\n\ndata: b\n\n"
    assert signs == [2, 4]


def test_the_first_call_asks_for_marks_and_the_next_has_the_ids() -> None:
    continuation = DeliveredStream()
    assert (continuation.headers(), continuation.tail()) == ({CONTINUATION_HEADER: "new"}, b"")
    continuation.begin(MARKED)
    assert continuation.feed(b"data: head\n\n:t \n\n") == b"data: head\n\n"
    assert (continuation.headers(), continuation.tail()) == ({CONTINUATION_HEADER: "0"}, b"")
    assert (
        continuation.feed(b"data: a\n\n:t 5\n\ndata: b\n\n:t 70000,6\n\n:t 7\n\ndata: c\n\n")
        == b"data: a\n\ndata: b\n\n"
    )
    assert continuation.headers() == {CONTINUATION_HEADER: "4"}
    assert continuation.tail() == b"\5\0\0\0\x70\x11\1\0\6\0\0\0\7\0\0\0"


def test_a_stream_that_no_engine_has_begun_is_asked_for_anew() -> None:
    continuation = DeliveredStream()
    continuation.begin(MARKED)
    assert continuation.feed(b"data: he") == b""
    assert continuation.headers() == {CONTINUATION_HEADER: "new"}


def test_a_stream_of_an_engine_that_does_not_mark_passes_as_it_is() -> None:
    continuation = DeliveredStream()
    continuation.begin({})
    assert not continuation.is_marked
    assert continuation.feed(b"data: a") == b"data: a"


def test_the_successors_time_is_the_first_engines() -> None:
    continuation = DeliveredStream()
    continuation.begin(MARKED)
    first = b'data: {"created":11,"text":"\\"created\\":5"}\n\n'
    assert continuation.feed(first + b":t 5\n\n") == first
    continuation.begin(MARKED)
    assert continuation.feed(first.replace(b"11", b"99") + b":t 6\n\n:t 7\n\n") == first


def failure(continuation: DeliveredStream) -> UpstreamError | None:
    with pytest.raises(EngineLost) as lost:
        continuation.end()
    return lost.value.failure


def begun() -> DeliveredStream:
    continuation = DeliveredStream()
    continuation.begin(MARKED)
    assert continuation.feed(b"data: a\n\n:t 5\n\n") == b"data: a\n\n"
    return continuation


@pytest.mark.parametrize("mark", [b":t \n\n", b""])
def test_the_error_of_a_dying_engine_is_a_death_and_does_not_pass(mark: bytes) -> None:
    continuation = begun()
    assert continuation.feed(FAILED + mark) == b""
    assert type(failure(continuation)) is Incomplete


def test_half_a_group_at_the_end_is_a_death() -> None:
    continuation = begun()
    assert continuation.feed(b"data: b\n\n") == b""
    assert type(failure(continuation)) is Incomplete


@pytest.mark.parametrize("mark", [b":t \n\n", b""])
def test_the_clients_own_error_passes(mark: bytes) -> None:
    continuation, error = begun(), b'data: {"error":{"message":"bad","code":400}}\n\n'
    assert continuation.feed(error + mark) + continuation.end() == error


def test_a_group_before_a_hand_over_counts_and_half_a_group_does_not() -> None:
    continuation = begun()
    assert continuation.feed(b"data: b\n\n:t 6\n\ndata: c\n\n:handover\n\n") == b"data: b\n\n"
    assert list(continuation.tokens) == [5, 6]
    assert failure(continuation) is None


def test_a_stream_may_stop_to_be_marked() -> None:
    continuation = begun()
    assert continuation.feed(b"data: b\n\n:none\n\ndata: c\n\ndata") == b"data: b\n\ndata: c\n\ndata"
    assert continuation.feed(b": d\n\n") + continuation.end() == b": d\n\n"
    assert not continuation.is_marked


def test_an_id_takes_four_bytes() -> None:
    continuation = begun()
    for id in range(1000):
        continuation.feed(b"data: a\n\n:t %d\n\n" % id)
    assert continuation.tokens.itemsize * len(continuation.tokens) == 4 * 1001
