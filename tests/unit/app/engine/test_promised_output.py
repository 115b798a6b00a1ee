"""Checks that answers have the format that their requests asked for."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.output import Promise, is_kept, promised
from app.sse import DONE, encode

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
    calls = [{"id": "c", "function": {"name": "f", "arguments": it}} for it in arguments]
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


def delta(index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": fields}]}


def call(arguments: str | None, index: int = 0) -> dict[str, Any]:
    return delta(tool_calls=[{"index": index, "function": {"arguments": arguments}}])


BLOCK = {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "name": "f"}}


def block(**fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 1, "delta": fields}


@pytest.mark.parametrize(
    ("stream", "json_kept", "call_kept"),
    [
        (frames(delta(role="assistant", content=""), delta(content='{"a'), delta(content='": 1}')), True, False),
        (frames(delta(content="{"), delta(1, content="{}")), False, False),
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
