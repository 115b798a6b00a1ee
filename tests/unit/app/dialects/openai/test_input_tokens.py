"""The prompt of a Responses request, as `/tokenize` gets it, and the count."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.base import Call, Request
from app.dialects.openai.dialect import OpenAI
from app.errors import BadRequest, ClientError
from tests.support.clients.dialect_calls import engine_request
from tests.support.clients.samples import CONTEXT, SERVED

PATH = "/v1/responses/input_tokens"
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CHAT_FUNCTION = {"name": "f", "parameters": {"type": "object"}}


def parse(**fields: Any) -> Call:
    return OpenAI().parse("input_tokens", Request("POST", PATH, json.dumps(fields).encode()), CONTEXT)


def counted(**fields: Any) -> Any:
    request = engine_request(parse(**fields), SERVED)
    assert request.path == "/tokenize"
    return request.body


def test_a_text_is_a_users_message_after_the_instructions() -> None:
    assert counted(model="chat", input="hi", instructions="Be kind.", reasoning={"effort": "low"}) == {
        "model": "chat",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}],
    }


def test_items_are_the_messages_that_vllm_makes_of_them() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well."}]},
        call,
        {**call, "call_id": "d", "namespace": "n"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"role": "assistant", "content": "Done."},
    ]
    functions = [{"type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("f", "n__f")]
    assert counted(input=items)["messages"] == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}],
        },
        {
            "role": "assistant",
            "reasoning": "Hm.",
            "content": "Well.",
            "tool_calls": [{"id": id, **function} for id, function in zip("cd", functions, strict=True)],
        },
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "assistant", "content": "Done."},
    ]


def test_functions_are_part_of_the_prompt_and_servers_tools_are_not() -> None:
    tools = [FUNCTION, {"type": "namespace", "name": "n", "tools": [FUNCTION]}, {"type": "web_search"}]
    named = [{"type": "function", "function": {**CHAT_FUNCTION, "name": name}} for name in ("f", "n__f")]
    assert counted(input="hi", tools=tools)["tools"] == named
    assert "tools" not in counted(input="hi", tools=[])


def test_the_answer_is_the_number_of_tokens() -> None:
    reply = parse(input="hi").translation.reply(b'{"tokens": [1, 2, 3], "count": 3}', SERVED)
    assert json.loads(reply.body) == {"object": "response.input_tokens", "input_tokens": 3}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"type": "reasoning", "summary": ["a"]}]}, "input[0].summary[0]"),
        ({"input": "hi", "tools": [5]}, "tools[0]"),
        ({"input": "hi", "tools": [{"type": "mcp"}]}, "tools[0]"),
        ({"input": "hi", "previous_response_id": "r"}, "previous_response_id"),
        ({"input": "hi", "temperature": 1}, "temperature"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse(**fields)
    assert raised.value.param == param


values = st.recursive(
    st.none() | st.integers() | st.sampled_from(["function_call", "reasoning", "assistant", "namespace", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("type role content summary tools text name arguments".split()), inner)
    ),
    max_leaves=8,
)


@given(st.lists(values, max_size=3), st.lists(values, max_size=3))
def test_any_items_and_tools_are_counted_or_refused(items: list[Any], tools: list[Any]) -> None:
    with suppress(ClientError):
        counted(input=items, tools=tools)
