"""Three router replicas and Databricks' SDK: a change of traffic reaches all replicas, or no replica at all."""

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from databricks.sdk import WorkspaceClient
from databricks.sdk.core import Config
from databricks.sdk.errors import OperationFailed
from databricks.sdk.service.serving import Route, TrafficConfig
from starlette.applications import Starlette
from starlette.routing import Mount

from deployments.local import processes
from deployments.local.environment import TOKEN
from tests.support.engine.fake_engine import FakeEngine
from tests.support.processes.launcher import Launcher, deliver, launched, run
from tests.support.processes.servers import serve
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(700)]

HEADER = "azureml-model-deployment"
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
REPLICAS = 3


@dataclass(frozen=True)
class Cluster:
    """A running Serve application that consists only of router replicas."""

    launcher: Launcher
    config: Path

    @property
    def url(self) -> str:
        return self.launcher.url

    @property
    def endpoints(self) -> Any:
        return WorkspaceClient(config=Config(host=self.url, token="t", retry_timeout_seconds=5)).serving_endpoints

    def move(self, blue: int) -> Any:
        """Changes the traffic with the SDK, which waits until it is applied."""
        try:
            return self.endpoints.update_config_and_wait("chat", traffic_config=TrafficConfig(routes=routes(blue)))
        except OperationFailed as error:
            raise AssertionError(self.serve_says()) from error

    def served(self, requests: int) -> Counter[str]:
        """The deployments that answer requests on separate connections, so that every replica gets some."""
        answers = [httpx.post(f"{self.url}/v1/chat/completions", json=CHAT, timeout=30) for _ in range(requests)]
        assert {answer.status_code for answer in answers} == {200}
        return Counter(answer.headers[HEADER] for answer in answers)

    def serve_says(self) -> Any:
        """Serve's stored configuration and state of the router's application."""
        run = processes.record(self.launcher.directory)
        assert run is not None
        headers = {"authorization": f"Bearer {(Path(run.directory) / TOKEN).read_text()}"}
        return httpx.get(f"{run.dashboard}/api/serve/applications/", headers=headers).json()["applications"]["router"]

    def applied(self) -> dict[str, int]:
        """The traffic in Serve's store, from which replicas start."""
        (router,) = self.serve_says()["deployed_app_config"]["deployments"]
        traffic: dict[str, int] = router["user_config"]["endpoints"]["chat"]["traffic"]
        return traffic

    def replicas(self) -> set[int]:
        """The process ids of the replicas that run."""
        replicas = self.serve_says()["deployments"]["Router"]["replicas"]
        return {replica["pid"] for replica in replicas if replica["state"] == "RUNNING"}


def routes(blue: int) -> list[Route]:
    shares = {"blue": blue, "green": 100 - blue}
    return [Route(served_entity_name=name, traffic_percentage=share) for name, share in shares.items()]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("routers")
    config = directory / "serve_config.yaml"
    fakes = Starlette(routes=[Mount(f"/{name}", FakeEngine().app) for name in ("blue", "green")])
    with serve(fakes) as url:
        user_config = {
            "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 90, "green": 10}}},
            "deployments": {
                name: {"url": f"{url}/{name}", "model": name, "tasks": ["chat"]} for name in ("blue", "green")
            },
        }
        router = {"name": "Router", "num_replicas": REPLICAS, "user_config": user_config}
        application = {"name": "router", "route_prefix": "/", "import_path": "deployments.router:build", "args": {}}
        config.write_text(yaml.safe_dump({"applications": [{**application, "deployments": [router]}]}))
        with launched(config, directory, {}) as launcher:
            yield Cluster(launcher, config)


@pytest.fixture(autouse=True)
def from_ninety_to_ten(cluster: Cluster) -> None:
    cluster.move(90)


def test_every_replica_has_the_change_when_the_wait_ends(cluster: Cluster) -> None:
    seen: list[int] = []
    stop = threading.Event()

    def load() -> None:
        with httpx.Client(timeout=30) as client:
            while not stop.is_set():
                seen.append(client.post(f"{cluster.url}/v1/chat/completions", json=CHAT).status_code)

    workers = [threading.Thread(target=load) for _ in range(2)]
    for worker in workers:
        worker.start()
    replicas = cluster.replicas()
    try:
        for blue, name in ((0, "green"), (100, "blue"), (0, "green")):
            cluster.move(blue)
            assert cluster.served(40) == {name: 40}
    finally:
        stop.set()
        for worker in workers:
            worker.join(30)
    assert set(seen) == {200}
    assert cluster.replicas() == replicas
    assert len(replicas) == REPLICAS


def test_exactly_one_of_several_concurrent_changes_is_applied_completely(cluster: Cluster) -> None:
    wanted = [{"blue": blue, "green": 100 - blue} for blue in range(0, 80, 10)]

    async def change_at_once() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=30) as client:
            url = f"{cluster.url}/api/2.0/serving-endpoints/chat"
            await asyncio.gather(*(client.get(url) for _ in wanted))  # opens the connections
            bodies = [
                {"traffic_config": {"routes": [route.as_dict() for route in routes(one["blue"])]}} for one in wanted
            ]
            return list(await asyncio.gather(*(client.put(f"{url}/config", json=body) for body in bodies)))

    answers = asyncio.run(change_at_once())
    assert Counter(answer.status_code for answer in answers) == {200: 1, 409: len(wanted) - 1}
    assert {answer.json().get("error_code", "") for answer in answers} == {"", "RESOURCE_CONFLICT"}
    endpoint = cluster.endpoints.wait_get_serving_endpoint_not_updating("chat")
    in_force = {route.served_entity_name: route.traffic_percentage for route in endpoint.config.traffic_config.routes}
    won = next(traffic for traffic, answer in zip(wanted, answers, strict=True) if answer.status_code == 200)
    assert in_force == cluster.applied() == won


def test_new_replicas_have_the_change(cluster: Cluster) -> None:
    cluster.move(0)
    killed = cluster.replicas()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)

    def replaced() -> bool:
        running = cluster.replicas()
        return not running & killed and len(running) >= REPLICAS

    wait_until(replaced, cluster.replicas, within_s=120)
    cluster.endpoints.wait_get_serving_endpoint_not_updating("chat")
    assert cluster.applied() == {"blue": 0, "green": 100}
    assert cluster.served(40) == {"green": 40}


def switchyard(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command for the application with this run directory."""
    return run(*arguments, directory=cluster.launcher.directory, timeout_s=120)


def test_the_command_shows_what_runs(cluster: Cluster) -> None:
    shown = switchyard(cluster, "status")
    assert (shown.returncode, shown.stderr) == (0, "")
    first, _, _, blue, green, _, router = shown.stdout.splitlines()
    assert first == f"{cluster.url}: ready"
    assert blue.split() == ["chat", "chat", "blue", "90", "%", "healthy", "-", "blue"]
    assert green.split() == ["green", "10", "%", "healthy", "-", "green"]
    assert router == f"router: RUNNING, {REPLICAS}/{REPLICAS} replicas"
    status = json.loads(switchyard(cluster, "status", "--json").stdout)
    assert status["endpoints"]["chat"] == {"tasks": ["chat"], "ready": True, "traffic": {"blue": 90, "green": 10}}
    assert status["applications"]["router"]["running"] == REPLICAS


def test_a_plan_reaches_every_replica_and_the_store_from_which_replicas_start(cluster: Cluster) -> None:
    url = f"{cluster.url}/api/endpoints/chat/traffic"
    seen = httpx.get(url, timeout=30)
    document = {"weights": {"green": 100}, "reason": "all of it"}
    made = httpx.put(url, json=document, headers={"if-match": seen.headers["etag"]}, timeout=30)
    assert made.status_code == 200, made.text
    plan = made.json()
    assert plan["generation"] == seen.json()["generation"] + 1
    stale = httpx.put(url, json=document, headers={"if-match": seen.headers["etag"]}, timeout=30)
    assert (stale.status_code, stale.json()["current"]["plan"]) == (412, plan["plan"])

    def delivery() -> str:
        return str(httpx.get(url, timeout=30).json()["delivery"])

    wait_until(lambda: delivery() == "settled", delivery)
    answers = [httpx.post(f"{cluster.url}/v1/chat/completions", json=CHAT, timeout=30) for _ in range(40)]
    assert {answer.headers["x-switchyard-plan"] for answer in answers} == {plan["plan"]}
    (router,) = cluster.serve_says()["deployed_app_config"]["deployments"]
    kept = router["user_config"]["endpoints"]["chat"]["plan"]
    assert (kept["generation"], kept["reason"]) == (plan["generation"], "all of it")


def test_the_command_moves_traffic_on_every_replica(cluster: Cluster) -> None:
    dry = switchyard(cluster, "traffic", "chat", "green=100", "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, "chat\n  blue   90 % → 0 %\n  green  10 % → 100 %\n")
    assert cluster.applied() == {"blue": 90, "green": 10}
    moved = switchyard(cluster, "traffic", "chat", "green=100")
    assert (moved.returncode, moved.stdout) == (0, dry.stdout)
    assert cluster.served(40) == {"green": 40}
    assert switchyard(cluster, "traffic", "chat").stdout == "chat\n  blue   0 %\n  green  100 %\n"


def test_a_dry_run_rejects_what_the_routers_would_reject(cluster: Cluster) -> None:
    rejected = switchyard(cluster, "traffic", "chat", "gone=100", "--dry-run")
    assert rejected.returncode == 1
    assert "unknown deployment 'gone'" in rejected.stderr
    assert cluster.applied() == {"blue": 90, "green": 10}


def test_the_next_deployment_of_the_file_applies_its_traffic(cluster: Cluster) -> None:
    cluster.move(0)
    deliver(cluster.config, cluster.launcher.directory)
    endpoint = cluster.endpoints.wait_get_serving_endpoint_not_updating("chat")
    assert [route.traffic_percentage for route in endpoint.config.traffic_config.routes] == [90, 10]


def with_router(cluster: Cluster, name: str, **user_config: Any) -> Path:
    """The cluster's file with these sections of the router's configuration."""
    document = yaml.safe_load(cluster.config.read_text())
    document["applications"][0]["deployments"][0]["user_config"].update(user_config)
    changed = cluster.config.with_name(name)
    changed.write_text(yaml.safe_dump(document))
    return changed


def test_every_router_has_a_file_when_its_deployment_returns(cluster: Cluster) -> None:
    endpoints = {"chat": {"tasks": ["chat"], "traffic": {"blue": 0, "green": 100}}}
    deliver(with_router(cluster, "green.yaml", endpoints=endpoints), cluster.launcher.directory)
    assert cluster.served(40) == {"green": 40}
    deliver(cluster.config, cluster.launcher.directory)
    moved = switchyard(cluster, "traffic", "chat", "blue=100")
    assert (moved.returncode, moved.stdout) == (0, "chat\n  blue   90 % → 100 %\n  green  10 % → 0 %\n"), moved.stderr
    assert cluster.served(40) == {"blue": 40}


def test_a_file_that_the_routers_refuse_is_an_error_and_the_earlier_one_stays(cluster: Cluster) -> None:
    access = {"keys_file": "/nowhere/keys.yaml"}
    refused = switchyard(cluster, "deploy", str(with_router(cluster, "broken.yaml", access=access)))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("The routers refuse the configuration and keep the earlier one. ")
    assert "config_rejected: access.keys_file: /nowhere/keys.yaml" in switchyard(cluster, "doctor").stdout
    assert sum(cluster.served(40).values()) == 40
    deliver(cluster.config, cluster.launcher.directory)


def test_a_second_start_from_the_same_directory_is_refused(cluster: Cluster) -> None:
    refused = switchyard(cluster, "serve", str(cluster.config))
    assert refused.returncode == 1
    assert "already runs" in refused.stderr


def test_stop_cleans_up_after_a_killed_launcher(cluster: Cluster) -> None:
    """Must run last: it ends the application that the other tests share. The application of tests/real is ended by
    signals."""
    launcher = cluster.launcher
    assert len(processes.processes_of(launcher.run_id)) > 5
    launcher.process.kill()
    launcher.process.wait()
    stopped = switchyard(cluster, "stop")
    assert stopped.returncode == 0
    assert "of a run that was killed" in stopped.stdout
    launcher.assert_nothing_is_left()
    assert not (launcher.directory / "local.json").exists()
