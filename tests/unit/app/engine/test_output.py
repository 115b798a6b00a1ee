"""Tokens, finish reasons and ids, found in the engine's answers without parsing them.

Checks that answers have the format that their requests asked for. Their content, from each of the engine's routes.
"""

import base64
import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.output import (
    MALFORMED,
    CollectedToolCall,
    OutputPatterns,
    Promise,
    content_of,
    find_finish,
    find_id,
    is_kept,
    max_tokens,
    output_patterns,
    promised,
    vectors_of,
)
from app.internal_api import EXTENDED_PATH
from app.sse import DONE, encode


def patterns(path: str = "/v1/chat/completions", *, stream: bool = True) -> OutputPatterns:
    known = output_patterns(path, stream=stream)
    assert known is not None
    return known


def dumps(value: Any) -> list[bytes]:
    """The data as vLLM writes JSON, and as other servers do."""
    return [json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(), json.dumps(value).encode()]


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "logprobs": None, "finish_reason": None}]}


TOOL_CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}


@pytest.mark.parametrize(
    ("chunk", "token", "visible"),
    [
        (delta(role="assistant", content=""), False, False),
        (delta(role="assistant", content=None, tool_calls=[]), False, False),
        (delta(content="Hello"), True, True),
        (delta(content='"'), True, True),
        (delta(content="\\"), True, True),
        (delta(content="é"), True, True),
        (delta(content=" "), True, False),
        (delta(content=" \n\t\r"), True, False),
        (delta(content=" \n."), True, True),
        (delta(reasoning="Let me see."), True, False),
        (delta(reasoning_content="Let me see."), True, False),
        (delta(refusal="No."), True, True),
        (delta(tool_calls=[TOOL_CALL]), True, True),
        ({"choices": [{"index": 0, "text": "Hello", "finish_reason": None}]}, True, True),
        ({"choices": [{"index": 0, "text": "", "finish_reason": None}]}, False, False),
        ({"choices": [], "usage": {"completion_tokens": 3}}, False, False),
        ({"type": "message_start", "message": {"content": [], "stop_reason": None}}, False, False),
        ({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}, False, False),
        ({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hi"}}, True, True),
        ({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "Hm"}}, True, False),
        ({"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f"}}, True, True),
    ],
)
def test_tokens_and_visible_output(chunk: dict[str, Any], token: bool, visible: bool) -> None:
    for data in dumps(chunk):
        known = patterns()
        assert (known.token.search(data) is not None, known.is_visible(data)) == (token, visible)


@pytest.mark.parametrize(
    ("name", "event", "token", "visible"),
    [
        ("response.created", {"response": {"instructions": "Be kind.", "text": {"format": {"type": "text"}}}}, 0, 0),
        ("response.created", {"response": {"tools": [{"type": "function", "name": "f"}], "output": []}}, 0, 0),
        ("response.output_text.delta", {"delta": "Hello"}, 1, 1),
        ("response.output_text.delta", {"delta": " "}, 1, 0),
        ("response.reasoning_text.delta", {"delta": "Let me see."}, 1, 0),
        ("response.function_call_arguments.delta", {"delta": "{"}, 1, 0),
        ("response.output_item.added", {"item": {"type": "function_call", "name": "f"}}, 1, 1),
    ],
)
def test_tokens_and_visible_output_in_response_events(
    name: str, event: dict[str, Any], token: int, visible: int
) -> None:
    for data in dumps({"type": name, **event}):
        frame = b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
        known = patterns("/v1/responses")
        assert (known.token.search(frame) is not None, known.is_visible(frame)) == (token, visible)


def test_whole_answers() -> None:
    text = {"output": [{"type": "message", "content": [{"type": "output_text", "text": "Hello"}]}], "instructions": "x"}
    empty = {"output": [], "instructions": "Be kind.", "text": {"format": {"type": "text"}}}
    known = patterns("/v1/responses", stream=False)
    assert all(known.is_visible(data) for data in dumps(text))
    assert not any(known.is_visible(data) for data in dumps(empty))
    assert patterns(EXTENDED_PATH, stream=False) == patterns("/v1/messages")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize", "/ping"])
def test_routes_that_generate_nothing_have_no_patterns(path: str) -> None:
    assert output_patterns(path, stream=False) is None


@given(st.text(max_size=30))
def test_visible_is_what_a_reader_sees(text: str) -> None:
    for data in dumps(delta(content=text)):
        seen = patterns().is_visible(data)
        assert seen == any(character not in " \n\r\t" for character in text)


@given(st.text(max_size=40))
def test_no_text_is_mistaken_for_a_key(text: str) -> None:
    hidden = json.dumps({"finish_reason": "length", "id": "x", "content": text})
    for data in dumps({"choices": [{"reasoning": hidden, "finish_reason": "stop"}]}):
        assert find_finish(data) == "stop"
        assert find_id(data) is None
        assert not patterns().is_visible(data)


INCOMPLETE = {"object": "response", "incomplete_details": {"reason": "max_output_tokens"}, "output": []}
CALLED = {
    "object": "response",
    "incomplete_details": None,
    "output": [{"type": "function_call", "status": "completed"}],
}
SAID = {"object": "response", "incomplete_details": None, "output": [{"type": "message"}]}


@pytest.mark.parametrize(
    ("answer", "finish"),
    [
        ([{"choices": [{"finish_reason": "length", "stop_reason": None}]}], "length"),
        ([{"choices": [{"finish_reason": "stop", "stop_reason": "abort"}]}], "stop"),
        ([delta(content="x"), {"choices": [{"finish_reason": "stop"}]}, {"choices": [], "usage": {}}], "stop"),
        ([{"choices": [{"finish_reason": "tool_calls"}]}, delta(content="another choice")], "tool_calls"),
        ([delta(content="x")], None),
        ([{"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}], "max_tokens"),
        ([INCOMPLETE], "max_output_tokens"),
        ([CALLED], "tool_calls"),
        ([SAID], "stop"),
        ([{"data": [{"embedding": [1]}]}], None),
    ],
)
def test_finish_reasons(answer: list[dict[str, Any]], finish: str | None) -> None:
    for form in range(2):
        assert find_finish(b"".join(dumps(value)[form] for value in answer)) == finish


def test_ids_are_found_at_the_beginning_only() -> None:
    assert find_id(b'data: {"id":"chatcmpl-1","choices":[]}') == b"chatcmpl-1"
    assert find_id(b'{"type":"message_start","message":{"id":"msg_1"}}') == b"msg_1"
    assert find_id(b'{"token":{"id":12}}') is None
    assert find_id(b" " * 600 + b'{"id":"x"}') is None


SCHEMA = {"type": "object"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


@pytest.mark.parametrize(
    ("body", "promise"),
    [
        ({}, None),
        ({"messages": [], "temperature": 1}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Promise.JSON),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, Promise.JSON),
        ({"text": {"format": {"type": "text"}}}, None),
        ({"text": {"format": {"type": "json_schema", "schema": SCHEMA}}}, Promise.JSON),
        ({"text": "odd"}, None),
        ({"structured_outputs": {"json": SCHEMA}}, Promise.JSON),
        ({"structured_outputs": {"regex": "a+"}}, None),
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, Promise.JSON),
        ({"tools": [TOOL], "tool_choice": "auto"}, None),
        ({"tools": [TOOL], "tool_choice": "required"}, Promise.CALL),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, Promise.CALL),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, Promise.CALL),
    ],
)
def test_the_promise_follows_from_the_request(body: dict[str, Any], promise: Promise | None) -> None:
    assert promised(body) is promise


def chat(content: str | None = None, *arguments: str) -> bytes:
    calls = [{"id": "c", "function": {"name": "f", "arguments": argument}} for argument in arguments]
    return dump({"choices": [{"index": 0, "message": {"content": content, "tool_calls": calls}}]})


def dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def message(*blocks: dict[str, Any]) -> bytes:
    return dump({"type": "message", "content": blocks})


def response(*items: dict[str, Any]) -> dict[str, Any]:
    return {"object": "response", "output": items}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": text}]}


@pytest.mark.parametrize(
    ("answer", "json_kept", "call_kept"),
    [
        (chat('{"a": 1}'), True, False),
        (chat("[]"), True, False),
        (chat('{"a": '), False, False),
        (chat("Sure: {}"), False, False),
        (chat(""), False, False),
        (chat(None, '{"a": 1}'), True, True),
        (chat(None, ""), True, True),
        (chat(None, '{"a": 1}', '{"a"'), False, False),
        (chat("I call it.", "{}"), False, True),
        (dump({"choices": [{"index": 0, "text": "{}"}, {"index": 1, "text": "{"}]}), False, False),
        (message({"type": "text", "text": "{}"}), True, False),
        (message({"type": "tool_use", "name": "f", "input": {}}), True, True),
        (dump(response(said("{}"))), True, False),
        (dump(response({"type": "function_call", "arguments": "{}"})), True, True),
        (dump(response({"type": "reasoning"}, said("{"))), False, False),
        (b"{", False, False),
        (b"[]", False, False),
        (b"null", False, False),
    ],
)
def test_whole_answers_are_checked_for_their_promise(answer: bytes, json_kept: bool, call_kept: bool) -> None:
    kept = [is_kept(promise, answer, stream=False) for promise in (Promise.JSON, Promise.CALL)]
    assert kept == [json_kept, call_kept]


def frames(*events: dict[str, Any]) -> bytes:
    return b"".join(encode(json.dumps(event), type=event.get("type")) for event in events) + DONE


def delta_promised_output(index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": fields}]}


def call(arguments: str | None, index: int = 0) -> dict[str, Any]:
    return delta_promised_output(tool_calls=[{"index": index, "function": {"arguments": arguments}}])


BLOCK = {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "name": "f"}}


def block(**fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 1, "delta": fields}


@pytest.mark.parametrize(
    ("stream", "json_kept", "call_kept"),
    [
        (
            frames(
                delta_promised_output(role="assistant", content=""),
                delta_promised_output(content='{"a'),
                delta_promised_output(content='": 1}'),
            ),
            True,
            False,
        ),
        (frames(delta_promised_output(content="{"), delta_promised_output(1, content="{}")), False, False),
        (frames(call(None), call('{"a": '), call("1}"), call("{}", 1)), True, True),
        (frames(call('{"a": ')), False, False),
        (frames({"choices": [{"index": 0, "text": "{}"}]}, {"choices": [], "usage": {}}), True, False),
        (frames(block(type="text_delta", text="{"), block(type="text_delta", text="}")), True, False),
        (frames(BLOCK, block(type="input_json_delta", partial_json="{}")), True, True),
        (frames(BLOCK), True, True),
        (frames(BLOCK, block(type="input_json_delta", partial_json="{")), False, False),
        (frames({"type": "response.completed", "response": response(said("{}"))}), True, False),
        (frames(), False, False),
        (b"data: {", False, False),
        (b"data: \xff\n\n", False, False),
    ],
)
def test_streams_are_checked_for_their_promise(stream: bytes, json_kept: bool, call_kept: bool) -> None:
    kept = [is_kept(promise, stream, stream=True) for promise in (Promise.JSON, Promise.CALL)]
    assert kept == [json_kept, call_kept]


@given(st.binary(max_size=60) | st.text(max_size=40).map(lambda text: f'data: {{"choices": {text}}}\n\n'.encode()))
def test_any_bytes_can_be_checked_for_a_promise(answer: bytes) -> None:
    for promise in Promise:
        for stream in (False, True):
            is_kept(promise, answer, stream=stream)


@pytest.mark.parametrize(("given", "kept"), [(5, 5), (None, None), (2**64, 2**63 - 1), (-(10**30), -(2**63) + 1)])
def test_a_limit_has_64_bits_at_most(given: int | None, kept: int | None) -> None:
    """Reports of a router's requests can hold no more."""
    assert max_tokens({"max_completion_tokens": given}) == kept


WEATHER_CALL = {
    "index": 0,
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city":"Rome"}'},
}
CONTENT_WHOLE = [
    {"choices": [{"index": 0, "message": {"content": "It rains.", "reasoning": "Hm.", "tool_calls": [WEATHER_CALL]}}]},
    {
        "content": [
            {"type": "thinking", "thinking": "Hm."},
            {"type": "text", "text": "It rains."},
            {"type": "tool_use", "name": "weather", "input": {"city": "Rome"}},
        ]
    },
    {
        "output": [
            {"type": "reasoning", "content": []},
            {"type": "message", "content": [{"type": "output_text", "text": "It rains."}]},
            {"type": "function_call", "name": "weather", "arguments": '{"city":"Rome"}'},
        ]
    },
]


def events(*items: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(item).encode() + b"\n\n" for item in items) + b"data: [DONE]\n\n"


CONTENT_STREAMS = [
    events(
        delta(role="assistant", content=""),
        delta(reasoning="Hm."),
        delta(content="It "),
        delta(content="rains."),
        delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "weather", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"city":'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '"Rome"}'}}]),
    ),
    events(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It rains."}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "name": "weather"}},
        {"type": "content_block_delta", "index": 1, "delta": {"partial_json": '{"city":'}},
        {"type": "content_block_delta", "index": 1, "delta": {"partial_json": '"Rome"}'}},
    ),
    events({"type": "response.created", "response": {}}, {"type": "response.completed", "response": CONTENT_WHOLE[2]}),
]


@pytest.mark.parametrize(
    ("answer", "stream"),
    [(json.dumps(answer).encode(), False) for answer in CONTENT_WHOLE] + [(stream, True) for stream in CONTENT_STREAMS],
)
def test_texts_and_calls_are_those_of_the_answer_and_thoughts_are_not(answer: bytes, stream: bool) -> None:
    content = content_of(answer, stream=stream)
    assert [text for text in content.texts.values() if text] == ["It rains."]
    assert content.calls == [CollectedToolCall("weather", '{"city":"Rome"}')]


def test_several_choices_stay_apart_in_a_stream() -> None:
    parts = [{"choices": [{"index": index, "text": text}]} for index, text in [(0, "a"), (1, "x"), (0, "b")]]
    assert list(content_of(events(*parts), stream=True).texts.values()) == ["ab", "x"]


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"choices": 3}', b'{"choices": [{}]}', b"\xff"])
def test_other_bytes_are_malformed(answer: bytes) -> None:
    with pytest.raises(MALFORMED):
        content_of(answer, stream=False)


def embeddings(*vectors: Any) -> bytes:
    return json.dumps({"data": [{"index": n, "embedding": v} for n, v in enumerate(vectors)]}).encode()


def test_vectors_are_read_from_numbers_and_from_base64() -> None:
    packed = base64.b64encode(array("f", [1.0, -2.5]).tobytes()).decode()
    assert [list(vector) for vector in vectors_of(embeddings([1.0, -2.5], [0.5, 0.25]))] == [[1.0, -2.5], [0.5, 0.25]]
    assert [list(vector) for vector in vectors_of(embeddings(packed, packed))] == [[1.0, -2.5]] * 2
    assert vectors_of(b'{"data": []}') == []


@pytest.mark.parametrize("packed", [False, True])
def test_a_truncated_answer_has_its_complete_vectors(packed: bool) -> None:
    numbers = [[float(10 * row + column) for column in range(6)] for row in range(4)]
    values = [base64.b64encode(array("f", number).tobytes()).decode() for number in numbers] if packed else numbers
    answer = embeddings(*values)
    for cut in range(answer.index(b'"index": 2') + 5, answer.index(b'"index": 3')):
        assert [list(vector) for vector in vectors_of(answer[:cut])][:2] == numbers[:2]
        assert len(vectors_of(answer[:cut])) in (2, 3)
    with pytest.raises(MALFORMED):
        vectors_of(embeddings("not base64!"))
