"""Streams of completion chunks, collected into whole answers: complete, truncated, and broken.

Streams of forced tool calls, collected into whole answers: complete, truncated, and broken.
"""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.collectors import (
    ChatCollector,
    CompletionCollector,
    MessageCollector,
    ResponseCollector,
    StreamCollector,
    forced_call_collector,
)
from app.engine.expected import choices_of
from app.engine.output import CutCalls, cut_calls
from app.errors import Broken, Rejected

BODY = {"prompt": ["a", "b"], "n": 2, "max_tokens": 5}
HEAD = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}


def frame(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def logprobs(*tokens: str) -> dict[str, Any]:
    return {
        "text_offset": list(range(len(tokens))),
        "token_logprobs": [-1.0] * len(tokens),
        "tokens": list(tokens),
        "top_logprobs": [{token: -1.0} for token in tokens],
    }


def part(index: int, text: str, completion: int, finish_reason: str | None = None, **fields: Any) -> bytes:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason, **fields}
    usage = {"prompt_tokens": 3 + index // 2, "completion_tokens": completion, "total_tokens": 0}
    return frame({**HEAD, "choices": [choice], "usage": usage})


PARTS = [
    part(0, "é", 1, logprobs=logprobs("é")),
    part(3, "x", 1),
    part(0, "1", 2, "stop", stop_reason="!", logprobs=logprobs("1")),
    part(1, "2", 1, "length"),
    part(2, "y", 1, "length"),
    part(3, "z", 2, "stop"),
]
SUMS = {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}
STREAM = (
    b"".join(PARTS) + frame({**HEAD, "choices": [], "usage": SUMS, "system_fingerprint": "f"}) + b"data: [DONE]\n\n"
)


def fed(*chunks: bytes, **body: Any) -> CompletionCollector:
    collector = CompletionCollector({**BODY, **body})
    for chunk in chunks:
        collector.feed(chunk)
    return collector


def test_the_request_is_streamed_with_token_counts() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert CompletionCollector(BODY).request == {**BODY, "stream": True, "stream_options": options}


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_a_stream_becomes_the_whole_body_in_any_chunking(points: list[int]) -> None:
    edges = [0, *sorted(points), len(STREAM)]
    body = json.loads(fed(*(STREAM[a:b] for a, b in pairwise(edges))).complete())
    assert {name: body[name] for name in HEAD} == HEAD
    assert (body["usage"], body["system_fingerprint"]) == (SUMS, "f")
    answer = [(c["index"], c["text"], c["finish_reason"], c["stop_reason"]) for c in body["choices"]]
    assert answer == [
        (0, "é1", "stop", "!"),
        (1, "2", "length", None),
        (2, "y", "length", None),
        (3, "xz", "stop", None),
    ]
    assert body["choices"][0]["logprobs"] == {**logprobs("é", "1"), "text_offset": [0, 0]}
    assert body["choices"][1]["logprobs"] is None


def test_the_partial_body_has_finish_reason_length_and_is_counted() -> None:
    collector = fed(*PARTS[:3])
    body = json.loads(collector.at_deadline() or b"")
    assert [(c["text"], c["finish_reason"]) for c in body["choices"]] == [
        ("é1", "stop"),
        ("", "length"),
        ("", "length"),
        ("x", "length"),
    ]
    assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    with pytest.raises(Broken, match="before it was complete"):
        collector.complete()


def test_there_is_no_partial_body_before_the_first_choice() -> None:
    assert fed(b": ping\n\n").at_deadline() is None
    assert fed(PARTS[0]).at_deadline() is not None


@pytest.mark.parametrize(
    ("prompt", "count"), [("a", 2), (["a"], 2), (["a", "b", "c"], 6), ([1, 2, 3], 2), ([[1], [2]], 4)]
)
def test_each_prompt_has_its_choices(prompt: Any, count: int) -> None:
    assert choices_of({"prompt": prompt, "n": 2}) == count
    assert choices_of({"prompt": prompt}) == count // 2


def test_the_engines_error_event_is_raised() -> None:
    with pytest.raises(Rejected, match="too long"):
        fed(PARTS[0] + frame({"error": {"message": "too long", "code": 400}}))
    with pytest.raises(Broken):
        fed(frame({"error": {"message": "CUDA", "code": 500}}))


@pytest.mark.parametrize("bad", [b"{", b"[]", b"5", b"{}", b'{"choices":[{"index":9}]}', b"\xff"])
def test_a_malformed_stream_is_broken(bad: bytes) -> None:
    with pytest.raises(Broken):
        fed(b"data: " + bad + b"\n\n")


CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
NAMED = {"type": "function", "function": {"name": "add"}}
HEAD_FORCED_CALLS = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}


def frame_forced_calls(value: Any, type: str | None = None) -> bytes:
    return (f"event: {type}\n" if type else "").encode() + b"data: " + json.dumps(value).encode() + b"\n\n"


def part_forced_calls(index: int, delta: dict[str, Any], finish_reason: str | None = None, **fields: Any) -> bytes:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason, "token_ids": None}
    return frame_forced_calls({**HEAD_FORCED_CALLS, "choices": [{**choice, **fields}]})


def call(index: int, *, id: str | None = None, **function: str) -> dict[str, Any]:
    start = {"id": id, "type": "function"} if id else {}
    return {"tool_calls": [{**start, "index": index, "function": function}]}


def token(text: str, id: int) -> dict[str, Any]:
    return {"logprobs": {"content": [{"token": text, "logprob": -1.0}]}, "token_ids": [id]}


ROLE = {"role": "assistant", "content": ""}
CHUNKS = b"".join(
    [
        frame_forced_calls(
            {
                **HEAD_FORCED_CALLS,
                "prompt_token_ids": [1, 2],
                "choices": [{"index": 0, "delta": ROLE, "finish_reason": None}],
            }
        ),
        part_forced_calls(1, ROLE),
        part_forced_calls(0, {"reasoning": "hm"}, **token("hm", 5)),
        part_forced_calls(0, {"content": "é "}, **token("é ", 6)),
        part_forced_calls(1, {"content": "no call"}),
        part_forced_calls(0, {}, **token("<tool_call>", 7)),
        part_forced_calls(0, call(0, id="call_1", name="add"), **token("add", 8)),
        part_forced_calls(0, call(0, arguments='{"a": "ü'), **token("{", 9)),
        part_forced_calls(1, {}, "stop", stop_reason="!"),
        part_forced_calls(
            0, {"tool_calls": [call(0, arguments='"}')["tool_calls"][0], *call(1, id="c2", name="b")["tool_calls"]]}
        ),
        part_forced_calls(0, call(1, arguments='{"x'), "tool_calls", **token("x", 10)),
        frame_forced_calls({**HEAD_FORCED_CALLS, "choices": [], "usage": USAGE, "system_fingerprint": "f"}),
        b"data: [DONE]\n\n",
    ]
)


def message_event(type: str, **fields: Any) -> bytes:
    return frame_forced_calls({"type": type, **fields}, type)


EVENTS = b"".join(
    [
        message_event(
            "message_start",
            message={
                **{"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m"},
                **{"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 0}},
            },
        ),
        message_event("content_block_start", index=0, content_block={"type": "thinking", "thinking": ""}),
        message_event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"}),
        message_event("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "s"}),
        message_event("content_block_stop", index=0),
        message_event("content_block_start", index=1, content_block={"type": "text", "text": ""}),
        message_event("content_block_delta", index=1, delta={"type": "text_delta", "text": "é"}),
        message_event("content_block_stop", index=1),
        message_event(
            "content_block_start", index=2, content_block={"type": "tool_use", "id": "t", "name": "add", "input": {}}
        ),
        message_event("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": '{"a": 1,'}),
        message_event("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": ' "b": "ü'}),
        message_event("content_block_stop", index=2),
        message_event(
            "message_delta", delta={"stop_reason": "tool_use"}, usage={"input_tokens": 3, "output_tokens": 9}
        ),
        message_event("message_stop"),
    ]
)
RESPONSE = {"id": "resp_1", "object": "response", "status": "incomplete", "usage": {"output_tokens": 9}}
MARKUP = {"type": "message", "content": [{"type": "output_text", "text": '<tool_call>{"na'}]}
CUT_CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": '{"a": "ü'}
RESPONSE_EVENTS = b"".join(
    [
        message_event("response.created", response={**RESPONSE, "status": "in_progress", "output": []}),
        message_event("response.output_item.added", output_index=0, item={**CUT_CALL, "arguments": ""}),
        message_event("response.function_call_arguments.delta", output_index=0, delta='{"a": "ü'),
        message_event("response.output_item.done", output_index=0, item=CUT_CALL),
        message_event("response.completed", response={**RESPONSE, "output": [MARKUP]}),
    ]
)
ANSWERS = {CHAT: CHUNKS, MESSAGES: EVENTS, RESPONSES: RESPONSE_EVENTS}


def fed_forced_calls(collector: StreamCollector, *chunks: bytes) -> StreamCollector:
    for chunk in chunks:
        collector.feed(chunk)
    return collector


def collected(stream: bytes, points: list[int], collector: StreamCollector) -> dict[str, Any]:
    edges = [0, *sorted(min(point, len(stream)) for point in points), len(stream)]
    body: dict[str, Any] = json.loads(
        fed_forced_calls(collector, *(stream[a:b] for a, b in pairwise(edges))).complete()
    )
    return body


points = st.lists(st.integers(0, len(CHUNKS)), max_size=8)


@given(points)
def test_chat_chunks_become_the_whole_answer_in_any_chunking(points: list[int]) -> None:
    body = collected(CHUNKS, points, ChatCollector({"n": 2, "logprobs": True}))
    assert {name: body[name] for name in ("id", "object", "created", "model", "system_fingerprint")} == {
        **HEAD_FORCED_CALLS,
        "object": "chat.completion",
        "system_fingerprint": "f",
    }
    assert (body["usage"], body["prompt_token_ids"]) == ({**USAGE, "prompt_tokens_details": None}, None)
    called, other = body["choices"]
    assert (called["message"]["content"], called["message"]["reasoning"]) == ("é ", "hm")
    assert called["message"]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": "ü"}'}},
        {"id": "c2", "type": "function", "function": {"name": "b", "arguments": '{"x'}},
    ]
    assert [entry["token"] for entry in called["logprobs"]["content"]] == ["hm", "é ", "<tool_call>", "add", "{", "x"]
    assert (called["finish_reason"], called["token_ids"]) == ("tool_calls", None)
    assert (other["message"]["content"], other["finish_reason"], other["stop_reason"]) == ("no call", "stop", "!")
    assert (other["logprobs"], "tool_calls" in other["message"]) == (None, False)


@given(points)
def test_message_events_become_the_whole_message_in_any_chunking(points: list[int]) -> None:
    assert collected(EVENTS, points, MessageCollector({})) == {
        **{"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use"},
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "é"},
            {"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}},
        ],
        "usage": {"input_tokens": 3, "output_tokens": 9},
    }


@given(points)
def test_a_response_that_was_cut_has_the_items_of_its_stream_in_any_chunking(points: list[int]) -> None:
    assert collected(RESPONSE_EVENTS, points, ResponseCollector({})) == {**RESPONSE, "output": [CUT_CALL]}


def test_a_response_that_was_cut_before_the_calls_name_is_empty() -> None:
    cut = message_event("response.completed", response={**RESPONSE, "output": [MARKUP]})
    assert collected(cut, [], ResponseCollector({})) == {**RESPONSE, "output": []}


def test_a_complete_response_is_as_the_engine_parsed_it() -> None:
    complete = message_event("response.completed", response={**RESPONSE, "status": "completed", "output": [MARKUP]})
    body = collected(RESPONSE_EVENTS.rpartition(b"event: ")[0] + complete, [], ResponseCollector({}))
    assert body["output"] == [MARKUP]


def test_an_empty_message_has_an_empty_text() -> None:
    frames = EVENTS.split(b"\n\n")
    stream = b"\n\n".join([frames[0], *frames[-3:]])
    assert collected(stream, [], MessageCollector({}))["content"] == [{"type": "text", "text": ""}]


def test_token_ids_are_returned_only_if_the_client_asked_for_them() -> None:
    body = {"n": 2, "logprobs": True}
    assert ChatCollector(body).request == {
        **body,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    assert "return_token_ids" not in ChatCollector({}).request
    answer = collected(CHUNKS, [], ChatCollector({"n": 2, "return_token_ids": True}))
    assert (answer["prompt_token_ids"], answer["choices"][0]["token_ids"]) == ([1, 2], [5, 6, 7, 8, 9, 10])


@pytest.mark.parametrize(
    ("path", "fields", "kind"),
    [
        (CHAT, {"tool_choice": "required", "max_tokens": 5}, ChatCollector),
        (CHAT, {"tool_choice": NAMED, "max_completion_tokens": 5}, ChatCollector),
        (MESSAGES, {"tool_choice": {"type": "any"}, "max_tokens": 5}, MessageCollector),
        (MESSAGES, {"tool_choice": {"type": "tool", "name": "add"}, "max_tokens": 5}, MessageCollector),
        (MESSAGES, {"tool_choice": {"type": "auto"}, "max_tokens": 5}, type(None)),
        (MESSAGES, {"tool_choice": {"type": "none"}, "max_tokens": 5}, type(None)),
        (RESPONSES, {"tool_choice": "required", "max_output_tokens": 5}, ResponseCollector),
        (RESPONSES, {"tool_choice": {"type": "function", "name": "add"}, "max_output_tokens": 5}, ResponseCollector),
        (RESPONSES, {"tool_choice": "auto", "max_output_tokens": 5}, type(None)),
        (CHAT, {"tool_choice": "auto", "max_tokens": 5}, type(None)),
        (CHAT, {"max_tokens": 5}, type(None)),
        (CHAT, {"tool_choice": "required"}, type(None)),
        (CHAT, {"tool_choice": "required", "max_tokens": 5, "prompt_logprobs": 1}, type(None)),
        ("/v1/messages/count_tokens", {"tool_choice": {"type": "any"}, "max_tokens": 5}, type(None)),
    ],
    ids=str,
)
def test_answers_are_collected_if_a_limit_may_cut_a_forced_call(path: str, fields: Any, kind: type) -> None:
    assert type(forced_call_collector(path, fields)) is kind


def collector(path: str) -> StreamCollector:
    if path == CHAT:
        return ChatCollector({"n": 2})
    return MessageCollector({}) if path == MESSAGES else ResponseCollector({})


@pytest.mark.parametrize("path", ANSWERS)
def test_a_stream_that_breaks_off_is_broken(path: str) -> None:
    frames = ANSWERS[path].split(b"\n\n")[:-1]
    for end in range(len(frames)):
        begun = fed_forced_calls(collector(path), b"".join(frame + b"\n\n" for frame in frames[:end]))
        assert begun.at_deadline() is None
        with pytest.raises(Broken, match="before it was complete"):
            begun.complete()


@pytest.mark.parametrize("path", ANSWERS)
def test_a_stream_without_content_is_malformed(path: str) -> None:
    ends = {CHAT: b"data: [DONE]\n\n", MESSAGES: message_event("message_stop")}
    last = ends.get(path, message_event("response.completed", response={}))
    with pytest.raises(Broken, match="malformed"):
        fed_forced_calls(collector(path), last).complete()


@pytest.mark.parametrize("path", ANSWERS)
@pytest.mark.parametrize("bad", [b"{", b"[]", b"5", b"{}", b'{"choices":[{"index":2}]}', b"\xff"])
def test_a_malformed_stream_is_broken_forced_calls(path: str, bad: bytes) -> None:
    with pytest.raises(Broken):
        fed_forced_calls(collector(path), b"data: " + bad + b"\n\n")


def test_the_engines_error_event_is_raised_forced_calls() -> None:
    with pytest.raises(Rejected, match="too long"):
        fed_forced_calls(collector(CHAT), frame_forced_calls({"error": {"message": "too long", "code": 400}}))
    with pytest.raises(Broken, match="failed while"):
        fed_forced_calls(
            collector(MESSAGES), message_event("error", error={"type": "internal_error", "message": "CUDA"})
        )


ARGUMENTS = json.dumps({"a": [1, {"b": 'ü"\\'}], "c": None}, ensure_ascii=False)


def chat_of(*calls: str) -> tuple[str, bytes, str]:
    """A stream of one choice with these calls, each in pieces, and the ends of a cut and of a complete one."""
    parts = [part_forced_calls(0, ROLE)]
    for number, arguments in enumerate(calls):
        parts.append(part_forced_calls(0, call(number, id=f"c{number}", name="add")))
        parts += [part_forced_calls(0, call(number, arguments=piece)) for piece in arguments]
    return "length", b"".join([*parts, part_forced_calls(0, {}, "tool_calls"), b"data: [DONE]\n\n"]), "tool_calls"


def message_of(*calls: str) -> tuple[str, bytes, str]:
    """The same as a message."""
    events = []
    for index, arguments in enumerate(calls):
        block = {"type": "tool_use", "id": f"c{index}", "name": "add", "input": {}}
        events.append(message_event("content_block_start", index=index, content_block=block))
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in arguments]
        events += [message_event("content_block_delta", index=index, delta=delta) for delta in deltas]
        events.append(message_event("content_block_stop", index=index))
    events.append(message_event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 9}))
    return "max_tokens", b"".join([*events, message_event("message_stop")]), "tool_use"


def corrected(path: str, stream: bytes, size: int) -> bytes:
    cut = CutCalls(path)
    return b"".join(cut.feed(stream[at : at + size]) for at in range(0, len(stream), size))


@given(st.integers(0, len(ARGUMENTS)), st.integers(1, 400), st.booleans())
@pytest.mark.parametrize(("path", "made"), [(CHAT, chat_of), (MESSAGES, message_of)])
def test_only_the_end_of_an_incomplete_call_is_changed(
    path: str, made: Any, length: int, size: int, second: bool
) -> None:
    calls = ["{}", ARGUMENTS[:length]] if second else [ARGUMENTS[:length]]
    cut, stream, complete = made(*calls)
    end, cut_end = (f'_reason": "{reason}"'.encode() for reason in (complete, cut))
    expected = stream if length == len(ARGUMENTS) else stream.replace(end, cut_end)
    without_spaces = [frame.replace(b" ", b"") for frame in (corrected(path, stream, size), expected)]
    assert without_spaces[0] == without_spaces[1]


@pytest.mark.parametrize("arguments", ["{]", "x"])
def test_what_is_no_beginning_of_json_was_not_cut(arguments: str) -> None:
    _, stream, _ = chat_of(arguments)
    assert corrected(CHAT, stream, 100) == stream


def test_frames_that_are_no_events_pass() -> None:
    for frames in (b'data: {"tool_\n\n', b'data: ["tool_calls"]\n\n', b'data: {"choices": ["tool_calls"]}\n\n'):
        assert corrected(CHAT, frames, 7) == corrected(MESSAGES, frames, 7) == frames


@pytest.mark.parametrize(
    ("path", "choice", "is_corrected"),
    [
        (CHAT, "required", True),
        (CHAT, NAMED, True),
        (CHAT, "auto", True),
        (CHAT, None, True),
        (CHAT, "none", False),
        (MESSAGES, {"type": "any"}, True),
        (MESSAGES, {"type": "auto"}, True),
        (MESSAGES, {"type": "none"}, False),
        (RESPONSES, "required", False),
    ],
)
def test_streams_that_may_have_calls_are_corrected(path: str, choice: Any, is_corrected: bool) -> None:
    assert (cut_calls(path, {"tools": [{}], "tool_choice": choice}) is not None) == is_corrected
    assert cut_calls(path, {"tools": []}) is None


@pytest.mark.parametrize(("path", "made"), [(CHAT, chat_of), (MESSAGES, message_of)])
@given(length=st.integers(0, len(ARGUMENTS)))
def test_a_call_that_the_model_chose_is_cut_once_it_has_arguments(path: str, made: Any, length: int) -> None:
    """With `auto`: a parser may send no arguments for a function without parameters."""
    cut, stream, complete = made(ARGUMENTS[:length])
    end = complete if length in (0, len(ARGUMENTS)) else cut
    correction = cut_calls(path, {"tools": [{}], "tool_choice": "auto" if path == CHAT else {"type": "auto"}})
    assert correction is not None
    assert f'_reason":"{end}"'.encode() in correction.feed(stream).replace(b" ", b"")
