"""An alarm becomes a stop in acknowledgements, then a plan: the real controller, and a control plane in memory."""

import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from app.control_plane import Delivery
from app.errors import Unavailable
from app.experiments.api import ControllerApi
from app.experiments.automation.actions import carry_out
from app.experiments.storage.directory import Outcome
from app.experiments.storage.keeper import at_once
from tests.support.experiments.failing_store import Disk
from tests.support.processes.stage import RAMP, START, Stage, plain


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
    assert plan.withdrawn == {"green": "blue"}, "running conversations leave it, too"
    assert plan.reason == "green exceeds the guardrail error, at most 1.5 times control's rate"
    assert stage.hear() == [stop], "until every router has the plan"
    stage.control.deliver()
    assert await stage.move() == []
    assert stage.hear() == []
    acting = stage.acting
    assert (acting["state"], acting["cause"], acting["share"]) == ("paused", "alarm", 0)
    assert acting["until"] == pytest.approx(START + 3600, abs=10)
    assert [kind for kind, _ in stage.entries()] == ["ramp", "stop", "done", "stop_lifted"]


@pytest.mark.parametrize("dies", [False, True])
async def test_a_sent_stop_stays_while_the_next_state_is_written(stage: Stage, *, dies: bool) -> None:
    """Otherwise routers would give the treatment its traffic back for that long."""
    later: list[Callable[[], Outcome]] = []
    is_slow = False

    def submit(work: Callable[[], Outcome]) -> Future[Outcome]:
        if not is_slow:
            return at_once(work)
        later.append(work)
        return Future()

    stage.submit = submit
    stage.begin()
    stage.wait(1)
    (stop,) = stage.send(blue=60, green_fails=30).stops
    if dies:
        stage.begin()
    is_slow = True
    await stage.move()
    assert (stage.entries()[-1][0], stage.controller.entries()[-1].kind) == ("stop", "done")
    assert later
    assert stage.hear() == [stop]


async def test_a_busy_or_failing_control_plane_is_asked_again(stage: Stage) -> None:
    stage.control.delivery = Delivery.DELIVERING
    stage.send(blue=60, green_fails=30)
    for _ in range(5):
        assert len(await stage.move()) == 1
        stage.now += 2
    stage.control.failure = Unavailable("away")
    (change,) = stage.controller.changes()
    stage.controller.changed(change, await carry_out(stage.control, change, stage.now))
    assert [stop.deployment for stop in stage.hear()] == ["green"]
    assert stage.acting["waits_for"] == ["the control plane: away"]
    assert stage.ask("/report")["next"].endswith("It did not yet: away.")
    stage.control.failure, stage.now = None, stage.now + 5
    stage.control.deliver()
    assert await stage.move() == [None]
    assert stage.green == 0


@pytest.mark.parametrize("is_read_only", [True, False])
async def test_a_stop_goes_out_though_the_directory_fails_and_is_written_when_it_works(
    stage: Stage, tmp_path: Path, *, is_read_only: bool
) -> None:
    disk = Disk()
    stage.open_store = lambda url, base: disk
    stage.begin()
    stage.wait(1)
    disk.fails, disk.is_read_only = not is_read_only, is_read_only
    stage.send(blue=60, green_fails=30)
    stage.now += 0.6
    (stop,) = stage.hear()
    assert await stage.move() == [None], "control gets the traffic in the plan, too"
    assert stage.green == 0
    disk.fails = disk.is_read_only = False
    stage.wait(10)
    assert stage.hear() == [stop]
    stage.begin()
    assert stage.hear() == [stop], "a controller that starts now finds it in the journal"
    stage.control.deliver()
    await stage.move()
    assert stage.hear() == []


async def test_a_step_waits_for_the_directory(tmp_path: Path) -> None:
    stage = Stage(tmp_path, plain(5, ramp=RAMP))
    disk = Disk()
    stage.open_store = lambda url, base: disk
    stage.begin()
    stage.wait(1)
    stage.send(blue=380, green=20)
    disk.is_read_only = True
    stage.wait(100)
    await stage.settle()
    assert stage.green == 5
    disk.is_read_only = False
    await stage.settle(100)
    assert stage.green == 50


async def test_a_restarted_controller_continues(stage: Stage) -> None:
    stage.send(blue=60, green_fails=30)
    stage.controller.close()
    stage.begin()
    assert [stop.deployment for stop in stage.hear()] == ["green"]
    await stage.settle()
    assert (stage.green, stage.hear()) == (0, [])
    stage.begin()
    stage.wait(1)
    acting = stage.acting
    assert (acting["state"], acting["cause"]) == ("paused", "alarm")
    assert [kind for kind, _ in stage.entries()] == ["stop", "done", "stop_lifted"]


async def test_after_the_freeze_the_ramp_and_its_guardrails_start_over(stage: Stage) -> None:
    stage.send(blue=60, green_fails=30)
    await stage.settle()
    stage.wait(3600)
    await stage.settle()
    assert stage.green == 5
    assert stage.hear() == []
    stage.begin()
    stage.wait(1)
    assert stage.hear() == [], "evidence from before the freeze does not count again"
    stage.send(blue=600, green_fails=30)
    assert [stop.deployment for stop in stage.hear()] == ["green"]


async def test_a_ramp_advances_by_evidence(tmp_path: Path) -> None:
    stage = Stage(tmp_path, plain(0, ramp=RAMP))
    await stage.settle()
    assert stage.green == 5
    stage.wait(3600)
    await stage.settle()
    assert stage.green == 5, "time alone is not enough"
    assert stage.acting["waits_for"] == ["10 more units on green at this step"]
    stage.send(blue=380, green=20)
    await stage.settle()
    assert stage.green == 50
    stage.send(blue=5, green=5)
    assert "5 more units on green at this step" in stage.acting["waits_for"]
    stage.send(blue=50, green=50)
    stage.wait(60)
    await stage.settle()
    assert stage.green == 50
    assert stage.acting["waits_for"] == ["the decision to ship"]


async def test_units_of_a_step_count_after_a_restart_too(tmp_path: Path) -> None:
    stage = Stage(tmp_path, plain(5, ramp=RAMP))
    stage.wait(1)
    stage.send(blue=380, green=20)
    stage.controller.close()
    stage.begin()
    stage.wait(1)
    stage.wait(100)
    await stage.settle()
    assert stage.green == 50


async def test_a_manual_change_of_the_arms_pauses_the_ramp(tmp_path: Path) -> None:
    stage = Stage(tmp_path, plain(5, ramp=RAMP))
    stage.wait(1)
    stage.change(20)
    acting = stage.acting
    assert (acting["state"], acting["cause"]) == ("paused", "superseded")
    assert "bob" in acting["text"]
    stage.wait(1e4)
    await stage.settle()
    assert stage.green == 20


async def test_decisions_made_at_another_controller_are_known_a_minute_later(tmp_path: Path) -> None:
    stage = Stage(tmp_path, plain(5, ramp=RAMP))
    stage.wait(1)
    former, answers = stage.controller, stage.answers
    stage.begin()
    latter, stage.controller, stage.answers = stage.controller, former, answers
    assert stage.decide("pause").status == 200
    stage.controller = latter
    stage.answers = ControllerApi(latter)
    assert stage.acting["state"] == "running"
    stage.wait(61)
    stage.wait(1)
    acting = stage.acting
    assert (acting["state"], acting["by"]) == ("paused", "alice")
    stage.send(blue=380, green=20)
    stage.wait(100)
    await stage.settle()
    assert stage.green == 5


async def test_an_alarm_stands_after_the_cooldown_until_a_manager_clears_it(stage: Stage) -> None:
    def told() -> tuple[list[tuple[str, str]], str]:
        stage.now += 2.0
        report = stage.ask("/report")
        kinds = [(alarm["kind"], alarm["text"]) for alarm in report["alarms"]]
        return kinds, " ".join(report["details"])

    stage.wait(1)
    stage.send(blue=60, green_fails=30)
    await stage.settle()
    assert [kind for kind, _ in told()[0]] == ["guardrail"]
    stage.wait(3600)
    await stage.settle()
    assert (stage.acting["state"], stage.green) == ("running", 5)
    stands = (
        "The alarm of error on green stands since 1 January 02:46: nothing ships until a manager's `resume` clears it."
    )
    alarms, details = told()
    assert alarms == [("standing", stands)]
    assert stands in details
    stage.begin()
    assert told()[0] == alarms, "another controller knows it by the journal"
    assert stage.decide("resume").status == 200
    assert told()[0] == []
    assert "nothing to resume" in json.loads(stage.decide("resume").body)["message"]
    stage.begin()
    assert told()[0] == []
    (text,) = [text for kind, text in stage.entries() if kind == "decision"]
    assert text.startswith("resume, by alice: it is time. That clears an alarm: The alarm of error on green stands")


async def test_a_manager_clears_the_alarm_of_a_guardrail_that_only_tells(tmp_path: Path) -> None:
    stage = Stage(tmp_path, plain(ramp=RAMP, guardrails=[{"event": "error", "action": "alert"}]))
    stage.wait(1)
    stage.send(blue=60, green_fails=30)
    await stage.settle()
    stage.now += 2.0
    assert [alarm["kind"] for alarm in stage.ask("/report")["alarms"]] == ["guardrail"]
    assert (stage.acting["state"], stage.decide("resume").status) == ("running", 200)
    stage.now += 2.0
    assert stage.ask("/report")["alarms"] == []
    assert "nothing to resume" in json.loads(stage.decide("resume").body)["message"]


async def test_a_manager_that_resumes_a_rollback_clears_its_alarm(stage: Stage) -> None:
    stage.wait(1)
    stage.send(blue=60, green_fails=30)
    await stage.settle()
    assert stage.decide("resume").status == 200
    stage.now += 2.0
    assert stage.ask("/report")["alarms"] == []
    (text,) = [text for kind, text in stage.entries() if kind == "decision"]
    assert text.endswith("That clears an alarm: green exceeds the guardrail error, at most 1.5 times control's rate")


async def test_a_manager_who_resumes_after_somebody_gave_the_traffic_back_clears_what_stands(stage: Stage) -> None:
    stage.wait(1)
    stage.send(blue=60, green_fails=30)
    await stage.settle()
    stage.change(20)
    assert (stage.acting["state"], stage.acting["cause"]) == ("paused", "superseded")
    assert [alarm["kind"] for alarm in stage.ask("/report")["alarms"]] == ["standing"]
    assert stage.decide("resume").status == 200
    stage.now += 2.0
    assert stage.ask("/report")["alarms"] == []
    (text,) = [text for kind, text in stage.entries() if kind == "decision"]
    assert text.startswith(
        "resume, by alice: it is time. That clears an alarm: The alarm of error on green stands since"
    )
    stage.begin()
    stage.now += 2.0
    assert stage.ask("/report")["alarms"] == []


async def test_a_resume_clears_no_alarm_that_came_during_the_pause(tmp_path: Path) -> None:
    """It may have come after the manager looked: it is still there."""
    rails = [{"event": event, "action": action} for event, action in (("error", "rollback"), ("unfinished", "alert"))]
    stage = Stage(tmp_path, plain(ramp=RAMP, guardrails=rails))
    stage.wait(1)
    stage.send(blue=60, green_fails=30)
    await stage.settle()
    stage.change(20)
    stage.wait(1)
    stage.send(blue=60, green_lasts=30)
    stage.wait(2)
    assert [alarm["kind"] for alarm in stage.ask("/report")["alarms"]] == ["standing", "guardrail"]
    assert stage.decide("resume").status == 200
    stage.now += 2.0
    assert [alarm["kind"] for alarm in stage.ask("/report")["alarms"]] == ["guardrail"]
    (text,) = [text for kind, text in stage.entries() if kind == "decision"]
    assert "unfinished" not in text
