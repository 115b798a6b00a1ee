"""The internal key changes under traffic in the three steps of docs/operate/cluster.md, pod after pod."""

import secrets
import time

import pytest

from tests.cluster.conftest import BLUE, ENGINES, ROUTERS, served
from tests.support.cluster.clients import Ask, Client, lost
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Cluster, Lab
from tests.support.cluster.pods import Pod

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

REPLACED_WITHIN_S = 240.0

REJECTED = "rejected the router's credentials"
"""What a router logs of a request that an engine has refused."""


def replace(cluster: Cluster, pod: Pod) -> None:
    """`kubectl delete pod`, and waits until what it ran is elsewhere."""
    pod.delete()

    def runs_elsewhere() -> bool:
        places = {replica.address for replica in (*cluster.routers().values(), *cluster.replicas(BLUE).values())}
        return len(cluster.routers()) == 2 and len(cluster.replicas(BLUE)) == 1 and pod.address not in places

    cluster.until(runs_elsewhere, lambda: (pod.name, cluster.serve.messages()), REPLACED_WITHIN_S)
    cluster.until(lambda: len(cluster.kuberay.endpoints()) >= 2, cluster.kuberay.endpoints, REPLACED_WITHIN_S)


@pytest.fixture
def awake(cluster: Cluster, the_lab: Lab) -> Cluster:
    """One replica of the engine, two routers, all ready, and no node without a replica, which could have an earlier
    key."""
    cluster.apply(served(the_lab, min_replicas=1, max_replicas=1))

    def is_small() -> bool:
        pods = [len(cluster.kuberay.of(group)) for group in (ENGINES, ROUTERS)]
        replicas = [len(cluster.replicas(BLUE)), len(cluster.routers())]
        return pods == replicas == [1, 2] and len(cluster.kuberay.endpoints()) == 2

    cluster.until(is_small, lambda: (cluster.serve.messages(), [pod.name for pod in cluster.kuberay.pods]))
    return cluster


def test_no_request_is_refused_while_the_key_changes(awake: Cluster, the_lab: Lab, figures: Figures) -> None:
    old, new = the_lab.internal_key, secrets.token_hex(16)
    refused, begun, replaced = the_lab.logs().count(REJECTED), time.monotonic(), 0
    streams = Ask(chunks=20, every_s=1.0)
    with awake.client.dripping() as drip, awake.client.dripping(every_s=2.0, ask=streams) as dripping_streams:
        for masters, opening in (((old, new), [old, new]), ((new, old), [old, new]), ((new,), [new])):
            the_lab.use_internal_keys(*masters)
            for pod in (*awake.kuberay.of(ENGINES), *awake.kuberay.of(ROUTERS)):
                replace(awake, pod)
                replaced += 1
            assert [master for master in (old, new) if awake.opens(master, BLUE)] == opening
    outcomes = [*drip.outcomes, *dripping_streams.outcomes]
    assert lost(outcomes) == []
    assert the_lab.logs().count(REJECTED) == refused, "none was refused and tried again"
    figures.add(
        "The internal key changes in three steps",
        f"{replaced} pods replaced one by one in {time.monotonic() - begun:.0f} s; 0 of {len(drip.outcomes)} requests "
        f"and 0 of {len(dripping_streams.outcomes)} streams of 20 s lost, none refused",
    )


def test_a_key_that_engines_do_not_know_is_noticed(awake: Cluster, the_lab: Lab) -> None:
    """A router that gets the new key while engines know the old one only, as without the steps."""
    old, refused = the_lab.internal_key, the_lab.logs().count(REJECTED)
    the_lab.use_internal_keys(secrets.token_hex(16))
    replace(awake, awake.kuberay.of(ROUTERS)[0])
    the_lab.use_internal_keys(old)
    early = Client(awake.kuberay.endpoints, the_lab.key)
    assert lost(early.ask_all([Ask(streamed=False)] * 40))
    assert the_lab.logs().count(REJECTED) > refused
    replace(awake, awake.kuberay.of(ROUTERS)[-1])
    assert lost(awake.client.ask_all([Ask(streamed=False)] * 40)) == []
