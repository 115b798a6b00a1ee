"""Parts of the application die or hang under traffic. No request is lost with an engine."""

import time

import pytest

from tests.faults.conftest import (
    BACK_WITHIN_S,
    ENGINE,
    FIRST_BYTE_S,
    PROXY,
    REPLICA,
    ROUTER,
    TEMPLATE,
    Cluster,
    wait_until_back,
)
from tests.support.processes.load import Outcome, Traffic, unexplained
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(700)]


def had_begun_to_stream(outcome: Outcome) -> bool:
    """Whether the stream had started, so that the request could not be retried."""
    return outcome.lane.streamed and outcome.status == 200 and len(outcome.body) > 0


def timed_out(outcome: Outcome) -> bool:
    """Whether it was given up after the time for the first byte, and not after twice this time. TGI says 424."""
    return outcome.status in (504, 424) and FIRST_BYTE_S <= outcome.ended - outcome.begun < 2 * FIRST_BYTE_S


@pytest.mark.parametrize("title", [ENGINE, REPLICA])
def test_the_death_of_a_replica_loses_nothing(cluster: Cluster, traffic: Traffic, title: str) -> None:
    moment = time.monotonic()
    cluster.kill(title)
    cluster.whole_again()
    traffic.flows()
    assert unexplained(traffic.since(moment)) == []


def test_the_death_of_a_template_loses_nothing(cluster: Cluster, traffic: Traffic) -> None:
    """Its copies go on, and the next replica has a new one."""
    moment = time.monotonic()
    before, *_ = cluster.processes(TEMPLATE)
    cluster.kill(TEMPLATE)
    cluster.kill(REPLICA)
    cluster.whole_again()
    traffic.flows()
    assert unexplained(traffic.since(moment)) == []
    assert before.pid not in {process.pid for process in cluster.processes(TEMPLATE)}
    assert cluster.processes(TEMPLATE)


def test_a_hanging_replica_is_avoided_and_replaced(cluster: Cluster, traffic: Traffic) -> None:
    """Its requests wait no longer than `first_byte_s`, and are not sent again: it might get them once more."""
    moment = time.monotonic()
    hung, *_ = cluster.processes(REPLICA)
    hung.suspend()
    wait_until(lambda: hung.status() == "stopped", hung.status, within_s=10)
    traffic.flows()
    wait_until_back(lambda: not hung.is_running(), cluster.state)  # it counts until three checks failed
    cluster.whole_again()
    lost = unexplained(
        traffic.since(moment),
        lambda outcome: outcome.begun < moment + 60 and (had_begun_to_stream(outcome) or timed_out(outcome)),
    )
    assert lost == []


def test_the_death_of_a_router_loses_only_its_own_requests(cluster: Cluster, traffic: Traffic) -> None:
    moment = time.monotonic()
    cluster.kill(ROUTER)
    cluster.whole_again()
    traffic.flows()
    assert unexplained(traffic.since(moment), lambda outcome: outcome.begun < moment) == []


def test_the_ingress_recovers_by_itself(cluster: Cluster, traffic: Traffic) -> None:
    """Serve's new ingress has no routes for a moment."""
    moment = time.monotonic()
    cluster.kill(PROXY)
    cluster.whole_again()
    wait_until_back(cluster.answers, cluster.state)
    back = time.monotonic()
    traffic.flows()
    assert unexplained(traffic.since(moment), lambda outcome: outcome.begun < back) == []
    assert back - moment < BACK_WITHIN_S
