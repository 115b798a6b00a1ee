"""`functions` and `function_call`: tools for the engine, the former form for the client."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.base import Call, Request
from app.dialects.common.streams import PassthroughStream
from app.dialects.openai.dialect import OpenAI
from app.dialects.openai.errors import CHUNKS
from app.dialects.openai.translations import stream_frame, whole_answer
from app.errors import BadRequest
from app.exchange.request import check_constraints
from tests.support.clients.samples import CONTEXT

USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "default": None}}
TOOL = {"type": "function", "function": FUNCTION}
CALLED = {"name": "f", "arguments": "{}"}


def parse(**fields: Any) -> Call:
    body = {"model": "chat", "messages": [USER], **fields}
    return OpenAI().parse("chat", Request("POST", "/v1/chat/completions", json.dumps(body).encode()), CONTEXT)


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, {}),
        ("auto", {"tool_choice": "auto"}),
        ("none", {"tool_choice": "none"}),
        ({"name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ],
)
def test_the_engine_gets_tools_of_which_it_may_call_one(choice: Any, sent: dict[str, Any]) -> None:
    body = parse(functions=[FUNCTION], function_call=choice).body
    tools = {"tools": [TOOL], "parallel_tool_calls": False}
    assert body == {"model": "chat", "messages": [USER], **tools, **sent}


def test_the_engine_gets_a_conversations_calls_and_results_in_the_present_form() -> None:
    messages = [
        USER,
        {"role": "assistant", "content": None, "function_call": CALLED},
        {"role": "function", "name": "f", "content": "1"},
        {"role": "assistant", "content": "One.", "function_call": None},
        {"role": "assistant", "function_call": CALLED},
        {"role": "function", "name": "f", "content": "2"},
    ]
    for fields in ({}, {"functions": [FUNCTION]}):
        _, first, result, said, second, other = parse(messages=messages, **fields).body["messages"]
        for call, answer in ((first, result), (second, other)):
            (made,) = call["tool_calls"]
            assert (made["type"], made["function"]) == ("function", CALLED)
            assert (answer["role"], answer["name"], answer["tool_call_id"]) == ("tool", "f", made["id"])
            assert "function_call" not in call
        assert first["tool_calls"][0]["id"] != second["tool_calls"][0]["id"]
        assert said == {"role": "assistant", "content": "One."}


def test_a_result_alone_is_a_tools_result() -> None:
    (message,) = parse(messages=[{"role": "function", "name": "f", "content": "1"}]).body["messages"]
    assert message["role"] == "tool"
    assert message["tool_call_id"]


def test_no_functions_are_none() -> None:
    assert parse(functions=[], function_call="none").body == parse().body


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [FUNCTION], "tools": [TOOL]}, "functions"),
        ({"functions": [FUNCTION], "tool_choice": "auto"}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"functions": [FUNCTION], "function_call": {"name": "g"}}, "function_call"),
        ({"functions": [FUNCTION], "function_call": "required"}, "function_call"),
        ({"functions": [{}]}, "functions[0].name"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call.arguments"),
        ({"messages": [{"role": "assistant", "function_call": CALLED, "tool_calls": []}]}, "messages[0]"),
    ],
)
def test_what_contradicts_itself_is_refused_under_the_clients_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse(**fields)
    assert raised.value.param is not None
    assert raised.value.param.startswith(param)


def test_an_unsatisfiable_function_is_the_clients_field() -> None:
    parameters = {"$ref": "#"}
    with pytest.raises(BadRequest) as raised:
        check_constraints(parse(functions=[{"name": "f", "parameters": parameters}], function_call={"name": "f"}), 0)
    assert raised.value.param == "functions"


def completion(message: dict[str, Any], reason: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": reason}
    return json.dumps({"id": "c", "choices": [choice], "usage": {"total_tokens": 3}}).encode()


@given(st.lists(st.text(max_size=4), min_size=1, max_size=4), st.sampled_from(["tool_calls", "stop", "length"]))
def test_a_stream_and_a_whole_answer_have_the_same_call(parts: list[str], reason: str) -> None:
    made: list[dict[str, Any]] = [
        {"index": number, "id": f"c{number}", "type": "function", "function": {"name": f"f{number}", "arguments": ""}}
        for number in range(2)
    ]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}]
    for call in made:
        deltas += [{"tool_calls": [call]}]
        deltas += [{"tool_calls": [{"index": call["index"], "function": {"arguments": part}}]} for part in parts]
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    frames = [f"data: {json.dumps({'choices': [choice]})}\n\n".encode() for choice in choices]
    stream = PassthroughStream(CHUNKS, edit=stream_frame)
    sent = b"".join(map(stream.feed, [*frames, b"data: [DONE]\n\n"])).decode()
    chunks = [json.loads(event[6:]) for event in sent.split("\n\n") if event.startswith("data: {")]
    streamed = [choice for chunk in chunks for choice in chunk["choices"]]
    calls = [choice["delta"]["function_call"] for choice in streamed if "function_call" in choice["delta"]]

    whole = [{**call, "function": {**call["function"], "arguments": "".join(parts)}} for call in made]
    (choice,) = json.loads(whole_answer(completion({"tool_calls": whole}, reason)))["choices"]
    assert choice["message"]["function_call"] == {"name": "f0", "arguments": "".join(parts)}
    assert calls[0]["name"] == "f0"
    assert "".join(call["arguments"] for call in calls) == "".join(parts)
    assert choice["finish_reason"] == streamed[-1]["finish_reason"]
    assert choice["finish_reason"] == ("function_call" if reason == "tool_calls" else reason)
    assert "tool_calls" not in choice["message"]
    assert not any("tool_calls" in choice["delta"] for choice in streamed)


def test_text_passes() -> None:
    answer = completion({"content": "Hi.", "tool_calls": []}, "stop")
    assert json.loads(whole_answer(answer))["choices"][0]["message"] == {"role": "assistant", "content": "Hi."}
