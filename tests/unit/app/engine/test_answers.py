"""Whether answers are answers."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.answers import JSON, Beginning, EventCheck, check_answer, token_chunk
from app.errors import MalformedAnswer

TEXTS = st.text() | st.sampled_from(['"', "\\", "\n", "é", "日本", "😀", "\x7f", "data: {", "}\n\n"])


def chunk(text: str, *, ascii: bool = False, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    body = json.dumps({"id": "c", "choices": [choice], **more}, separators=(",", ":"), ensure_ascii=ascii)
    return b"data: %b\n\n" % body.encode("utf-8", "replace")


def is_event(frame: bytes) -> bool:
    """The same by Python's own parser."""
    if not (frame.startswith(b"data: ") and frame.endswith(b"\n\n") and frame.count(b"\n") == 2):
        return False
    try:
        event = json.loads(frame[6:-2].decode())
    except ValueError:
        return False
    return isinstance(event, dict) and isinstance(event.get("choices"), list)


@given(first=TEXTS, second=TEXTS, ascii=st.booleans())
def test_events_that_differ_in_their_text_are_valid(first: str, second: str, ascii: bool) -> None:
    check = EventCheck("/v1/chat/completions")
    assert check.valid(chunk(first, ascii=ascii))
    check.learn(chunk(first, ascii=ascii))
    frame = chunk(second, ascii=ascii)
    assert check.repeats(frame) or check.valid(frame)


def test_most_events_of_a_text_are_recognised_without_parsing() -> None:
    check = EventCheck("/v1/chat/completions")
    check.learn(chunk(" river"))
    assert all(check.repeats(chunk(text)) for text in ("", " bank", "日本", "é", "😀", "it's {fine}, [really]"))
    assert not any(check.repeats(chunk(text)) for text in ('"', "\\", "\n"))
    assert not check.repeats(chunk("a", usage={}))
    assert not check.repeats(chunk("a") * 2)


def delta(text: str, number: str) -> bytes:
    event = {"delta": text, "item_id": "m", "sequence_number": 7, "type": "response.output_text.delta"}
    data = json.dumps(event, separators=(",", ":"), ensure_ascii=False).replace(":7,", f":{number},")
    return f"event: response.output_text.delta\ndata: {data}\n\n".encode()


def test_numbered_events_are_recognised_too() -> None:
    check = EventCheck("/v1/responses")
    check.learn(delta("Hi", "7"))
    assert all(check.repeats(delta(text, number)) for text, number in (("", "8"), ("日本", "19"), ("a", "123456")))
    bad = ("", "-", "07", "1.5", "x", "1,2", "²")
    assert not any(check.repeats(delta("a", number)) for number in bad)


@given(
    at=st.integers(0, 200),
    removed=st.integers(0, 60),
    put=st.binary(max_size=6) | st.sampled_from([b'"', b"\\", b"\n\n"]),
)
def test_no_damage_to_an_event_goes_unseen(at: int, removed: int, put: bytes) -> None:
    check = EventCheck("/v1/chat/completions")
    check.learn(chunk("river"))
    damaged = (frame := chunk("river"))[:at] + put + frame[at + removed :]
    if check.repeats(damaged):
        assert is_event(damaged)


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b"5", b'"x"', b"null", b"{}", b'{"choices":{}}', b'{"choices":[5]}', b'{"a":"\xe9"}']
)
def test_what_is_no_event_is_malformed(data: bytes) -> None:
    frame = b"data: %b\n\n" % data
    assert not EventCheck("/v1/chat/completions").valid(frame)
    assert not EventCheck("/v1/responses").valid(frame)
    assert not EventCheck("/v1/chat/completions").valid(chunk("a") + frame)
    with pytest.raises(MalformedAnswer):
        Beginning("/v1/completions").feed(frame)


@pytest.mark.parametrize(
    "frames",
    [b'data:{"choices":[]}\n\n', b'\ndata: {"choices":[]}\n\n'],
)  # fmt: skip
def test_everything_that_events_may_have_is_valid(frames: bytes) -> None:
    assert EventCheck("/v1/chat/completions").valid(frames)


CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def frames(*events: Any) -> bytes:
    return b"".join(b"data: %b\n\n" % (it if isinstance(it, bytes) else json.dumps(it).encode()) for it in events)


def part(index: int, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {}, "finish_reason": reason}]}


STOPPED = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
WHOLE = {"status": "completed", "output": []}


@pytest.mark.parametrize(
    ("path", "events", "ended"),
    [
        (CHAT, (part(0, "stop"), b"[DONE]"), True),
        (CHAT, (part(0), b"[DONE]"), False),
        (CHAT, (b"[DONE]",), False),
        (CHAT, (part(0, "stop"), part(1), b"[DONE]"), False),
        (CHAT, (part(1, "stop"), part(0, "length"), {"choices": []}, b"[DONE]"), True),
        (MESSAGES, (STOPPED, {"type": "message_stop"}), True),
        (MESSAGES, ({"type": "message_stop"},), False),
        (RESPONSES, ({"type": "response.completed", "response": WHOLE},), True),
        (RESPONSES, ({"type": "response.completed"},), False),
        (RESPONSES, (b"[DONE]",), False),
    ],
)
def test_a_stream_ends_once_it_has_said_why(path: str, events: tuple[Any, ...], ended: bool) -> None:
    check = EventCheck(path)
    assert [check.valid(frames(event)) for event in events] == [True] * (len(events) - 1) + [ended]
    assert check.ended is ended
    if ended:
        assert not check.valid(frames(events[0])), "nothing comes after the end"
    together = EventCheck(path)
    assert together.valid(frames(*events)) is ended


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_in_json_is_malformed(number: str) -> None:
    choice = '{"choices":[{"index":0,"message":{"content":"NaN"},"delta":{},"finish_reason":"stop"}],"x":%s}'
    assert EventCheck(CHAT).valid(b"data: %b\n\n" % (choice % 5).encode())
    assert not EventCheck(CHAT).valid(b"data: %b\n\n" % (choice % number).encode())
    check_answer(CHAT, (choice % 5).encode(), JSON)
    with pytest.raises(MalformedAnswer):
        check_answer(CHAT, (choice % number).encode(), JSON)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
LOGPROBS = st.fixed_dictionaries(
    {},
    optional={
        "tokens": st.lists(TEXTS, max_size=2) | VALUES,
        "token_logprobs": st.lists(st.none() | st.floats(-9, 0), max_size=2) | VALUES,
        "top_logprobs": st.lists(st.dictionaries(TEXTS, st.floats(-9, 0) | VALUES, max_size=2), max_size=2),
    },
)
CHOICES = st.fixed_dictionaries(
    {"text": TEXTS | VALUES},
    optional={
        "index": st.integers(-1, 2**53) | VALUES,
        "finish_reason": st.none() | TEXTS | VALUES,
        "stop_reason": TEXTS | st.integers() | VALUES,
        "logprobs": st.none() | LOGPROBS | VALUES,
    },
)
COMPLETIONS = st.fixed_dictionaries(
    {"choices": st.lists(CHOICES, max_size=2) | VALUES},
    optional={"id": TEXTS, "usage": st.none() | VALUES, "x": VALUES},
)


@given(
    event=COMPLETIONS,
    ascii=st.booleans(),
    cut=st.none() | st.tuples(st.integers(0, 120), st.integers(0, 4), st.binary(max_size=3)),
)
def test_the_two_readers_of_completions_agree(event: Any, ascii: bool, cut: tuple[int, int, bytes] | None) -> None:
    data = json.dumps(event, ensure_ascii=ascii).encode()
    if cut is not None:
        at, removed, put = cut
        data = (data[:at] + put + data[at + removed :]).replace(b"\n", b" ")
    try:
        token_chunk(data)
        is_chunk = True
    except ValueError:
        is_chunk = False
    assert EventCheck("/v1/completions").valid(b"data: %b\n\n" % data) is is_chunk


@pytest.mark.parametrize("depth", [50, 100_000])
def test_a_deep_event_is_read_or_refused(depth: int) -> None:
    frame = b'data: {"choices":[],"x":%b%b}\n\n' % (b"[" * depth, b"]" * depth)
    assert EventCheck(CHAT).valid(frame) is (depth < 1000)


@given(cuts=st.lists(st.integers(1, 400), max_size=4), ended=st.booleans())
def test_a_first_chunk_counts_once_however_it_comes_again(cuts: list[int], ended: bool) -> None:
    first = frames(part(0), part(1, "stop"), *([part(0, "stop")] if ended else []))
    check = EventCheck(CHAT)
    assert check.begins(first)
    at = [0, *sorted(first.find(b"\n\n", min(cut, len(first) - 2)) + 2 for cut in cuts), len(first)]
    pieces = [first[start:end] for start, end in pairwise(at) if start < end]
    assert all(map(check.valid, pieces))
    assert check.valid(b"data: [DONE]\n\n") is ended


def test_a_stream_that_begins_with_its_last_event_is_read_again() -> None:
    only = frames({"type": "response.completed", "response": WHOLE})
    check = EventCheck(RESPONSES)
    assert check.begins(only)
    assert not check.ended
    assert check.valid(only)
    assert check.ended


@pytest.mark.parametrize("index", [-1, 10**30, True, 0.5])
def test_an_index_is_a_count(index: Any) -> None:
    assert not EventCheck(CHAT).valid(frames(part(index, "stop")))


def test_events_after_the_end_of_the_same_chunk_are_found() -> None:
    check = EventCheck(CHAT)
    assert not check.valid(frames(part(0, "stop"), b"[DONE]", part(0)))
    assert [check.valid(frames(event)) for event in (part(0, "stop"), b"[DONE]", part(0))] == [True, True, False]


@given(cut=st.integers(1, 60))
def test_a_beginning_waits_for_a_whole_event(cut: int) -> None:
    beginning, frame = Beginning("/v1/chat/completions"), chunk("Hi")
    assert not beginning.feed(frame[:cut])
    assert beginning.feed(frame[cut:])
    assert beginning.received == frame


@pytest.mark.parametrize("first", [b"<", b"{", b"dato", b"\x1f\x8b", b" data", b"\n\n"])
def test_a_beginning_that_cannot_become_an_event_is_refused_at_once(first: bytes) -> None:
    with pytest.raises(MalformedAnswer):
        Beginning("/v1/chat/completions").feed(first)


def test_a_comment_and_an_error_begin_a_stream() -> None:
    assert Beginning("/v1/messages").feed(b": ping\n\n")
    assert Beginning("/v1/messages").feed(b': ping\ndata: {"type":"ping"}\n\n')
    assert Beginning("/v1/messages").feed(b'data: {"error":{"message":"no"}}\n\n')


def test_a_long_answer_with_many_faults_is_refused_with_one() -> None:
    many = b'{"choices":[' + b"{}," * 1_000_000 + b"{}]}"
    with pytest.raises(MalformedAnswer):
        check_answer("/v1/chat/completions", many, JSON)


@pytest.mark.parametrize("media_type", ["", "text/html", "text/event-stream"])
def test_a_whole_answer_is_json_by_its_type(media_type: str) -> None:
    check_answer("/v1/x", b"{}", JSON)
    with pytest.raises(MalformedAnswer):
        check_answer("/v1/x", b"{}", media_type)


@pytest.mark.parametrize(
    ("asked", "indices", "is_valid"),
    [
        ({}, [1, 0], True),
        ({"top_n": 1}, [1], True),
        ({"top_n": 0}, [1, 0], True),
        ({}, [99, 0], False),
        ({}, [0, 0], False),
        ({}, [0, 1, 1], False),
        ({}, [], False),
    ],
)
def test_each_result_is_another_documents(asked: dict[str, Any], indices: list[int], is_valid: bool) -> None:
    answer = json.dumps({"results": [{"index": index, "relevance_score": 0.5} for index in indices]}).encode()
    try:
        check_answer("/v1/rerank", answer, JSON, request={"documents": ["a", "b"], **asked})
    except MalformedAnswer:
        assert not is_valid
    else:
        assert is_valid
