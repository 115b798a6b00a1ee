"""A whole cluster's metrics, read at any of its nodes."""

import pytest

from tests.cluster.conftest import BLUE, served
from tests.support.cluster.clients import Ask
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Cluster, Lab
from tests.support.cluster.network import PREFIX, joined
from tests.support.cluster.ports import Place, accepting
from tests.support.processes.scraper import Scraper, Series

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

REQUESTS = "switchyard_requests_total"
MEMORY = "process_resident_memory_bytes"
PORTS = range(30000, 30020)
"""Replicas listen on the first free port; a recently used one does not count as free."""


def labels_of(samples: dict[Series, float], name: str, **wanted: str) -> dict[str, dict[str, str]]:
    """The labels of the metric's samples that have the wanted ones, by replica."""
    found = [dict(labels) for metric, labels in samples if metric == name]
    return {labels["replica"]: labels for labels in found if wanted.items() <= labels.items()}


def test_every_nodes_ingress_serves_the_series_of_every_replica(cluster: Cluster, figures: Figures) -> None:
    assert all(outcome.is_whole for outcome in cluster.client.ask_all([Ask(streamed=False)] * 20))
    routers, engines = cluster.routers(), cluster.replicas(BLUE)
    counted = set()
    for pod in cluster.kuberay.pods:
        with joined(PREFIX + cluster.kuberay.head.name):  # no policy lets others reach the head
            samples = Scraper(f"http://{pod.address}:8000").scrape()
        seen = labels_of(samples, REQUESTS, endpoint="chat", deployment=BLUE, component="router")
        assert {id: labels["node"] for id, labels in seen.items()} == {
            id: router.address for id, router in routers.items()
        }
        engine = labels_of(samples, MEMORY, component="engine", deployment=BLUE, endpoint="chat")
        assert {id: labels["node"] for id, labels in engine.items()} == {
            id: engine_replica.address for id, engine_replica in engines.items()
        }
        proxies = {dict(labels).get("node") for name, labels in samples if name == "haproxy_process_uptime_seconds"}
        assert proxies >= {replica.address for replica in (*routers.values(), *engines.values())}
        counted.add(sum(value for (name, _), value in samples.items() if name == REQUESTS))
    assert len(counted) == 1, "whichever node is asked, the sum is the same"
    pods = len(cluster.kuberay.pods)
    figures.add(
        "Metrics", f"each of {pods} nodes' ingress gives the series of {len(seen)} routers on 2 nodes, and all else"
    )


def test_a_stopping_replica_is_scraped_until_its_last_stream_ends(
    cluster: Cluster, the_lab: Lab, figures: Figures
) -> None:
    cluster.apply(served(the_lab, min_replicas=2, max_replicas=2))
    cluster.until(lambda: len(cluster.replicas(BLUE)) == 2, cluster.serve.messages)
    scraper = Scraper(f"http://{next(iter(cluster.routers().values())).address}:8000")
    with cluster.client.asking([Ask(chunks=40, every_s=2.0)] * 8) as running:
        cluster.until(
            lambda: all(outcome.first_at for outcome in running.outcomes), lambda: [*map(str, running.outcomes)]
        )
        beside = PREFIX + cluster.kuberay.head.name  # only Ray's pods reach replicas' own ports
        ports = {replica.address: listening(replica.address, beside) for replica in cluster.replicas(BLUE).values()}
        assert all(ports.values())
        cluster.serve.put(served(the_lab, min_replicas=1, max_replicas=1))
        cluster.until(lambda: bool(cluster.serve.replicas(BLUE, "STOPPING")), cluster.serve.messages)
        (stopped,) = cluster.serve.replicas(BLUE, "STOPPING")
        closed_after = cluster.until(lambda: not listening(stopped.address, beside), cluster.serve.messages)
        samples = scraper.scrape()
        draining = {dict(labels)["replica"]: value for (name, labels), value in samples.items() if name == DRAINING}
        assert draining.pop(stopped.id) == 1.0
        assert set(draining.values()) == {0.0}
        assert labels_of(samples, MEMORY, deployment=BLUE)[stopped.id]["node"] == stopped.address
    assert all(outcome.is_whole for outcome in running.outcomes), [*map(str, running.outcomes)]
    cluster.until(
        lambda: stopped.id not in {target["labels"].get("replica") for target in scraper.targets()},
        cluster.serve.messages,
    )
    seen = f"its port closed after {closed_after:.0f} s; scraped all the same until its last stream had ended"
    figures.add("Metrics of a replica that is being stopped", seen)


DRAINING = "switchyard_draining"


def listening(address: str, namespace: str) -> list[int]:
    """The ports for requests at which a replica of the node takes connections from a pod in `namespace`."""
    taking = accepting(namespace, [Place(address, port) for port in PORTS])
    return sorted(place.port for place in taking)
