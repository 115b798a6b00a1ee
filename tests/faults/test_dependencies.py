"""Dependencies of the router fail under traffic: an engine's connection, the limits store."""

import time
from collections.abc import Iterator

import pytest

from app.internal_api import INTERNAL_KEY_HEADER
from app.internal_keys import Purpose, derived
from deployments.weights.cache import default_cache, prepare_tiny
from tests.faults.breaking import WAYS, BreakingServer, breaking
from tests.faults.conftest import KEY, Cluster, wait_until_back
from tests.support.processes.load import Outcome, Traffic, lanes, unexplained
from tests.support.processes.redis_server import redis_server
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(700)]

ERROR_EVENTS = {
    "openai": b'data: {"error"',
    "anthropic": b"event: error",
    "databricks": b'data: {"error',
    "tgi": b'"error_type"',
}
"""A stream's error event by dialect; Azure and Friendli have none, and their connections break."""


def nothing_is_in_flight(cluster: Cluster) -> None:
    """Waits until several scrapes, each answered by any router, show no request."""

    def none() -> bool:
        looks = [cluster.metrics() for _ in range(8)]
        return not any(value for values in looks for name, value in values.items() if "_in_flight{" in name)

    wait_until(none, cluster.metrics, within_s=20)


def broke_off(outcome: Outcome) -> bool:
    """Whether a started stream of the broken upstream ended with its dialect's error."""
    begun = outcome.lane.streamed and outcome.status == 200
    if not begun or outcome.headers["azureml-model-deployment"] != "breaking":
        return False
    event = ERROR_EVENTS.get(outcome.lane.name)
    return outcome.error is not None if event is None else event in outcome.body


@pytest.fixture
def upstream(cluster: Cluster) -> Iterator[BreakingServer]:
    """Half of the traffic goes through an upstream that breaks some answers off."""
    with breaking(f"{cluster.url}/deployments/tiny", {INTERNAL_KEY_HEADER: derived(KEY, Purpose.ENGINE)}) as (
        server,
        url,
    ):
        tokenizer = str(prepare_tiny(default_cache()))
        cluster.change(
            endpoints={"chat": {"tasks": ["chat", "completions"], "traffic": {"tiny": 50, "breaking": 50}}},
            deployments={
                "tiny": {"app": "tiny", "model": "tiny-llama"},
                "breaking": {"url": url, "model": "tiny-llama", "tokenizer_dir": tokenizer},
            },
            timeouts={"first_byte_s": 10, "idle_s": 5},
        )
        cluster.whole_again()
        yield server


@pytest.mark.usefixtures("unchanged")
def test_an_answer_that_breaks_off_is_retried_or_ends_with_an_error(cluster: Cluster, upstream: BreakingServer) -> None:
    with Traffic(cluster.url, lanes()).running() as traffic:
        moment = time.monotonic()
        kinds = [(way, streamed) for way in WAYS for streamed in (False, True)]
        wait_until_back(lambda: all(upstream.broken[kind] >= 2 for kind in kinds), lambda: upstream.broken)
        traffic.flows(1)
    outcomes = traffic.since(moment)
    assert unexplained(outcomes, broke_off) == []
    assert len([outcome for outcome in outcomes if not outcome.is_whole]) <= sum(
        upstream.broken[way, True] for way in WAYS
    )
    nothing_is_in_flight(cluster)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("meanwhile", ["allow", "refuse"])
def test_the_limits_store_may_fail_and_recover(cluster: Cluster, meanwhile: str) -> None:
    def is_refused(outcome: Outcome) -> bool:
        said = b'"overloaded"' if outcome.lane.name == "tgi" else b"Rate limits are temporarily unavailable"
        return meanwhile == "refuse" and said in outcome.body

    def failures() -> float:
        return max(cluster.metrics()["switchyard_limit_store_failures_total"] for _ in range(8))

    with redis_server() as redis:
        limits = {"store": {"url": redis.url}, "default": {"requests_per_minute": 10**6, "concurrent_requests": 100}}
        cluster.change(access={"limits": {**limits, "on_store_failure": meanwhile}})
        cluster.whole_again()
        with Traffic(cluster.url, lanes()).running() as traffic:
            moment = time.monotonic()
            traffic.flows(1)
            before = failures()
            redis.stop()
            gone = time.monotonic()
            wait_until_back(lambda: failures() > before, cluster.metrics)
            traffic.flows(2)
            redis.start()
            time.sleep(3)
            back = time.monotonic()
            traffic.flows(1)
    outcomes = traffic.since(moment)
    assert (
        unexplained(outcomes, lambda outcome: gone < outcome.ended and outcome.begun < back and is_refused(outcome))
        == []
    )
    refused = {outcome.lane.name for outcome in outcomes if is_refused(outcome)}
    assert refused == ({lane.name for lane in lanes()} if meanwhile == "refuse" else set())
    assert any("x-ratelimit-limit-requests" in outcome.headers for outcome in outcomes if outcome.begun > back)
    nothing_is_in_flight(cluster)
