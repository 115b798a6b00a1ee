"""The state machine of acting, row by row of its table."""

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from app.experiments.automation.decisions import next_sentence
from app.experiments.automation.machine import next_step, next_transition, resumed
from app.experiments.automation.state import RolloutInput, State
from app.experiments.contract.report import Effect, Treated, Verdict
from tests.support.experiments.acting_facts import RAMP, START, alarmed, compared, experiment, facts, silencing

NEW = State(started_at=START)
LATER = START + 61.0
"""When a step has lasted long enough."""


def at(now: float, given: RolloutInput, state: State = NEW) -> tuple[State, list[str]]:
    """Takes every turn at this time. Returns the state after them, and their kinds."""
    kinds: list[str] = []
    while (turn := next_transition(state, given, now)) is not None:
        state, kinds = turn.state, [*kinds, turn.kind]
        assert turn.text
        assert len(kinds) < 10
    return state, kinds


RUNNING = at(START, facts())[0]
"""A ramp at 5 %."""


def ready(**fields: Any) -> RolloutInput:
    """Facts under which nothing blocks the next step."""
    return facts(units=10, **fields)


def test_a_ramp_begins_where_the_traffic_is() -> None:
    state, kinds = at(START, facts(green=7))
    assert kinds == ["ramp"]
    assert (state.weights, state.since, state.intent) == ({"blue": 93, "green": 7}, START, None)


def test_below_the_first_step_there_is_nothing_to_wait_for() -> None:
    state, kinds = at(START, facts(green=0, units=0))
    assert kinds == ["ramp", "intent"]
    assert state.intent is not None
    assert (state.intent.before, state.intent.after) == ({"blue": 100, "green": 0}, {"blue": 99, "green": 1})


def test_before_its_start_an_experiment_does_nothing() -> None:
    assert at(START - 1, facts(green=0))[1] == []


def test_a_step_is_an_intent_and_done_when_it_is_applied() -> None:
    state, kinds = at(LATER, ready(), RUNNING)
    assert kinds == ["intent"]
    assert state.intent is not None
    assert state.intent.after == {"blue": 50, "green": 50}
    assert at(LATER + 9, ready(), state)[1] == [], "it waits for the change to be carried out"
    after, kinds = at(LATER + 9, ready(green=50, rollout_complete=False), state)
    assert kinds == ["done"]
    assert (after.intent, after.weights, after.since) == (None, {"blue": 50, "green": 50}, LATER + 9)


BETTER = compared("better", non_inferior=True)


@pytest.mark.parametrize(
    ("advance", "given", "waits"),
    [
        ("quiet", ready(), None),
        ("quiet", ready(guardrails=[alarmed("alert")]), "guardrails to be quiet"),
        ("non_inferior", ready(primary=[compared("undecided")]), "green to be non-inferior in ttft"),
        ("non_inferior", ready(primary=[compared("undecided", non_inferior=True)]), None),
        ("non_inferior", ready(guardrails=[alarmed("alert")], primary=[BETTER]), None),
        ("better", ready(primary=[compared("equivalent", non_inferior=True)]), "green to be better"),
        ("better", ready(primary=[BETTER, compared("undecided")]), None),
        ("manual", ready(primary=[BETTER]), "a manager's `advance`"),
        ("quiet", facts(units=9), "1 more unit on green"),
        ("quiet", ready(rollout_complete=False), "not every router"),
        ("quiet", ready(is_temporary=True), "the present plan is temporary"),
        ("quiet", ready(has_control_plane=False), "there is no control plane"),
        ("quiet", ready(last_error="busy"), "busy"),
        ("quiet", ready(alarms=[silencing("sample_ratio")]), "Something about sample_ratio."),
        ("quiet", ready(alarms=[silencing("rows_lost")]), "Something about rows_lost."),
        ("quiet", ready(alarms=[silencing("completeness")]), "Something about completeness."),
        ("quiet", ready(alarms=[silencing("endpoint_unhealthy")]), "Something about endpoint_unhealthy."),
    ],
)
def test_a_step_reports_the_conditions_it_waits_for(advance: str, given: RolloutInput, waits: str | None) -> None:
    section = experiment(ramp={**RAMP, "advance": advance})
    given = dataclasses.replace(given, experiment=section)
    state, kinds = at(LATER, given, RUNNING)
    assert [kind for kind in kinds if kind != "noticed"] == (["intent"] if waits is None else [])
    step = next_step(RUNNING, given, LATER)
    assert step is not None
    assert [condition for condition in step.waits_for if waits is not None and waits in condition] == list(
        step.waits_for
    )
    assert bool(step.waits_for) == (waits is not None)
    assert state.phase == "running"
    early = next_step(RUNNING, given, LATER - 2)
    assert early is not None
    assert sum("the step to last until" in condition for condition in early.waits_for) == 1


def test_all_traffic_waits_for_the_decision_to_ship() -> None:
    half = replace(RUNNING, weights={"blue": 50, "green": 50})
    assert at(LATER, ready(green=50), half)[1] == []
    state, _ = at(LATER, ready(green=50, decision="ship"), half)
    assert state.intent is not None
    assert state.intent.after == {"blue": 0, "green": 100}
    at_the_end = replace(state, intent=None, weights=state.intent.after)
    assert next_step(at_the_end, ready(green=100, decision="ship"), LATER) is None
    assert at(LATER + 1e4, ready(green=100, decision="ship"), at_the_end)[1] == []


def test_the_holdout_keeps_control() -> None:
    half = replace(RUNNING, weights={"blue": 50, "green": 50})
    state, _ = at(LATER, ready(section=experiment(holdout=10), green=50, decision="ship"), half)
    assert state.intent is not None
    assert state.intent.after == {"blue": 10, "green": 90}


def test_an_alarm_rolls_back_stops_and_freezes() -> None:
    broken = facts(guardrails=[alarmed("rollback")])
    state, kinds = at(LATER, broken, RUNNING)
    assert kinds == ["stop"]
    (stop,) = state.stops
    assert (stop.endpoint, stop.deployment, stop.control) == ("chat", "green", "blue")
    assert (state.phase, state.cause, state.until) == ("paused", "alarm", LATER + 3600)
    assert state.intent is not None
    assert (state.intent.kind, state.intent.treatments) == ("rollback", ["green"])
    state, kinds = at(LATER + 1, facts(green=0, rollout_complete=False, guardrails=[alarmed("rollback")]), state)
    assert (kinds, state.stops) == (["done"], [stop])
    state, kinds = at(LATER + 2, facts(green=0, guardrails=[alarmed("rollback")]), state)
    assert (kinds, state.stops) == (["stop_lifted"], [])
    assert at(LATER + 3599, facts(green=0, guardrails=[alarmed("rollback")]), state)[1] == []
    state, kinds = at(LATER + 3600, facts(green=0, guardrails=[alarmed("rollback")]), state)
    assert kinds == ["resumed", "ramp", "intent"], "guardrails that start over have no alarm yet"
    assert state.armed_since == LATER + 3600
    again = facts(green=1, guardrails=[alarmed("rollback", at=LATER + 3700)])
    assert "stop" in at(LATER + 3701, again, state)[1]


def test_an_alarm_takes_precedence_over_a_due_step() -> None:
    wanted, _ = at(LATER, ready(), RUNNING)
    state, kinds = at(LATER, ready(guardrails=[alarmed("rollback")]), wanted)
    assert kinds == ["stop"]
    assert state.intent is not None
    assert state.intent.kind == "rollback"


def test_an_alarm_with_pause_keeps_the_weight_until_resume() -> None:
    given = ready(guardrails=[alarmed("pause")])
    state, kinds = at(LATER, given, RUNNING)
    assert kinds == ["paused"]
    assert (state.phase, state.cause, state.until, state.stops, state.intent) == ("paused", "alarm", None, [], None)
    assert at(LATER + 1e5, given, state)[1] == []
    state, kinds = at(LATER + 1e5, given, resumed(state, LATER + 1e5, "resumed").state)
    assert (state.phase, kinds) == ("running", ["ramp"])
    assert at(LATER + 2e5, ready(guardrails=[alarmed("pause", at=LATER + 1.5e5)]), state)[1] == ["paused"]


def test_a_worse_primary_pauses_once() -> None:
    given = ready(primary=[compared("worse")])
    state, kinds = at(LATER, given, RUNNING)
    assert (kinds, state.phase, state.cause, state.until) == (["paused"], "paused", "worse", None)
    assert at(LATER + 100, given, resumed(state, LATER, "resumed").state)[0].phase == "running"


@pytest.mark.parametrize(
    ("verdict", "said"), [("worse", "green was worse than blue"), ("different", "green differed from blue")]
)
def test_the_reason_of_a_pause_is_about_its_time_so_that_no_later_interval_denies_it(
    verdict: Verdict, said: str
) -> None:
    effect = Effect(estimate=0.2, lower=0.1, upper=0.3)
    given = ready(primary=[replace(compared(verdict), effect=effect)])
    paused, _ = at(LATER, given, RUNNING)
    assert paused.text == f"{said} in ttft at 1 Jan 00:16 (+10.0 % to +30.0 %)"
    undecided = ready(primary=[replace(compared("undecided"), effect=replace(effect, lower=-0.1))])
    assert next_sentence(paused, undecided, LATER + 1e5) == f"Next: nothing until somebody resumes it. {paused.text}."


@pytest.mark.parametrize("given", [ready(primary=[compared("worse")]), ready(guardrails=[alarmed("pause")])])
def test_a_pause_for_harm_says_how_much_traffic_it_leaves_to_the_harmful(given: RolloutInput) -> None:
    state, _ = at(LATER, given, RUNNING)
    left = given.traffic["green"]
    assert left > 0
    still = f"Next: a manager rolls back or resumes; green still has {left} % of the traffic."
    assert next_sentence(state, given, LATER).startswith(still)
    gone = dataclasses.replace(given, traffic={"blue": 100, "green": 0})
    assert next_sentence(state, gone, LATER).startswith("Next: nothing until somebody resumes it.")


def test_a_worse_primary_rolls_back_if_configured() -> None:
    given = ready(section=experiment(on_worse="rollback"), primary=[compared("worse")])
    state, kinds = at(LATER, given, RUNNING)
    assert (kinds, state.phase, state.cause, state.until) == (["stop"], "paused", "worse", None)
    assert [stop.deployment for stop in state.stops] == ["green"]


@pytest.mark.parametrize(
    ("budget", "had"),
    [
        ({"errors": 10}, Treated(errors=10)),
        ({"tokens": 1000}, Treated(tokens=1200)),
        ({"units": 50}, Treated(units=50)),
    ],
)
@pytest.mark.parametrize("phase", ["running", "paused"])
def test_a_spent_harm_budget_ends_the_experiment_without_traffic(
    budget: dict[str, int], had: Treated, phase: Any
) -> None:
    section = experiment(harm_budget=budget)
    before = replace(RUNNING, phase=phase)
    assert "stop" not in at(LATER, facts(section), before)[1]
    state, kinds = at(LATER, facts(section, treated=had), before)
    assert kinds == ["stop"]
    assert (state.phase, state.cause, [stop.deployment for stop in state.stops]) == ("stopped", "harm", ["green"])
    state, kinds = at(LATER, facts(section, green=0, treated=had), state)
    assert (kinds, state.phase, state.stops) == (["done", "stop_lifted"], "stopped", [])
    assert at(LATER + 1e7, facts(section, treated=had, guardrails=[alarmed("rollback")]), state)[1] == []


def test_an_experiment_whose_time_is_over_stops_with_its_present_weights() -> None:
    section = experiment(max_duration_s=500)
    assert at(START + 499, facts(section, units=0), RUNNING)[1] == []
    state, kinds = at(START + 500, facts(section, units=0), RUNNING)
    assert (kinds, state.phase, state.cause, state.intent) == (["stopped"], "stopped", "ended", None)


@pytest.mark.parametrize("by", ["bob", None])
def test_a_change_of_the_arms_by_others_takes_over(by: str | None) -> None:
    state, kinds = at(LATER, facts(green=20, planned_by=by), RUNNING)
    assert kinds == ["paused"]
    assert (state.phase, state.cause) == ("paused", "superseded")
    assert (by or "a deployment") in state.text
    wanted, _ = at(LATER, ready(), RUNNING)
    state, kinds = at(LATER, ready(green=20, planned_by=by), wanted)
    assert (kinds, state.cause, state.intent) == (["paused"], "superseded", None)
    state, _ = at(LATER, ready(green=20, planned_by=by), resumed(state, LATER, "resumed").state)
    assert state.weights == {"blue": 80, "green": 20}


def test_changes_of_other_deployments_or_of_the_plans_author_do_not_pause() -> None:
    given = facts(units=0, traffic={"blue": 95, "green": 5, "old": 0}, planned_by="bob")
    assert at(LATER, given, RUNNING)[1] == []


def test_a_step_of_another_controller_is_adopted() -> None:
    state, kinds = at(LATER, facts(green=50, units=0, planned_by="experiment trial"), RUNNING)
    assert (kinds, state.phase, state.weights) == (["done"], "running", {"blue": 50, "green": 50})
    state, kinds = at(LATER, facts(green=0, planned_by="experiment trial"), RUNNING)
    assert (kinds, state.phase, state.cause, state.until) == (["paused"], "paused", "alarm", LATER + 3600)


def test_traffic_given_to_a_stopped_treatment_before_all_routers_have_the_plan_is_taken_back() -> None:
    state, _ = at(LATER, facts(guardrails=[alarmed("rollback")]), RUNNING)
    state, _ = at(LATER, facts(green=0, rollout_complete=False, guardrails=[alarmed("rollback")]), state)
    state, kinds = at(LATER, facts(green=30, planned_by="bob", guardrails=[alarmed("rollback")]), state)
    assert kinds == ["intent"]
    assert state.intent is not None
    assert state.intent.treatments == ["green"]


def test_a_stop_is_not_lifted_by_earlier_readings() -> None:
    broken = [alarmed("rollback")]
    state, _ = at(LATER, facts(green=0, config_is_current=False, guardrails=broken), RUNNING)
    assert state.stops
    state, kinds = at(LATER + 1, facts(green=0, guardrails=broken), state)
    assert (kinds, state.stops) == (["done", "stop_lifted"], [])


def test_a_temporary_plan_does_not_end_a_stop() -> None:
    state, _ = at(LATER, facts(guardrails=[alarmed("rollback")]), RUNNING)
    assert at(LATER, facts(green=0, is_temporary=True, guardrails=[alarmed("rollback")]), state)[1] == []


def test_a_treatment_that_gets_traffic_again_is_watched_again() -> None:
    state, _ = at(LATER, facts(guardrails=[alarmed("rollback")]), RUNNING)
    state, _ = at(LATER, facts(green=0, guardrails=[alarmed("rollback")]), state)
    state, kinds = at(LATER + 9, facts(green=30, planned_by="bob", guardrails=[alarmed("rollback")]), state)
    assert (kinds, state.phase, state.cause) == (["paused"], "paused", "superseded")
    assert (state.armed_since, state.rolled_back, state.until) == (LATER + 9, [], None)
    assert at(LATER + 20, facts(green=30, guardrails=[alarmed("rollback", at=LATER + 19)]), state)[1] == ["stop"]


def test_a_late_step_of_another_controller_is_taken_back() -> None:
    state, _ = at(LATER, facts(guardrails=[alarmed("rollback")]), RUNNING)
    state, _ = at(LATER, facts(green=0, guardrails=[alarmed("rollback")]), state)
    late = facts(green=50, planned_by="experiment trial", guardrails=[alarmed("rollback")])
    after, kinds = at(LATER + 9, late, state)
    assert (kinds, after.cause, after.until) == (["stop"], "alarm", state.until)
    assert after.intent is not None
    assert after.intent.treatments == ["green"]


def test_the_files_state_pauses_and_resumes() -> None:
    state, kinds = at(LATER, ready(section=experiment(state="paused")), RUNNING)
    assert (kinds, state.phase, state.cause) == (["paused"], "paused", "file")
    state, kinds = at(LATER, facts(), state)
    assert (kinds, state.phase) == (["resumed", "ramp"], "running")


def test_without_a_ramp_only_alarms_end_times_and_verdicts_act() -> None:
    section = experiment(ramp=None)
    assert at(LATER, ready(section=section), NEW)[1] == []
    assert at(LATER, ready(section=section, green=70, planned_by="bob"), NEW)[1] == []
    state, kinds = at(LATER, facts(section, guardrails=[alarmed("rollback")]), NEW)
    assert (kinds, state.until) == (["stop"], None)
    assert at(LATER, facts(section, primary=[compared("worse")]), NEW)[1] == ["paused"]


def test_without_a_control_plane_a_stop_lasts() -> None:
    given = facts(has_control_plane=False, guardrails=[alarmed("rollback")])
    state, kinds = at(LATER, given, RUNNING)
    assert (kinds, state.intent, state.until) == (["stop"], None, None)
    assert at(LATER + 1e5, given, state)[1] == []
    assert state.stops


def test_mode_aa_acts_on_nothing() -> None:
    section = experiment(mode="aa", ramp=None, treatments=["label"], ends={"errors": 1})
    assert at(LATER, facts(section, treated=Treated(errors=9), primary=[compared("worse", "label")]), NEW)[1] == []


TWO = experiment(treatments=["green", "red"])


def both(green: int, red: int, **fields: Any) -> RolloutInput:
    return facts(TWO, traffic={"blue": 100 - green - red, "green": green, "red": red}, units=10, **fields)


def test_several_treatments_share_a_step_equally() -> None:
    state, _ = at(START, both(3, 2))
    state, _ = at(LATER, both(3, 2), state)
    assert state.intent is not None
    assert state.intent.after == {"blue": 50, "green": 25, "red": 25}
    state, _ = at(START, both(0, 0))
    assert state.intent is not None
    assert state.intent.after == {"blue": 99, "green": 1, "red": 0}


def test_only_the_broken_one_of_several_treatments_is_rolled_back() -> None:
    state, _ = at(START, both(25, 25))
    state, _ = at(LATER, both(25, 25, guardrails=[alarmed("rollback", "red")]), state)
    assert [stop.deployment for stop in state.stops] == ["red"]
    assert state.intent is not None
    assert state.intent.treatments == ["red"]
    state, _ = at(LATER, both(25, 0, guardrails=[alarmed("rollback", "red")]), state)
    assert (state.phase, state.stops) == ("paused", [])
    state, _ = at(LATER + 9, both(25, 0, guardrails=[alarmed("rollback", "red"), alarmed("rollback")]), state)
    assert [stop.deployment for stop in state.stops] == ["green"]


def test_the_last_step_gives_all_traffic_to_the_treatment_that_ships() -> None:
    state, _ = at(START, both(25, 25))
    assert at(LATER, both(25, 25, decision="ship"), state)[1] == [], "two may be shipped: a person has to choose"
    state, _ = at(LATER, both(25, 25, decisions={"green": "keep_going", "red": "ship"}), state)
    assert state.intent is not None
    assert state.intent.after == {"blue": 0, "green": 0, "red": 100}


def test_deployments_outside_the_experiment_keep_their_traffic() -> None:
    traffic = {"blue": 55, "green": 5, "old": 40}
    state, _ = at(START, facts(traffic=traffic, units=10))
    state, _ = at(LATER, facts(traffic=traffic, units=10), state)
    assert state.intent is not None
    assert state.intent.after == {"blue": 10, "green": 50}
    assert at(LATER, facts(traffic={"blue": 10, "green": 50, "old": 40}, units=10), state)[0].weights == {
        "blue": 10,
        "green": 50,
    }
