"""Decisions of people: their effects, their refusals, and their entries in the journal."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.experiments.analysis.analysis import Analysis
from app.experiments.api import ControllerApi
from app.experiments.automation.decisions import decided
from app.experiments.automation.machine import next_transition
from app.experiments.automation.state import State
from app.experiments.contract.query import ManualDecision
from app.experiments.offline import RecordedLedger
from app.exposures.plans import plan_of
from tests.support.experiments.acting_facts import START, alarmed, experiment, facts
from tests.support.processes.stage import RAMP, Stage, plain


def stage_at(directory: Path, green: int = 5, *, has_control_plane: bool = True, **experiment: Any) -> Stage:
    stage = Stage(directory, plain(green, **experiment), has_control_plane=has_control_plane)
    stage.wait(1)
    return stage


def refusal(stage: Stage, action: str, **fields: Any) -> str:
    answer = stage.decide(action, **fields)
    assert answer.status == 409, answer
    message: str = json.loads(answer.body)["message"]
    return message


def accepted(stage: Stage, action: str, **fields: Any) -> dict[str, Any]:
    answer = stage.decide(action, **fields)
    assert answer.status == 200, answer
    acting: dict[str, Any] = json.loads(answer.body)["acting"]
    return acting


async def test_advance_takes_the_next_step_at_once(tmp_path: Path) -> None:
    stage = stage_at(tmp_path, ramp={**RAMP, "advance": "manual"})
    before = stage.acting
    assert (before["step"], before["share"], before["next_share"]) == (0, 5, 50)
    assert "a manager's `advance`" in before["waits_for"]
    acting = accepted(stage, "advance", revision=before["revision"])
    assert (acting["revision"], acting["by"]) == (before["revision"] + 1, "alice")
    assert "under way" in refusal(stage, "advance")
    await stage.settle()
    assert stage.green == 50
    plan = stage.config.endpoints["chat"].plan
    assert (plan.by, plan.reason) == ("experiment trial", "advance by alice: it is time")
    assert "the decision to ship: `promote`" in refusal(stage, "advance")
    assert ("decision", "advance, by alice: it is time") in stage.entries()


async def test_promote_gives_all_but_the_holdout_and_ends_the_experiment(tmp_path: Path) -> None:
    stage = stage_at(tmp_path, holdout=10)
    accepted(stage, "promote")
    await stage.settle()
    assert stage.config.endpoints["chat"].traffic == {"blue": 10, "green": 90}
    acting = stage.acting
    assert (acting["state"], acting["cause"], acting["share"]) == ("stopped", "promoted", 90)
    for action in ("promote", "advance", "pause", "resume", "rollback", "stop"):
        assert "the experiment is stopped (promote by alice" in refusal(stage, action).lower()


@pytest.mark.parametrize("paused", [False, True])
def test_a_resume_clears_what_the_revision_covers(paused: bool) -> None:
    """An alarm after which nothing is done changes the revision, too: whoever resumes must have seen it."""
    first, second = (alarmed("alert", at=START + at, event=event) for at, event in ((10, "stalled"), (99, "error")))
    state = State(started_at=START)
    if paused:
        state = State(started_at=START, phase="paused", cause="alarm")
    section = experiment(ramp=None)
    one, both = facts(section, guardrails=[first]), facts(section, guardrails=[first, second])
    noticed = next_transition(state, one, START + 11)
    assert noticed is not None
    assert (noticed.kind, noticed.state.revision) == ("noticed", 1)
    assert next_transition(noticed.state, one, START + 12) is None
    order = ManualDecision(action="resume", reason="mended", by="alice", revision=1)
    done = decided(noticed.state, both, order, START + 100)
    assert done.state.cleared_until == START + 10
    assert "error" not in done.text
    again = next_transition(noticed.state, both, START + 100)
    assert again is not None
    assert again.state.revision == 2
    assert decided(again.state, both, order, START + 101).state.cleared_until == START + 99
    whatever = msgspec.structs.replace(order, revision=None)
    assert decided(noticed.state, both, whatever, START + 102).state.cleared_until == START + 102


async def test_a_pause_keeps_the_traffic_and_resume_goes_on_from_there(tmp_path: Path) -> None:
    stage = stage_at(tmp_path, ramp=RAMP)
    acting = accepted(stage, "pause")
    assert (acting["state"], acting["cause"], acting["text"]) == ("paused", "decision", "pause by alice: it is time")
    assert stage.ask("/report")["next"] == "Next: nothing until somebody resumes it. Pause by alice: it is time."
    assert "paused already" in refusal(stage, "pause")
    assert "resume it" in refusal(stage, "advance")
    stage.send(blue=380, green=20)
    stage.wait(100)
    await stage.settle()
    assert stage.green == 5
    assert accepted(stage, "resume")["state"] == "running"
    assert "nothing to resume" in refusal(stage, "resume")
    stage.send(blue=380, green=20)
    stage.wait(100)
    await stage.settle()
    assert stage.green == 50


async def test_a_rollback_by_a_person_stops_at_once_and_stays(tmp_path: Path) -> None:
    stage = stage_at(tmp_path, ramp=RAMP)
    acting = accepted(stage, "rollback")
    assert (acting["state"], acting["cause"], acting["stopped"]) == ("paused", "decision", ["green"])
    assert [stop.deployment for stop in stage.hear()] == ["green"]
    assert "not complete" in refusal(stage, "resume")
    assert "nothing to roll back" in refusal(stage, "rollback")
    await stage.settle()
    assert (stage.green, stage.hear()) == (0, [])
    stage.wait(1e5)
    await stage.settle()
    assert (stage.green, stage.acting["until"]) == (0, None)
    accepted(stage, "resume")
    await stage.settle()
    assert stage.green == 5


async def test_after_a_run_the_split_is_the_present_one_and_the_report_names_the_rollback(tmp_path: Path) -> None:
    stage = stage_at(tmp_path, green=50)
    stage.send(blue=3, green=3)
    accepted(stage, "rollback", reason="slow")
    await stage.settle()
    stage.control.config = plain(10, state="draft")
    stage.read()
    stage.wait(2)
    summary = stage.ask()
    applied = stage.config.endpoints["chat"]
    assert (summary["state"], summary["weights"]) == ("stopped", {"blue": 90, "green": 10})
    assert summary["plan"] == plan_of("chat", applied).id
    assert summary["next"] == (
        "Next: nothing, the run is stopped: its configuration says `state: draft`. Rollback by alice: slow."
    )
    listed = stage.answers.answer("GET", "/experiments", {"format": "text"}, b"").body.decode()
    assert "90 % / 10 %" in listed
    said = stage.answers.answer("GET", "/experiments/trial/report", {"format": "text"}, b"").body.decode()
    assert "\n- 1 January 02:46: rollback, by alice: slow\n" in said
    stage.controller.close()
    recorded = ControllerApi(RecordedLedger(".run/ledger", tmp_path, Analysis, at=stage.now, clock=lambda: stage.now))
    again = json.loads(recorded.answer("GET", "/experiments/trial/report", {}, b"").body)
    assert {name: again[name] for name in ("state", "weights", "plan", "next")} == {
        name: summary[name] for name in ("state", "weights", "plan", "next")
    }


async def test_a_rollback_takes_back_a_step_that_is_on_its_way(tmp_path: Path) -> None:
    stage = stage_at(tmp_path, green=0, ramp=RAMP)
    before = stage.acting
    assert (before["share"], before["waits_for"]) == (0, ["the control plane"]), "routers may have the step already"
    assert accepted(stage, "rollback")["stopped"] == ["green"]
    assert [stop.deployment for stop in stage.hear()] == ["green"]
    await stage.settle()
    assert (stage.green, stage.acting["state"], stage.hear()) == (0, "paused", [])


async def test_stop_leaves_the_traffic_and_a_rollback_that_is_under_way(tmp_path: Path) -> None:
    stage = stage_at(tmp_path, ramp=RAMP)
    accepted(stage, "rollback")
    assert accepted(stage, "stop")["state"] == "stopped"
    await stage.settle()
    assert (stage.green, stage.hear()) == (0, [])


def test_a_stale_decision_is_answered_with_the_present_state(tmp_path: Path) -> None:
    stage = stage_at(tmp_path, ramp=RAMP)
    seen = stage.acting["revision"]
    accepted(stage, "pause", revision=seen)
    answer = stage.decide("stop", revision=seen)
    assert answer.status == 412
    assert json.loads(answer.body)["acting"]["revision"] == seen + 1
    assert stage.acting["state"] == "paused"


def test_without_a_control_plane_traffic_does_not_move_and_a_stop_lasts_until_resume(tmp_path: Path) -> None:
    stage = stage_at(tmp_path, has_control_plane=False, ramp=RAMP)
    assert "no control plane" in stage.acting["waits_for"][0]
    for action in ("advance", "promote"):
        assert "no control plane" in refusal(stage, action)
    accepted(stage, "rollback")
    stage.wait(1e6)
    assert [stop.deployment for stop in stage.hear()] == ["green"]
    stage.begin()
    assert [stop.deployment for stop in stage.hear()] == ["green"]
    accepted(stage, "resume")
    assert stage.hear() == []


async def test_without_a_ramp_nothing_raises_the_share_after_a_rollback_and_the_next_step_says_so(
    tmp_path: Path,
) -> None:
    stage = stage_at(tmp_path)
    accepted(stage, "rollback")
    await stage.settle()
    accepted(stage, "resume")
    expected = "Next: traffic for green: the share is 0 %, and there is no ramp that would raise it."
    assert stage.ask("/report")["next"] == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"action": "jump"}, "action"),
        ({"reason": ""}, "reason"),
        ({"revision": "new"}, "revision"),
        ({"because": "x"}, "because"),
    ],
)
def test_an_invalid_decision_is_refused_by_field(tmp_path: Path, fields: dict[str, Any], param: str) -> None:
    answer = stage_at(tmp_path).decide(**{"action": "pause", **fields})
    assert (answer.status, json.loads(answer.body)["param"]) == (400, param)


def test_several_treatments_are_promoted_by_name(tmp_path: Path) -> None:
    config = plain(5, treatments=["green", "red"])
    config["endpoints"]["chat"]["traffic"] = {"blue": 80, "green": 10, "red": 10}
    config["deployments"]["red"] = config["deployments"]["green"]
    stage = Stage(tmp_path, config)
    stage.wait(1)
    assert "name the `treatment`" in refusal(stage, "promote")
    assert "'pink' is none of green, red" in refusal(stage, "promote", treatment="pink")
    accepted(stage, "promote", treatment="red")
    (change,) = stage.controller.changes()
    assert change.intent.after == {"blue": 0, "green": 0, "red": 100}


def test_decisions_in_mode_aa_and_a_resume_against_the_file_are_refused(tmp_path: Path) -> None:
    stage = stage_at(tmp_path / "aa", mode="aa", treatments=["label"])
    assert "nothing to decide" in refusal(stage, "pause")
    paused = stage_at(tmp_path / "paused", state="paused")
    assert paused.acting["cause"] == "file"
    assert "state: paused" in refusal(paused, "resume")
