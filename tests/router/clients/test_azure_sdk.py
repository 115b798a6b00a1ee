"""Azure's SDK, sync and async, and the OpenAI SDK on the same paths, against the real router."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from azure.ai.inference import ChatCompletionsClient, EmbeddingsClient, ImageEmbeddingsClient, load_client
from azure.ai.inference.aio import ChatCompletionsClient as AsyncChatCompletionsClient
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from openai import AzureOpenAI, OpenAI
from starlette.responses import JSONResponse, Response

from tests.router.conftest import Rig
from tests.support.engine.fake_engine import chunk, refuse, stream
from tests.support.engine.other_answers import HELLO, response

KEY = AzureKeyCredential("k")
MESSAGES: Any = [{"role": "user", "content": "hi"}]
VERSION = {"api-version": "2024-05-01-preview"}


@pytest.fixture
def azure(rig: Rig) -> Rig:
    rig.change(defaults={"chat": "chat", "completions": "chat", "embeddings": "embed"})
    return rig


@pytest.fixture
def client(azure: Rig) -> Iterator[Any]:
    with ChatCompletionsClient(azure.url, KEY, retry_total=0) as client:
        yield client


def error_body(error: HttpResponseError) -> Any:
    response: Any = error.response
    return json.loads(response.text())


def test_a_chat_is_answered(azure: Rig, client: Any) -> None:
    answer = client.complete(messages=MESSAGES, max_tokens=5, temperature=0.5)
    assert answer.choices[0].message.content == "Hello blue-model"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == 12
    assert azure.blue.requests == [{"model": "blue-model", "messages": MESSAGES, "max_tokens": 5, "temperature": 0.5}]


def test_a_stream_ends_with_usage_on_the_last_choice(client: Any) -> None:
    updates = list(client.complete(messages=MESSAGES, stream=True))
    assert "".join(update.choices[0].delta.content for update in updates) == "Hello blue-model"
    assert [update.usage is not None for update in updates] == [False, False, False, True]
    assert updates[-1].choices[0].finish_reason == "stop"


async def test_the_async_client_streams(azure: Rig) -> None:
    async with AsyncChatCompletionsClient(azure.url, KEY) as client:
        updates = await client.complete(messages=MESSAGES, stream=True)
        text = "".join([update.choices[0].delta.content or "" async for update in updates])
    assert text == "Hello blue-model"


def test_the_endpoint_url_chooses_the_endpoint(azure: Rig) -> None:
    with ChatCompletionsClient(f"{azure.url}/endpoints/chat", KEY) as client:
        assert client.complete(messages=MESSAGES).choices[0].message.content == "Hello blue-model"
        assert client.complete(messages=MESSAGES, model="green").choices[0].message.content == "Hello green-model"
    with ChatCompletionsClient(f"{azure.url}/endpoints/gone", KEY) as client, pytest.raises(ResourceNotFoundError):
        client.complete(messages=MESSAGES)


def test_the_header_routes_and_an_unknown_deployment_is_not_found(azure: Rig, client: Any) -> None:
    answer = client.complete(messages=MESSAGES, headers={"azureml-model-deployment": "green"})
    assert answer.choices[0].message.content == "Hello green-model"
    with pytest.raises(ResourceNotFoundError) as raised:
        client.complete(messages=MESSAGES, headers={"azureml-model-deployment": "mini"})
    assert raised.value.status_code == 404
    assert error_body(raised.value)["error"] == "Not Found"


def test_model_extras_are_passed_through(azure: Rig, client: Any) -> None:
    client.complete(messages=MESSAGES, model_extras={"top_k": 3})
    assert azure.blue.requests[-1]["top_k"] == 3


def test_a_user_keeps_a_deployment(azure: Rig, client: Any) -> None:
    azure.chat_endpoint(traffic={"blue": 50, "green": 50}, sticky={"by": "user"})
    first, second = (
        [
            client.complete(messages=MESSAGES, model_extras={"user": f"u{n}"}).choices[0].message.content
            for n in range(12)
        ]
        for _ in range(2)
    )
    assert first == second
    assert set(first) == {"Hello blue-model", "Hello green-model"}


@pytest.mark.parametrize(
    ("mode", "status", "sent"),
    [
        (None, 400, None),
        ("error", 400, None),
        ("ignore", 200, False),
        ("drop", 200, False),
        ("pass-through", 200, True),
    ],
)
def test_the_extra_parameters_header_decides_about_unknown_fields(
    azure: Rig, mode: str | None, status: int, sent: bool | None
) -> None:
    headers = {} if mode is None else {"extra-parameters": mode}
    body = {"messages": MESSAGES, "top_k": 3}
    answer = httpx.post(f"{azure.url}/chat/completions", params=VERSION, json=body, headers=headers)
    assert answer.status_code == status
    if sent is not None:
        assert ("top_k" in azure.blue.requests[-1]) is sent
    else:
        assert "Extra parameters ['top_k'] are not allowed" in answer.json()["detail"]


def test_a_request_beyond_the_models_abilities_is_a_422_with_the_place(azure: Rig, client: Any) -> None:
    message = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    azure.blue.answer = refuse(400, message)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    with pytest.raises(HttpResponseError) as raised:
        client.complete(messages=MESSAGES, tools=[tool], tool_choice="auto")
    body = error_body(raised.value)
    assert (raised.value.status_code, body["code"]) == (422, "parameter_not_supported")
    assert body["detail"]["loc"] == ["body", "tool_choice"]


def test_the_engines_named_field_comes_with_its_value(azure: Rig, client: Any) -> None:
    azure.blue.answer = refuse(400, "top_k must be 0 or more", "top_k")
    with pytest.raises(HttpResponseError) as raised:
        client.complete(messages=MESSAGES, model_extras={"top_k": -5})
    body = error_body(raised.value)
    assert body["detail"] == {"loc": ["body", "top_k"], "value": "-5", "input": -5}


@pytest.mark.parametrize(("status", "expected"), [(429, 503), (500, 502), (503, 503)])
def test_server_side_failures_have_azures_form(azure: Rig, client: Any, status: int, expected: int) -> None:
    azure.blue.answer = refuse(status, "boom")
    with pytest.raises(HttpResponseError) as raised:
        client.complete(messages=MESSAGES)
    response: Any = raised.value.response
    body = json.loads(response.text())
    assert (body["status"], raised.value.status_code) == (expected, expected)
    assert response.headers["x-ms-error-code"] == body["code"]


def test_a_content_filter_hit_has_azures_documented_error(azure: Rig, client: Any) -> None:
    azure.chat_endpoint(content_filter={"patterns": [r"(?i)\bforbidden\b"]})
    assert client.complete(messages=MESSAGES).choices[0].finish_reason == "stop"
    with pytest.raises(HttpResponseError) as raised:
        client.complete(messages=[{"role": "user", "content": [{"type": "text", "text": "a FORBIDDEN thing"}]}])
    body = error_body(raised.value)
    assert raised.value.status_code == 400
    assert (body["code"], body["param"], body["status"]) == ("content_filter", "messages", 400)
    assert {"error", "message"} <= set(body)
    assert "FORBIDDEN" not in body["message"]
    assert len(azure.blue.requests) == 1


def test_a_stream_that_fails_raises_in_the_client(azure: Rig, client: Any) -> None:
    azure.blue.answer = lambda body: stream([chunk("Hel")])
    updates = iter(client.complete(messages=MESSAGES, stream=True))
    assert next(updates).choices[0].delta.content == "Hel"
    with pytest.raises(Exception, match=r"(?i)incomplete|closed|ended|broken"):
        list(updates)


def embeddings(body: dict[str, Any]) -> Response:
    inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
    data = [{"object": "embedding", "index": i, "embedding": [1.0, -0.5]} for i, _ in enumerate(inputs)]
    usage = {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0}
    head = {"id": "e", "object": "list", "model": body["model"], "created": 1}
    return JSONResponse({**head, "data": data, "usage": usage})


def test_the_sdk_embeds(azure: Rig) -> None:
    azure.mini.answer = embeddings
    with EmbeddingsClient(azure.url, KEY) as client:
        answer = client.embed(input=["a", "b"], input_type="query")
        assert [item.embedding for item in answer.data] == [[1.0, -0.5], [1.0, -0.5]]
        assert answer.usage.prompt_tokens == 3
        packed = client.embed(input=["a"], encoding_format="ubinary")
        assert packed.data[0].embedding == [128]


def test_a_modality_that_the_endpoint_does_not_serve_is_not_found(azure: Rig) -> None:
    with EmbeddingsClient(f"{azure.url}/endpoints/chat", KEY) as client, pytest.raises(ResourceNotFoundError):
        client.embed(input=["a"])
    image: Any = {"image": "data:image/png;base64,AA=="}
    with ImageEmbeddingsClient(azure.url, KEY) as images, pytest.raises(ResourceNotFoundError):
        images.embed(input=[image])


def test_info_and_load_client(azure: Rig) -> None:
    with load_client(azure.url, KEY) as chat:
        assert isinstance(chat, ChatCompletionsClient)
        assert chat.get_model_info().model_name == "chat"
    with load_client(f"{azure.url}/endpoints/embed", KEY) as embed:
        assert isinstance(embed, EmbeddingsClient)
        assert embed.get_model_info().model_provider_name == "vllm"


@pytest.mark.parametrize("base", ["", "/models", "/endpoints/embed"])
def test_the_name_from_info_is_accepted_as_the_model(azure: Rig, base: str) -> None:
    """LlamaIndex reads the name from `/info` and sends it with embeddings, even if it names a chat endpoint."""
    azure.mini.answer = embeddings
    with EmbeddingsClient(azure.url + base, KEY) as client:
        shown = client.get_model_info().model_name
        assert shown == ("embed" if "embed" in base else "chat")
        for model in (shown, "mini", "mini-model"):
            answer = client.embed(input=["a"], model=model)
            assert (answer.data[0].embedding, answer.model) == ([1.0, -0.5], "mini")


def test_another_endpoint_that_does_not_embed_is_still_rejected(azure: Rig) -> None:
    azure.change(endpoints={"other": {"tasks": ["chat"], "traffic": {"blue": 100}}})
    with EmbeddingsClient(azure.url, KEY) as client, pytest.raises(ResourceNotFoundError, match="other"):
        client.embed(input=["a"], model="other")


def test_openais_sdk_on_the_same_paths_gets_openais_dialect(azure: Rig) -> None:
    for base in ("", "/azure", "/openai/v1", "/endpoints/chat"):
        with OpenAI(base_url=azure.url + base, api_key="k", max_retries=0) as sdk:
            answer: Any = sdk.chat.completions.create(model="chat", messages=MESSAGES, n=1, user="u")
            assert answer.choices[0].message.content == "Hello blue-model"


def test_azure_openai_names_the_deployment_in_the_path(azure: Rig) -> None:
    with AzureOpenAI(azure_endpoint=azure.url, api_key="k", api_version="2024-06-01", max_retries=0) as sdk:
        for model, expected in (("chat", "Hello blue-model"), ("green", "Hello green-model")):
            answer: Any = sdk.chat.completions.create(model=model, messages=MESSAGES)
            assert answer.choices[0].message.content == expected


def test_azure_openai_has_responses_with_the_name_in_the_body_or_the_path(azure: Rig) -> None:
    azure.blue.answer = azure.green.answer = response
    options: Any = {"azure_endpoint": azure.url, "api_key": "k", "api_version": "2025-03-01-preview", "max_retries": 0}
    sdk: Any
    with AzureOpenAI(**options) as sdk:
        for model, engine in (("chat", azure.blue), ("green", azure.green)):
            assert sdk.responses.create(model=model, input="hi").output_text == HELLO
            events = list(sdk.responses.create(model=model, input="hi", stream=True))
            assert (events[-1].type, events[-1].response.output_text) == ("response.completed", HELLO)
            assert [body.get("stream", False) for body in engine.requests] == [False, True]
        assert "chat" in [model.id for model in sdk.models.list()]
    with AzureOpenAI(**options, azure_deployment="green") as sdk:
        assert sdk.responses.create(model="green", input="hi").output_text == HELLO
    assert httpx.post(f"{sdk.base_url}responses?api-version=preview", json={"input": "hi"}).status_code == 200
    assert azure.green.paths == ["/v1/responses"] * 4


def test_a_plain_request_without_a_version_is_openais_at_the_root_and_rejected_below_azure(azure: Rig) -> None:
    body = {"model": "chat", "messages": MESSAGES}
    for base in ("", "/endpoints/chat"):
        assert httpx.post(f"{azure.url}{base}/chat/completions", json=body).status_code == 200
        wrong = httpx.post(f"{azure.url}{base}/chat/completions", json={**body, "n": 0})
        assert (wrong.status_code, wrong.json()["error"]["type"]) == (400, "invalid_request_error")
    with_key = httpx.get(f"{azure.url}/endpoints/chat/info", headers={"api-key": "k"})
    assert with_key.json()["error"]["code"] == "MissingApiVersionParameter"
    refused = httpx.post(f"{azure.url}/azure/chat/completions", json=body)
    assert refused.status_code == 400
    assert refused.headers["x-ms-error-code"] == "MissingApiVersionParameter"
    assert refused.json()["error"]["code"] == "MissingApiVersionParameter"
