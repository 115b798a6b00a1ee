"""Deployments that share an engine, as LoRA adapters do: their traffic is separate, and they fail together."""

from collections import Counter
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from app.routing.resilience import FAULTS_IN_A_ROW
from app.server.application import Router
from app.upstream.balancer import Address, Balancer
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.support.clients.samples import MODEL
from tests.support.engine.fake_engine import CARD, FakeEngine, chat, refuse, speaks
from tests.support.processes.servers import ServerPool, free_port, serve

ADAPTERS = [f"adapter-{number}" for number in range(10)]


@pytest.fixture
def shared(rig: Rig) -> Rig:
    """A rig whose engine `blue` has ten adapters, with a tenth of the traffic each; `green` is another engine."""
    declare(rig, rig.config["deployments"]["blue"]["url"])
    rig.blue.card = CARD
    return rig


def declare(rig: Rig, url: str) -> None:
    adapters = {adapter: {"url": url, "model": f"{adapter}-lora", "parent": "blue"} for adapter in ADAPTERS}
    rig.change(deployments={"blue": {"url": url, "model": "blue-model"}, **adapters})
    rig.chat_endpoint(traffic={**dict.fromkeys(ADAPTERS, 10), "blue": 0, "green": 0}, fallback=["green"])


def ask(rig: Rig, model: str = "chat", **headers: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    return httpx.post(f"{rig.url}/v1/chat/completions", json=body, headers=headers)


def open_breakers(rig: Rig) -> list[str]:
    names: list[str] = httpx.get(f"{rig.url}/ready").json()["open_breakers"]
    return names


def test_each_adapter_is_called_by_its_own_model_and_answers_by_its_own_name(shared: Rig) -> None:
    for name in ADAPTERS:
        answer = ask(shared, name)
        assert answer.json()["choices"][0]["message"]["content"] == f"Hello {name}-lora"
        assert answer.headers["azureml-model-deployment"] == name
    assert [body["model"] for body in shared.blue.requests] == [f"{adapter}-lora" for adapter in ADAPTERS]
    assert ask(shared, "adapter-3-lora").headers["azureml-model-deployment"] == "adapter-3", "the engine's own name"


def test_traffic_is_split_between_them(shared: Rig) -> None:
    seen = Counter(ask(shared).headers["azureml-model-deployment"] for _ in range(200))
    assert set(seen) == set(ADAPTERS)


def test_the_list_of_models_shows_whose_adapters_they_are(shared: Rig) -> None:
    for headers in ({}, {"anthropic-version": "2023-06-01"}):
        answer = httpx.get(f"{shared.url}/v1/models", params={"limit": 1000}, headers=headers).json()
        listed = {model["id"]: model for model in answer["data"]}
        assert (listed["adapter-0"]["root"], listed["adapter-0"]["parent"]) == ("adapter-0-lora", "blue")
        assert "parent" not in listed["blue"]
        assert "parent" not in listed["chat"]


@pytest.mark.parametrize("name", ["adapter-3", "adapter-3-lora"])
def test_tgis_adapter_id_names_a_deployment_or_its_model(shared: Rig, name: str) -> None:
    shared.blue.answer = speaks(MODEL, "hello")
    body = {"inputs": "hi", "parameters": {"adapter_id": name, "max_new_tokens": 3}}
    answer = httpx.post(f"{shared.url}/tgi/chat/generate", json=body)
    assert (answer.status_code, answer.headers["azureml-model-deployment"]) == (200, "adapter-3")


UNKNOWN: list[tuple[str, dict[str, Any], dict[str, str], int, str]] = [
    ("/v1/chat/completions", {"model": "adapter-99"}, {}, 404, "The model 'adapter-99' does not exist"),
    ("/v1/chat/completions", {"model": "chat"}, {"azureml-model-deployment": "adapter-99"}, 404, "No deployment"),
    ("/dedicated/v1/chat/completions", {"model": "chat:adapter-99"}, {}, 404, "No deployment 'adapter-99'"),
    ("/v1/messages", {"model": "adapter-99", "max_tokens": 5}, {}, 404, "adapter-99"),
    ("/tgi/chat/generate", {"inputs": "a", "parameters": {"adapter_id": "adapter-99"}}, {}, 422, "`adapter_id`"),
]


@pytest.mark.parametrize(("path", "fields", "headers", "status", "said"), UNKNOWN)
def test_an_unknown_adapter_is_a_clear_error(
    shared: Rig, path: str, fields: dict[str, Any], headers: dict[str, str], status: int, said: str
) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    answer = httpx.post(shared.url + path, json=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert said in answer.text
    assert shared.blue.requests == []


def lacks(model: str) -> Any:
    """An engine's answer for an unknown model, in vLLM's words."""
    missing = refuse(404, f"The model `{model}` does not exist.", "model", "NotFoundError")
    return lambda body: missing(body) if body["model"] == model else chat(body)


def test_an_adapter_that_the_engine_lacks_is_no_fault_of_the_clients_nor_of_the_others(shared: Rig) -> None:
    shared.blue.answer = lacks("adapter-0-lora")
    shared.chat_endpoint(traffic={"adapter-0": 100, **dict.fromkeys(["blue", "adapter-1", "green"], 0)})
    for _ in range(2 * FAULTS_IN_A_ROW):
        answer = ask(shared)
        assert (answer.status_code, answer.headers["azureml-model-deployment"]) == (200, "green")
        assert ask(shared, "adapter-1").status_code == 200
    assert set(open_breakers(shared)) <= {"adapter-0"}


def test_an_unreachable_engine_is_unreachable_for_all_of_its_deployments(shared: Rig) -> None:
    declare(shared, f"http://127.0.0.1:{free_port()}")
    answers = [ask(shared) for _ in range(FAULTS_IN_A_ROW)]
    assert {answer.status_code for answer in answers} == {200}
    assert sorted(open_breakers(shared)) == sorted([*ADAPTERS, "blue"]), "five faults, spread over ten adapters"


def test_an_answer_of_one_deployment_shows_that_the_engine_is_reachable(shared: Rig) -> None:
    url = shared.config["deployments"]["blue"]["url"]
    for _ in range(3):
        declare(shared, f"http://127.0.0.1:{free_port()}")
        for _ in range(FAULTS_IN_A_ROW - 1):
            ask(shared)
        declare(shared, url)
        assert ask(shared, "adapter-0").status_code == 200
    # An adapter's failures count until it answers itself: only those of the others may have added up.
    assert "blue" not in open_breakers(shared)


def test_an_experiment_compares_adapters_of_one_engine(shared: Rig) -> None:
    primary = [{"metric": "ttft", "minimal_effect": 0.05}]
    arms = {"endpoint": "chat", "control": "adapter-0", "treatments": ["adapter-1"], "primary": primary}
    shared.chat_endpoint(traffic={"adapter-0": 50, "adapter-1": 50, "blue": 0}, fallback=[])
    shared.change(experiments={"tone": arms})
    served = [ask(shared).headers["azureml-model-deployment"] for _ in range(20)]
    rows = shared.keeper.wait_for(rows=len(served))
    assert Counter((row.assigned, row.served) for row in rows) == Counter(zip(served, served, strict=True))
    assert set(served) == {"adapter-0", "adapter-1"}


def test_a_retry_under_another_name_does_not_belong_to_the_replica_that_failed(servers: ServerPool) -> None:
    engine = FakeEngine()
    failing = refuse(500, "out of memory")
    engine.answer = lambda body: failing(body) if body["model"] == "french" else chat(body)
    named = {name: {"app": "tiny", "model": name} for name in ("french", "german")}
    endpoint = {"tasks": ["chat"], "traffic": {"french": 100, "german": 0}, "fallback": ["german"]}
    replica = Starlette(routes=[Mount("/deployments/tiny", engine.app)])
    with serve(replica) as url, serve(replica) as other:
        balancer = Balancer()
        balancer.update({"tiny": [Address(name, name, "/deployments/tiny") for name in (url, other)]})
        router = Router(RuntimeEnvironment(internal_key="internal"), balancer=balancer)
        router.reconfigure({"endpoints": {"chat": endpoint}, "deployments": named})
        with servers.host(router.app) as front:
            body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
            answer = httpx.post(f"{front}/v1/chat/completions", json=body)
    assert answer.headers["azureml-model-deployment"] == "german"
    assert [len(engine.headers), len({headers["host"] for headers in engine.headers})] == [2, 2]
