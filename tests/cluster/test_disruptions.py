"""Pods end, die and fall silent under traffic."""

import time

import pytest

from tests.cluster.conftest import BLUE, ENGINES, IDLE_S, ROUTERS, served
from tests.support.cluster.clients import Ask, Outcome, lost
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Cluster, Lab
from tests.support.cluster.pods import Pod

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

MARGIN_S = 5.0
"""For a busy machine."""

LINGERS_S = 20.0
"""Ray keeps a drained node whose object store has an object that somebody still refers to, until the drain's end."""


@pytest.fixture
def wide(cluster: Cluster, the_lab: Lab) -> Cluster:
    """Two replicas of the engine on two nodes."""
    cluster.apply(served(the_lab, min_replicas=2, max_replicas=2))
    cluster.until(lambda: len(at_work(cluster)) == 2, cluster.serve.messages, within_s=240)
    cluster.until(lambda: len(cluster.kuberay.endpoints()) >= 4, cluster.kuberay.endpoints)
    return cluster


def at_work(cluster: Cluster) -> list[Pod]:
    """The pods with a replica of the engine, as an idle node may be there for a while."""
    return [pod for pod in cluster.kuberay.of(ENGINES) if pod.address in addresses(cluster)]


def addresses(cluster: Cluster) -> set[str]:
    return {it.address for it in cluster.replicas(BLUE).values()}


def left(cluster: Cluster, pods: list[Pod]) -> list[Pod]:
    """Those of the pods that have not ended."""
    return [pod for pod in pods if pod in cluster.kuberay.pods]


def carried_by(pod: Pod, outcomes: list[Outcome]) -> list[Outcome]:
    return [it for it in outcomes if it.served_by.startswith(f"{pod.name}:")]


def test_a_pod_of_engines_and_one_of_routers_finish_their_streams(wide: Cluster, figures: Figures) -> None:
    engine = at_work(wide)[0]
    routers = {it.address for it in wide.routers().values()}
    router = next(pod for pod in wide.kuberay.of(ROUTERS) if pod.address in routers)
    asks = [Ask(chunks=75, every_s=1.0, within_s=240) for _ in range(16)]
    with wide.client.dripping() as drip:
        with wide.client.asking(asks) as streams:
            wide.until(streams.have_begun, lambda: [str(it) for it in streams.outcomes], within_s=60)
            begun = time.monotonic()
            engine.delete()
            router.delete()
            outcomes = streams.wait()
        last = max(it.ended or 0 for it in outcomes)
        wide.until(lambda: len(wide.replicas(BLUE)) == 2, wide.serve.messages)
        wide.until(lambda: len(wide.routers()) == 2, wide.serve.messages)
    assert carried_by(engine, outcomes)
    assert min((it.ended or 0) - it.begun for it in outcomes) > 60
    assert lost(outcomes) == []
    assert lost(drip.outcomes) == []
    wide.until(lambda: not left(wide, [engine, router]) or time.monotonic() > last + LINGERS_S, list)
    ended = 2 - len(left(wide, [engine, router]))
    figures.add(
        "SIGTERM to a pod of engines and to one of routers",
        f"0 of {len(outcomes)} streams of 75 s and 0 of {len(drip.outcomes)} requests lost; {last - begun:.0f} s "
        f"later the last stream ended, and {LINGERS_S:.0f} s after it {ended} of the 2 pods had, too",
    )


def test_a_node_that_falls_silent_loses_only_the_streams_that_it_had_begun(wide: Cluster, figures: Figures) -> None:
    victim, other = at_work(wide)
    asks = [Ask(chunks=60, every_s=1.0, within_s=240) for _ in range(8)]
    with wide.client.dripping() as drip:
        with wide.client.asking(asks) as streams:
            wide.until(streams.have_begun, lambda: [str(it) for it in streams.outcomes], within_s=60)
            moment = time.monotonic()
            wide.kuberay.lose(victim)
            outcomes = streams.wait()
        wide.until(lambda: victim.address not in addresses(wide), wide.serve.messages, within_s=240)
        noticed = time.monotonic() - moment
        wide.kuberay.remove_node(victim)  # until then its pod, whose end nobody can report, counts as one of its group
        back = wide.until(lambda: len(wide.replicas(BLUE)) == 2, wide.serve.messages, within_s=240)
    broken = carried_by(victim, outcomes)
    assert broken
    assert lost(carried_by(other, outcomes)) == []
    for it in broken:
        assert '"error"' in it.text
        assert (it.ended or 0) - moment < IDLE_S + MARGIN_S
    assert lost([it for it in drip.outcomes if it.first_at is None or it.first_at > moment]) == []
    figures.add(
        "A node of engines falls silent",
        f"{len(broken)} streams on it end with an error after at most "
        f"{max((it.ended or 0) - moment for it in broken):.0f} s (`idle_s: {IDLE_S}`); 0 of {len(drip.outcomes)} "
        f"requests lost; Ray notices after {noticed:.0f} s, and the replica is back on another node {back:.0f} s after "
        "the cloud has removed the machine",
    )


def test_the_head_may_be_away_for_30_s(wide: Cluster, figures: Figures) -> None:
    before = {id: it.pid for id, it in {**wide.replicas(BLUE), **wide.routers()}.items()}
    asks = [Ask(chunks=60, every_s=1.0, within_s=240) for _ in range(8)]
    with wide.client.dripping() as drip, wide.client.asking(asks) as streams:
        wide.until(streams.have_begun, lambda: [str(it) for it in streams.outcomes], within_s=60)
        moment = time.monotonic()
        wide.kuberay.crash_head()
        assert wide.serve.statuses() == {}
        wide.until(lambda: time.monotonic() > moment + 30, list)
        wide.kuberay.restart_head()
        back = wide.until(lambda: wide.serve.statuses() != {}, list, within_s=180)
        wide.runs()
        outcomes = streams.wait()
    after = {id: it.pid for id, it in {**wide.replicas(BLUE), **wide.routers()}.items()}
    assert after == before
    assert lost(outcomes) == []
    assert lost(drip.outcomes) == []
    figures.add(
        "The head dies and is away for 30 s",
        f"0 of {len(outcomes)} streams and 0 of {len(drip.outcomes)} requests lost; Serve answers {back:.0f} s after "
        "the head's start, with the same replicas and processes",
    )
