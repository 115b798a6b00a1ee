"""Two LoRA adapters and the model that they adapt: three deployments of one real vLLM, behind the router."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from app.internal_api import APP_PREFIX, EXTENDED_PATH, INTERNAL_KEY_HEADER
from tests.engine.conftest import ADAPTERS, routed
from tests.support.engine.model_application import ENGINE_KEY

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]  # it starts beside other applications

DEPLOYMENTS = ("base", *ADAPTERS)
PROMPT = "Hello world"


def configuration() -> dict[str, Any]:
    own = {adapter: {"app": "tiny", "model": f"{adapter}-lora", "parent": "base"} for adapter in (*ADAPTERS, "spanish")}
    tasks = ["chat", "completions", "responses"]
    return {
        "endpoints": {
            "chat": {"tasks": tasks, "traffic": {"base": 0, "french": 50, "german": 50}, "sticky": {"by": "user"}},
            "new": {"tasks": tasks, "traffic": {"spanish": 100}, "fallback": ["french"]},
        },
        "deployments": {"base": {"app": "tiny", "model": "tiny"}, **own},
        "defaults": {"chat": "chat", "completions": "chat", "responses": "chat"},
        "tgi": {"profile": "tgi"},
    }


@pytest.fixture(scope="module")
def client(engine: str) -> Iterator[httpx.Client]:
    with routed(engine, configuration()) as client:
        yield client


def post(client: httpx.Client, path: str, body: Mapping[str, Any], **headers: str) -> Any:
    answer = client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def completed(client: httpx.Client, model: str) -> str:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    answer = post(client, "/v1/completions", body)
    assert answer["model"] == model
    text: str = answer["choices"][0]["text"]
    return text


@pytest.fixture(scope="module")
def alone(client: httpx.Client) -> Mapping[str, str]:
    """Each deployment's answer to a request that runs alone."""
    return {deployment: completed(client, deployment) for deployment in DEPLOYMENTS}


def test_adapters_answer_differently_from_each_other_and_from_their_parent(alone: Mapping[str, str]) -> None:
    assert len(set(alone.values())) == len(DEPLOYMENTS)


def test_each_adapter_answers_in_a_batch_as_it_does_alone(client: httpx.Client, alone: Mapping[str, str]) -> None:
    calls = [*DEPLOYMENTS, *reversed(DEPLOYMENTS)] * 3
    with ThreadPoolExecutor(len(calls)) as pool:
        answers = list(pool.map(lambda model: completed(client, model), calls))
    assert answers == [alone[call] for call in calls]


def test_the_list_of_models_says_which_are_adapters(client: httpx.Client) -> None:
    listed = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
    assert {deployment: listed[deployment]["root"] for deployment in DEPLOYMENTS} == {"base": "tiny"} | {
        adapter: f"{adapter}-lora" for adapter in ADAPTERS
    }
    assert [listed[deployment].get("parent") for deployment in DEPLOYMENTS] == [None, "base", "base"]


def test_traffic_is_split_between_adapters_and_a_user_stays_on_one(
    client: httpx.Client, alone: Mapping[str, str]
) -> None:
    seen = set()
    for number in range(6):
        body = {"model": "chat", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "user": f"user {number}"}
        twice = [client.post("/v1/completions", json=body) for _ in range(2)]
        (name,) = {answer.headers["azureml-model-deployment"] for answer in twice}
        assert {answer.json()["choices"][0]["text"] for answer in twice} == {alone[name]}
        seen.add(name)
    assert seen == set(ADAPTERS)


@pytest.mark.parametrize("name", ["french", "french-lora"])
def test_tgis_adapter_id_names_an_adapter(client: httpx.Client, alone: Mapping[str, str], name: str) -> None:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 12, "adapter_id": name}}
    assert post(client, "/generate", body)["generated_text"] == alone["french"]
    refused = client.post("/generate", json={**body, "parameters": {"adapter_id": "spanish"}})
    assert (refused.status_code, refused.json()["error_type"]) == (422, "validation")


def test_every_dialects_chat_reaches_the_adapters(client: httpx.Client) -> None:
    greedy = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "temperature": 0}
    answers = {}
    for name in DEPLOYMENTS:
        said = {
            post(client, path, {**greedy, "model": model}, **headers)["choices"][0]["message"]["content"]
            for path, model, headers in (
                ("/v1/chat/completions", name, {}),
                ("/v1/chat/completions", "chat", {"azureml-model-deployment": name}),
                ("/tgi/chat/v1/chat/completions", name, {}),
                ("/dedicated/v1/chat/completions", f"chat:{name}", {}),
            )
        }
        said.add(post(client, "/v1/messages", {**greedy, "model": name})["content"][0]["text"])
        (answers[name],) = said
    assert len(set(answers.values())) == len(DEPLOYMENTS)


def test_beam_search_uses_the_adapter(client: httpx.Client) -> None:
    searched = {}
    for name in DEPLOYMENTS:
        body = {"model": f"chat:{name}", "prompt": PROMPT, "max_tokens": 4, "num_beams": 2}
        searched[name] = post(client, "/dedicated/v1/completions", body)["choices"][0]["text"]
    assert len(set(searched.values())) == len(DEPLOYMENTS)


def test_an_adapter_that_the_engine_lacks_is_the_deployments_fault(
    client: httpx.Client, alone: Mapping[str, str]
) -> None:
    body = {"model": "new", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["azureml-model-deployment"] == "french"
    assert answer.json()["choices"][0]["text"] == alone["french"]


def test_replaced_embeddings_are_refused_and_the_engine_survives(
    engine: str, client: httpx.Client, alone: Mapping[str, str]
) -> None:
    replaced = {"indices": [1], "values": [0.5] * 64}
    answer = httpx.post(
        f"{engine}{APP_PREFIX}tiny{EXTENDED_PATH}",
        json={"model": "french-lora", "prompt": [5, 6, 7], "replace_embeddings": replaced},
        headers={INTERNAL_KEY_HEADER: ENGINE_KEY},
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "replace_embeddings")
    assert completed(client, "french") == alone["french"]
