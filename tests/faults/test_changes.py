"""Changes of configuration, replica code and load under traffic, which no client notices."""

import copy
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

from app.internal_api import KEEP_ALIVE_S
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

        def refused() -> set[tuple[str, bool]]:
            outcomes = [outcome for outcome in traffic.since(moment) if is_refused_as_full(outcome)]
            return {(outcome.lane.name, outcome.lane.streamed) for outcome in outcomes}

        wait_until_back(lambda: refused() == {(lane.name, lane.streamed) for lane in lanes()}, refused)
        assert unexplained(traffic.since(moment), is_refused_as_full) == []
        cluster.change()

        def failed() -> list[str]:
            freed = time.monotonic()
            traffic.flows(2)
            return unexplained([outcome for outcome in traffic.since(freed) if outcome.begun >= freed])

        wait_until_back(lambda: not failed(), failed)  # until both routers have the change


LONG = [lane for lane in lanes(tokens=1000) if lane.streamed and lane.name in ("openai", "azure", "friendli")]
"""The streams last longer than the replacement of a replica."""


def statuses(connections: Sequence[HTTPConnection]) -> list[int]:
    """The status of a small request on each connection. Raises if the server has closed one without saying so."""
    seen_statuses = []
    for connection in connections:
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        connection.auto_open = int(response.will_close)
        seen_statuses.append(response.status)
    return seen_statuses


@pytest.mark.parametrize("application", [ROUTER, ENGINE])
def test_a_rolling_update_finishes_the_running_requests(cluster: Cluster, application: str) -> None:
    before = {process.pid for process in cluster.processes(application)}
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
        assert statuses(kept) == [200] * 10
        time.sleep(2)
        moment = used = time.monotonic()
        cluster.document = changed
        cluster.change()

        def is_replaced() -> bool:
            nonlocal used
            if time.monotonic() - used > KEEP_ALIVE_S / 2:  # on a busy machine: they would be closed as idle
                assert statuses(kept) == [200] * 10
                used = time.monotonic()
            return not before & {process.pid for process in cluster.processes(application)}

        wait_until(is_replaced, cluster.state, within_s=300)
        assert time.monotonic() - moment > DEREGISTRATION_S, "otherwise the old replicas would still have answered"
        assert statuses(kept) == [200] * 10, "over connections that were open before"
        cluster.whole_again()
    outcomes = traffic.since(moment)
    assert unexplained(outcomes) == []
    assert {outcome.lane.name for outcome in outcomes if outcome.lane in LONG and outcome.begun < moment} == {
        lane.name for lane in LONG
    }
