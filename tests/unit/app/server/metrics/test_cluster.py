"""The cluster's metrics that every router exposes, with a controller and a fleet in memory."""

from collections.abc import Collection
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.config.schema import Config, parse
from app.errors import Unavailable
from app.server.fleet import (
    CLUSTER_FRESH_S,
    CONTROL_PLANE_UP,
    EVERY_S,
    REPLICAS,
    STALE_S,
    ClusterMetrics,
    Fleet,
    KnownFleet,
)
from tests.support.experiments.fake_controller import FakeController
from tests.support.experiments.reader import GREEN_FLOAT32
from tests.support.processes.fake_fleet import MemoryFleet


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
        it for it in await scraped.samples(LIFT) if it.labels["bound"] == "lower" and it.labels["metric"] == "ttft"
    ]
    assert [it.value for it in lower] == [-0.134]
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
    assert {it.labels["state"]: it.value for it in states} == {"running": 1.0, "paused": 0.0, "stopped": 0.0}


async def test_without_a_running_experiment_the_controller_is_not_called(scraped: ClusterRig) -> None:
    assert await scraped.samples(LIFT, config=config("draft")) == []
    assert scraped.controller.calls == []


async def test_replicas_are_counted_by_application_and_state(scraped: ClusterRig) -> None:
    counted = {(it.labels["application"], it.labels["state"]): it.value for it in await scraped.samples(REPLICAS)}
    assert counted == {("router", "RUNNING"): 2.0, ("router", "STOPPING"): 1.0, ("blue", "RUNNING"): 0.0}


async def test_a_reader_of_some_endpoints_does_not_see_replicas(scraped: ClusterRig) -> None:
    assert await scraped.samples(REPLICAS, ["chat"]) == []


async def test_a_metric_shows_that_the_control_plane_answers(scraped: ClusterRig) -> None:
    for failure, up in ((Unavailable("away"), 0.0), (None, 1.0), (Unavailable("away"), 0.0)):
        scraped.fleet.failure = failure
        assert [it.value for it in await scraped.samples(CONTROL_PLANE_UP)] == [up]
        scraped.now += EVERY_S
    assert await scraped.samples(REPLICAS), "the replicas that it listed last"


async def test_a_control_plane_that_never_answered_leaves_the_experiments(scraped: ClusterRig) -> None:
    scraped.fleet.failure = Unavailable("away")
    assert await scraped.samples(REPLICAS) == []
    assert await scraped.samples(LIFT)


async def test_without_a_controller_and_a_control_plane_there_is_nothing() -> None:
    assert await ClusterMetrics(None).expose(config(), None) == b""
