"""Strangers who open connections to the ingress without sending requests."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator

import httpx
import numpy as np
import pytest

from tests.faults.conftest import Cluster, wait_until_back
from tests.support.processes.load import Lane, ask_all, lanes, unexplained
from tests.support.processes.project import ROOT

pytestmark = [pytest.mark.real, pytest.mark.timeout(700)]

BROKEN, SLOW = 10_000, 2_000
AT_ONCE = 2
"""The honest client's requests that run at the same time: as many as there are routers."""

SAMPLES = 600


def p99_s(cluster: Cluster, lane: Lane, goes_on: Callable[[int], bool]) -> float:
    """The 99th percentile of the seconds that a request takes; requests are sent while `goes_on`, which gets their
    number. Fails if one fails."""

    def requests() -> Iterator[Lane]:
        number = 0
        while goes_on(number):
            yield lane
            number += 1

    outcomes = asyncio.run(ask_all(cluster.url, requests(), at_once=AT_ONCE))
    assert unexplained(outcomes) == []
    return float(np.quantile([outcome.ended - outcome.begun for outcome in outcomes], 0.99))


def test_a_flood_of_broken_connections_hardly_delays_others_and_leaves_nothing_behind(cluster: Cluster) -> None:
    lane, *_ = lanes()
    p99_s(cluster, lane, lambda number: number < SAMPLES / 4)  # connections to engines are open from now on
    at_first = cluster.connections()
    before = p99_s(cluster, lane, lambda number: number < SAMPLES)
    port = str(httpx.URL(cluster.url).port)
    # Strangers have cores of their own.
    flood = ["nice", "-n", "19", sys.executable, "-m", "tests.support.ingress.flood", port, str(BROKEN), str(SLOW)]
    with subprocess.Popen(flood, cwd=ROOT) as flooding:
        meanwhile = p99_s(cluster, lane, lambda number: flooding.poll() is None)
    assert flooding.returncode == 0
    assert meanwhile < 3 * before, (before, meanwhile)
    wait_until_back(lambda: cluster.connections() <= at_first, lambda: (at_first, cluster.connections()))
