"""Changes of configuration, replica code and load under traffic, which no client notices."""

import copy
import time
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

from deployments.draining import DEREGISTRATION_S
from tests.faults.conftest import ENGINE, ROUTER, Cluster, wait_until_back
from tests.support.processes.load import Outcome, Traffic, lanes, unexplained
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(700)]


def change_endpoint(cluster: Cluster, **fields: Any) -> None:
    """Deploys a configuration with a changed endpoint."""
    cluster.change(endpoints={"chat": {"tasks": ["chat", "completions"], "traffic": {"tiny": 100}, **fields}})


@pytest.mark.usefixtures("unchanged")
def test_a_configuration_every_second_fails_nothing(cluster: Cluster, traffic: Traffic) -> None:
    moment = time.monotonic()
    for number in range(10):
        begun = time.monotonic()
        change_endpoint(cluster, sticky={"by": "header", "name": f"x-{number}"})
        time.sleep(max(0.0, begun + 1 - time.monotonic()))
    traffic.flows(1)
    assert unexplained(traffic.since(moment)) == []


def is_refused_as_full(outcome: Outcome) -> bool:
    """True if the rejection has the dialect's status and `Retry-After`; TGI's streams have only the error text."""
    if outcome.lane.name == "tgi" and outcome.lane.streamed:
        return outcome.status == 200 and b'"error_type":"overloaded"' in outcome.body
    return outcome.status in (429, 503) and outcome.headers.get("retry-after", "").isdigit()


@pytest.mark.usefixtures("unchanged")
def test_a_full_queue_rejects_requests_and_recovers(cluster: Cluster) -> None:
    tight = {"max_concurrent": 1, "max_queued": 0, "max_wait_s": 1}
    change_endpoint(cluster, admission=tight)
    cluster.whole_again()
    with Traffic(cluster.url, lanes(tokens=32)).running() as traffic:
        moment = time.monotonic()

        def refused() -> set[str]:
            return {it.lane.name for it in traffic.since(moment) if is_refused_as_full(it)}

        wait_until_back(lambda: refused() == {lane.name for lane in lanes()}, refused)
        assert unexplained(traffic.since(moment), is_refused_as_full) == []
        cluster.change()
        cluster.whole_again()
        time.sleep(1)
        freed = time.monotonic()
        traffic.flows(2)
        assert unexplained([it for it in traffic.since(freed) if it.begun >= freed]) == []


LONG = [lane for lane in lanes(tokens=1000) if lane.streamed and lane.name in ("openai", "azure", "friendli")]
"""The streams last longer than the replacement of a replica."""


def status(connection: HTTPConnection) -> int:
    """The status of a small request on this connection. Raises if the server has closed it."""
    connection.request("GET", "/health")
    response = connection.getresponse()
    response.read()
    return response.status


@pytest.mark.parametrize("application", [ROUTER, ENGINE])
def test_a_rolling_update_finishes_the_running_requests(cluster: Cluster, application: str) -> None:
    before = {it.pid for it in cluster.processes(application)}
    changed = copy.deepcopy(cluster.document)
    place = changed["applications"][application != ROUTER]
    if application == ROUTER:
        place["deployments"][0]["ray_actor_options"] = {"num_cpus": 0.25}
    else:
        place["args"]["llm_config"]["engine_kwargs"]["max_num_seqs"] = 30
    with ExitStack() as stack, Traffic(cluster.url, [*lanes(), *LONG]).running() as traffic:
        address = httpx.URL(cluster.url)
        connections = [HTTPConnection(address.host, address.port or 80, timeout=60) for _ in range(10)]
        kept = [stack.enter_context(closing(connection)) for connection in connections]
        assert [status(connection) for connection in kept] == [200] * 10
        for connection in kept:
            connection.auto_open = 0  # a closed one must not be opened again
        time.sleep(2)
        moment = time.monotonic()
        cluster.document = changed
        cluster.change()
        wait_until(lambda: not before & {it.pid for it in cluster.processes(application)}, cluster.state, within_s=300)
        assert time.monotonic() - moment > DEREGISTRATION_S, "otherwise the old replicas would still have answered"
        assert [status(connection) for connection in kept] == [200] * 10, "over connections that were open before"
        cluster.whole_again()
    outcomes = traffic.since(moment)
    assert unexplained(outcomes) == []
    assert {it.lane.name for it in outcomes if it.lane in LONG and it.begun < moment} == {it.name for it in LONG}
