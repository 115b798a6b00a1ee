"""Experiments on `/metrics`, with a controller in memory."""

from collections.abc import Collection
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.config.schema import Config, parse
from app.server.experiment_metrics import FRESH_S, STALE_S, ExperimentMetrics
from tests.support.experiments.fake_controller import FakeController
from tests.support.experiments.reader import GREEN_FLOAT32


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


PLANS = {"chat": "0-11111111", "other": "3-22222222"}


class Scraped:
    """Metrics that are scraped at a time."""

    def __init__(self) -> None:
        self.controller = FakeController()
        self.now = 1000.0
        self.metrics = ExperimentMetrics(self.controller, lambda: self.now)

    async def samples(
        self,
        name: str,
        endpoints: Collection[str] | None = None,
        config: Config = config(),  # noqa: B008
    ) -> list[Any]:
        told = (await self.metrics.expose(config, PLANS, endpoints)).decode()
        families = text_string_to_metric_families(told)
        return [sample for family in families for sample in family.samples if sample.name == name]


@pytest.fixture
def scraped() -> Scraped:
    return Scraped()


LIFT = "switchyard_experiment_lift"


async def test_the_controllers_numbers_are_shown(scraped: Scraped) -> None:
    lower = [
        it for it in await scraped.samples(LIFT) if it.labels["bound"] == "lower" and it.labels["metric"] == "ttft"
    ]
    assert [it.value for it in lower] == [-0.134]
    assert lower[0].labels["treatment"] == "smollm2-green"


async def test_several_scrapers_ask_the_controller_once(scraped: Scraped) -> None:
    await scraped.samples(LIFT)
    await scraped.samples(LIFT)
    assert scraped.controller.asked == ["GET /series"]
    scraped.now += FRESH_S
    await scraped.samples(LIFT)
    assert len(scraped.controller.asked) == 2


async def test_a_controller_that_is_away_is_replaced_by_its_last_answer_for_a_minute(scraped: Scraped) -> None:
    assert await scraped.samples(LIFT)
    scraped.controller.absent = True
    scraped.now += FRESH_S
    assert await scraped.samples(LIFT)
    scraped.now += STALE_S
    assert await scraped.samples(LIFT) == []


async def test_a_reader_of_some_endpoints_sees_their_experiments(scraped: Scraped) -> None:
    assert await scraped.samples(LIFT, ["other"]) == []
    assert [it.labels["endpoint"] for it in await scraped.samples("switchyard_plan_info", ["other"])] == ["other"]
    assert await scraped.samples(LIFT, ["chat"])


async def test_a_paused_experiment_has_its_series(scraped: Scraped) -> None:
    states = await scraped.samples("switchyard_experiment_state", config=config("paused"))
    assert {it.labels["state"]: it.value for it in states} == {"running": 1.0, "paused": 0.0, "stopped": 0.0}


async def test_without_a_running_experiment_nobody_is_asked(scraped: Scraped) -> None:
    assert await scraped.samples(LIFT, config=config("draft")) == []
    assert scraped.controller.asked == []


async def test_the_plan_of_every_endpoint_is_shown(scraped: Scraped) -> None:
    plans = await scraped.samples("switchyard_plan_info")
    assert [(it.labels["endpoint"], it.value) for it in plans] == [("chat", 1.0), ("other", 1.0)]
    assert {it.labels["endpoint"]: it.labels["plan"] for it in plans} == PLANS


async def test_without_a_controller_the_plans_remain() -> None:
    told = (await ExperimentMetrics(None).expose(config(), PLANS, None)).decode()
    assert "switchyard_plan_info" in told
    assert LIFT not in told
