"""Whether answers are answers."""

import base64
import json
import math
import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.answers import JSON, Beginning, EventCheck, checked_answer, token_chunk
from app.errors import MalformedAnswer
from app.internal_api import EXTENDED_PATH

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


@given(texts=st.lists(TEXTS, min_size=2, max_size=4), ascii=st.booleans(), is_last=st.booleans(), bad=st.booleans())
def test_events_that_arrive_together_are_as_valid_as_alone(
    texts: list[str], ascii: bool, is_last: bool, bad: bool
) -> None:
    frames = [chunk(text, ascii=ascii) for text in texts]
    if is_last:
        frames.insert(1, chunk("", ascii=ascii).replace(b'"finish_reason":null', b'"finish_reason":"stop"'))
        frames.insert(2, b"data: [DONE]\n\n")
    if bad:
        frames.insert(1, b"data: {}\n\n")
    alone, together = EventCheck("/v1/chat/completions"), EventCheck("/v1/chat/completions")
    for check in (alone, together):
        assert check.valid(frames[0])
        check.learn(frames[0])
    assert together.valid(b"".join(frames[1:])) == all(map(alone.valid, frames[1:]))
    assert together.varying is None


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
    return b"".join(
        b"data: %b\n\n" % (event if isinstance(event, bytes) else json.dumps(event).encode()) for event in events
    )


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
    choice = '{"choices":[{"index":0,"message":{"content":"NaN"},"delta":{},"finish_reason":"stop"}],"service_tier":%s}'
    assert EventCheck(CHAT).valid(b"data: %b\n\n" % (choice % 5).encode())
    assert not EventCheck(CHAT).valid(b"data: %b\n\n" % (choice % number).encode())
    checked_answer(CHAT, (choice % 5).encode(), JSON)
    with pytest.raises(MalformedAnswer):
        checked_answer(CHAT, (choice % number).encode(), JSON)


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
        "finish_reason": st.sampled_from([None, "stop", "length", 5, [], {}]),
        "stop_reason": TEXTS | st.integers() | VALUES,
        "logprobs": st.none() | LOGPROBS | VALUES,
    },
)
COMPLETIONS = st.fixed_dictionaries(
    {"choices": st.lists(CHOICES, max_size=2) | VALUES},
    optional={"id": TEXTS, "usage": st.none() | VALUES, "service_tier": VALUES},
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
    frame = b'data: {"choices":[],"service_tier":%b%b}\n\n' % (b"[" * depth, b"]" * depth)
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
        checked_answer("/v1/chat/completions", many, JSON)


@pytest.mark.parametrize("media_type", ["", "text/html", "text/event-stream"])
def test_a_whole_answer_is_json_by_its_type(media_type: str) -> None:
    checked_answer("/v1/x", b"{}", JSON)
    with pytest.raises(MalformedAnswer):
        checked_answer("/v1/x", b"{}", media_type)


def chosen(*indices: int | None, **more: Any) -> dict[str, Any]:
    choice = {"message": {}, "delta": {}, "text": "", "finish_reason": "stop", **more}
    return {"choices": [{"index": index, **choice} for index in indices]}


def vectors(*values: Any) -> dict[str, Any]:
    return {"data": [{"index": index, "embedding": value} for index, value in enumerate(values)]}


def base64_of(*numbers: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


EMBEDDINGS, TWO = "/v1/embeddings", {"input": ["a", "b"]}
ONE, BASE64 = {"input": [1, 2]}, {"input": "a", "encoding_format": "base64"}


@pytest.mark.parametrize(
    ("path", "body", "answer", "is_valid"),
    [
        (CHAT, {}, chosen(0), True),
        (CHAT, {}, chosen(None), True),
        (CHAT, {}, chosen(1), False),
        (CHAT, {}, chosen(0, 1), False),
        (CHAT, {"n": 2}, chosen(1, 0), True),
        (CHAT, {"n": 2}, chosen(0), False),
        (CHAT, {"n": 2}, chosen(0, 0), False),
        (CHAT, {"n": 2}, chosen(0, 2), False),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 2}, chosen(0, 1, 2, 3), True),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 2}, chosen(0, 1), False),
        (EXTENDED_PATH, {"prompt": [1, 2], "seeds": [5, 6]}, chosen(0, 1), True),
        (EXTENDED_PATH, {"prompt": [1, 2], "seeds": [5, 6]}, chosen(0), False),
        (CHAT, {}, chosen(0, finish_reason="tool_calls"), True),
        (CHAT, {}, chosen(0, finish_reason="abort"), False),
        (CHAT, {}, chosen(0, finish_reason="because"), False),
        (CHAT, {}, chosen(0, finish_reason="repetition"), False),
        (CHAT, {"repetition_detection": {"max_pattern_size": 3}}, chosen(0, finish_reason="repetition"), True),
        (EMBEDDINGS, ONE, vectors([0.5, 1, -2e-9]), True),
        (EMBEDDINGS, ONE, vectors([]), False),
        (EMBEDDINGS, ONE, vectors([0.5], [0.5]), False),
        (EMBEDDINGS, ONE, vectors([[0.5]]), False),
        (EMBEDDINGS, ONE, vectors([math.inf]), False),
        (EMBEDDINGS, ONE, vectors([None]), False),
        (EMBEDDINGS, ONE, vectors(base64_of(0.5)), False),
        (EMBEDDINGS, TWO, vectors([0.5], [0.25]), True),
        (EMBEDDINGS, TWO, vectors([0.5], [0.25, 1]), False),
        (EMBEDDINGS, TWO, vectors([0.5]), False),
        (EMBEDDINGS, BASE64, vectors(base64_of(0.5, -1)), True),
        (EMBEDDINGS, BASE64, vectors([0.5]), True),
        (EMBEDDINGS, BASE64, vectors(base64_of()), False),
        (EMBEDDINGS, BASE64, vectors(base64_of(0.5, math.nan)), False),
        (EMBEDDINGS, BASE64, vectors(base64_of(-math.inf)), False),
        (EMBEDDINGS, BASE64, vectors("AAAA"), False),
        (EMBEDDINGS, BASE64, vectors("A,=="), False),
        (EMBEDDINGS, {**BASE64, "embed_dtype": "float16"}, vectors("AAA="), True),
        (EMBEDDINGS, {**BASE64, "endianness": "big"}, vectors(base64.b64encode(b"\x7f\x80\0\0").decode()), False),
        ("/pooling", ONE, {"data": [{"data": [[0.5], [1, 2]]}]}, True),
        ("/pooling", ONE, {"data": [{"data": [[0.5], []]}]}, False),
        ("/pooling", ONE, {"data": [{"data": []}]}, False),
        ("/classify", TWO, {"data": [{"index": 0, "probs": [1]}, {"index": 1, "probs": [1]}]}, True),
        ("/classify", TWO, {"data": [{"index": 0, "probs": [1]}, {"index": 1, "probs": []}]}, False),
        ("/score", {"queries": "a", "documents": ["b", "c"]}, {"data": [{"score": 1}, {"score": 0}]}, True),
        ("/score", {"queries": "a", "documents": ["b", "c"]}, {"data": [{"score": 1}]}, False),
        ("/score", {"queries": "a", "documents": "b"}, {"data": [{"score": math.inf}]}, False),
        (MESSAGES, {}, {"content": [], "stop_reason": "end_turn"}, True),
        (MESSAGES, {}, {"content": [], "stop_reason": "because"}, False),
        (RESPONSES, {}, {"output": [], "status": "done"}, False),
    ],
)
def test_an_answer_answers_its_request(path: str, body: Any, answer: Any, is_valid: bool) -> None:
    data = json.dumps(answer).replace("Infinity", "1e999").encode()
    if is_valid:
        assert json.loads(checked_answer(path, data, JSON, body)).keys() == answer.keys()
    else:
        with pytest.raises(MalformedAnswer):
            checked_answer(path, data, JSON, body)


@pytest.mark.parametrize("colon", [":", ": "])
@pytest.mark.parametrize(
    ("damage", "is_valid"),
    [
        (("", ""), True),
        (("0.25]", "]"), False),
        (("0.25]", "0.25,1]"), False),
        (("0.25]", "1e999]"), False),
        (("0.25]", '"a"]'), False),
        (("0.25]", "0.25"), False),
        (("[0.5,", '["'), False),
        (("]}]", "]}"), False),
        (('"index":1,', '"index":0,'), False),
        (('"index":1,', '"index":1,"note":"\\"embedding\\":[1]",'), True),
        (('"index":1,', '"index":1,"a\\"embedding":[1],'), True),
    ],
)
def test_a_long_answer_is_read_in_pieces_and_checked_as_a_short_one(
    damage: tuple[str, str], is_valid: bool, colon: str
) -> None:
    for count in (3, 40_000):
        vectors = ",".join(f'{{"index":{index},"embedding":[0.5,0.25]}}' for index in range(count))
        answer = f'{{"data":[{vectors}]}}'.replace(*damage, 1) if damage[0] else f'{{"data":[{vectors}]}}'
        data = answer.replace('"embedding":', f'"embedding"{colon}').encode()
        try:
            assert checked_answer(EMBEDDINGS, data, JSON, {"input": ["a"] * count}) == data
        except MalformedAnswer:
            assert not is_valid
        else:
            assert is_valid


@given(asked=st.integers(1, 3), sent=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=9))
def test_a_stream_has_as_many_choices_as_its_bodyasks_for(asked: int, sent: list[tuple[int, bool]]) -> None:
    check = EventCheck(CHAT)
    check.expect({"n": asked})
    events = [frames(part(index, "stop" if ends else None)) for index, ends in sent]
    assert all(check.valid(event) is (index < asked) for event, (index, _) in zip(events, sent, strict=True))
    ended = {index for index, ends in sent if ends and index < asked}
    assert check.valid(b"data: [DONE]\n\n") is (ended == set(range(asked)))


@pytest.mark.parametrize("reason", ["abort", "error", "because", "repetition", "x"])
def test_a_stream_ends_with_a_word_of_its_api(reason: str) -> None:
    assert not EventCheck(CHAT).valid(frames(part(0, reason)))
    check = EventCheck(CHAT)
    check.expect({"repetition_detection": {"max_pattern_size": 3}})
    assert check.valid(frames(part(0, reason))) is (reason == "repetition")


FOREIGN = {"internal": {"host": "a"}, "kv_transfer_params": {"remote_host": "b"}, "prompt_logprobs": [None]}


@pytest.mark.parametrize(
    ("path", "event"),
    [
        (CHAT, chosen(0)),
        ("/v1/completions", chosen(0)),
        (RESPONSES, {"type": "response.completed", "response": {**WHOLE, "id": "r"}}),
        (MESSAGES, {"type": "message_start", "message": {"content": [], "id": "m"}}),
    ],
)
def test_what_no_answer_has_does_not_reach_the_client(path: str, event: dict[str, Any]) -> None:
    inner = next((name for name in ("response", "message") if name in event), None)
    whole = event if inner is None else event[inner]
    with_more = {**whole, **FOREIGN, "prompt_token_ids": None}
    more = with_more if inner is None else {**event, inner: with_more, "internal": 5}
    check = EventCheck(path)
    assert not check.valid(frames(more))
    own = check.own(frames(more))
    assert check.valid(own)
    kept = json.loads(own.removeprefix(b"data: "))
    assert (kept if inner is None else kept[inner]) == {**whole, "prompt_token_ids": None}
    assert kept.keys() - {"prompt_token_ids"} == event.keys()
    assert check.own(own) is own
    answer = checked_answer(path, json.dumps(with_more).encode(), JSON, {"prompt": "a"})
    assert json.loads(answer) == {**whole, "prompt_token_ids": None}


def test_what_the_bodyasks_for_reaches_the_client() -> None:
    asked = {"prompt": "a", "kv_transfer_params": {"do_remote_decode": True}, "prompt_logprobs": 0}
    whole = {**chosen(0), **{name: FOREIGN[name] for name in ("kv_transfer_params", "prompt_logprobs")}}
    for path in (CHAT, "/v1/completions"):
        assert json.loads(checked_answer(path, json.dumps({**whole, **FOREIGN}).encode(), JSON, asked)) == whole
        check = EventCheck(path)
        check.expect(asked)
        assert check.valid(frames(whole))


@pytest.mark.parametrize(("text", "is_valid"), [("b", True), (None, True), ("a", False), ("", False)])
def test_a_result_repeats_no_other_text_than_its_documents(text: str | None, is_valid: bool) -> None:
    results = [{"index": 1, "relevance_score": 1, "document": {"text": text}}, {"index": 0, "relevance_score": 0}]
    answer, request = json.dumps({"results": results}).encode(), {"documents": ["a", "b"]}
    if is_valid:
        assert checked_answer("/v1/rerank", answer, JSON, request) == answer
    else:
        with pytest.raises(MalformedAnswer):
            checked_answer("/v1/rerank", answer, JSON, request)


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
        checked_answer("/v1/rerank", answer, JSON, request={"documents": ["a", "b"], **asked})
    except MalformedAnswer:
        assert not is_valid
    else:
        assert is_valid
