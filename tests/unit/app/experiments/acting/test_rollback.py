"""An alarm becomes a stop in acknowledgements, then a plan: the real controller, and a control plane in memory."""

from pathlib import Path

import pytest

from app.control_plane import Delivery
from app.errors import Unavailable
from app.experiments.acting.changes import carry_out
from tests.support.stage import RAMP, START, Stage, plain


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, plain(ramp=RAMP))


async def test_an_alarm_is_a_stop_in_the_same_acknowledgement_and_then_a_plan(stage: Stage) -> None:
    stage.wait(1)
    assert stage.send(blue=60, green=30).stops == []
    (stop,) = stage.send(green_fails=30).stops
    assert (stop.endpoint, stop.deployment, stop.control) == ("chat", "green", "blue")
    assert stage.green == 50
    assert await stage.move() == [None]
    assert stage.config.endpoints["chat"].traffic == {"blue": 100, "green": 0}
    plan = stage.config.endpoints["chat"].plan
    assert (plan.by, plan.generation) == ("experiment trial", 1)
    assert plan.reason == "green exceeds the guardrail error, at most 1.5 times control's rate"
    assert stage.hear() == [stop], "until every router has the plan"
    stage.control.deliver()
    assert await stage.move() == []
    assert stage.hear() == []
    acting = stage.acting
    assert (acting["state"], acting["cause"], acting["share"]) == ("paused", "alarm", 0)
    assert acting["until"] == pytest.approx(START + 3600, abs=10)
    assert [kind for kind, _ in stage.entries()] == ["ramp", "stop", "done", "stop_lifted"]


async def test_a_busy_or_failing_control_plane_is_asked_again(stage: Stage) -> None:
    stage.control.delivery = Delivery.DELIVERING
    stage.send(blue=60, green_fails=30)
    for _ in range(5):
        assert len(await stage.move()) == 1
        stage.now += 2
    stage.control.failure = Unavailable("away")
    (change,) = stage.controller.changes()
    stage.controller.changed(change, await carry_out(stage.control, change, stage.now))
    assert [it.deployment for it in stage.hear()] == ["green"]
    assert stage.acting["waits_for"] == ["the control plane: away"]
    assert stage.ask("/report")["next"].endswith("It did not yet: away.")
    stage.control.failure, stage.now = None, stage.now + 5
    stage.control.deliver()
    assert await stage.move() == [None]
    assert stage.green == 0
