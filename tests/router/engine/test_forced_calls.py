"""Forced tool calls that `max_tokens` truncates: the whole answer equals the sum of its stream, and both say so."""

import json
from typing import Any

import anthropic
import httpx
import pytest
from starlette.responses import JSONResponse, Response

from tests.router.conftest import Rig
from tests.support.engine.fake_engine import USAGE, frame, stream
from tests.support.engine.other_answers import message_with, response_of

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
MARKUP = '<tool_call>\n{"name": "add", "arguments": {"a": 12, "b": "x'
ARGUMENTS = ['{"a": 1', '2, "b"', ': "x']
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
FORCED = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], "tool_choice": "required", "max_tokens": 9}
PATHS = {
    "openai": "/v1/chat/completions",
    "azure": "/chat/completions?api-version=2024-05-01-preview",
    "databricks": "/serving-endpoints/chat/completions",
    "databricks invocations": "/serving-endpoints/chat/invocations",
    "tgi": "/tgi/chat/v1/chat/completions",
    "friendli": "/serverless/v1/chat/completions",
}


def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> str:
    return frame({**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def arguments(text: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}


def cut_chat(body: dict[str, Any]) -> Response:
    """vLLM with the parser `hermes`: markup in a whole answer, a call in a stream."""
    if not body.get("stream"):
        message = {"role": "assistant", "content": MARKUP}
        choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}]
        return JSONResponse({**HEAD, "object": "chat.completion", "choices": choices, "usage": USAGE})
    start = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "add"}}]}
    first, second, last = map(arguments, ARGUMENTS)
    chunks = [chunk({"role": "assistant", "content": ""}), chunk(start), chunk(first), chunk(second)]
    usage = frame({**HEAD, "choices": [], "usage": USAGE})
    return stream([*chunks, chunk(last, "tool_calls"), usage, "data: [DONE]\n\n"])


@pytest.mark.parametrize("dialect", PATHS)
def test_a_whole_chat_has_the_call_that_its_stream_has(rig: Rig, dialect: str) -> None:
    rig.blue.answer = cut_chat
    url, body = rig.url + PATHS[dialect], {"model": "chat", **FORCED}
    whole = httpx.post(url, json=body).raise_for_status().json()
    events = httpx.post(url, json={**body, "stream": True}).raise_for_status().text.split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events if event.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls") or ()]
    streamed = "".join(call["function"].get("arguments", "") for call in calls)
    function = {"name": calls[0]["function"]["name"], "arguments": streamed}
    (choice,) = whole["choices"]
    assert choice["message"]["tool_calls"] == [{"id": calls[0]["id"], "type": "function", "function": function}]
    assert (choice["message"]["content"], streamed) == ("", "".join(ARGUMENTS))
    assert choice["finish_reason"] == choices[-1]["finish_reason"] == "length"
    assert (whole["object"], whole["usage"]["total_tokens"]) == ("chat.completion", USAGE["total_tokens"])
    assert [request["stream"] for request in rig.blue.requests] == [True, True]


def test_other_chats_are_not_collected(rig: Rig) -> None:
    for fields in ({"tool_choice": "auto"}, {"tool_choice": "none"}):
        httpx.post(rig.url + PATHS["openai"], json={"model": "chat", **FORCED, **fields}).raise_for_status()
    assert [request.get("stream", False) for request in rig.blue.requests] == [False, False]


def test_a_streamed_call_that_the_model_chose_and_the_limit_cut_ends_with_length(rig: Rig) -> None:
    rig.blue.answer = cut_chat
    fields = {"model": "chat", **FORCED, "tool_choice": "auto", "stream": True}
    text = httpx.post(rig.url + PATHS["openai"], json=fields).raise_for_status().text
    assert '"finish_reason":"length"' in text
    assert '"finish_reason":"tool_calls"' not in text


def test_a_stream_that_breaks_off_is_retried_on_another_deployment(rig: Rig) -> None:
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = lambda body: stream([chunk({"role": "assistant", "content": ""})])
    rig.green.answer = cut_chat
    answer = httpx.post(rig.url + PATHS["openai"], json={"model": "chat", **FORCED}).raise_for_status().json()
    assert answer["choices"][0]["message"]["tool_calls"][0]["id"] == "call_1"
    assert (len(rig.blue.requests), len(rig.green.requests)) == (1, 1)


def cut_message(body: dict[str, Any]) -> Response:
    """The same at `/v1/messages`: `max_tokens` ends a call of a named tool, `tool_use` a call of any tool."""
    if not body.get("stream"):
        return message_with(body, {"type": "text", "text": MARKUP}, stop_reason="max_tokens")
    block = {"type": "tool_use", "id": "call_1", "name": "add", "input": ARGUMENTS}
    is_named = body["tool_choice"]["type"] == "tool"
    return message_with(body, block, stop_reason="max_tokens" if is_named else "tool_use")


@pytest.mark.parametrize("choice", ["any", "tool"])
def test_a_whole_message_is_what_anthropics_sdk_makes_of_its_stream(rig: Rig, choice: str) -> None:
    rig.blue.answer = cut_message
    tool_choice = {"type": choice} if choice == "any" else {"type": choice, "name": "add"}
    tool = {"name": "add", "input_schema": {"type": "object", "properties": {}}}
    fields: Any = {"model": "chat", "max_tokens": 9, "messages": FORCED["messages"], "tools": [tool]}
    fields["tool_choice"] = tool_choice
    with anthropic.Anthropic(base_url=rig.url, api_key="k", max_retries=0) as client:
        whole = client.messages.create(**fields)
        with client.messages.stream(**fields) as events:
            streamed = events.get_final_message()
    assert whole.content[0].to_dict() == {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 12}}
    assert whole.stop_reason == "max_tokens"
    assert whole.to_dict(exclude_none=True) == streamed.to_dict(exclude_none=True)
    assert [request["stream"] for request in rig.blue.requests] == [True, True]


def cut_response(body: dict[str, Any]) -> Response:
    """The same at `/v1/responses`, where the last event has the markup too."""
    text = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": MARKUP, "annotations": []}]}
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": body["model"]}
    whole = {**head, "status": "incomplete", "output": [text], "usage": {"input_tokens": 9, "output_tokens": 3}}
    if not body.get("stream"):
        return JSONResponse(whole)
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "add", "status": "in_progress"}
    done = {**item, "arguments": "".join(ARGUMENTS), "status": "completed"}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**head, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}},
        *(
            {"type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "fc_1", "delta": part}
            for part in ARGUMENTS
        ),
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.completed", "response": whole},
    ]
    return response_of(events)


@pytest.mark.parametrize("path", ["/v1/responses", "/serving-endpoints/responses"])
def test_a_whole_response_has_the_call_that_its_stream_has(rig: Rig, path: str) -> None:
    rig.blue.answer = cut_response
    tool = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
    fields = {"model": "chat", "input": "hi", "tools": [tool], "tool_choice": "required", "max_output_tokens": 9}
    whole = httpx.post(rig.url + path, json=fields).raise_for_status().json()
    events = httpx.post(rig.url + path, json={**fields, "stream": True}).raise_for_status().text.split("\n\n")
    (last,) = [json.loads(event.partition("\ndata: ")[2]) for event in events if "event: response.incomplete" in event]
    for response in (whole, last["response"]):
        (call,) = response["output"]
        assert (call["type"], call["call_id"], call["name"]) == ("function_call", "call_1", "add")
        assert (call["arguments"], call["status"]) == ("".join(ARGUMENTS), "incomplete")
        assert response["status"] == "incomplete"
    assert [request["stream"] for request in rig.blue.requests] == [True, True]
