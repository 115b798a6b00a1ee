"""A second cluster takes over from the first, as KubeRay does it for a new rayClusterConfig. It is the last file."""

import time
from contextlib import ExitStack

import pytest

from tests.cluster.conftest import BLUE, on_few_nodes, served
from tests.support.cluster.clients import Ask, Client, lost
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Cluster, Lab

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]


def test_nothing_is_lost_when_a_new_cluster_takes_over(cluster: Cluster, the_lab: Lab, figures: Figures) -> None:
    cluster.apply(served(the_lab, min_replicas=1, max_replicas=1))
    current = [cluster]
    client = Client(lambda: current[0].kuberay.endpoints(), the_lab.key)
    asks = [Ask(chunks=75, every_s=1.0, within_s=240) for _ in range(8)]
    # Clients must end before the second cluster does.
    with ExitStack() as successors, client.dripping() as drip:
        begun = time.monotonic()
        successor = successors.enter_context(the_lab.cluster("green", on_few_nodes))
        successor.apply(served(the_lab, min_replicas=1, max_replicas=1))
        successor.until(lambda: bool(successor.replicas(BLUE)), successor.serve.messages)
        successor.until(lambda: len(successor.kuberay.endpoints()) >= 2, successor.kuberay.endpoints)
        up = time.monotonic() - begun
        with client.asking(asks) as streams:
            cluster.until(streams.have_started, lambda: [str(outcome) for outcome in streams.outcomes])
            current[0] = successor
            cluster.kuberay.delete()
            outcomes = streams.wait()
        moved = client.ask(Ask(streamed=False))
        assert "green-" in moved.served_by

        def only_the_head_is_left() -> bool:
            cluster.kuberay.forget_ended()
            return all(pod.is_head for pod in cluster.kuberay.pods)

        gone = cluster.until(only_the_head_is_left, lambda: [pod.name for pod in cluster.kuberay.pods])
    assert all("blue-" in outcome.served_by for outcome in outcomes)
    assert lost(outcomes) == []
    assert lost(drip.outcomes) == []
    figures.add(
        "A second cluster takes over; the first is deleted at once",
        f"0 of {len(outcomes)} streams of 75 s on the old one and 0 of {len(drip.outcomes)} requests lost; the new one "
        f"served after {up:.0f} s; the old one's workers ended {gone:.0f} s after their last stream",
    )
