"""Responses on a real vLLM: the counted prompt is the one that is billed, and a refusal names the client's field."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_input_messages

from app.dialects.base import Request
from app.dialects.openai.dialect import OpenAI
from app.errors import BadRequest
from tests.engine.conftest import routed
from tests.support.clients.response_items import ITEMS, sample
from tests.support.clients.samples import CONTEXT

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]  # it starts beside other applications

FUNCTION = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "2"}
SAID = {"role": "user", "content": [{"type": "input_text", "text": "Add one."}]}
ANSWERED = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Two."}]}
PROMPTS: Mapping[str, Mapping[str, Any]] = {
    "text": {"input": "What is rain?"},
    "instructions": {"input": "What is rain?", "instructions": "Be kind."},
    "items": {"input": [SAID, {"role": "assistant", "content": "Two."}, {"role": "developer", "content": "Stop."}]},
    "tools": {"input": "What is rain?", "tools": [FUNCTION]},
    "loop": {"input": [SAID, CALL, RESULT, ANSWERED, SAID], "tools": [FUNCTION]},
}


@pytest.fixture(scope="module")
def client(engine: str) -> Iterator[httpx.Client]:
    config = {
        "endpoints": {"chat": {"tasks": ["chat", "responses"], "traffic": {"base": 100}}},
        "deployments": {"base": {"app": "tiny", "model": "tiny"}},
    }
    with routed(engine, config) as client:
        yield client


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_count_is_that_of_the_response_itself(client: httpx.Client, prompt: str) -> None:
    body = {"model": "chat", **PROMPTS[prompt]}
    counted = client.post("/v1/responses/input_tokens", json=body).raise_for_status().json()
    answered = client.post("/v1/responses", json={**body, "max_output_tokens": 1}).raise_for_status().json()
    assert counted["input_tokens"] == answered["usage"]["input_tokens"]


def test_an_image_for_a_model_of_texts_is_the_inputs_fault(client: httpx.Client) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
    answer = client.post("/v1/responses", json={"model": "chat", "input": [{"role": "user", "content": [image]}]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "input[0].content[0]")
    assert "a model for texts only" in error["message"]


def test_an_image_beside_a_text_is_named_too(client: httpx.Client) -> None:
    content = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": "data:image/png;,"}]
    answer = client.post("/v1/responses", json={"model": "chat", "input": [{"role": "user", "content": content}]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[0].content[1]")


INPUTS = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]
PARTS: Mapping[str, list[dict[str, Any]]] = {
    "assistant": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "a"}],
    "developer": INPUTS,
    "system": INPUTS,
    "user": INPUTS,
}
"""The parts that each role's message may have."""

OPTIONAL: Mapping[str, Mapping[str, list[Any]]] = {
    "message": {
        "type": ["message"],
        "id": ["msg_1"],
        "status": ["in_progress", "completed", "incomplete"],
        "phase": ["commentary", "final_answer"],
    },
    "output_text": {"annotations": [[]], "logprobs": [[]]},
    "input_image": {"detail": ["auto", "low", "high", "original"]},
}
"""The fields that clients leave out, and their values."""


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """A message of OpenAI's SDK."""

    def completed(value: dict[str, Any], kind: str) -> dict[str, Any]:
        optional = OPTIONAL.get(kind, {})
        names = draw(st.sets(st.sampled_from(sorted(optional)))) if optional else set()
        return {**value, **{name: draw(st.sampled_from(optional[name])) for name in sorted(names)}}

    role = draw(st.sampled_from(sorted(PARTS)))
    parts = draw(st.lists(st.sampled_from(PARTS[role]), max_size=3))
    content = [completed(part, part["type"]) for part in parts] or "a"
    return completed({"role": role, "content": content}, "message")


@given(messages())
def test_vllm_takes_every_message_of_the_sdk_whole(message: dict[str, Any]) -> None:
    request = Request("POST", "/v1/responses", json.dumps({"model": "chat", "input": [message]}).encode())
    sent = ResponsesRequest.model_validate(OpenAI().parse("responses", request, CONTEXT).body)
    (made,) = construct_input_messages(request_input=sent.input)
    content, parts = made.get("content"), message["content"]
    assert made["role"] == message["role"]
    if isinstance(parts, str) or message["role"] == "assistant":
        assert content == "a" * len(parts)
    else:
        assert isinstance(content, list)
        assert [part["type"] for part in content] == [part["type"] for part in parts]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", ITEMS)
def test_vllm_makes_messages_of_every_item_that_it_gets(name: str, whole: bool) -> None:
    body = {"model": "chat", "input": [{"role": "user", "content": "hi"}, sample(ITEMS[name], whole=whole)]}
    request = Request("POST", "/v1/responses", json.dumps(body).encode())
    with suppress(BadRequest, ValidationError):  # the client's faults, here and in vLLM
        sent = ResponsesRequest.model_validate(OpenAI().parse("responses", request, CONTEXT).body)
        messages = construct_input_messages(request_input=sent.input)
        assert all("role" in message for message in messages)
