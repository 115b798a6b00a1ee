"""Chats at `/score`: in Azure ML's form, or plain; pairs of texts are scored as before."""

import json
from typing import Any

import pytest

from app.dialects.base import Call, Request
from app.dialects.openai.dialect import OpenAI
from app.errors import BadRequest
from tests.support.clients.samples import CONTEXT, SERVED

MESSAGES = [{"role": "user", "content": "hi"}]


def parse(**body: Any) -> Call:
    return OpenAI().parse("score", Request("POST", "/score", json.dumps(body).encode()), CONTEXT)


def wrapped(**parameters: Any) -> Call:
    return parse(input_data={"input_string": MESSAGES, "parameters": parameters})


def test_a_wrapped_chat_is_a_chat_whose_answer_is_its_text() -> None:
    call = wrapped(temperature=0.5, max_new_tokens=9, top_p=0.9, stream=False, do_sample=True)
    assert call.task == "chat"
    assert call.body == {"messages": MESSAGES, "temperature": 0.5, "max_tokens": 9, "top_p": 0.9}
    answer = {"choices": [{"message": {"role": "assistant", "content": "Hello."}}]}
    assert json.loads(call.translation.reply(json.dumps(answer).encode(), SERVED).body) == {"output": "Hello."}


def test_without_sampling_it_is_greedy() -> None:
    assert wrapped(do_sample=False, temperature=0.7).body["temperature"] == 0


def test_parameters_may_be_missing() -> None:
    assert parse(input_data={"input_string": MESSAGES}).body == {"messages": MESSAGES}


TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("parameters", "name", "why"),
    [
        ({"n": 2}, "n", "one text"),
        ({"logprobs": True}, "logprobs", "one text"),
        ({"tools": [TOOL]}, "tools", "one text"),
        ({"functions": [{"name": "f"}]}, "functions", "one text"),
        ({"max_new_tokens": 3, "max_tokens": 7}, "max_tokens", "not together with max_new_tokens"),
        ({"return_full_text": True}, "return_full_text", "the new text alone"),
        ({"stream": True}, "stream", "streams"),
    ],
)
def test_what_the_output_cannot_have_is_refused(parameters: dict[str, Any], name: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why) as raised:
        wrapped(**parameters)
    assert raised.value.param == f"input_data.parameters.{name}"
    assert raised.value.message.startswith(f"{raised.value.param}: ")


def test_parameters_that_ask_for_no_more_than_the_text_are_accepted() -> None:
    assert wrapped(n=1, logprobs=False, return_full_text=False, tools=[]).body["n"] == 1


def test_a_message_that_is_no_object_is_named_in_the_words_of_json() -> None:
    with pytest.raises(BadRequest) as raised:
        parse(input_data={"input_string": ["What is it?"]})
    assert raised.value.message == "input_data.input_string[0]: Input should be an object"


def test_a_plain_chat_is_one_here_too_and_pairs_are_scored() -> None:
    assert parse(messages=MESSAGES).task == "chat"
    assert parse(queries="q", documents=["d"]).task == "rerank"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input_data": {}}, "input_data.input_string"),
        ({"input_data": {"input_string": []}}, "input_data.input_string"),
        ({"input_data": {"input_string": [{"role": "boss"}]}}, "input_data.input_string[0].role"),
        (
            {"input_data": {"input_string": MESSAGES, "parameters": {"temperature": 9}}},
            "input_data.parameters.temperature",
        ),
        ({"input_data": {"input_string": MESSAGES, "parameters": {"zzz": 9}}}, "input_data.parameters.zzz"),
        ({"input_data": {"input_string": MESSAGES, "parameters": {"stream": True}}}, "input_data.parameters.stream"),
        ({"input_data": {"input_string": MESSAGES}, "temperature": 1}, "temperature"),
    ],
)
def test_an_error_names_the_clients_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse(**body)
    assert raised.value.param == param
    assert param in raised.value.message
