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
