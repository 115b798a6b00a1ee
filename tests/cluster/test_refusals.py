"""Requests that full replicas refuse count as demand; the cost of bursts under Serve's policy and under ours."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from tests.cluster.conftest import BLUE, ENGINES, served
from tests.support.cluster.clients import Ask, Outcome, lost
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Cluster, Lab

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

SLOTS, LOADS_FOR_S, SERVICE_S, LATE_S = 4, 8.0, 6, 5.0

BURSTS_S, BURST, EVERY_S, LASTS_S = (12.0, 36.0), 16, 3.0, 54.0
"""One request at regular intervals, and two bursts."""


def blue_of(document: Any) -> Any:
    return next(application for application in document["applications"] if application["name"] == BLUE)


def test_refused_requests_start_replicas(cluster: Cluster, the_lab: Lab, figures: Figures) -> None:
    """Two requests run, with a target of 4: only waiting and refused requests create demand for a second replica."""
    document = served(the_lab, min_replicas=1, max_replicas=2, downscale_delay_s=120)  # longer than a node's start
    blue_of(document)["deployments"][0] |= {"max_ongoing_requests": 2, "max_queued_requests": 1}
    cluster.apply(document)
    cluster.until(lambda: len(cluster.replicas(BLUE)) == 1, cluster.serve.messages)
    streams = [Ask(chunks=60, every_s=1.0, within_s=240)] * 2
    with cluster.client.asking(streams) as running:
        cluster.until(running.have_started, lambda: [str(outcome) for outcome in running.outcomes])
        with cluster.client.asking([Ask(streamed=False, within_s=240)] * 12) as burst:
            waited = cluster.until(lambda: len(cluster.replicas(BLUE)) == 2, cluster.serve.messages)
    refused = [outcome for outcome in burst.outcomes if outcome.status == 503]
    assert refused
    assert lost([*running.outcomes, *(outcome for outcome in burst.outcomes if outcome not in refused)]) == []
    figures.add(
        "12 requests at once at a full replica",
        f"{len(refused)} refused; a second replica, on a node of its own, after {waited:.0f} s",
    )


class Cost(NamedTuple):
    """The cost of a run. `gpu_s`: seconds of replicas, from their start to their end. `late`: first chunks that came
    after `LATE_S`, or never."""

    gpu_s: float
    late: int
    refused: int
    requests: int
    most: int

    def __str__(self) -> str:
        return f"{self.gpu_s:.0f} GPU-seconds, {self.late} of {self.requests} first tokens late, {self.refused} refused"


@contextmanager
def counted(cluster: Cluster) -> Iterator[list[tuple[float, int]]]:
    """Records the number of replicas in any state, with times, while the block runs."""
    seen: list[tuple[float, int]] = []
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            states = ("STARTING", "UPDATING", "RECOVERING", "RUNNING", "STOPPING", "PENDING_MIGRATION")
            number = sum(len(cluster.serve.replicas(BLUE, state)) for state in states)
            seen.append((time.monotonic(), number))
            stop.wait(0.5)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def is_late(outcome: Outcome) -> bool:
    return outcome.status != 200 or outcome.first_at is None or outcome.first_at > outcome.begun + LATE_S


def bursts(cluster: Cluster, document: Any) -> Cost:
    """Applies the configuration, waits for one replica on one node, and sends the trace."""
    cluster.apply(document)
    cluster.until(
        lambda: len(cluster.replicas(BLUE)) == len(cluster.kuberay.of(ENGINES)) == 1,
        lambda: (cluster.serve.messages(), [pod.name for pod in cluster.kuberay.pods]),
    )
    moments = [number * EVERY_S for number in range(int(LASTS_S / EVERY_S))] + [
        moment for moment in BURSTS_S for _ in range(BURST)
    ]
    asks = [Ask(chunks=SERVICE_S, every_s=1.0, within_s=240, after_s=moment) for moment in moments]
    with counted(cluster) as seen:
        outcomes = cluster.client.ask_all(asks)
        cluster.until(lambda: seen[-1][1] == 1, cluster.serve.messages)
    refused = [outcome for outcome in outcomes if outcome.status == 503]
    assert lost([outcome for outcome in outcomes if outcome not in refused]) == []
    gpu_s = sum(number * (after - at) for (at, number), (after, _) in pairwise(seen))
    most = max(number for _, number in seen)
    return Cost(gpu_s, sum(map(is_late, outcomes)), len(refused), len(outcomes), most)


def test_bursts_under_serves_policy_and_under_ours(cluster: Cluster, the_lab: Lab, figures: Figures) -> None:
    document = served(the_lab, min_replicas=1, max_replicas=4)
    blue = blue_of(document)
    blue["args"] |= {"loads_for_s": LOADS_FOR_S, "slots": SLOTS}
    engine = blue["deployments"][0]
    engine |= {"max_ongoing_requests": 3 * SLOTS, "max_queued_requests": SLOTS}
    ours = bursts(cluster, document)
    del engine["autoscaling_config"]["policy"]
    serves = bursts(cluster, document)
    assert min(ours.most, serves.most) > 1
    figures.add(f"Two bursts of {BURST} at one replica with {SLOTS} slots, our policy", str(ours))
    figures.add("The same under Serve's policy, with the same target and delays", str(serves))
