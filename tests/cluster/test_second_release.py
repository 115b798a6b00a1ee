"""A second release of the chart in the same namespace starts beside the first one, and neither reaches the other."""

import time

import pytest
import yaml

from tests.cluster.conftest import BLUE, ENGINES, ROUTERS, on_few_nodes, served
from tests.support.cluster import manifest
from tests.support.cluster.clients import Ask, Client, lost
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Cluster, Lab
from tests.support.cluster.network import PREFIX
from tests.support.cluster.ports import Place, accepting, connected, listening
from tests.support.kubernetes.overlays import CHART, release

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

INGRESS, GCS, REDIS = 8000, 6379, 6379

SECOND = "second"
"""The release's name, and its RayCluster's."""


def redis(made: Lab) -> Place:
    return Place(made.image.hosts[f"{made.name}-redis"], REDIS)


def addresses(made: Lab, cluster: Cluster) -> set[str]:
    return {redis(made).address, *(pod.address for pod in cluster.kuberay.pods)}


def serves_its_own_callers_alone(made: Lab, cluster: Cluster, other: Lab) -> None:
    outcomes = cluster.client.ask_all([Ask(streamed=False)] * 20)
    assert lost(outcomes) == []
    assert {outcome.served_by.partition(":")[0] for outcome in outcomes} <= {
        pod.name for pod in cluster.kuberay.of(ENGINES)
    }
    assert Client(cluster.kuberay.endpoints, other.key).ask(Ask(streamed=False)).status == 401
    assert cluster.opens(made.internal_key, BLUE)
    assert not cluster.opens(other.internal_key, BLUE)


def is_connected_to_its_own_pods_alone(made: Lab, cluster: Cluster, others: set[str]) -> None:
    head = cluster.kuberay.head
    assert {redis(made).address} <= connected(PREFIX + head.name)
    for name in (f"{made.name}-redis", *(pod.name for pod in cluster.kuberay.pods)):
        assert connected(PREFIX + name) & others == set(), name


def reads_its_own_weights(made: Lab, cluster: Cluster, other: Lab) -> None:
    (made.image.claims / f"{made.name}-weights" / f"of-{made.name}").touch()
    for pod in cluster.kuberay.of(ENGINES):
        assert pod.container.run(["test", "-e", f"/models/of-{made.name}"])
        assert not pod.container.run(["test", "-e", f"/models/of-{other.name}"])


def reaches_no_port_but_the_ingress(cluster: Cluster, beside: Cluster, others_redis: Place) -> int:
    """What packets pass to of the other release; returns the number of its ports that they do not."""
    router, engine = (PREFIX + cluster.kuberay.of(group)[0].name for group in (ROUTERS, ENGINES))
    entrances = {pod.name for pod in beside.kuberay.of(ROUTERS)}
    closed = 0
    for pod in beside.kuberay.pods:
        places = {Place(pod.address, port) for port in listening(pod.container.pid)}
        opened = accepting(router, places)
        assert opened == ({Place(pod.address, INGRESS)} & places if pod.name in entrances else set())
        assert accepting(engine, places) == set()
        assert not pod.is_head or Place(pod.address, GCS) in places
        closed += len(places - opened)
    assert accepting(router, [others_redis]) == accepting(engine, [others_redis]) == set()
    return closed + 1


def test_two_releases_serve_side_by_side_and_neither_reaches_the_other(
    cluster: Cluster, the_lab: Lab, figures: Figures
) -> None:
    cluster.apply(served(the_lab, min_replicas=1, max_replicas=1))
    values = yaml.safe_load((CHART / "ci/cpu-demo-values.yaml").read_text())
    objects = release(SECOND, **values, routers={"min": 1, "max": 1})
    with cluster.client.dripping() as drip:
        begun = time.monotonic()
        with the_lab.beside(objects) as lab, lab.cluster(SECOND, on_few_nodes) as second:
            second.apply(served(lab, min_replicas=1, max_replicas=1))
            second.until(lambda: bool(second.replicas(BLUE)), second.serve.messages)
            up = time.monotonic() - begun
            closed = 0
            with second.client.dripping() as seconds_drip:
                both = ((the_lab, cluster), (lab, second))
                for (made, one), (other, beside) in (both, both[::-1]):
                    serves_its_own_callers_alone(made, one, other)
                    is_connected_to_its_own_pods_alone(made, one, addresses(other, beside))
                    reads_its_own_weights(made, one, other)
                for (_, one), (other, beside) in (both, both[::-1]):
                    closed += reaches_no_port_but_the_ingress(one, beside, redis(other))
                lab.network.enforce(lab.name, [])
                router = PREFIX + cluster.kuberay.of(ROUTERS)[0].name
                assert accepting(router, [redis(lab)]) == {redis(lab)}, "only its policies keep the first release out"
                lab.network.enforce(lab.name, list(manifest.of_kind(objects, "NetworkPolicy")))
        assert lost(cluster.client.ask_all([Ask(streamed=False)] * 20)) == [], "after the second one's end"
    assert lost([*drip.outcomes, *seconds_drip.outcomes]) == []
    figures.add(
        "A second release in the namespace",
        f"serves after {up:.0f} s; 0 of {len(drip.outcomes)} and 0 of {len(seconds_drip.outcomes)} requests lost; each "
        f"refuses the other's keys; packets pass to {INGRESS} of its routers alone, not to {closed} other ports",
    )
