"""Azure's SDK, sync and async, against the real application."""

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from azure.ai.inference import ChatCompletionsClient, EmbeddingsClient, load_client
from azure.ai.inference.aio import ChatCompletionsClient as AsyncChatCompletionsClient
from azure.ai.inference.aio import EmbeddingsClient as AsyncEmbeddingsClient
from azure.ai.inference.models import JsonSchemaFormat
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from tests.real.conftest import Application
from tests.support.clients.conversations import MESSAGES, STRUCTURED, answers

pytestmark = pytest.mark.real

KEY = AzureKeyCredential("unused")
GREEDY: dict[str, Any] = {"messages": MESSAGES, "temperature": 0, "max_tokens": 24}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def client(application: Application) -> Iterator[Any]:
    with ChatCompletionsClient(application.url, KEY, retry_total=0) as client:
        yield client


def test_a_chat_is_answered(client: Any) -> None:
    answer = client.complete(**GREEDY)
    assert answers(answer.choices[0].message.content)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer["system_fingerprint"]


def test_a_stream_ends_with_usage_on_the_last_choice(client: Any) -> None:
    updates = list(client.complete(**GREEDY, stream=True))
    assert answers("".join(update.choices[0].delta.content or "" for update in updates))
    assert updates[-1].choices[0].finish_reason == "stop"
    assert updates[-1].usage.completion_tokens > 3
    assert all(update.usage is None for update in updates[:-1])


async def test_the_async_clients_work(application: Application) -> None:
    async with AsyncChatCompletionsClient(f"{application.url}/endpoints/chat", KEY) as client:
        answer: Any = await client.complete(**GREEDY)
        assert answers(answer.choices[0].message.content)
        updates: Any = await client.complete(**GREEDY, stream=True)
        assert answers("".join([update.choices[0].delta.content or "" async for update in updates]))
    async with AsyncEmbeddingsClient(f"{application.url}/endpoints/embed", KEY) as embeddings:
        assert len((await embeddings.embed(input=["hello"])).data) == 1


def test_documented_parts_and_roles_are_read(client: Any) -> None:
    parts = [{"type": "text", "content": "Name three primary"}, {"type": "text", "text": "colors."}]
    messages = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": parts}]
    assert client.complete(messages=messages, max_tokens=8).choices[0].message.content


def test_the_header_routes(client: Any) -> None:
    for name in ("smollm2-blue", "smollm2-green"):
        seen: list[Any] = []
        client.complete(
            **GREEDY,
            headers={"azureml-model-deployment": name},
            raw_response_hook=lambda response, seen=seen: seen.append(response.http_response.headers),
        )
        assert seen[0]["azureml-model-deployment"] == name
    with pytest.raises(ResourceNotFoundError) as raised:
        client.complete(**GREEDY, headers={"azureml-model-deployment": "gone"})
    assert body_of(raised.value)["status"] == 404


def body_of(error: HttpResponseError) -> Any:
    response: Any = error.response
    assert response.headers["x-ms-error-code"]
    return json.loads(response.text())


def test_a_required_tool_is_called(client: Any) -> None:
    answer = client.complete(
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[TOOL],
        tool_choice="required",
        temperature=0,
        max_tokens=64,
    )
    assert answer.choices[0].finish_reason in ("tool_calls", "stop")
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"


def test_json_mode_gives_json(client: Any) -> None:
    schema = {"type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"]}
    answer = client.complete(
        **{**GREEDY, **STRUCTURED}, response_format=JsonSchemaFormat(name="c", schema=schema, strict=True)
    )
    assert json.loads(answer.choices[0].message.content)["color"] in ("red", "blue")
    free = client.complete(**{**GREEDY, "max_tokens": 200}, response_format="json_object")
    assert free.choices[0].message.content.lstrip().startswith("{")


def test_a_legacy_completion_without_a_limit_is_not_cut_short(application: Application) -> None:
    answer = httpx.post(
        f"{application.url}/completions",
        params={"api-version": "2024-04-01-preview"},
        json={"prompt": "Count: one, two, three,", "temperature": 0, "stop": ["ten"]},
        timeout=120,
    ).json()
    # vLLM's own default would have stopped at 16.
    assert answer["usage"]["completion_tokens"] > 16 or answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "location"),
    [
        ({"temperature": 3}, ["body", "temperature"]),
        ({"top_p": -1}, ["body", "top_p"]),
        ({"messages": []}, ["body", "messages"]),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            ["body", "messages", "0", "content", "0"],
        ),
        ({"model_extras": {"top_k": -5}}, ["body", "top_k"]),
    ],
)
def test_an_unsupported_value_is_a_422_with_its_location(
    client: Any, fields: dict[str, Any], location: list[str]
) -> None:
    with pytest.raises(HttpResponseError) as raised:
        client.complete(**{**GREEDY, **fields})
    body = body_of(raised.value)
    assert (raised.value.status_code, body["status"], body["code"]) == (422, 422, "parameter_not_supported")
    assert body["detail"]["loc"] == location
    assert isinstance(body["detail"]["value"], str)


@pytest.mark.parametrize(("mode", "status"), [(None, 400), ("error", 400), ("drop", 200), ("pass-through", 200)])
def test_the_extra_parameters_header_decides_about_unknown_fields(
    application: Application, mode: str | None, status: int
) -> None:
    answer = httpx.post(
        f"{application.url}/chat/completions",
        params={"api-version": "2024-05-01-preview"},
        json={**GREEDY, "min_p": 0.1},
        headers={} if mode is None else {"extra-parameters": mode},
        timeout=60,
    )
    assert answer.status_code == status
    assert "azureml-model-deployment" in answer.headers or status == 400


def test_embeddings_in_floats_and_bits(application: Application) -> None:
    with EmbeddingsClient(application.url, KEY) as client:
        floats: Any = client.embed(input=["hello", "world"]).data
        assert [len(item.embedding) for item in floats] == [384, 384]
        assert math.fsum(x * x for x in floats[0].embedding) == pytest.approx(1, abs=1e-3)
        bits: Any = client.embed(input=["hello"], encoding_format="ubinary").data[0].embedding
        assert len(bits) == 48
        assert [bool(bits[i // 8] >> (7 - i % 8) & 1) for i in range(384)] == [x > 0 for x in floats[0].embedding]
        with pytest.raises(HttpResponseError) as raised:
            client.embed(input=["hello"], dimensions=7)
    assert (raised.value.status_code, body_of(raised.value)["detail"]["loc"]) == (422, ["body", "dimensions"])


def test_a_modality_that_is_not_served_is_not_found(application: Application) -> None:
    with EmbeddingsClient(f"{application.url}/endpoints/chat", KEY) as client, pytest.raises(ResourceNotFoundError):
        client.embed(input=["hello"])


def test_load_client_chooses_a_client_by_info(application: Application) -> None:
    with load_client(f"{application.url}/endpoints/embed", KEY) as embeddings:
        assert isinstance(embeddings, EmbeddingsClient)
        assert embeddings.get_model_info().model_name == "embed"
    with load_client(application.url, KEY) as chat:
        assert chat.get_model_info().model_provider_name == "vllm"
