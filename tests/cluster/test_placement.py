"""Where Serve places replicas, and which nodes reach them."""

import pytest

from tests.cluster.conftest import BLUE, ENGINES, ROUTERS, served
from tests.support.cluster.clients import Ask, Client
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Cluster, Lab
from tests.support.cluster.network import PREFIX, joined

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def addresses(cluster: Cluster, group: str) -> set[str]:
    return {pod.address for pod in cluster.kuberay.of(group)}


def test_routers_run_on_cpu_nodes_and_engines_on_the_nodes_for_engines(cluster: Cluster, figures: Figures) -> None:
    routers, engines = cluster.routers(), cluster.replicas(BLUE)
    assert len(routers) == 2
    assert {router.address for router in routers.values()} == addresses(cluster, ROUTERS)
    assert len(engines) == 1
    assert {engine.address for engine in engines.values()} == addresses(cluster, ENGINES)
    figures.add("Placement", "2 routers on the 2 nodes for routers, the engine on a node for engines, which it made")


def test_the_ingress_of_every_node_reaches_every_replica(cluster: Cluster, the_lab: Lab, figures: Figures) -> None:
    cluster.apply(served(the_lab, min_replicas=2, max_replicas=2))
    cluster.until(lambda: len(cluster.replicas(BLUE)) == 2, cluster.serve.messages)
    nodes = {replica.address for replica in cluster.replicas(BLUE).values()}
    assert len(nodes) == 2
    pods = cluster.kuberay.pods
    names = {pod.name for pod in cluster.kuberay.of(ENGINES)}
    beside = PREFIX + cluster.kuberay.head.name  # no policy lets clients reach the head
    for pod in pods:
        client = Client(lambda address=pod.address: [address], the_lab.key)  # type: ignore[misc]
        served_by: set[str] = set()

        def reaches_all(client: Client = client, seen: set[str] = served_by) -> bool:
            with joined(beside):
                outcome = client.ask(Ask(streamed=False, within_s=20))
            seen.update([outcome.served_by.partition(":")[0]] if outcome.is_whole else [])
            return seen == names

        cluster.until(reaches_all, lambda seen=served_by, pod=pod: (pod.name, seen))  # type: ignore[misc]
    figures.add("Any node's ingress", f"each of {len(pods)} nodes, the head's too, reaches both replicas of the engine")
