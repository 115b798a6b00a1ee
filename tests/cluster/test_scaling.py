"""Load adds replicas, replicas add nodes, and both are removed when it ends."""

import time

import pytest

from tests.cluster.conftest import BLUE, ENGINES, served
from tests.support.cluster.clients import Ask, lost
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Cluster, Lab

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def empties(cluster: Cluster) -> float:
    """Waits until the engine has neither replicas nor nodes; returns the time that this took."""
    pods = cluster.kuberay

    def is_empty() -> bool:
        return not cluster.replicas(BLUE) and not [pod for pod in pods.pods if pod.group == ENGINES]

    return cluster.until(is_empty, lambda: (cluster.serve.messages(), [pod.name for pod in pods.pods]))


@pytest.fixture
def asleep(cluster: Cluster, the_lab: Lab) -> Cluster:
    """An engine without replicas, which may scale from zero."""
    cluster.apply(served(the_lab, min_replicas=0, max_replicas=2))
    empties(cluster)
    return cluster


def test_the_first_requests_wait_through_the_cold_start(asleep: Cluster, figures: Figures) -> None:
    asks = [Ask(chunks=2, streamed=streamed, within_s=240) for streamed in (True, False) * 4]
    outcomes = asleep.client.ask_all(asks)
    assert lost(outcomes) == []
    slowest = max((outcome.ended or 0) - outcome.begun for outcome in outcomes)
    assert asleep.replicas(BLUE)
    figures.add(
        "`min_replicas: 0`, no node for engines either",
        f"{len(asks)} first requests, 0 lost; the last answer after {slowest:.0f} s: a node, then a replica",
    )


def test_load_raises_replicas_and_nodes_and_its_end_lowers_both_to_0(asleep: Cluster, figures: Figures) -> None:
    begun = time.monotonic()
    with asleep.client.dripping(every_s=1.0, ask=Ask(streamed=False)) as drip:
        asks = [Ask(chunks=60, every_s=1.0, within_s=300) for _ in range(10)]
        with asleep.client.asking(asks) as streams:
            asleep.until(lambda: len(asleep.replicas(BLUE)) == 2, asleep.serve.messages)
            grown = time.monotonic() - begun
            nodes = {replica.address for replica in asleep.replicas(BLUE).values()}
            assert nodes == {pod.address for pod in asleep.kuberay.of(ENGINES)}
            assert len(nodes) == 2
            assert lost(streams.wait()) == []
    assert lost(drip.outcomes) == []
    shrunk = empties(asleep)
    replicas = [value for path, value in asleep.kuberay.store.writes if path.endswith("/replicas")]
    assert 2 in replicas
    figures.add(
        "10 streams of 60 s and a request a second, from 0 replicas and 0 nodes",
        f"2 replicas on 2 nodes after {grown:.0f} s, 0 and 0 again {shrunk:.0f} s after the end; "
        f"0 of {len(asks) + len(drip.outcomes)} lost",
    )
