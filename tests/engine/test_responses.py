"""Responses on a real vLLM: the counted prompt is the one that is billed, and a refusal names the client's field."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_input_messages

from app.dialects.base import Request
from app.dialects.openai.dialect import OpenAI
from app.errors import BadRequest
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.support.clients.response_items import ITEMS, sample
from tests.support.clients.samples import CONTEXT
from tests.support.engine.model_application import KEY
from tests.support.processes.servers import serve

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
    router = Router(RuntimeEnvironment(serve_url=engine, internal_key=KEY))
    router.reconfigure(
        {
            "endpoints": {"chat": {"tasks": ["chat", "responses"], "traffic": {"base": 100}}},
            "deployments": {"base": {"app": "tiny", "model": "tiny"}},
        }
    )
    with serve(router.app) as url, httpx.Client(base_url=url, timeout=300) as client:
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


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", ITEMS)
def test_vllm_makes_messages_of_every_item_that_it_gets(name: str, whole: bool) -> None:
    body = {"model": "chat", "input": [{"role": "user", "content": "hi"}, sample(ITEMS[name], whole=whole)]}
    request = Request("POST", "/v1/responses", json.dumps(body).encode())
    with suppress(BadRequest, ValidationError):  # the client's faults, here and in vLLM
        sent = ResponsesRequest.model_validate(OpenAI().parse("responses", request, CONTEXT).body)
        messages = construct_input_messages(request_input=sent.input)
        assert all("role" in message for message in messages)
