"""Databricks' management API on the real application, through its SDK."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from databricks.sdk import WorkspaceClient
from databricks.sdk.core import Config
from databricks.sdk.errors import BadRequest, InvalidParameterValue, ResourceDoesNotExist
from databricks.sdk.service.serving import (
    EndpointCoreConfigInput,
    EndpointStateConfigUpdate,
    EndpointStateReady,
    Route,
    TrafficConfig,
)

from deployments.local import processes as run_processes
from deployments.local.environment import TOKEN
from tests.real.conftest import Application
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

HEADER = "azureml-model-deployment"
BLUE, GREEN = "smollm2-blue", "smollm2-green"
SHORT: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


def traffic(blue: int) -> TrafficConfig:
    shares = {BLUE: blue, GREEN: 100 - blue}
    return TrafficConfig(
        routes=[Route(served_entity_name=name, traffic_percentage=share) for name, share in shares.items()]
    )


def shares(endpoint: Any) -> dict[str, int]:
    return {route.served_entity_name: route.traffic_percentage for route in endpoint.config.traffic_config.routes}


def serve_says(application: Application) -> Any:
    """The applications as Serve keeps and runs them."""
    run = run_processes.record(application.directory)
    assert run is not None
    headers = {"authorization": f"Bearer {(Path(run.directory) / TOKEN).read_text()}"}
    return httpx.get(f"{run.dashboard}/api/serve/applications/", headers=headers).json()["applications"]


def applied(application: Application) -> Any:
    """The traffic of `chat` in Serve's store, from which new replicas and controllers start."""
    (router,) = serve_says(application)["router"]["deployed_app_config"]["deployments"]
    return router["user_config"]["endpoints"]["chat"]["traffic"]


def processes(application: Application) -> set[int]:
    """The process ids of the replicas that run. One that starts has none yet."""
    return {
        replica["pid"]
        for app in serve_says(application).values()
        for deployment in app["deployments"].values()
        for replica in deployment["replicas"]
        if replica["state"] == "RUNNING"
    }


@pytest.fixture
def endpoints(application: Application) -> Any:
    config = Config(host=application.url, token="dapi-x", retry_timeout_seconds=5)
    return WorkspaceClient(config=config).serving_endpoints


@pytest.fixture
def restored(endpoints: Any) -> Iterator[None]:
    """Restores the application, which other tests use too."""
    yield
    endpoints.wait_get_serving_endpoint_not_updating("chat")
    endpoints.update_config_and_wait("chat", traffic_config=traffic(blue=90))


def test_the_endpoints_are_those_of_the_configuration(endpoints: Any) -> None:
    listed = {endpoint.name: endpoint for endpoint in endpoints.list()}
    assert {name: endpoint.task for name, endpoint in listed.items()} == {
        "chat": "llm/v1/chat",
        "embed": "llm/v1/embeddings",
    }
    endpoint = endpoints.get("chat")
    assert endpoint.id == listed["chat"].id
    assert endpoint.state.ready is EndpointStateReady.READY
    assert endpoint.state.config_update is EndpointStateConfigUpdate.NOT_UPDATING
    assert shares(endpoint) == {BLUE: 90, GREEN: 10}
    assert {served_entity.entity_name for served_entity in endpoint.config.served_entities} == {"SmolLM2-135M-Instruct"}


def test_openapi_and_metrics(application: Application, endpoints: Any) -> None:
    httpx.post(f"{application.url}/v1/chat/completions", json=SHORT, timeout=60).raise_for_status()
    document = json.loads(endpoints.get_open_api("embed").contents.read())
    assert document["servers"] == [{"url": f"{application.url}/serving-endpoints/embed"}]
    text = endpoints.export_metrics("chat").contents.read().decode()
    assert 'gen_ai_server_request_duration_seconds_count{deployment="smollm2-' in text
    assert 'endpoint="embed"' not in text


def test_endpoints_are_declared_and_not_created(endpoints: Any) -> None:
    with pytest.raises(BadRequest, match="are declared in serve_config"):
        endpoints.create("new", config=EndpointCoreConfigInput(name="new", traffic_config=traffic(blue=100)))
    with pytest.raises(BadRequest, match="are declared in serve_config"):
        endpoints.delete("chat")
    with pytest.raises(ResourceDoesNotExist):
        endpoints.delete("gone")
    wrong = TrafficConfig(routes=[Route(served_entity_name=BLUE, traffic_percentage=95)])
    with pytest.raises(InvalidParameterValue, match="sum to 95"):
        endpoints.update_config("chat", traffic_config=wrong)


@pytest.mark.usefixtures("restored")
def test_traffic_moves_live_under_load(application: Application, endpoints: Any) -> None:
    seen: list[tuple[float, int, str]] = []
    stop = threading.Event()

    def load() -> None:
        with httpx.Client(timeout=60) as client:
            while not stop.is_set():
                sent = time.monotonic()
                answer = client.post(f"{application.url}/v1/chat/completions", json=SHORT)
                seen.append((sent, answer.status_code, answer.headers.get(HEADER, "")))

    def by(start: float, end: float) -> Counter[str]:
        return Counter(name for sent, _, name in seen if start <= sent < end)

    before = processes(application)
    workers = [threading.Thread(target=load) for _ in range(4)]
    for worker in workers:
        worker.start()
    times = [time.monotonic()]
    try:
        wait_until(lambda: by(times[0], float("inf"))[BLUE])
        times.append(time.monotonic())
        assert shares(endpoints.update_config_and_wait("chat", traffic_config=traffic(blue=0))) == {BLUE: 0, GREEN: 100}
        times.append(time.monotonic())
        assert applied(application) == {BLUE: 0, GREEN: 100}
        wait_until(lambda: by(times[2], float("inf")).total() >= 20)
        times.append(time.monotonic())
        endpoints.update_config_and_wait("chat", traffic_config=traffic(blue=90))
        times.append(time.monotonic())
        wait_until(lambda: by(times[4], float("inf"))[BLUE])
    finally:
        stop.set()
        for worker in workers:
            worker.join(60)
    assert {status for _, status, _ in seen} == {200}
    assert by(times[0], times[1])[BLUE] > 0
    assert by(times[2], times[3]).keys() == {GREEN}
    assert by(times[4], float("inf"))[BLUE] > 0
    assert applied(application) == {BLUE: 90, GREEN: 10}
    assert processes(application) >= before


@pytest.mark.usefixtures("restored")
async def test_exactly_one_of_two_conflicting_changes_is_applied(application: Application, endpoints: Any) -> None:
    url = f"{application.url}/api/2.0/serving-endpoints/chat"
    wanted = [{BLUE: 20, GREEN: 80}, {BLUE: 70, GREEN: 30}]
    async with httpx.AsyncClient(timeout=60) as client:
        await asyncio.gather(*(client.get(url) for _ in wanted))  # opens the connections
        bodies = [{"traffic_config": traffic(blue=shares[BLUE]).as_dict()} for shares in wanted]
        answers = await asyncio.gather(*(client.put(f"{url}/config", json=body) for body in bodies))
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    (refused,) = [answer.json() for answer in answers if answer.status_code == 409]
    assert refused["error_code"] == "RESOURCE_CONFLICT"
    endpoint = await asyncio.to_thread(endpoints.wait_get_serving_endpoint_not_updating, "chat")
    before = endpoints.get("chat")
    assert before.creation_timestamp < before.last_updated_timestamp
    won = next(shares for shares, answer in zip(wanted, answers, strict=True) if answer.status_code == 200)
    assert shares(endpoint) == won == applied(application)
