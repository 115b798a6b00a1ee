"""The metrics of two routers of one cluster, scraped through either of them."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from app.access.keys import append, create
from app.errors import Broken, NotFound, SwitchyardError, TimedOut, Unavailable
from app.server.application import Router
from app.server.fleet import Fleet, FleetTiming, Replica
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.support.processes.fake_fleet import MemoryFleet
from tests.support.processes.scraper import Scraper, Series
from tests.support.processes.servers import ServerPool

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
REQUESTS = "switchyard_requests_total"
ENGINE = b'vllm:num_requests_running{model_name="m"} 3.0\n'


LOCAL: dict[str, Any] = {
    "endpoints": {"near": {"tasks": ["chat"], "traffic": {"local": 100}}},
    "deployments": {"local": {"app": "local-app", "model": "m"}},
}


EVERY_SCRAPE_IS_FRESH = FleetTiming(list_s=0.0, metrics_s=0.0)


class Cluster:
    """Routers on separate nodes, which know one another through the fleet, and an engine."""

    def __init__(self, rig: Rig, servers: ServerPool, stack: ExitStack) -> None:
        self.fleet = MemoryFleet(Fleet(states={"router": {"RUNNING": 2}}, proxies=["10.0.0.1", "10.0.0.2"]))
        self.config = {name: {**rig.config[name], **section} for name, section in LOCAL.items()}
        self.urls: dict[str, str] = {}
        self.routers: dict[str, Router] = {}
        self._servers, self._stack = servers, stack
        for id in ("r1", "r2"):
            self.start(id)
        self.fleet.start(Replica("b1", "local-app", "10.0.0.2"), lambda endpoints: ENGINE)

    def start(self, id: str) -> None:
        router = self.routers[id] = Router(
            RuntimeEnvironment(), random=Random(1), fleet=self.fleet, fleet_timing=EVERY_SCRAPE_IS_FRESH
        )
        router.reconfigure(self.config)
        self.urls[id] = self._stack.enter_context(self._servers.host(router.app))
        self.fleet.start(Replica(id, "router", f"10.0.0.{id[1:]}"), router.metrics)

    def configure(self, **sections: Any) -> None:
        self.config |= sections
        for router in self.routers.values():
            router.reconfigure(self.config)

    def chat(self, id: str, times: int, headers: dict[str, str] | None = None) -> None:
        for _ in range(times):
            answer = httpx.post(f"{self.urls[id]}/v1/chat/completions", json=CHAT, headers=headers)
            answer.raise_for_status()

    def get(self, path: str, id: str = "r1", **headers: str) -> httpx.Response:
        return httpx.get(self.urls[id] + path, headers=headers)


@pytest.fixture
def cluster(rig: Rig, servers: ServerPool) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(rig, servers, stack)


def by_replica(samples: dict[Series, float], name: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for (metric, labels), value in samples.items():
        if metric == name:
            replica = dict(labels)["replica"]
            values[replica] = values.get(replica, 0.0) + value
    return values


@pytest.mark.parametrize("router", ["r1", "r2"])
def test_every_replicas_series_are_read_through_any_router(cluster: Cluster, router: str) -> None:
    cluster.chat("r1", 2)
    cluster.chat("r2", 3)
    samples = Scraper(cluster.urls[router]).scrape()
    assert by_replica(samples, REQUESTS) == {"r1": 2.0, "r2": 3.0}
    (nodes,) = [dict(labels) for (name, labels) in samples if name == REQUESTS and dict(labels)["replica"] == "r2"]
    assert nodes["node"] == "10.0.0.2"
    assert (nodes["endpoint"], nodes["deployment"], nodes["component"]) == ("chat", "blue", "router")
    (engine,) = [dict(labels) for (name, labels) in samples if name == "vllm:num_requests_running"]
    assert engine == {
        "application": "local-app",
        "component": "engine",
        "deployment": "local",
        "endpoint": "near",
        "model_name": "m",
        "node": "10.0.0.2",
        "replica": "b1",
    }
    assert {dict(sample[1])["node"] for sample in samples if sample[0] == "haproxy_frontend_sessions_total"} == {
        "10.0.0.1",
        "10.0.0.2",
    }
    (state,) = [(dict(labels), value) for (name, labels), value in samples.items() if name == "switchyard_replicas"]
    assert state == ({"application": "router", "component": "cluster", "state": "RUNNING"}, 2.0), "once, not per router"


def test_counters_survive_replicas_that_come_and_go(cluster: Cluster) -> None:
    scraper = Scraper(cluster.urls["r1"])
    for replica, requests in (("r1", 4), ("r2", 5)):
        cluster.chat(replica, requests)
        scraper.scrape()
    cluster.fleet.drain("r2")
    cluster.chat("r2", 2)  # the streams that it still finishes
    scraper.scrape()
    cluster.fleet.end("r2")
    scraper.scrape()
    cluster.start("r3")
    cluster.chat("r3", 1)
    scraper.scrape()
    assert all(a <= b for (name, _), counts in scraper.series.items() if name == REQUESTS for a, b in pairwise(counts))
    assert scraper.increase(REQUESTS) == 4 + 5 + 2 + 1
    assert scraper.increase("gen_ai_server_request_duration_seconds_count") == 4 + 5 + 2 + 1


def test_scraping_several_routers_at_one_address_counts_wrongly(cluster: Cluster) -> None:
    """The reason for scraping replicas: what a scraper sees behind an ingress that alternates between them."""
    cluster.chat("r1", 4)
    cluster.chat("r2", 1)
    seen = []
    for id in ("r1", "r2", "r1"):
        lines = cluster.get("/metrics", id).text.splitlines()
        seen.append(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(REQUESTS + "{")))
    assert seen == [4.0, 1.0, 4.0], "it falls, so that 3 requests are counted that were never made"


def test_a_replica_that_is_stopped_shows_it_and_keeps_its_labels(cluster: Cluster) -> None:
    scraper = Scraper(cluster.urls["r1"])
    before = scraper.targets()
    assert by_replica(scraper.scrape(), "switchyard_draining") == {"r1": 0.0, "r2": 0.0, "b1": 0.0}
    cluster.fleet.drain("b1")
    assert by_replica(scraper.scrape(), "switchyard_draining") == {"r1": 0.0, "r2": 0.0, "b1": 1.0}
    assert scraper.targets() == before


@pytest.mark.parametrize(
    ("failure", "status"),
    [(NotFound("ended"), 404), (Broken("failed"), 502), (Unavailable("away"), 503), (TimedOut("late"), 504)],
)
def test_a_replica_without_metrics_is_an_error_with_a_message(
    cluster: Cluster, failure: SwitchyardError, status: int
) -> None:
    cluster.get("/metrics/targets")
    cluster.fleet.failure = failure
    answer = cluster.get("/metrics/replicas/b1")
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, failure.message)


def test_a_process_that_does_not_run_is_not_found_without_a_call(cluster: Cluster) -> None:
    for path in ("/metrics/replicas/gone", "/metrics/proxies/10.9.9.9", "/metrics/proxies/127.0.0.1:22"):
        assert cluster.get(path).status_code == 404
    assert set(cluster.fleet.calls) == {"fleet"}


def test_while_the_control_plane_is_away_the_last_list_is_served(cluster: Cluster) -> None:
    before = cluster.get("/metrics/targets").json()
    cluster.fleet.failure = Unavailable("away")
    assert cluster.get("/metrics/targets").json() == before
    assert cluster.get("/metrics/targets", "r2").status_code == 503, "Prometheus then keeps the list that it has"
    assert cluster.get("/metrics").status_code == 200


def test_targets_have_the_address_at_which_they_were_requested(cluster: Cluster) -> None:
    (group, *_) = cluster.get("/metrics/targets", host="llm.localhost").json()
    assert group["targets"] == ["llm.localhost"]
    answer = cluster.get("/metrics/targets", host='x"y.localhost')
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Host")


def test_a_router_alone_lists_itself(rig: Rig) -> None:
    scraper = Scraper(rig.url)
    (only,) = scraper.targets()
    assert only["labels"] == {"__metrics_path__": "/metrics", "component": "router"}
    httpx.post(f"{rig.url}/v1/chat/completions", json=CHAT)
    assert any(name == REQUESTS for name, _ in scraper.scrape())
    assert httpx.get(f"{rig.url}/metrics/replicas/x").status_code == 404
    assert httpx.get(f"{rig.url}/metrics/proxies/10.0.0.1").status_code == 404


PATHS = ["targets", "cluster", "replicas/r2", "replicas/b1", "proxies/10.0.0.1"]


def test_restricted_metrics_ask_for_credentials_and_show_the_readers_endpoints(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "keys.yaml"
    bearer = {}
    for name, endpoints in (("all", []), ("chat", ["chat"]), ("near", ["near"])):
        key, record = create(name, endpoints=endpoints)
        append(file, record.line)
        bearer[name] = f"Bearer {key}"
    cluster.configure(access={"keys_file": str(file), "metrics": "restricted"})
    for path in PATHS:
        assert cluster.get(f"/metrics/{path}").status_code == 401
        assert cluster.get(f"/metrics/{path}", authorization=bearer["all"]).status_code == 200
    cluster.chat("r2", 1, {"authorization": bearer["all"]})

    def seen(name: str) -> set[str]:
        targets = Scraper(cluster.urls["r1"], {"authorization": bearer[name]}).targets()
        return {group["labels"]["__metrics_path__"].removeprefix("/metrics/") for group in targets}

    assert seen("all") == {"cluster", "replicas/r1", "replicas/r2", "replicas/b1"} | {
        f"proxies/10.0.0.{node}" for node in (1, 2)
    }
    assert seen("chat") == {"cluster", "replicas/r1", "replicas/r2"}
    assert seen("near") == {"cluster", "replicas/r1", "replicas/r2", "replicas/b1"}
    for path in PATHS[3:]:
        assert cluster.get(f"/metrics/{path}", authorization=bearer["chat"]).status_code == 404, "not even that it runs"
    for name, is_there in (("all", True), ("chat", True), ("near", False)):
        text = cluster.get("/metrics/replicas/r2", authorization=bearer[name]).text
        assert ('endpoint="chat"' in text) is is_there
    assert "switchyard_replicas" not in cluster.get("/metrics/cluster", authorization=bearer["chat"]).text
