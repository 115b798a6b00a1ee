"""Pods have the memory that the manifests promise them, and one that takes more is killed and replaced."""

import time

import pytest

from tests.cluster.conftest import BLUE, ENGINES, served
from tests.support.cluster import manifest
from tests.support.cluster.clients import Ask
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Cluster, Lab
from tests.support.cluster.pods import Pod

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

MIB = 1 << 20
ROOM_MIB, FILL_MIB = 200, 600
REQUESTS = 12
"""Of which each of two replicas gets half."""


def wait_until_it_serves(pod: Pod, cluster: Cluster) -> None:
    """Waits until each node's ingress sends requests to the pod: it learns of a new replica after the controller, and
    leaves one out that was too busy to answer its check."""
    asks = [Ask(streamed=False)] * REQUESTS

    def serves() -> bool:
        pods = [outcome.served_by.partition(":")[0] for outcome in cluster.client.ask_all(asks)]
        return pods.count(pod.name) >= REQUESTS // 4

    cluster.until(serves, cluster.serve.messages)


def test_a_pod_over_its_memory_limit_is_killed_and_replaced(cluster: Cluster, the_lab: Lab, figures: Figures) -> None:
    cluster.apply(served(the_lab, min_replicas=2, max_replicas=2))
    cluster.until(lambda: len(cluster.replicas(BLUE)) == 2, cluster.serve.messages)
    used = {}
    for pod in cluster.kuberay.pods:
        for container in (pod.container, *pod.sidecars):
            assert container.memory is not None
            used[container] = container.memory.used // MIB
        assert pod.container.memory is not None
        assert pod.container.memory.limit == manifest.memory(pod.template["spec"]["containers"][0])
    working = {replica.address for replica in cluster.replicas(BLUE).values()}
    victim = next(pod for pod in cluster.kuberay.of(ENGINES) if pod.address in working)
    memory = victim.container.memory
    assert memory is not None
    fills = [Ask(streamed=False, fill=victim.name, fill_mib=FILL_MIB)] * REQUESTS
    wait_until_it_serves(victim, cluster)
    assert all(outcome.is_whole for outcome in cluster.client.ask_all(fills)), "it has that much"
    wait_until_it_serves(victim, cluster)
    assert memory.kills == 0
    memory.limit = memory.used + ROOM_MIB * MIB
    # More than all of the limit: of what is in use, the kernel first takes back what files are cached in.
    too_much = [Ask(streamed=False, fill=victim.name, fill_mib=memory.limit // MIB)] * REQUESTS
    begun = time.monotonic()
    with cluster.client.dripping() as drip:
        cluster.client.ask_all(too_much)
        ended = cluster.until(lambda: victim not in cluster.kuberay.pods, cluster.kuberay.endpoints)
        back = cluster.until(
            lambda: len({replica.address for replica in cluster.replicas(BLUE).values()} - {victim.address}) == 2,
            cluster.serve.messages,
        )
        again = time.monotonic()
        cluster.until(lambda: time.monotonic() > again + 5, list)
    assert all(outcome.is_whole for outcome in cluster.client.ask_all(fills))
    lost = [outcome for outcome in drip.outcomes if not outcome.is_whole]
    assert [str(outcome) for outcome in lost if outcome.begun > again] == []
    assert len(lost) < (again - begun) / 2, "the other replica serves"
    head, *_ = (amount for container, amount in used.items() if container is cluster.kuberay.head.container)
    figures.add(
        "An engine's pod takes more memory than its limit",
        f"the kernel ends it, another pod's replica runs {ended + back:.0f} s later, and {len(lost)} of "
        f"{len(drip.outcomes)} requests are lost; the head uses {head} MiB of its limit",
    )
