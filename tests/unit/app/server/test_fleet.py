"""The fleet's known replicas, and answers that are reused.

The cluster's metrics that every router exposes, with a controller and a fleet in memory.

Metrics that are prepared in a thread.
"""

import asyncio
import math
import threading
from collections.abc import Collection
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.answer_cache import AnswerCache
from app.config.schema import Config, parse
from app.errors import NotFound, Unavailable
from app.server.fleet import (
    CLUSTER_FRESH_S,
    CONTROL_PLANE_UP,
    EVERY_S,
    FRESH_S,
    REPLICAS,
    STALE_S,
    ClusterMetrics,
    Fleet,
    KnownFleet,
    PreparedMetrics,
    Replica,
    elder_since,
    is_starting,
)
from tests.support.experiments.fake_controller import FakeController
from tests.support.experiments.reader import GREEN_FLOAT32
from tests.support.processes.fake_fleet import MemoryFleet
from tests.support.waiting import wait_until

ONE = Replica("r1", "router", "10.0.0.1")


def test_the_oldest_other_router_that_does_not_start_any_more_is_the_elder() -> None:
    own, started = Replica("own", "router", "10.0.0.1", "STARTING", 50.0), 10.0
    older = Replica("older", "router", "10.0.0.1", "STOPPING", started, has_time_to_stop=True)
    others = [
        own,
        Replica("new", "router", "10.0.0.1", "RUNNING", 60.0),
        Replica("failed", "router", "10.0.0.1", "STOPPING", 2.0),
        Replica("stuck", "router", "10.0.0.1", "STARTING", 1.0),
        Replica("engine", "blue", "10.0.0.1", "RUNNING", 1.0),
        Replica("unplaced", "router", "", "RUNNING", None),
    ]
    assert elder_since(Fleet([*others, older]), "own") == started
    assert elder_since(Fleet(others), "own") == 60.0
    assert elder_since(Fleet(others), "new") == elder_since(Fleet([own]), "own") == math.inf
    assert is_starting(Fleet(others), "own")
    assert not is_starting(Fleet(others), "new")
    assert not is_starting(Fleet(others), "unlisted")


class FleetRig:
    """A fleet at a given time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.source = MemoryFleet()
        self.source.start(ONE, lambda endpoints: f"of {endpoints}".encode())
        self.fleet = KnownFleet(self.source, lambda: self.now)


@pytest.fixture
def known() -> FleetRig:
    return FleetRig()


async def test_the_control_plane_is_called_once_in_some_seconds(known: FleetRig) -> None:
    for _ in range(3):
        assert (await known.fleet.now()).replicas == [ONE]
    assert known.source.calls == ["fleet"]
    known.fleet.outdated()
    assert (await known.fleet.now()).replicas == [ONE]
    assert known.source.calls == ["fleet", "fleet"], "there was a change"
    known.now += EVERY_S
    known.source.listed = Fleet()
    assert (await known.fleet.now()).replicas == ()


async def test_the_last_list_stays_while_the_control_plane_is_away(known: FleetRig) -> None:
    await known.fleet.now()
    known.source.failure = Unavailable("away")
    known.now += 10 * EVERY_S
    assert (await known.fleet.now()).replicas == [ONE]
    assert known.fleet.age_s() == 10 * EVERY_S
    assert len(known.source.calls) == 2


async def test_a_control_plane_that_never_answered_is_an_error(known: FleetRig) -> None:
    known.source.failure = Unavailable("away")
    for _ in range(2):
        with pytest.raises(Unavailable):
            await known.fleet.now()
    assert known.source.calls == ["fleet"], "this causes no further calls"


async def test_scrapes_of_one_replica_ask_it_once_a_second(known: FleetRig) -> None:
    for _ in range(3):
        assert await known.fleet.replica_metrics("r1", None) == b"of None"
    assert known.source.calls == ["r1"]
    known.now += FRESH_S
    await known.fleet.replica_metrics("r1", None)
    assert known.source.calls == ["r1", "r1"]


async def test_readers_of_different_endpoints_do_not_get_each_others_answer(known: FleetRig) -> None:
    assert await known.fleet.replica_metrics("r1", ["chat"]) == b"of ['chat']"
    assert await known.fleet.replica_metrics("r1", None) == b"of None"


async def test_a_replica_that_has_ended_is_not_found(known: FleetRig) -> None:
    with pytest.raises(NotFound):
        await known.fleet.replica_metrics("r2", None)


async def test_concurrent_scrapes_share_a_call_and_one_that_leaves_affects_no_other() -> None:
    reused: AnswerCache[int] = AnswerCache(1.0, lambda: 0.0)
    go, calls = asyncio.Event(), []

    async def ask() -> int:
        calls.append(1)
        await go.wait()
        return 7

    waiting = [asyncio.create_task(reused.get("key", ask)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    go.set()
    assert await asyncio.gather(*waiting[1:]) == [7, 7]
    assert calls == [1]


def config(state: str = "running") -> Config:
    names = ("smollm2-blue", "smollm2-green")
    return parse(
        {
            "endpoints": {
                "chat": {"tasks": ["chat"], "traffic": dict.fromkeys(names, 50)},
                "other": {"tasks": ["chat"], "traffic": dict.fromkeys(names, 50)},
            },
            "deployments": {name: {"url": f"http://127.0.0.1:1/{name}", "model": "m"} for name in names},
            "experiments": {"green-float32": {**GREEN_FLOAT32, "state": state}},
        }
    )


class ClusterRig:
    """Metrics with a clock, a controller and a fleet in memory."""

    def __init__(self) -> None:
        self.controller = FakeController()
        self.now = 1000.0
        self.fleet = MemoryFleet(Fleet(states={"router": {"RUNNING": 2, "STOPPING": 1}, "blue": {"RUNNING": 0}}))
        self.metrics = ClusterMetrics(self.controller, KnownFleet(self.fleet, lambda: self.now), lambda: self.now)

    async def samples(
        self,
        name: str,
        endpoints: Collection[str] | None = None,
        config: Config = config(),  # noqa: B008
    ) -> list[Any]:
        answer = (await self.metrics.expose(config, endpoints)).decode()
        families = text_string_to_metric_families(answer)
        return [sample for family in families for sample in family.samples if sample.name == name]


@pytest.fixture
def scraped() -> ClusterRig:
    return ClusterRig()


LIFT = "switchyard_experiment_lift"


async def test_the_controllers_numbers_are_shown(scraped: ClusterRig) -> None:
    lower = [
        sample
        for sample in await scraped.samples(LIFT)
        if sample.labels["bound"] == "lower" and sample.labels["metric"] == "ttft"
    ]
    assert [sample.value for sample in lower] == [-0.134]
    assert lower[0].labels["treatment"] == "smollm2-green"


async def test_several_scrapers_ask_the_controller_once(scraped: ClusterRig) -> None:
    await scraped.samples(LIFT)
    await scraped.samples(LIFT)
    assert scraped.controller.calls == ["GET /series"]
    scraped.now += CLUSTER_FRESH_S
    await scraped.samples(LIFT)
    assert len(scraped.controller.calls) == 2


async def test_a_controller_that_is_away_is_replaced_by_its_last_answer_for_a_minute(scraped: ClusterRig) -> None:
    assert await scraped.samples(LIFT)
    scraped.controller.absent = True
    scraped.now += CLUSTER_FRESH_S
    assert await scraped.samples(LIFT)
    scraped.now += STALE_S
    assert await scraped.samples(LIFT) == []


async def test_a_reader_of_some_endpoints_sees_their_experiments(scraped: ClusterRig) -> None:
    assert await scraped.samples(LIFT, ["other"]) == []
    assert await scraped.samples(LIFT, ["chat"])


async def test_a_paused_experiment_has_its_series(scraped: ClusterRig) -> None:
    states = await scraped.samples("switchyard_experiment_state", config=config("paused"))
    assert {state.labels["state"]: state.value for state in states} == {"running": 1.0, "paused": 0.0, "stopped": 0.0}


async def test_without_a_running_experiment_the_controller_is_not_called(scraped: ClusterRig) -> None:
    assert await scraped.samples(LIFT, config=config("draft")) == []
    assert scraped.controller.calls == []


async def test_replicas_are_counted_by_application_and_state(scraped: ClusterRig) -> None:
    counted = {
        (sample.labels["application"], sample.labels["state"]): sample.value
        for sample in await scraped.samples(REPLICAS)
    }
    assert counted == {("router", "RUNNING"): 2.0, ("router", "STOPPING"): 1.0, ("blue", "RUNNING"): 0.0}


async def test_a_reader_of_some_endpoints_does_not_see_replicas(scraped: ClusterRig) -> None:
    assert await scraped.samples(REPLICAS, ["chat"]) == []


async def test_a_metric_shows_that_the_control_plane_answers(scraped: ClusterRig) -> None:
    for failure, up in ((Unavailable("away"), 0.0), (None, 1.0), (Unavailable("away"), 0.0)):
        scraped.fleet.failure = failure
        assert [sample.value for sample in await scraped.samples(CONTROL_PLANE_UP)] == [up]
        scraped.now += EVERY_S
    assert await scraped.samples(REPLICAS), "the replicas that it listed last"


async def test_a_control_plane_that_never_answered_leaves_the_experiments(scraped: ClusterRig) -> None:
    scraped.fleet.failure = Unavailable("away")
    assert await scraped.samples(REPLICAS) == []
    assert await scraped.samples(LIFT)


async def test_without_a_controller_and_a_control_plane_there_is_nothing() -> None:
    assert await ClusterMetrics(None).expose(config(), None) == b""


class PreparedRig:
    """Makes metrics once the test allows it."""

    def __init__(self) -> None:
        self.made = 0
        self.now = 1000.0
        self.may = threading.Event()
        self.prepared = PreparedMetrics(self.make, lambda: self.now)

    def make(self, endpoints: Collection[str] | None) -> bytes:
        self.may.wait(10)
        self.made += 1
        return f"{self.made} of {sorted(endpoints) if endpoints is not None else None}".encode()

    def until_ready(self, endpoints: Collection[str] | None = None) -> bytes:
        return wait_until(lambda: self.prepared.look(endpoints))


def test_a_reader_does_not_wait() -> None:
    maker = PreparedRig()
    assert maker.prepared.look(None) is None
    assert maker.prepared.look(None) is None
    maker.may.set()
    assert maker.until_ready() == b"1 of None"


def test_concurrent_readers_share_a_result_for_a_moment() -> None:
    maker = PreparedRig()
    maker.may.set()
    assert maker.until_ready() == b"1 of None"
    assert maker.prepared.look(None) == b"1 of None"
    maker.now += FRESH_S
    assert maker.prepared.look(None) is None
    assert maker.until_ready() == b"2 of None"


def test_a_slow_result_is_still_used() -> None:
    maker = PreparedRig()
    assert maker.prepared.look(None) is None
    maker.now += 10 * FRESH_S
    maker.may.set()
    assert maker.until_ready() == b"1 of None"


def test_readers_of_different_endpoints_get_their_own() -> None:
    maker = PreparedRig()
    maker.may.set()
    assert maker.until_ready(["b", "a"]) == b"1 of ['a', 'b']"
    assert maker.until_ready() == b"2 of None"


def test_a_failure_is_raised() -> None:
    def fail(endpoints: Collection[str] | None) -> bytes:
        raise ValueError("no metrics")

    prepared = PreparedMetrics(fail)

    with pytest.raises(ValueError, match="no metrics"):
        wait_until(lambda: prepared.look(None))
