"""What changes under traffic: the configuration, the code of a replica, the load. Nobody notices."""

import copy
import time
from typing import Any

import pytest

from tests.faults.conftest import ENGINE, ROUTER, Cluster, document, wait_until
from tests.traffic import Lane, Outcome, Traffic, lanes, unexplained

pytestmark = [pytest.mark.real, pytest.mark.timeout(700)]


def with_endpoint(cluster: Cluster, **fields: Any) -> dict[str, Any]:
    """The document with a changed endpoint."""
    user_config = copy.deepcopy(cluster.user_config)
    user_config["endpoints"]["chat"] |= fields
    return document(user_config)


@pytest.mark.usefixtures("unchanged")
def test_a_configuration_every_second_fails_nothing(cluster: Cluster, traffic: Traffic) -> None:
    moment = time.monotonic()
    for number in range(10):
        begun = time.monotonic()
        cluster.rest("PUT", json=with_endpoint(cluster, sticky={"by": "header", "name": f"x-{number}"}))
        time.sleep(max(0.0, begun + 1 - time.monotonic()))
    traffic.flows(1)
    assert unexplained(traffic.since(moment)) == []


def is_refused_as_full(outcome: Outcome) -> bool:
    """With the status of the dialect, and when to come again; TGI's streams have only the words."""
    if outcome.lane.name == "tgi" and outcome.lane.streamed:
        return outcome.status == 200 and b'"error_type":"overloaded"' in outcome.body
    return outcome.status in (429, 503) and outcome.headers.get("retry-after", "").isdigit()


@pytest.mark.usefixtures("unchanged")
def test_a_full_queue_is_refused_and_frees_itself(cluster: Cluster) -> None:
    tight = {"max_concurrent": 1, "max_queued": 0, "max_wait_s": 1}
    cluster.rest("PUT", json=with_endpoint(cluster, admission=tight))
    cluster.whole_again()
    with Traffic(cluster.url, lanes(tokens=32)).running() as traffic:
        moment = time.monotonic()
        traffic.flows(2)
        outcomes = traffic.since(moment)
        assert unexplained(outcomes, is_refused_as_full) == []
        assert {it.lane.name for it in outcomes if is_refused_as_full(it)} == {lane.name for lane in lanes()}
        cluster.rest("PUT", json=document(cluster.user_config))
        cluster.whole_again()
        time.sleep(1)
        freed = time.monotonic()
        traffic.flows(2)
        assert unexplained([it for it in traffic.since(freed) if it.begun >= freed]) == []


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("application", [ROUTER, ENGINE])
def test_a_rolling_update_finishes_what_its_replicas_carry(
    cluster: Cluster, traffic: Traffic, application: str
) -> None:
    before = {it.pid for it in cluster.processes(application)}
    changed = document(cluster.user_config)
    place = changed["applications"][application != ROUTER]
    if application == ROUTER:
        place["deployments"][0]["ray_actor_options"] = {"num_cpus": 0.25}
    else:
        place["args"]["llm_config"]["engine_kwargs"]["max_num_seqs"] = 30
    moment = time.monotonic()
    cluster.rest("PUT", json=changed)
    wait_until(lambda: not before & {it.pid for it in cluster.processes(application)}, cluster.state, within_s=300)
    cluster.whole_again()
    traffic.flows()
    assert unexplained(traffic.since(moment)) == []


@pytest.mark.usefixtures("unchanged")
def test_long_streams_survive_a_rolling_update(cluster: Cluster) -> None:
    """Streams that outlast the update's first replacement."""
    long = [lane for lane in lanes(tokens=1500) if lane.streamed]
    with Traffic(cluster.url, long).running() as traffic:
        time.sleep(1)
        moment = time.monotonic()
        changed = document(cluster.user_config)
        changed["applications"][1]["args"]["llm_config"]["engine_kwargs"]["max_num_seqs"] = 28
        before = {it.pid for it in cluster.processes(ENGINE)}
        cluster.rest("PUT", json=changed)
        wait_until(lambda: not before & {it.pid for it in cluster.processes(ENGINE)}, cluster.state, within_s=300)
    outcomes = traffic.since(moment)
    assert unexplained(outcomes) == []
    assert any(_overlaps(it.lane, it, moment) for it in outcomes)


def _overlaps(lane: Lane, outcome: Outcome, moment: float) -> bool:
    return lane.streamed and outcome.begun < moment < outcome.ended
