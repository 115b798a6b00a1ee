"""Pods stop, die and become unreachable under traffic."""

import time

import pytest

from tests.cluster.conftest import BLUE, IDLE_S, ROUTERS, addresses, at_work, served
from tests.support.cluster.clients import Ask, Client, Outcome, lost
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Cluster, Lab
from tests.support.cluster.pods import Pod

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

GOES_ON_S = 45.0
"""The test's streams last longer than this, and Ray takes longer to notice a silent node."""

LINGERS_S = 20.0
"""Ray keeps a drained node whose object store has an object that is still referenced, until the drain's end."""


@pytest.fixture
def wide(cluster: Cluster, the_lab: Lab) -> Cluster:
    """Two replicas of the engine on two nodes."""
    cluster.apply(served(the_lab, min_replicas=2, max_replicas=2))
    cluster.until(lambda: len(at_work(cluster)) == 2, cluster.serve.messages)
    cluster.until(lambda: len(cluster.kuberay.endpoints()) >= 2, cluster.kuberay.endpoints)
    return cluster


def router_addresses(cluster: Cluster) -> set[str]:
    return {router.address for router in cluster.routers().values()}


def left(cluster: Cluster, pods: list[Pod]) -> list[Pod]:
    """The pods that have not ended."""
    return [pod for pod in pods if pod in cluster.kuberay.pods]


def carried_by(pod: Pod, outcomes: list[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.served_by.startswith(f"{pod.name}:")]


def test_a_pod_of_engines_and_one_of_routers_finish_their_streams(wide: Cluster, figures: Figures) -> None:
    engine = at_work(wide)[0]
    router = next(pod for pod in wide.kuberay.of(ROUTERS) if pod.address in router_addresses(wide))
    asks = [Ask(chunks=75, every_s=1.0, within_s=240) for _ in range(16)]
    with wide.client.dripping() as drip:
        with wide.client.asking(asks) as streams:
            wide.until(streams.have_started, lambda: [str(outcome) for outcome in streams.outcomes])
            begun = time.monotonic()
            engine.delete()
            router.delete()
            outcomes = streams.wait()
        last = max(outcome.ended or 0 for outcome in outcomes)
        wide.until(lambda: len(wide.replicas(BLUE)) == 2, wide.serve.messages)
        wide.until(lambda: len(wide.routers()) == 2, wide.serve.messages)
    assert carried_by(engine, outcomes)
    assert min((outcome.ended or 0) - outcome.begun for outcome in outcomes) > 60
    assert lost(outcomes) == []
    assert lost(drip.outcomes) == []
    wide.until(lambda: not left(wide, [engine, router]) or time.monotonic() > last + LINGERS_S, list)
    ended = 2 - len(left(wide, [engine, router]))
    figures.add(
        "SIGTERM to a pod of engines and to one of routers",
        f"0 of {len(outcomes)} streams of 75 s and 0 of {len(drip.outcomes)} requests lost; {last - begun:.0f} s "
        f"later the last stream had ended, and within {LINGERS_S:.0f} s {ended} of the 2 pods, too",
    )


def test_silent_nodes_lose_only_the_streams_that_started_there(wide: Cluster, the_lab: Lab, figures: Figures) -> None:
    """One node of engines and one of routers at once. Clients connect through the others: those of a silent node get no
    answer (docs/operate/cluster.md)."""
    engine = at_work(wide)[0]
    router = next(pod for pod in wide.kuberay.of(ROUTERS) if pod.address in router_addresses(wide))
    silent = {engine.address, router.address}
    beside = Client(lambda: [address for address in wide.kuberay.endpoints() if address not in silent], the_lab.key)
    asks = [Ask(chunks=60, every_s=1.0, within_s=240) for _ in range(32)]  # enough for each way to have some
    with wide.client.dripping() as drip:
        with beside.asking(asks) as streams:
            wide.until(streams.have_started, lambda: [str(outcome) for outcome in streams.outcomes])
            wide.kuberay.lose(engine)
            wide.kuberay.lose(router)
            moment = time.monotonic()
            outcomes = streams.wait()
        wide.until(lambda: not silent & (addresses(wide) | router_addresses(wide)), wide.serve.messages)
        noticed = time.monotonic() - moment
        wide.kuberay.remove_node(engine)  # its pod, whose end is not reported, counts until then
        wide.kuberay.remove_node(router)
        back = wide.until(
            lambda: len(wide.replicas(BLUE)) == 2 and len(wide.routers()) == 2, wide.serve.messages, within_s=480
        )
    failed = [outcome for outcome in outcomes if outcome.stream_error is not None]
    cut = [outcome for outcome in outcomes if outcome.error is not None]
    whole = [outcome for outcome in outcomes if outcome not in failed and outcome not in cut]
    assert failed
    assert cut
    assert whole
    for error in (outcome.stream_error or {} for outcome in failed):
        assert error.keys() == {"message", "type", "param", "code"}
        assert (error["type"], bool(error["message"])) == ("server_error", True)
    assert lost(whole) == []
    assert carried_by(engine, whole) == []
    assert carried_by(engine, failed) == failed
    assert all((outcome.ended or 0) - moment < GOES_ON_S for outcome in failed), (
        "by the router's timeout, not by Ray's notice"
    )
    assert [str(outcome) for outcome in cut if "no end" in (outcome.error or "")] == []
    assert lost([outcome for outcome in drip.outcomes if outcome.begun > moment or outcome.address not in silent]) == []
    errors_s, cuts_s = (max((outcome.ended or 0) - moment for outcome in part) for part in (failed, cut))
    figures.add(
        "A node of engines and one of routers stop responding",
        f"of {len(outcomes)} streams {len(failed)} of the engine there end with an error within {errors_s:.0f} s "
        f"(`idle_s: {IDLE_S}`), {len(cut)} of the router there are cut within {cuts_s:.0f} s, the others end "
        f"well; 0 of {len(drip.outcomes)} requests lost; Ray notices after {noticed:.0f} s, and all replicas are back "
        f"{back:.0f} s after the cloud has removed the machines",
    )


def test_nothing_is_lost_while_the_head_is_down_for_30_s(wide: Cluster, figures: Figures) -> None:
    before = {id: replica.pid for id, replica in {**wide.replicas(BLUE), **wide.routers()}.items()}
    asks = [Ask(chunks=60, every_s=1.0, within_s=240) for _ in range(8)]
    with wide.client.dripping() as drip, wide.client.asking(asks) as streams:
        wide.until(streams.have_started, lambda: [str(outcome) for outcome in streams.outcomes])
        moment = time.monotonic()
        wide.kuberay.crash_head()
        assert wide.serve.statuses() == {}
        wide.until(lambda: time.monotonic() > moment + 30, list)
        wide.kuberay.restart_head()
        back = wide.until(lambda: wide.serve.statuses() != {}, list)
        wide.runs()
        outcomes = streams.wait()
    after = {id: replica.pid for id, replica in {**wide.replicas(BLUE), **wide.routers()}.items()}
    assert after == before
    assert lost(outcomes) == []
    assert lost(drip.outcomes) == []
    figures.add(
        "The head dies and is down for 30 s",
        f"0 of {len(outcomes)} streams and 0 of {len(drip.outcomes)} requests lost; Serve answers {back:.0f} s after "
        "the head's start, with the same replicas and processes",
    )
