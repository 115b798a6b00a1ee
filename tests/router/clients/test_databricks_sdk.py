"""Databricks' SDK, the OpenAI SDK at `/serving-endpoints` and MLflow's client, against the real router."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from databricks.sdk import WorkspaceClient
from databricks.sdk.core import Config
from databricks.sdk.errors import BadRequest, DeadlineExceeded, InternalError, InvalidParameterValue, NotFound
from databricks.sdk.service.serving import ChatMessage, ChatMessageRole
from starlette.responses import JSONResponse, Response

from tests.router.conftest import Rig
from tests.support.engine.fake_engine import USAGE, chunk, frame, refuse, stream

USER = [{"role": "user", "content": "hi"}]
SDK_MESSAGES = [ChatMessage(role=ChatMessageRole.USER, content="hi")]
INVOCATIONS = "/serving-endpoints/chat/invocations"
CONTEXT = 100


@pytest.fixture
def endpoints(rig: Rig) -> Any:
    workspace = WorkspaceClient(config=Config(host=rig.url, token="dapi-x", retry_timeout_seconds=2))
    return workspace.serving_endpoints


@pytest.fixture
def sdk(rig: Rig) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{rig.url}/serving-endpoints", api_key="dapi-x", max_retries=0) as client:
        yield client


def part(index: int, text: str, count: int, finish_reason: str | None = None) -> str:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 2, "completion_tokens": count, "total_tokens": 2 + count}
    return frame({"id": "cmpl-1", "object": "text_completion", "created": 1, "choices": [choice], "usage": usage})


def completions(body: dict[str, Any]) -> Response:
    """Answers `/tokenize` with a token for each character (and ten for the template), completions with counts."""
    if set(body) <= {"model", "messages", "prompt"}:
        count = 10 + len(body["messages"][0]["content"]) if "messages" in body else len(body["prompt"])
        return JSONResponse({"count": count, "max_model_len": CONTEXT, "tokens": list(range(count))})
    prompts, n = body["prompt"], body.get("n", 1)
    texts = [f" {len(prompt)}+{body['max_tokens']}" for prompt in prompts for _ in range(n)]
    if body.get("stream"):
        parts = [part(index, text, 3, "stop") for index, text in enumerate(texts)]
        return stream([*parts, frame({"id": "cmpl-1", "choices": [], "usage": USAGE}), "data: [DONE]\n\n"])
    choices = [{"index": index, "text": text, "finish_reason": "stop"} for index, text in enumerate(texts)]
    return JSONResponse({"id": "cmpl-1", "object": "text_completion", "created": 1, "choices": choices, "usage": USAGE})


def embeddings(body: dict[str, Any]) -> Response:
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    data = [{"object": "embedding", "index": i, "embedding": [1.0, -0.5]} for i, _ in enumerate(texts)]
    usage = {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0}
    return JSONResponse({"id": "e", "object": "list", "model": "m", "created": 1, "data": data, "usage": usage})


def test_query_a_chat_endpoint(rig: Rig, endpoints: Any) -> None:
    answer = endpoints.query("chat", messages=SDK_MESSAGES, max_tokens=5, temperature=0.5, stop=["x"], n=1)
    (choice,) = answer.choices
    assert choice.message.content == "Hello blue-model"
    assert (choice.finish_reason, choice.index, choice.message.role) == ("stop", 0, ChatMessageRole.ASSISTANT)
    assert answer.served_model_name == "blue"
    assert answer.object.value == "chat.completion"
    assert answer.usage.total_tokens == 12
    sent = {"messages": USER, "max_tokens": 5, "temperature": 0.5, "stop": ["x"], "n": 1}
    assert rig.blue.requests == [{**sent, "model": "blue-model"}]


def test_query_with_what_only_the_sdk_has(rig: Rig, endpoints: Any) -> None:
    endpoints.query(
        "chat", messages=SDK_MESSAGES, extra_params={"top_k": "5"}, client_request_id="c", usage_context={"a": "b"}
    )
    assert rig.blue.requests == [{"messages": USER, "top_k": 5, "model": "blue-model"}]


def test_query_a_completion_endpoint(rig: Rig, endpoints: Any) -> None:
    rig.blue.answer = completions
    answer = endpoints.query("chat", prompt=["ab", "abcd"], n=2, max_tokens=7, extra_params={"echo": "true"})
    result = [(choice.index, choice.text, choice.finish_reason) for choice in answer.choices]
    assert result == [(0, "ab 12+7", "stop")] * 2 + [(1, "abcd 14+7", "stop")] * 2
    assert answer.object.value == "text_completion"
    assert answer.served_model_name == "blue"


def test_query_an_embedding_endpoint(rig: Rig, endpoints: Any) -> None:
    rig.mini.answer = embeddings
    answer = endpoints.query("embed", input=["a", "b"], extra_params={"instruction": "Find:"})
    assert [item.embedding for item in answer.data] == [[1.0, -0.5], [1.0, -0.5]]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, None)
    assert (answer.served_model_name, answer.object.value) == ("mini", "list")
    assert rig.mini.requests == [{"input": ["Find: a", "Find: b"], "model": "mini-model"}]


def test_an_instruction_follows_the_deployments_template(rig: Rig, endpoints: Any) -> None:
    rig.mini.answer = embeddings
    mini = {**rig.config["deployments"]["mini"], "instruction_template": "Instruct: {instruction}\nQuery: {input}"}
    rig.change(deployments={"mini": mini})
    endpoints.query("embed", input="a", extra_params={"instruction": "Find"})
    assert rig.mini.requests[-1]["input"] == ["Instruct: Find\nQuery: a"]


def test_a_request_can_name_a_served_model(rig: Rig) -> None:
    answer = httpx.post(f"{rig.url}/serving-endpoints/chat/served-models/green/invocations", json={"messages": USER})
    assert answer.headers["served-model-name"] == "green"
    assert answer.json()["choices"][0]["message"]["content"] == "Hello green-model"
    gone = httpx.post(f"{rig.url}/serving-endpoints/chat/served-models/gone/invocations", json={"messages": USER})
    assert (gone.status_code, gone.json()["error_code"]) == (404, "ENDPOINT_NOT_FOUND")
    assert httpx.post(f"{rig.url}/serving-endpoints/green/invocations/", json={"messages": USER}).status_code == 200


ERRORS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("gone", {"messages": SDK_MESSAGES}, NotFound, "The given endpoint does not exist.*gone"),
    ("embed", {"messages": SDK_MESSAGES}, InvalidParameterValue, "expects `input`.*`messages`"),
    ("chat", {"input": 5}, InvalidParameterValue, "input"),
    ("chat", {"messages": SDK_MESSAGES, "temperature": 3}, InvalidParameterValue, "temperature"),
    ("chat", {"messages": SDK_MESSAGES, "extra_params": {"min_p": "0.1"}}, BadRequest, 'json: unknown field "min_p"'),
    ("chat", {"messages": SDK_MESSAGES, "inputs": {"a": 1}}, InvalidParameterValue, "inputs"),
    ("chat", {"prompt": "x" * 200}, InvalidParameterValue, "prompt: .*210 of this model's 100 tokens"),
]


@pytest.mark.parametrize(("name", "fields", "error", "message"), ERRORS)
def test_errors_raise_the_sdks_exceptions(
    rig: Rig, endpoints: Any, name: str, fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    rig.blue.answer = completions
    with pytest.raises(error, match=message):
        endpoints.query(name, **fields)


def test_engine_errors_raise_the_sdks_exceptions(rig: Rig, endpoints: Any) -> None:
    rig.chat_endpoint(fallback=[])
    rig.blue.answer = refuse(400, "The context length is 10 tokens", "input_tokens")
    with pytest.raises(InvalidParameterValue, match="messages: The context length"):
        endpoints.query("chat", messages=SDK_MESSAGES)
    rig.blue.answer = refuse(500, "CUDA", kind="InternalServerError")
    with pytest.raises(InternalError, match="failed while serving"):
        endpoints.query("chat", messages=SDK_MESSAGES)


def test_a_deployment_that_is_too_slow_is_a_deadline_that_was_exceeded(rig: Rig, endpoints: Any) -> None:
    rig.change(timeouts={"total_s": 0.3})
    rig.blue.answer = lambda body: stream([5.0, "late"])
    with pytest.raises(DeadlineExceeded):
        endpoints.query("chat", messages=SDK_MESSAGES)


def slow(body: dict[str, Any]) -> Response:
    if set(body) <= {"model", "messages", "prompt"}:
        return completions(body)
    return stream([part(0, " one", 1), part(0, " two", 2), 10.0, part(0, " late", 3, "stop")])


@pytest.mark.parametrize("timeouts", [{"total_s": 3.0}, {"idle_s": 1.0}])
def test_truncate_returns_the_text_so_far_at_the_deadline(rig: Rig, endpoints: Any, timeouts: dict[str, float]) -> None:
    rig.change(timeouts=timeouts)
    rig.blue.answer = slow
    answer = endpoints.query("chat", prompt="ab", n=2, extra_params={"error_behavior": "truncate", "suffix": "!"})
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, " one two!"), (0, "!")]
    assert [choice.finish_reason for choice in answer.choices] == ["length", "length"]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 2)


def test_truncate_completes_a_stream_at_the_deadline(rig: Rig, sdk: Any) -> None:
    rig.change(timeouts={"total_s": 3.0})
    rig.blue.answer = slow
    chunks = list(
        sdk.completions.create(model="chat", prompt="ab", stream=True, extra_body={"error_behavior": "truncate"})
    )
    assert [chunk.choices[0].text for chunk in chunks] == [" one", " two", ""]
    assert chunks[-1].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 2


def test_without_a_first_token_there_is_nothing_to_truncate(rig: Rig, endpoints: Any) -> None:
    rig.change(timeouts={"total_s": 0.4})
    rig.blue.answer = lambda body: completions(body) if "max_tokens" not in body else stream([5.0])
    with pytest.raises(DeadlineExceeded):
        endpoints.query("chat", prompt="ab", extra_params={"error_behavior": "truncate"})


def test_truncate_cuts_prompts_that_do_not_fit_the_context(rig: Rig, endpoints: Any) -> None:
    rig.blue.answer = completions
    extra = {"error_behavior": "truncate"}
    assert endpoints.query("chat", prompt="x" * 80, max_tokens=50, extra_params=extra).choices[0].text == " 90+10"
    assert endpoints.query("chat", prompt="x" * 300, max_tokens=50, extra_params=extra).choices[0].text == " 99+1"
    sent = rig.blue.requests[-1]
    assert (sent["prompt"][0][0], sent["prompt"][0][-1]) == (211, 309)


def test_the_workspaces_own_openai_client(rig: Rig, endpoints: Any) -> None:
    rig.mini.answer = embeddings
    with pytest.warns(DeprecationWarning, match="databricks-openai"):
        sdk = endpoints.get_open_ai_client(max_retries=0)
    with sdk:
        answer = sdk.chat.completions.create(model="chat", messages=USER)
        assert answer.choices[0].message.content == "Hello blue-model"
        assert "finishReason" not in answer.choices[0].model_dump()
        assert len(sdk.embeddings.create(model="embed", input="x").data) == 1
    assert rig.blue.headers[-1].get("authorization") is None


@pytest.mark.parametrize("base", ["/serving-endpoints", "/ai-gateway/mlflow/v1"])
async def test_the_async_openai_sdk_streams(rig: Rig, base: str) -> None:
    async with openai.AsyncOpenAI(base_url=rig.url + base, api_key="dapi-x", max_retries=0) as client:
        chat: Any = client.chat.completions
        chunks = [chunk async for chunk in await chat.create(model="chat", messages=USER, stream=True)]
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "Hello blue-model"
    assert [chunk.usage is not None for chunk in chunks] == [False, False, False, True]


def test_with_include_usage_the_openai_sdk_gets_usage_once_at_the_end(rig: Rig, sdk: Any) -> None:
    options = {"include_usage": True}
    answer = sdk.chat.completions.with_raw_response.create(
        model="chat", messages=USER, stream=True, stream_options=options
    )
    assert answer.headers["served-model-name"] == "blue"
    *chunks, last = answer.parse()
    assert all(chunk.usage is None for chunk in chunks)
    assert (last.choices, last.usage.total_tokens) == ([], 12)


def test_the_openai_sdk_completes_prompts_with_running_indices(rig: Rig, sdk: Any) -> None:
    rig.blue.answer = completions
    answer = sdk.completions.create(model="chat", prompt=["ab", "abcd"], n=2, max_tokens=7)
    assert [(choice.index, choice.text) for choice in answer.choices] == [
        (0, " 12+7"),
        (1, " 12+7"),
        (2, " 14+7"),
        (3, " 14+7"),
    ]
    streamed = list(sdk.completions.create(model="chat", prompt="ab", stream=True, echo=True, suffix="!", max_tokens=7))
    assert [chunk.choices[0].text for chunk in streamed] == ["ab 12+7!"]
    assert streamed[-1].usage.total_tokens == 12


def test_the_openai_sdk_reads_base64_embeddings(rig: Rig, sdk: Any) -> None:
    def packed(body: dict[str, Any]) -> Response:
        assert body["encoding_format"] == "base64"
        data = [{"object": "embedding", "index": 0, "embedding": "AACAPwAAAL8="}]
        return JSONResponse({"id": "e", "object": "list", "model": "m", "data": data, "usage": USAGE})

    rig.mini.answer = packed
    answer = sdk.embeddings.create(model="embed", input="x")
    assert answer.data[0].embedding == [1.0, -0.5]
    assert "completion_tokens" not in answer.usage.model_dump()


def test_errors_are_databricks_flat_body_for_the_openai_sdk_too(rig: Rig, sdk: Any) -> None:
    with pytest.raises(openai.NotFoundError) as gone:
        sdk.chat.completions.create(model="gone", messages=USER)
    body: Any = gone.value.body
    assert body["error_code"] == "ENDPOINT_NOT_FOUND"
    with pytest.raises(openai.BadRequestError) as wrong:
        sdk.chat.completions.create(model="embed", messages=USER)
    body = wrong.value.body
    assert "supports embeddings" in body["message"]
    for field in ("background", "store"):
        with pytest.raises(openai.BadRequestError, match=field):
            sdk.responses.create(model="chat", input="hi", **{field: False})


def test_an_answer_with_text_and_calls_can_be_sent_back(rig: Rig, sdk: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": "Let me see.", "tool_calls": [call]}
    choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}]
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    rig.blue.answer = lambda body: JSONResponse(
        {"id": "c", "object": "chat.completion", "choices": choices, "usage": usage}
    )
    answered = sdk.chat.completions.create(model="chat", messages=USER).choices[0].message
    result = {"role": "tool", "tool_call_id": "c1", "content": "5"}
    sdk.chat.completions.create(model="chat", messages=[*USER, answered, result])
    assert rig.blue.requests[-1]["messages"] == [*USER, message, result]


def test_an_error_inside_a_stream_raises_in_the_openai_sdk(rig: Rig, sdk: Any) -> None:
    rig.blue.answer = lambda body: stream([chunk("Hel")])
    chunks = sdk.chat.completions.create(model="chat", messages=USER, stream=True)
    assert next(chunks).choices[0].delta.content == "Hel"
    with pytest.raises(openai.APIError, match="before it was complete") as raised:
        next(chunks)
    assert raised.value.code == "INTERNAL_ERROR"


BEGUN: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "status": "in_progress",
    "output": [],
    "tools": [],
    "usage": None,
}
COUNTS = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hi", "annotations": []}],
}


def event(name: str, number: int, **fields: Any) -> str:
    return f"event: {name}\n" + frame({**fields, "sequence_number": number, "type": name})


def responses(body: dict[str, Any]) -> Response:
    done = {**BEGUN, "status": "completed", "output": [MESSAGE], "usage": COUNTS}
    if not body.get("stream"):
        return JSONResponse(done)
    return stream(
        [
            event("response.created", 0, response=BEGUN),
            event("response.output_text.delta", 1, delta="Hi", item_id="m", output_index=0, content_index=0),
            event("response.completed", 2, response=done),
        ]
    )


def test_responses_whole_streamed_and_continued(rig: Rig, sdk: Any) -> None:
    rig.blue.answer = responses
    first = sdk.responses.create(model="chat", input="hi", metadata={"a": "b"})
    assert (first.output_text, first.status, first.error, first.metadata) == ("Hi", "completed", None, {"a": "b"})
    assert (first.usage.input_tokens, first.usage.prompt_tokens) == (9, 9)
    sdk.responses.create(
        model="chat", input=[{"role": "user", "content": "hi"}, *first.output, {"role": "user", "content": "and?"}]
    )
    assert [item["content"] for item in rig.blue.requests[-1]["input"]] == ["hi", "Hi", "and?"]
    events = list(sdk.responses.create(model="chat", input="hi", stream=True))
    assert [event.type for event in events] == ["response.created", "response.output_text.delta", "response.completed"]
    assert events[-1].response.output_text == "Hi"


def test_a_stream_of_a_response_that_fails_ends_with_the_failed_response(rig: Rig, sdk: Any) -> None:
    rig.blue.answer = lambda body: stream([event("response.created", 0, response=BEGUN)])
    *_, last = sdk.responses.create(model="chat", input="hi", stream=True)
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert (last.response.error.code, last.sequence_number) == ("server_error", 1)


@pytest.fixture
def mlflow(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Any:
    from mlflow.deployments import get_deploy_client

    monkeypatch.setenv("DATABRICKS_HOST", rig.url)
    monkeypatch.setenv("DATABRICKS_TOKEN", "dapi-x")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    return get_deploy_client("databricks")  # type: ignore[no-untyped-call]


def test_mlflow_predicts_whole_and_streamed(rig: Rig, mlflow: Any) -> None:
    answer = mlflow.predict(endpoint="chat", inputs={"messages": USER, "max_tokens": 5})
    assert answer["choices"][0]["message"]["content"] == "Hello blue-model"
    chunks = list(mlflow.predict_stream(endpoint="chat", inputs={"messages": USER}))
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == "Hello blue-model"
    assert chunks[-1]["usage"]["total_tokens"] == 12


def test_mlflow_raises_on_errors(mlflow: Any) -> None:
    with pytest.raises(Exception, match=r"400 Client Error.*temperature"):
        mlflow.predict(endpoint="chat", inputs={"messages": USER, "temperature": 3})


@pytest.mark.parametrize(
    ("fields", "sent"),
    [({"stream": None}, {}), ({"max_tokens": None, "tools": None, "top_k": None}, {})],
)
def test_null_is_absent_on_the_wire(rig: Rig, fields: dict[str, Any], sent: dict[str, Any]) -> None:
    answer = httpx.post(rig.url + INVOCATIONS, content=json.dumps({"messages": USER, **fields}))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert rig.blue.requests == [{"messages": USER, "model": "blue-model", **sent}]


def test_a_wrong_body_is_databricks_error_on_every_route(rig: Rig) -> None:
    for path in (INVOCATIONS, "/serving-endpoints/chat/completions", "/ai-gateway/mlflow/v1/responses"):
        answer = httpx.post(rig.url + path, content=b"{")
        assert (answer.status_code, answer.json()["error_code"]) == (400, "BAD_REQUEST")
        assert answer.json()["details"][0]["request_id"] == answer.headers["x-request-id"]
