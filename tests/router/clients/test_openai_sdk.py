"""The official OpenAI and Anthropic SDKs, sync and async, against the real router and fake deployments."""

import json
import time
from functools import partial
from typing import Any

import anthropic
import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from starlette.responses import JSONResponse, Response

from tests.router.conftest import Rig
from tests.support.engine.fake_engine import USAGE, frame, refuse, stream
from tests.support.engine.other_answers import response_of

USER = [{"role": "user", "content": "hi"}]


def client(rig: Rig) -> Any:  # the SDK's overloads want literal message types
    return OpenAI(base_url=f"{rig.url}/v1", api_key="k", max_retries=0)


def create(rig: Rig, **fields: object) -> Any:
    arguments = {"model": "chat", "messages": USER, **fields}
    return client(rig).chat.completions.create(**arguments)


def test_a_chat_is_answered_by_the_deployment_under_its_own_model_name(rig: Rig) -> None:
    answer = client(rig).chat.completions.create(model="chat", messages=USER)
    assert answer.choices[0].message.content == "Hello blue-model"
    assert answer.usage is not None
    assert rig.blue.requests == [{"model": "blue-model", "messages": USER}]


def test_a_stream_without_include_usage_has_no_usage(rig: Rig) -> None:
    chunks = list(client(rig).chat.completions.create(model="chat", messages=USER, stream=True))
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["Hel", "lo ", "blue-model", ""]
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_with_include_usage_ends_with_the_usage(rig: Rig) -> None:
    chunks = list(
        client(rig).chat.completions.create(
            model="chat",
            messages=USER,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 12


async def test_the_async_sdk_streams_too(rig: Rig) -> None:
    async with AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="k") as sdk_:
        sdk: Any = sdk_
        chunks = await sdk.chat.completions.create(model="chat", messages=USER, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in chunks]) == "Hello blue-model"


def test_the_models_are_the_endpoints_and_the_deployments(rig: Rig) -> None:
    assert [model.id for model in client(rig).models.list()] == ["chat", "embed", "blue", "green", "mini"]
    started = time.time()
    kinds = {model.id: (model.kind, model.tasks) for model in client(rig).models.list()}
    assert kinds["chat"] == ("endpoint", ["chat", "completions", "responses"])
    assert kinds["mini"] == ("deployment", ["embeddings"])
    card = client(rig).models.retrieve("green")
    assert (card.id, card.root) == ("green", "green-model")
    assert started - 60 <= card.created <= started
    with pytest.raises(openai.NotFoundError):
        client(rig).models.retrieve("gone")


def test_an_unknown_model_is_not_found(rig: Rig) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        create(rig, model="gone")
    assert (raised.value.code, raised.value.param, raised.value.type) == (
        "model_not_found",
        "model",
        "invalid_request_error",
    )


def test_a_wrong_field_is_a_bad_request_that_names_it(rig: Rig) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        create(rig, temperature=7)
    assert (raised.value.param, raised.value.type) == ("temperature", "invalid_request_error")
    assert rig.blue.requests == []


def test_an_engines_rejection_is_openais_error_object(rig: Rig) -> None:
    rig.blue.answer = refuse(400, "top_k must be 0 (disable), or at least 1", "top_k")
    with pytest.raises(openai.BadRequestError) as raised:
        create(rig, extra_body={"top_k": -5})
    assert raised.value.body == {
        "message": "top_k must be 0 (disable), or at least 1",
        "type": "invalid_request_error",
        "param": "top_k",
        "code": None,
    }


def test_the_engines_own_failure_keeps_its_details_inside(rig: Rig) -> None:
    rig.blue.answer = refuse(500, "CUDA out of memory on worker 3", kind="InternalServerError")
    with pytest.raises(openai.InternalServerError) as raised:
        create(rig)
    assert raised.value.status_code == 502
    assert "CUDA" not in str(raised.value)


def test_an_error_inside_a_stream_raises_in_the_sdk(rig: Rig) -> None:
    error = {"error": {"message": "boom", "type": "InternalServerError", "param": None, "code": 500}}
    rig.blue.answer = lambda body: stream([frame({"choices": []}), frame(error), "data: [DONE]\n\n"])
    with pytest.raises(openai.APIError, match="failed while serving"):
        list(create(rig, stream=True))


def calls_two(body: dict[str, Any]) -> Response:
    """A response with two function calls, for any request."""
    items = [
        {"type": "function_call", "id": f"fc_{n}", "call_id": f"call_{n}", "name": "f", "arguments": "{}"}
        for n in range(2)
    ]
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed"}
    response |= {"output": items, "parallel_tool_calls": body.get("parallel_tool_calls", True), "tools": []}
    if not body.get("stream"):
        return JSONResponse(response)
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {**response, "output": []}}]
    for index, item in enumerate(items):
        about = {"output_index": index, "item_id": item["id"]}
        events += [
            {"type": "response.output_item.added", **about, "item": {**item, "arguments": ""}},
            {"type": "response.function_call_arguments.delta", **about, "delta": "{}"},
            {"type": "response.function_call_arguments.done", **about, "arguments": "{}", "name": "f"},
            {"type": "response.output_item.done", **about, "item": item},
        ]
    events.append({"type": "response.completed", "response": response})
    return response_of(events)


@pytest.mark.parametrize(("parallel", "names"), [(True, ["call_0", "call_1"]), (False, ["call_0"])])
def test_without_parallel_calls_a_response_has_one_call(rig: Rig, parallel: bool, names: list[str]) -> None:
    rig.blue.answer = calls_two
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": True}]
    fields = {"model": "chat", "input": "hi", "tools": tools, "parallel_tool_calls": parallel}
    sdk = client(rig)
    assert [item.call_id for item in sdk.responses.create(**fields).output] == names
    with sdk.responses.stream(**fields) as events:
        items = [event.item.call_id for event in events if event.type == "response.output_item.done"]
        last = events.get_final_response()
    assert items == [item.call_id for item in last.output] == names


def is_cut(body: dict[str, Any]) -> Response:
    """A response that `max_output_tokens` truncated, as vLLM 0.29 sends it: its stream ends in `response.completed`."""

    def message(id: str, status: str, text: str = "Hel") -> dict[str, Any]:
        content = [{"type": "output_text", "text": text, "annotations": []}] if text else []
        return {"type": "message", "id": id, "role": "assistant", "status": status, "content": content}

    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "incomplete"}
    response |= {"output": [message("msg_new", "completed")], "tools": [], "text": None}
    response |= {"incomplete_details": {"reason": "max_output_tokens"}, "parallel_tool_calls": True}
    if not body.get("stream"):
        return JSONResponse(response)
    about = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**response, "output": [], "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": message("msg_1", "in_progress", "")},
        {
            "type": "response.content_part.added",
            **about,
            "part": {"type": "output_text", "text": "", "annotations": []},
        },
        {"type": "response.output_text.delta", **about, "delta": "Hel", "logprobs": []},
        {"type": "response.output_item.done", "output_index": 0, "item": message("msg_1", "completed")},
        {"type": "response.completed", "response": response},
    ]
    return stream(
        [f"event: {event['type']}\n" + frame({**event, "sequence_number": n}) for n, event in enumerate(events)]
    )


def test_a_response_that_is_cut_is_incomplete_whole_and_streamed(rig: Rig) -> None:
    rig.blue.answer = is_cut
    fields = {"model": "chat", "input": "hi", "max_output_tokens": 1}
    whole = client(rig).responses.create(**fields)
    events = list(client(rig).responses.create(**fields, stream=True))
    for response in (whole, events[-1].response):
        assert (response.status, response.output[0].status) == ("incomplete", "incomplete")
        assert (response.error, response.store, response.text.format.type) == (None, False, "text")
        assert response.incomplete_details.reason == "max_output_tokens"
    assert events[-1].type == "response.incomplete"
    (done,) = (event.item for event in events if event.type == "response.output_item.done")
    assert done == events[-1].response.output[0]
    assert [event.sequence_number for event in events] == list(range(6))


def fails(body: dict[str, Any]) -> Response:
    """The beginning of a response, whose engine then dies."""
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    about = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    begun = {"id": "resp_1", "object": "response", "created_at": 1, "model": "blue-model", "tools": []}
    begun |= {"status": "in_progress", "output": [], "parallel_tool_calls": True, "tool_choice": "auto"}
    deltas = [{"type": "response.output_text.delta", **about, "delta": delta, "logprobs": []} for delta in "abc"]
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **about, "part": part},
        *deltas,
    ]
    return response_of(events)


@pytest.mark.parametrize("helper", ["create", "stream"])
def test_the_sdk_raises_when_a_streamed_response_fails(rig: Rig, helper: str) -> None:
    rig.blue.answer = fails
    create = partial(client(rig).responses.create, stream=True) if helper == "create" else client(rig).responses.stream
    ended = pytest.raises(openai.APIError, match="ended its response before it was complete")
    with ended as raised, create(model="chat", input="hi") as events:
        list(events)
    assert raised.value.body == {"message": raised.value.message, "type": "server_error", "param": None, "code": None}


def test_a_failed_response_ends_with_the_events_of_openais_server(rig: Rig) -> None:
    rig.blue.answer = fails
    answer = httpx.post(f"{rig.url}/v1/responses", json={"model": "chat", "input": "hi", "stream": True})
    frames = answer.text.split("\n\n")
    events = [json.loads(frame.partition("\ndata: ")[2]) for frame in frames if frame]
    assert [event["sequence_number"] for event in events] == list(range(8))
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    error, failed = events[-2], events[-1]["response"]
    assert error["error"]["message"] == error["message"] == failed["error"]["message"]
    assert (failed["id"], failed["model"], failed["status"]) == ("resp_1", "blue", "failed")
    assert failed["error"]["code"] == "server_error"


def test_a_limit_of_built_in_tools_is_rejected_by_name(rig: Rig) -> None:
    with pytest.raises(openai.BadRequestError, match="built-in tools") as raised:
        client(rig).responses.create(model="chat", input="hi", max_tool_calls=2)
    assert (raised.value.param, raised.value.code) == ("max_tool_calls", "unsupported_parameter")
    assert rig.blue.requests == []


def test_stored_responses_do_not_exist(rig: Rig) -> None:
    for call in (client(rig).responses.retrieve, client(rig).responses.cancel, client(rig).responses.delete):
        with pytest.raises(openai.NotFoundError, match="stores no responses"):
            call("resp_1")


def test_the_anthropic_sdk_gets_anthropics_errors(rig: Rig) -> None:
    sdk = anthropic.Anthropic(base_url=rig.url, api_key="k", max_retries=0)
    with pytest.raises(anthropic.NotFoundError) as raised:
        sdk.messages.create(model="gone", max_tokens=5, messages=[{"role": "user", "content": "hi"}])
    assert raised.value.body == {
        "type": "error",
        "error": {
            "type": "not_found_error",
            "message": "The model 'gone' does not exist; available endpoints: chat, embed",
        },
        "request_id": raised.value.request_id,
    }
    with pytest.raises(anthropic.BadRequestError, match="thinking"):
        sdk.messages.create(
            model="chat",
            max_tokens=5,
            messages=[{"role": "user", "content": "hi"}],
            thinking={"type": "enabled", "budget_tokens": 1},
        )


def test_the_anthropic_sdk_may_switch_thinking_off(rig: Rig) -> None:
    answer = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
    usage = {"input_tokens": 9, "output_tokens": 3}
    rig.blue.answer = lambda body: JSONResponse(
        {**answer, "content": [{"type": "text", "text": "Hello"}], "usage": usage}
    )
    with anthropic.Anthropic(base_url=rig.url, api_key="k", max_retries=0) as sdk:
        result = sdk.messages.create(
            model="chat",
            max_tokens=5,
            messages=[{"role": "user", "content": "hi"}],
            thinking={"type": "disabled"},
        )
    assert [block.text for block in result.content if block.type == "text"] == ["Hello"]
    assert rig.blue.requests == [{"model": "blue-model", "max_tokens": 5, "messages": USER}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b'{"model":"chat","messages":[]}', "messages"),
        (b'{"model":"chat","messages":[{"role":"user","content":"x"}],"n":"2"}', "n"),
    ],
)
def test_raw_bad_bodies_get_openais_error_object(rig: Rig, body: bytes, param: str | None) -> None:
    answer = httpx.post(f"{rig.url}/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/v1/embeddings", 405),
    ],
)
def test_a_wrong_path_or_method_gets_openais_error_object(rig: Rig, method: str, path: str, status: int) -> None:
    answer = httpx.request(method, rig.url + path)
    assert answer.status_code == status
    assert path in answer.json()["error"]["message"]


def test_a_routes_template_is_a_path_like_any_other(rig: Rig) -> None:
    answer = httpx.get(f"{rig.url}/v1/models/{{model:path}}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_a_trailing_slash_is_ignored(rig: Rig) -> None:
    answer = httpx.post(f"{rig.url}/v1/chat/completions/", json={"model": "chat", "messages": USER})
    assert answer.status_code == 200


def test_a_body_that_is_too_large_is_rejected(rig: Rig) -> None:
    rig.change(max_body_bytes=1024)
    answer = httpx.post(f"{rig.url}/v1/chat/completions", json={"model": "chat", "messages": USER, "user": "x" * 2000})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"


def calls_a_function(body: dict[str, Any]) -> Response:
    """A chat that calls the first of its tools."""
    function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"a": 1}'}
    call = {"id": "call_1", "type": "function", "function": function}
    head = {"id": "chatcmpl-1", "created": 1, "model": "m"}
    if not body.get("stream"):
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
        return JSONResponse({**head, "object": "chat.completion", "choices": choices, "usage": USAGE})
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"tool_calls": [{"index": 0, **call}]}, {}]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices[-1]["finish_reason"] = "tool_calls"
    chunks = [frame({**head, "object": "chat.completion.chunk", "choices": [choice]}) for choice in choices]
    return stream([*chunks, "data: [DONE]\n\n"])


def test_a_program_with_functions_gets_their_calls(rig: Rig) -> None:
    rig.blue.answer = calls_a_function
    function = {"name": "add", "parameters": {"type": "object", "properties": {}}}
    whole = create(rig, functions=[function], function_call="auto").choices[0]
    chunks = [chunk.choices[0] for chunk in create(rig, functions=[function], function_call="auto", stream=True)]
    called = next(chunk.delta.function_call for chunk in chunks if chunk.delta.function_call)
    for call in (whole.message.function_call, called):
        assert (call.name, call.arguments) == ("add", '{"a": 1}')
    assert whole.finish_reason == chunks[-1].finish_reason == "function_call"
    messages = [*USER, whole.message, {"role": "function", "name": "add", "content": "1"}]
    create(rig, messages=messages, functions=[function])
    call, result = rig.blue.requests[-1]["messages"][1:]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]


def test_the_prompt_of_a_response_is_counted(rig: Rig) -> None:
    rig.blue.answer = lambda body: JSONResponse({"tokens": [1, 2, 3], "count": 3, "max_model_len": 99})
    counted = client(rig).responses.input_tokens.count(model="chat", input="hi", instructions="Be kind.")
    assert (counted.input_tokens, counted.object) == (3, "response.input_tokens")
    assert rig.blue.paths == ["/tokenize"]
    assert [message["content"] for message in rig.blue.requests[0]["messages"]] == ["Be kind.", "hi"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("/v1/responses", {"prompt": {"id": "p"}}, "prompt"),
        ("/v1/chat/completions", {"messages": USER, "functions": [{"name": "f"}], "tools": []}, "functions"),
    ],
)
def test_what_is_not_supported_is_refused_under_its_name(rig: Rig, path: str, body: Any, param: str) -> None:
    answer = httpx.post(rig.url + path, json={"model": "chat", **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(f"{param}: ")
    assert "not" in error["message"]
