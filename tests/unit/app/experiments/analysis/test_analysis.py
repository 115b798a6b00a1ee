"""One experiment from exposures to its report, on simulated traffic."""

import dataclasses
import json
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from app.errors import Conflict
from app.experiments.analysis.analysis import EVERY_S, REST, TURN_S, Analysis, Pace, same_run
from app.experiments.analysis.arms import Arms
from app.experiments.analysis.monitoring import RETURNS
from app.experiments.contract.report import AutomationStatus, Comparison, Effect, Report
from app.experiments.rendering.document import text
from app.experiments.rendering.reports import document
from app.experiments.storage.columns import router_hash
from app.exposures.wire import FeedbackItem, Flag, LateKind, Plan
from tests.support.experiments.world import DAY_S, START, Unpaced, World, analysis_of, config

NOW = START + 1.1 * DAY_S
NAME = "green-float32"
EVERYTHING: dict[str, Any] = {
    "secondary": [
        {"metric": "ttft", "statistic": "p95", "minimal_effect": 0.1},
        {"metric": "tokens_per_second", "minimal_effect": 0.05},
        {"metric": "error", "minimal_effect": 0.25},
        {"metric": "output_tokens", "minimal_effect": 0.05},
        {"metric": "truncated", "minimal_effect": 0.25},
    ]
}


def run(world: World, requests: int = 20_000, now: float = NOW, **experiment: Any) -> tuple[Analysis, Report]:
    """The analysis and its report after a day."""
    analysis = analysis_of(world, config(world.weights, **(EVERYTHING | experiment)))
    world.requests(requests).tell(analysis, parts=5)
    analysis.tick(now)
    return analysis, analysis.report(now)


def secondary(report: Report, metric: str) -> Comparison:
    return next(comparison for comparison in report.secondary if comparison.metric == metric)


def alarms(report: Report) -> set[str]:
    return {alarm.kind for alarm in report.alarms}


def test_without_a_difference_nothing_is_found() -> None:
    _, report = run(World(users=3000))
    assert report.primary[0].verdict in ("undecided", "equivalent")
    assert report.decision == "keep_going"
    assert not report.alarms
    assert sum(report.requests.values()) == 20_000
    assert secondary(report, "output_tokens").verdict in ("undecided", "equivalent")
    assert not secondary(report, "ttft.p95").discovery


def test_a_treatment_that_is_thirty_percent_slower_is_worse() -> None:
    analysis, report = run(World(slower=1.3))
    ttft = report.primary[0]
    assert ttft.verdict == "worse"
    assert ttft.effect.lower is not None
    assert ttft.effect.upper is not None
    assert ttft.effect.lower < 0.3 < ttft.effect.upper
    assert secondary(report, "ttft.p95").verdict == "worse"
    assert secondary(report, "tokens_per_second").verdict == "worse"
    assert secondary(report, "tokens_per_second").discovery
    assert report.decision == "do_not_ship"
    assert report.headline == "green-float32 on chat: green is worse than blue."
    assert analysis.history("ttft", "green")[0].verdict == "worse"


def test_a_treatment_that_is_faster_ships_once_a_day_is_over() -> None:
    world = World(slower=0.85, users=3000)
    analysis, report = run(world)
    assert report.decision == "ship"
    assert analysis.report(START + DAY_S / 2).decision == "keep_going"
    assert "15 January" in report.details[-1]


def test_silence_is_no_evidence() -> None:
    world = World(slower=0.85, users=3000)
    analysis = analysis_of(world)
    world.requests(20_000, hours=1.0).tell(analysis)
    analysis.tick(NOW)
    report = analysis.report(NOW)
    assert report.primary[0].verdict == "better"
    assert report.decision == "keep_going"
    assert report.next == "Next: keep going for 21 h of traffic: hours of a day differ (`min_duration_s`)."


def test_units_that_no_longer_come_are_not_promised() -> None:
    world = World(users=300)
    analysis = analysis_of(world)
    world.requests(3000).tell(analysis)
    analysis.tick(NOW)
    report = analysis.report(NOW)
    assert report.primary[0].units_needed
    assert "and no new ones have come of late" in report.next


@pytest.mark.parametrize(("action", "decision"), [("alert", "keep_going"), ("rollback", "do_not_ship")])
def test_unfinished_requests_alarm_before_they_end_and_nothing_ships(action: str, decision: str) -> None:
    analysis = analysis_of(
        world := World(slower=0.85, users=3000, hangs=0.1),
        config(guardrails=[{"event": "unfinished", "action": action}]),
    )
    recorded = world.requests(20_000)
    count = len(recorded.late)
    late = replace(
        recorded.late, kind=np.full(count, LateKind.UNFINISHED, np.uint8), above_s=np.full(count, 600.0, np.float32)
    )
    replace(recorded, late=late).tell(analysis)
    assert [entry.detail["kind"] for entry in analysis.tick(NOW) if entry.kind == "alarm"] == ["guardrail"]
    report = analysis.report(NOW)
    assert report.primary[0].verdict == "undecided", "those that hang may take longer than all others"
    assert report.guardrails[0].alarm
    assert report.decision == decision


def test_requests_are_counted_in_the_order_of_their_arrival() -> None:
    world = World(users=200)
    recorded = world.requests(1000, hours=0.1)
    analysis = analysis_of(world, config())
    running = recorded.rows.seq == recorded.rows.seq[600]
    analysis.add_starts(recorded.starts)
    analysis.add_rows(recorded.rows.take(~running))
    before = analysis.standing(START + 400)
    assert (sum(before.requests.values()), sum(before.running.values()), before.waiting) == (600, 1, 399)
    assert "600 requests (1 more has not ended, 399 wait for an earlier one)" in before.details[-1]
    assert before.warnings[-1].startswith("399 requests that have ended wait for one that came before and has not")
    analysis.tick(START + 2000)
    late = analysis.standing(START + 2000)
    assert sum(late.requests.values()) == 999, "it has run for longer than others wait for it"
    analysis.add_rows(recorded.rows.take(running))
    analysis.tick(START + 2001)
    ended, at_once = analysis.standing(START + 2001), analysis_of(world, config())
    recorded.tell(at_once)
    at_once.tick(START + 2001)
    assert ended.requests == at_once.standing(START + 2001).requests
    assert ended.primary[0].effect.lower == pytest.approx(at_once.standing(START + 2001).primary[0].effect.lower)
    assert "1 request has run for more than 10 minutes" in late.warnings[-1]
    assert _width(late.primary[0]) > _width(ended.primary[0]), "it may have had any time"


def test_a_router_that_is_gone_holds_up_nothing_and_one_that_comes_back_has_all_its_requests_counted() -> None:
    world = World(users=200)
    recorded = world.requests(1000, hours=0.1)
    router = np.where(np.arange(1000) < 500, router_hash("a"), router_hash("b")).astype(np.uint64)
    starts, rows = replace(recorded.starts, router=router), replace(recorded.rows, router=router)
    analysis, ended = analysis_of(world, config()), np.arange(1000) != 200
    analysis.add_starts(starts)
    analysis.add_rows(rows.take(ended))
    analysis.tick(START + 400)
    assert sum(analysis.standing(START + 400).requests.values()) == 200
    analysis.observe_load(1, None, ["a"])
    analysis.tick(START + 401)
    without = analysis.standing(START + 401)
    assert sum(without.requests.values()) == 999
    assert "(of 1 more the end is not known)" in without.details[-1]
    assert "or the router is gone: intervals allow for any outcome" in without.warnings[-1]
    analysis.observe_load(2, None, [])
    analysis.add_rows(rows.take(~ended))
    analysis.tick(START + 402)
    with_it = analysis.standing(START + 402)
    assert sum(with_it.requests.values()) == 1000
    assert _width(without.primary[0]) > _width(with_it.primary[0])


def _width(comparison: Comparison) -> float:
    assert comparison.effect.upper is not None
    assert comparison.effect.lower is not None
    return comparison.effect.upper - comparison.effect.lower


@pytest.mark.parametrize(
    ("declared", "decision"),
    [
        ([], "keep_going"),
        ([{"metric": "output_tokens", "minimal_effect": 0.05}], "keep_going"),
        ([{"metric": "output_tokens", "minimal_effect": 0.05, "better": "lower"}], "ship"),
    ],
)
def test_a_treatment_with_shorter_answers_ships_only_if_shorter_is_declared_better(
    declared: list[Any], decision: str
) -> None:
    world = World()
    rng = np.random.default_rng(1)
    user = rng.integers(0, world.users, 8000)
    green = world.draw[user] < 0.5
    tokens = rng.poisson(np.where(green, 71.0, 100.0))
    at = np.sort(START + rng.random(8000) * DAY_S)
    analysis = analysis_of(world, config(secondary=declared))
    ttft = np.exp(rng.normal(-1.0, 0.3, 8000)) * np.where(green, 0.7, 1.0)
    world.answered(at, user, green, completion_tokens=tokens, ttft_s=ttft).tell(analysis)
    analysis.tick(NOW)
    report = analysis.report(NOW)
    assert report.primary[0].verdict == "better"
    length = secondary(report, "output_tokens")
    assert length.verdict == ("better" if decision == "ship" else "different")
    assert length.effect.estimate == pytest.approx(-0.29, abs=0.01)
    assert report.decision == decision
    assert ("declare output_tokens with `better`" in report.next) == (decision != "ship")


@pytest.mark.parametrize(("running", "decision"), [(0, "ship"), (400, "keep_going")])
def test_nothing_ships_while_running_requests_could_change_the_sign(running: int, decision: str) -> None:
    world = World(slower=0.85, users=3000)
    analysis = analysis_of(world, config())
    world.requests(20_000).tell(analysis)
    latest = world.requests(running + 1, hours=0.1, since=NOW - 360)
    analysis.add_starts(latest.starts)
    analysis.tick(NOW)
    report = analysis.standing(NOW)
    assert report.primary[0].verdict == "better"
    assert report.decision == decision


def test_nothing_ships_while_control_exceeds_an_absolute_limit() -> None:
    rail = {"event": "error", "max_rate": 0.005}
    _, report = run(World(slower=0.85, users=3000, error_rate=(0.03, 0.03)), guardrails=[rail])
    assert alarms(report) == {"endpoint_unhealthy"}
    assert report.primary[0].measured == "better"
    assert report.decision == "keep_going"
    assert "Control itself exceeds the limit of error." in report.details[-1]
    assert report.next == "Next: look into control, which exceeds the limit of error."


def test_a_treatment_that_fails_breaks_the_guardrail_and_has_no_valid_latency() -> None:
    _, report = run(World(error_rate=(0.005, 0.2)))
    assert report.guardrails[0].alarm
    assert report.decision == "do_not_ship"
    assert report.headline == "green-float32 on chat: green exceeds the guardrail error."
    assert {"guardrail", "completeness"} <= alarms(report)
    assert report.primary[0].verdict == "invalid"
    assert secondary(report, "error").verdict == "worse"


def test_users_that_are_lost_are_a_sample_ratio_alarm_and_nothing_counts() -> None:
    analysis = analysis_of(world := World(users=4000, lost=0.3, slower=1.3), config(**EVERYTHING))
    world.requests(20_000).tell(analysis)
    occurrences = analysis.tick(NOW)
    report = analysis.report(NOW)
    assert alarms(report) == {"sample_ratio"}
    assert report.sample_ratio.alarm
    assert report.sample_ratio.attribution
    assert report.decision == "invalid"
    assert {comparison.verdict for comparison in (*report.primary, *report.secondary)} == {"invalid"}
    assert [occurrence.kind for occurrence in occurrences] == ["alarm"]


def test_a_treatment_that_hangs_is_slow_by_the_clock() -> None:
    rail = {"event": "slow", "ttft_above_s": 10.0, "action": "rollback"}
    _, report = run(World(hangs=0.1), guardrails=[rail])
    assert report.guardrails[0].alarm
    assert report.headline == "green-float32 on chat: green exceeds the guardrail slow."
    assert report.decision == "do_not_ship"


@pytest.mark.parametrize("sticky", ["user", None])
def test_order_and_batches_change_nothing(sticky: str | None) -> None:
    world = World(users=300, error_rate=(0.01, 0.02))
    recorded = world.requests(4000)
    feedback = {"feedback": {"thumbs": {}}, "primary": [{"metric": "thumbs", "minimal_effect": 0.1}]}
    declared = config(sticky=sticky, strata=["prompt_bytes", "hour"], **(EVERYTHING | feedback))
    scores = [
        FeedbackItem(at + 60, int(request), int(caller), "thumbs", float(number % 3 > 0))
        for number, (at, request, caller) in enumerate(
            zip(recorded.rows.at, recorded.rows.request, recorded.rows.caller, strict=True)
        )
        if number % 2
    ]
    reports = []
    for parts, order in ((1, np.arange(4000)), (7, np.random.default_rng(5).permutation(4000))):
        analysis = analysis_of(world, declared)
        recorded.tell(analysis, parts, order)
        analysis.add_feedback([scores[number] for number in np.argsort(order[: len(scores)])])
        analysis.tick(NOW)
        reports.append(analysis.report(NOW))
    one, other = (_numbers(msgspec.to_builtins(report)) for report in reports)
    assert one.keys() == other.keys()
    for path, value in one.items():
        if "detector" not in path:
            assert value == (
                pytest.approx(other[path], rel=1e-9, abs=1e-9) if isinstance(value, float) else other[path]
            )


def _numbers(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {
            key: number for name, inner in value.items() for key, number in _numbers(inner, f"{path}.{name}").items()
        }
    if isinstance(value, list):
        return {
            key: number
            for place, inner in enumerate(value)
            for key, number in _numbers(inner, f"{path}.{place}").items()
        }
    return {path: value}


def test_forced_requests_are_shown_and_never_analysed_and_carried_ones_only_watched() -> None:
    world = World()
    analysis = analysis_of(world, config())
    world.requests(500).flagged(Flag.FORCED).tell(analysis)
    assert sum(analysis.report(NOW).forced.values()) == 500
    world.error_rate = (0.0, 1.0)
    world.requests(500).flagged(Flag.CARRIED).tell(analysis)
    analysis.tick(NOW)
    report = analysis.report(NOW)
    assert sum(report.requests.values()) == sum(report.units.values()) == 0
    assert sum(report.carried.values()) == 500
    unknown = [rail.alarm for rail in report.guardrails if rail.event == "error"]
    assert unknown == [False], "the plan that drew them is not known"
    assert report.primary[0].verdict == "too_early"
    assert "30 are needed" in report.primary[0].reason
    world.error_rate = (0.0, 0.0)
    world.requests(500).tell(analysis)
    world.error_rate = (0.0, 1.0)
    world.requests(500).flagged(Flag.CARRIED).tell(analysis)
    report = analysis.report(NOW)
    assert sum(report.requests.values()) == 500
    assert [rail.alarm for rail in report.guardrails if rail.event == "error"] == [True]


def test_a_treatment_that_hangs_on_whole_answers_is_found_before_any_has_ended() -> None:
    """By default, when they have taken 20 s."""
    world = World(hangs=1.0)
    analysis = analysis_of(world, config())
    recorded = world.requests(60)
    late = replace(
        recorded.late, kind=np.full_like(recorded.late.kind, LateKind.SLOW_ANSWER), above_s=recorded.late.above_s + 10
    )
    whole = replace(
        recorded.rows, stream=np.zeros_like(recorded.rows.stream), ttft_s=np.full_like(recorded.rows.ttft_s, np.nan)
    )
    replace(recorded, rows=whole, late=late).tell(analysis)
    analysis.tick(NOW)
    report = analysis.report(NOW)
    assert report.requests["green"] == 0
    assert [rail.event for rail in report.guardrails if rail.alarm] == ["slow"]


def test_a_running_conversation_is_judged_by_the_plan_that_gave_the_treatment_most() -> None:
    evidence = []
    for plan, weights in (("0-aaaaaaaa", (50, 50)), ("1-bbbbbbbb", (95, 5))):
        world = World(error_rate=(0.0, 0.0))
        analysis = analysis_of(world, config())
        world.requests(2000).tell(analysis)
        world.error_rate, world.plan = (0.3, 0.3), plan
        world.tables.plan(Plan("chat", plan, {"blue": weights[0], "green": weights[1]}))
        world.requests(500).flagged(Flag.CARRIED).tell(analysis)
        evidence.append([rail.log_e_value for rail in analysis.report(NOW).guardrails if rail.event == "error"])
    assert evidence[0] == evidence[1]


def test_a_word_that_no_longer_holds_is_withdrawn_and_told_again_at_most_once_a_minute() -> None:
    analysis, report = run(World(slower=1.3))
    assert (report.primary[0].verdict, report.primary[0].no_longer) == ("worse", None)

    def told(at: float, damaged: list[str]) -> list[tuple[str, str, str | None]]:
        analysis.set_gaps(damaged, {})
        events = [event for event in analysis.tick(NOW + at) if event.detail.get("metric") == "ttft"]
        (shown,) = analysis.standing(NOW + at).primary
        assert (shown.verdict, shown.no_longer) == (("invalid", "worse") if damaged else ("worse", None))
        return [(event.text, event.detail["verdict"], event.detail.get("no_longer")) for event in events]

    assert told(20, ["a"]) == told(30, []) == told(59, ["a"]) == []
    text = "ttft: green is no longer worse, against blue: a part of the ledger is missing"
    assert told(60, ["a"]) == [(text, "invalid", "worse")]
    assert told(70, []) == told(119, []) == []
    assert told(120, []) == [("ttft: green is worse, against blue", "worse", None)]
    assert told(1000, []) == []


def test_nothing_is_withdrawn_before_the_first_look_after_a_restart() -> None:
    world = World(slower=1.3)
    before, _ = run(world)
    declared, pace = config(world.weights, **EVERYTHING), Pace(lambda: 0.0)
    with pace:
        pass  # no turn is allowed any more
    after = Analysis(NAME, declared.experiments[NAME], declared, world.tables, START, pace=pace)
    state = json.loads(json.dumps(before.state()))
    after.restore(state)
    assert after.tick(NOW + 600) == []
    assert json.loads(json.dumps(after.state()["comparisons"])) == state["comparisons"]


def test_a_state_of_a_version_that_told_each_word_once_is_continued() -> None:
    analysis, _ = run(World(slower=1.3))
    state = json.loads(json.dumps(analysis.landmarks()))
    for known in state["comparisons"].values():
        del known["told"]
    analysis.restore(state)
    assert analysis.tick(NOW + 600) == []


def test_a_verdict_is_that_of_the_present_interval_and_journalled_when_first_reached() -> None:
    world = World(slower=1.3)
    analysis, report = run(world)
    assert (report.primary[0].verdict, report.primary[0].since) == ("worse", NOW)
    world.slower = 0.6
    days, said = 0, []
    while days < 6 and "better" not in said:
        days += 1
        world.requests(20_000, since=NOW + (days - 1) * DAY_S).tell(analysis)
        occurrences = analysis.tick(NOW + days * DAY_S)
        said += [
            occurrence.detail["verdict"]
            for occurrence in occurrences
            if occurrence.kind == "verdict" and occurrence.detail["role"] == "primary"
        ]
    later = analysis.report(NOW + days * DAY_S)
    assert (later.primary[0].verdict, later.primary[0].since) == ("better", NOW + days * DAY_S)
    assert said == ["better"]
    assert later.primary[0].effect.upper is not None
    assert later.primary[0].effect.upper < 0
    (alarm,) = later.alarms
    assert alarm.kind == "effect_changed"
    assert NOW <= (alarm.changed_at or 0.0) < alarm.at
    assert later.decision == "keep_going"


def test_a_restarted_controller_continues_where_it_stopped() -> None:
    world = World(slower=1.3, error_rate=(0.0, 0.1), users=300)
    declared = config(**EVERYTHING)
    recorded = world.requests(8000)
    before, after = analysis_of(world, declared), analysis_of(world, declared)
    recorded.tell(before, parts=3)
    assert before.tick(NOW)
    recorded.tell(after, parts=1)
    after.restore(json.loads(json.dumps(before.state())))
    assert after.tick(NOW + 60) == []
    one, other = before.report(NOW + 60), after.report(NOW + 60)
    for mine, theirs in zip(one.primary, other.primary, strict=True):
        assert (mine.verdict, mine.since) == (theirs.verdict, theirs.since)
        assert mine.p == pytest.approx(theirs.p)
    assert one.alarms == other.alarms
    assert [rail.alarmed_at for rail in one.guardrails] == [rail.alarmed_at for rail in other.guardrails]
    assert [point.at for point in after.history("ttft", "green")] == [NOW, NOW + 60]


@pytest.mark.parametrize("most", [10**6, 4000])
def test_words_and_the_watch_on_effects_go_on_where_units_are_halved(most: int) -> None:
    world = World(slower=0.7, users=8000)
    analysis = analysis_of(world, config(guardrails=[]), max_lines=most)
    said = []
    for step in range(6):
        world.slower = 0.7 if step < 2 else 1.8
        world.requests(6000, since=START + step * DAY_S).tell(analysis)
        said += analysis.tick(START + (step + 1) * DAY_S)
    words = [(event.detail["verdict"], event.at) for event in said if event.text.startswith("ttft: green is ")]
    last, at = words[-1]
    report = analysis.report(START + 6 * DAY_S)
    assert (report.thinned < 1) == (most < 10**6)
    assert (last, report.primary[0].verdict) == ("worse", "worse")
    assert report.primary[0].since == at > START + 2 * DAY_S
    assert [alarm.kind for alarm in report.alarms] == ["effect_changed"]


def test_where_records_are_gone_the_rest_counts_after_ten_minutes() -> None:
    world = World(slower=0.7, users=3000)
    before, after = (analysis_of(world, config(guardrails=[])) for _ in range(2))
    world.requests(3000).tell(before)
    world.slower = 1.6
    rest = world.requests(2000, since=NOW)
    before.tick(NOW)
    state = json.loads(json.dumps(before.state()))
    rest.tell(after)
    after.restore(state)
    now = NOW + DAY_S
    assert after.tick(now) == after.tick(now + 599) == []
    (shown,) = after.report(now + 599).primary
    assert (shown.verdict, shown.since, after.state()["comparisons"]["ttft green"]["word"]) == ("worse", None, "better")
    assert after.tick(now + 600) == []
    assert "ttft: green is worse, against blue" in [event.text for event in after.tick(now + 601)]
    (shown,) = after.report(now + 602).primary
    assert (shown.verdict, shown.since) == ("worse", now)


def test_landmarks_take_nothing_away_from_a_state() -> None:
    """A restarted controller has both: the looks from which changes are watched, and how much they counted, remain."""
    before, after = (run(World(slower=1.3), requests=3000)[0] for _ in range(2))
    state = json.loads(json.dumps(before.state()))
    after.restore(state)
    after.restore(json.loads(json.dumps(before.landmarks())))
    assert json.loads(json.dumps(after.state())) == state
    assert state["comparisons"]["ttft green"]["counted"] > 0
    assert state["comparisons"]["ttft green"]["changes"]["starts"]


def test_a_state_of_other_metrics_changes_nothing() -> None:
    analysis, _ = run(World(), requests=2000)
    analysis.restore({"comparisons": {"gone green": {}}, "alarms": {}})
    assert analysis.report(NOW).primary[0].verdict == "undecided"


def test_aa_labels_control_and_finds_nothing() -> None:
    world = World(users=3000, weights=(100, 0), plan="0-bbbbbbbb")
    _, report = run(world, mode="aa", treatments=["label"])
    assert sum(report.units.values()) > 2900
    assert abs(report.units["blue"] - report.units["label"]) < 250
    assert report.primary[0].verdict in ("undecided", "equivalent")
    assert report.decision == "keep_going"
    assert report.weights == {"blue": 50, "label": 50}
    assert {rail.action for rail in report.guardrails} == {"alert"}
    assert report.headline == "green-float32 on chat: A/A, no difference found where there is none."


def test_several_treatments_share_alpha_and_are_each_compared_with_control() -> None:
    world = World(users=3000, weights=(100, 0))
    _, report = run(world, mode="aa", treatments=["one", "two"], secondary=[])
    assert [(comparison.treatment, comparison.alpha) for comparison in report.primary] == [
        ("one", 0.025),
        ("two", 0.025),
    ]
    assert [line.startswith(("one: ", "two: ")) for line in report.details] == [True, True, False]
    for comparison in report.primary:
        assert [value.arm for value in comparison.values] == ["blue", comparison.treatment]


def test_a_ramp_neither_biases_the_estimate_nor_the_split() -> None:
    world = World(users=4000, weights=(95, 5), plan="0-aaaaaaaa")
    analysis = analysis_of(world, config((95, 5)))
    world.requests(10_000, hours=12).tell(analysis)
    world.weights, world.plan = (50, 50), "1-bbbbbbbb"
    world.habit = world.habit + 0.5
    world.requests(10_000, hours=12, since=START + DAY_S / 2).tell(analysis)
    analysis.tick(NOW)
    report = analysis.report(NOW)
    assert report.strata == 10
    assert report.weights == {"blue": 50, "green": 50}
    assert abs(report.primary[0].effect.estimate or 1.0) < 0.05
    assert [plan.weights for plan in report.sample_ratio.plans] == [{"blue": 95, "green": 5}, {"blue": 50, "green": 50}]


def test_the_effect_without_cold_minutes_is_reported_too() -> None:
    world = World(cold=(0.0, 4 * 3600.0), users=2000)
    _, report = run(world)
    for comparison in (report.primary[0], secondary(report, "ttft.p95")):
        assert comparison.without_cold is not None
        assert (comparison.without_cold.estimate or 1.0) < (comparison.effect.estimate or 0.0) - 0.03
    world = World(users=2000)
    assert run(world)[1].primary[0].without_cold is None


def test_where_the_request_is_the_unit_there_is_no_design_effect() -> None:
    world = World()
    analysis = analysis_of(world, config(sticky=None, **EVERYTHING))
    world.requests(5000).tell(analysis, parts=3)
    report = analysis.report(NOW)
    assert sum(report.units.values()) == 5000
    assert report.primary[0].design_effect is None
    assert report.primary[0].effect.estimate is not None
    assert "requests on blue" in report.details[-1]


def test_units_that_resemble_themselves_are_a_warning() -> None:
    _, report = run(World(users=200))
    assert (report.primary[0].design_effect or 0.0) > 2
    assert any("design effect" in warning for warning in report.warnings)


def test_rare_events_have_an_exact_test() -> None:
    _, report = run(World(error_rate=(0.0, 0.0003)), requests=20_000)
    error = secondary(report, "error")
    assert error.event_test is not None
    assert error.events is not None
    assert error.events["blue"] == 0
    assert error.effect.estimate is None


def test_feedback_counts_when_its_window_is_over() -> None:
    world = World(users=2000)
    feedback = {"thumbs": {"window_s": 600.0}}
    analysis = analysis_of(world, config(feedback=feedback, secondary=[{"metric": "thumbs", "minimal_effect": 0.1}]))
    recorded = world.requests(8000, hours=1.0)
    recorded.tell(analysis)
    rng, rows = np.random.default_rng(3), recorded.rows
    green = rows.assigned == world.codes["green"]
    liked = rng.random(8000) < np.where(green, 0.9, 0.5)
    answer = rng.random(8000) < 0.4
    items = [
        FeedbackItem(float(rows.at[n]) + 30, int(rows.request[n]), int(rows.caller[n]), "thumbs", float(liked[n]))
        for n in np.flatnonzero(answer)
    ]
    analysis.add_feedback(items)
    analysis.tick(START + 300)
    assert secondary(analysis.report(START + 300), "thumbs").verdict == "too_early"
    analysis.tick(START + 3600 + 700)
    report = analysis.report(START + 3600 + 700)
    thumbs, rate = secondary(report, "thumbs"), secondary(report, "thumbs.response_rate")
    assert (thumbs.verdict, thumbs.doubt) == ("better", "")
    assert [value.requests for value in thumbs.values] == [int((answer & ~green).sum()), int((answer & green).sum())]
    assert [value.value for value in thumbs.values] == pytest.approx([0.5, 0.9], abs=0.03)
    assert [value.response_rate for value in thumbs.values] == pytest.approx([0.4, 0.4], abs=0.03)
    assert rate.verdict in ("undecided", "equivalent")


def test_lost_rows_make_everything_invalid_while_they_are_too_many() -> None:
    analysis, _ = run(World(slower=1.3))
    analysis.set_lost({"green": 5000})
    assert [entry.detail["kind"] for entry in analysis.tick(NOW)] == ["rows_lost"]
    assert analysis.report(NOW).decision == "invalid"
    analysis.set_lost({"green": 10})
    analysis.tick(NOW)
    assert analysis.report(NOW).decision == "do_not_ship"


def test_labels_of_aa_share_what_control_lost() -> None:
    world = World(users=3000, weights=(100, 0))
    analysis, _ = run(world, mode="aa", treatments=["label"])
    analysis.set_lost({"blue": 800, "green": 10_000})
    assert analysis.report(NOW).rows_lost == {"blue": 400, "label": 400}


def test_a_slower_clock_changes_no_lift() -> None:
    world = World(users=1500, slower=1.2, error_rate=(0.0, 0.0))
    recorded = world.requests(4000)
    rows = recorded.rows
    longer = replace(rows, ttft_s=rows.ttft_s * np.float32(4), duration_s=rows.duration_s * np.float32(4))
    effects = []
    for answer in (recorded, replace(recorded, rows=longer)):
        analysis = analysis_of(world, config(secondary=[{"metric": "duration", "minimal_effect": 0.05}]))
        answer.tell(analysis)
        effects.append([comparison.effect for comparison in _comparisons(analysis.report(NOW))])
    for one, other in zip(*effects, strict=True):
        assert _ends(one) == pytest.approx(_ends(other), abs=1e-5)


def test_swapping_the_arms_negates_the_logarithm_of_the_lift() -> None:
    world = World(users=1500, slower=1.2)
    recorded = world.requests(4000)
    ends = []
    for control, treatment in (("blue", "green"), ("green", "blue")):
        analysis = analysis_of(world, config(control=control, treatments=[treatment]))
        recorded.tell(analysis)
        ends.append(np.log1p(_ends(analysis.report(NOW).primary[0].effect)))
    assert ends[0] == pytest.approx(-ends[1][[0, 2, 1]], abs=1e-9)


def _comparisons(report: Report) -> list[Comparison]:
    return [*report.primary, *report.secondary]


def _ends(effect: Effect) -> np.ndarray:
    """The estimate and its lower and upper bounds."""
    return np.array([effect.estimate, effect.lower, effect.upper], np.float64)


class OneLookPerTurn(Unpaced):
    """A pace at which every turn ends after one look."""

    def is_over(self) -> bool:
        return True


def test_a_turn_that_runs_out_of_time_leaves_the_other_looks_to_later_turns() -> None:
    world, declared = World(slower=1.3), config(secondary=[{"metric": "duration", "minimal_effect": 0.05}])
    analysis = Analysis(NAME, declared.experiments[NAME], declared, world.tables, START, pace=OneLookPerTurn())
    world.requests(8000).tell(analysis)
    answer = [[entry.detail["metric"] for entry in analysis.tick(NOW + second)] for second in range(5)]
    assert answer == [["ttft"], ["duration"], ["output_tokens"], [], []]


def test_quantiles_are_looked_at_once_a_minute() -> None:
    world = World(slower=1.3, users=1500)
    analysis = analysis_of(world, config(secondary=EVERYTHING["secondary"][:1]))
    looks = []
    for second in (0.0, 30.0, 61.0):
        world.requests(3000).tell(analysis)
        analysis.tick(NOW + second)
        looks.append(
            [
                comparison.log_e_value
                for comparison in (*analysis.report(NOW + second).primary, *analysis.report(NOW + second).secondary)
            ]
        )
    assert looks[0][0] != looks[1][0] != looks[2][0]
    assert looks[0][1] == looks[1][1] != looks[2][1]


def test_a_configuration_of_the_same_run_goes_on_with_the_evidence() -> None:
    analysis, before = run(World())
    analysis.update(config(state="paused", **EVERYTHING))
    after = analysis.report(NOW)
    assert (before.state, after.state) == ("running", "paused")
    assert after.primary == before.primary


def test_the_planner_uses_the_recorded_rows() -> None:
    analysis, report = run(World(users=20_000), requests=6000)
    small = analysis.plan_sample_size("ttft", 0.05, 0.8, NOW)
    large = analysis.plan_sample_size("ttft", 0.2, 0.8, NOW)
    assert small.units > large.units > 30
    assert small.units_so_far == sum(value.units for value in report.primary[0].values)
    assert small.days is not None
    assert small.units_per_day is not None
    assert small.days == pytest.approx((small.units - small.units_so_far) / small.units_per_day)
    assert report.primary[0].units_needed == small.units - small.units_so_far
    with pytest.raises(KeyError):
        analysis.plan_sample_size("none", 0.05, 0.8, NOW)
    with pytest.raises(Conflict):
        analysis_of(World()).plan_sample_size("ttft", 0.05, 0.8, NOW)


@pytest.mark.parametrize("effect", [0.5, 2.0, 50.0])
def test_the_planner_counts_the_units_without_which_there_is_no_verdict(effect: float) -> None:
    analysis, _ = run(World(users=20_000), requests=6000)
    planned = analysis.plan_sample_size("ttft", effect, 0.8, NOW)
    assert planned.units * min(planned.treatment_share, 1 - planned.treatment_share) >= 30


def test_a_report_of_nothing_has_no_numbers_and_no_verdict() -> None:
    report = analysis_of(World()).report(START)
    assert report.decision == "keep_going"
    assert report.primary[0].effect.estimate is None
    assert report.headline == "green-float32 on chat: no request counted yet."
    waits = "It waits for requests to chat, which count some seconds after their end"
    assert report.details == [f"{waits}: at least 30 users each on blue and green."]
    assert report.next == "Next: requests of your clients, or made-up ones by `switchyard demo traffic chat`."
    assert report.strata == 0
    running = AutomationStatus(state="running", revision=1, step=None, share=50)
    shown = text(document(report, running, [(START, "The run begins")]))
    assert len(shown.splitlines()) <= 6, shown
    assert shown.splitlines()[-1].startswith("Decision: keep going. Running experiment, since ")


def test_a_verdict_in_aa_is_an_alarm_about_the_rig() -> None:
    world = World(users=3000, weights=(100, 0))
    declared = config((100, 0), mode="aa", treatments=["label"])
    analysis = analysis_of(world, declared)
    recorded = world.requests(8000)
    label = Arms(NAME, declared.experiments[NAME], world.tables, START).place(recorded.rows).arm
    slower = (recorded.rows.ttft_s * np.where(label == 1, 1.4, 1.0)).astype(np.float32)
    replace(recorded, rows=replace(recorded.rows, ttft_s=slower)).tell(analysis)
    assert [entry.kind for entry in analysis.tick(NOW)] == ["verdict", "alarm"]
    report = analysis.report(NOW)
    assert report.decision == "invalid"
    assert alarms(report) == {"aa"}
    assert report.headline.endswith("no verdict can be trusted, a difference was found where there is none.")


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"guardrails": []}, True),
        ({"state": "paused"}, True),
        ({"secondary": [{"metric": "error", "minimal_effect": 0.2}]}, True),
        ({"alpha": 0.01}, False),
        ({"primary": [{"metric": "ttft", "minimal_effect": 0.1}]}, False),
        ({"mode": "aa", "treatments": ["label"]}, False),
        ({"strata": ["hour"]}, False),
        ({"covariates": []}, False),
    ],
)
def test_only_changes_of_deciding_settings_start_a_new_run(change: dict[str, Any], same: bool) -> None:
    old, new = config(), config(**change)
    assert same_run(old.experiments[NAME], new.experiments[NAME]) == same


SLOW: dict[str, Any] = {"event": "slow", "ttft_above_s": 10.0}


@pytest.mark.parametrize(
    ("metric", "setting", "change", "same"),
    [
        ("thumbs", {"feedback": {"thumbs": {}}}, {"feedback": {"thumbs": {"better": "lower"}}}, False),
        ("thumbs", {"feedback": {"thumbs": {}}}, {"feedback": {"thumbs": {"window_s": 60}}}, False),
        ("thumbs", {"feedback": {"thumbs": {}}}, {"feedback": {"thumbs": {}, "stars": {}}}, True),
        ("slow", {"guardrails": [SLOW]}, {"guardrails": [SLOW | {"ttft_above_s": 2.0}]}, False),
        ("slow", {"guardrails": [SLOW]}, {"guardrails": [SLOW | {"tolerance": 2.0}]}, True),
    ],
)
def test_what_defines_a_primary_metric_decides_too(
    metric: str, setting: dict[str, Any], change: dict[str, Any], same: bool
) -> None:
    primary: dict[str, Any] = {"primary": [{"metric": metric, "minimal_effect": 0.05}]}
    old, new = config(**primary, **setting), config(**primary, **change)
    assert same_run(old.experiments[NAME], new.experiments[NAME]) == same


def test_an_arm_that_loses_its_slowest_requests_has_no_verdict() -> None:
    """As many are lost of both, so that no count differs: green's slowest, and any of blue's."""
    world, rng, count = World(users=3000), np.random.default_rng(2), 20_000
    user = rng.integers(0, world.users, count)
    green = world.draw[user] < 0.5
    ttft = np.exp(rng.normal(-1.0, 0.8, count))
    slowest = ttft > np.quantile(ttft, 0.97)
    lost = np.where(green, slowest, rng.random(count) < 0.03)
    at = np.sort(START + rng.random(count) * DAY_S)
    analysis = analysis_of(world, config())
    world.answered(
        at, user, green, ttft_s=np.where(lost, np.nan, ttft), duration_s=30.0, error=np.where(lost, 3, 0)
    ).tell(analysis)
    occurrences = analysis.tick(NOW)
    report = analysis.report(NOW)
    ttft_ = report.primary[0]
    assert (ttft_.measured, ttft_.verdict, ttft_.withheld) == ("better", "undecided", "better")
    assert "verdict" not in {occurrence.kind for occurrence in occurrences}
    assert report.decision == "keep_going"
    assert report.headline.startswith("green-float32 on chat: no verdict on green against blue yet: requests without")
    assert report.details[0].startswith("Of the requests that have a value, first token ")
    assert report.details[0].count("; requests without a value could explain ttft, had they been the slowest")
    assert {point.verdict for point in analysis.history("ttft", "green")} == {"undecided"}


def scored(given: tuple[float, float], content: tuple[float, float], minimal_effect: float) -> Report:
    """Scores of 40,000 answers. `given`: the share of content users who send one on blue and on green; of others it is
    blue's. `content`: the share of content users on each.
    """
    world, rng, count = World(users=6000), np.random.default_rng(3), 40_000
    primary = [{"metric": "thumbs", "minimal_effect": minimal_effect}]
    analysis = analysis_of(world, config(feedback={"thumbs": {"window_s": 60}}, primary=primary))
    recorded = world.requests(count)
    recorded.tell(analysis)
    rows = recorded.rows
    green = rows.assigned == world.codes["green"]
    is_content = rng.random(count) < np.where(green, content[1], content[0])
    sends = rng.random(count) < np.where(green & is_content, given[1], given[0])
    analysis.add_feedback(
        [
            FeedbackItem(
                float(rows.at[n]) + 30, int(rows.request[n]), int(rows.caller[n]), "thumbs", float(is_content[n])
            )
            for n in np.flatnonzero(sends)
        ]
    )
    analysis.tick(NOW)
    return analysis.report(NOW)


@pytest.mark.parametrize(("given", "minimal_effect"), [((0.3, 0.45), 0.1), ((0.3, 0.36), 0.2)])
def test_scores_of_content_users_who_answer_more_on_one_arm_have_no_verdict(
    given: tuple[float, float], minimal_effect: float
) -> None:
    """Not either if the arms' response rates differ by less than the smallest effect that matters."""
    report = scored(given, (0.5, 0.5), minimal_effect)
    assert (report.primary[0].measured, report.primary[0].verdict) == ("better", "undecided")
    assert report.details[0].startswith("Of the answers that have a score, thumbs ")
    assert "; it is not shown that equally many answers get thumbs on both arms" in report.details[0]
    assert report.decision == "keep_going"


@pytest.mark.parametrize("given", [0.3, 1.0])
def test_scores_have_a_verdict_where_equally_many_are_sent_or_all(given: float) -> None:
    compared = scored((given, given), (0.5, 0.7), 0.1).primary[0]
    assert (compared.verdict, compared.doubt) == ("better", "")


def test_nothing_ships_where_all_answers_have_one_length_on_one_arm_and_another_on_the_other() -> None:
    world, count = World(slower=0.7), 6000
    recorded = world.requests(count)
    tokens = np.where(recorded.rows.assigned == world.codes["green"], 8.0, 16.0)
    same_length = dataclasses.replace(recorded.rows, completion_tokens=tokens)
    analysis = analysis_of(world, config(min_duration_s=3600.0))
    dataclasses.replace(recorded, rows=same_length).tell(analysis)
    analysis.tick(NOW)
    report = analysis.report(NOW)
    length = secondary(report, "output_tokens")
    assert (report.primary[0].verdict, length.verdict, report.decision) == ("better", "different", "keep_going")
    assert report.next.startswith("Next: look into the answers' length. Answers 50.0 % shorter")


@pytest.mark.parametrize(
    ("on_green", "reason"),
    [
        (100, "100 units on green have a value so far, 12 of them in strata that both arms have, where 30 are needed"),
        (20, "20 units on green have a value so far, 30 are needed"),
    ],
)
def test_units_so_far_are_all_units_and_those_in_shared_strata_are_named(on_green: int, reason: str) -> None:
    world = World(users=200)
    user = np.arange(100 + on_green)
    green = user < on_green
    hour = np.where(green, np.where(user < 12, 4, 3), 4)
    analysis = analysis_of(world, config(strata=["hour"]))
    begin = START - START % DAY_S + DAY_S
    world.answered(begin + 3600.0 * hour + user, user, green, ttft_s=0.1 + 0.001 * user).tell(analysis)
    analysis.tick(NOW)
    (ttft,) = analysis.report(NOW).primary
    assert ttft.verdict == "too_early"
    assert ttft.reason == reason


@pytest.mark.parametrize(
    ("metric", "streamed", "reason"),
    [
        ("ttft", False, "0 units on blue have a value so far, 30 are needed: only streamed answers have a first token"),
        ("ttft", True, "20 units on blue have a value so far, 30 are needed"),
        ("duration", False, "20 units on blue have a value so far, 30 are needed"),
    ],
)
def test_a_metric_that_no_answer_has_says_why(metric: str, streamed: bool, reason: str) -> None:
    world = World(users=200)
    user = np.arange(40)
    analysis = analysis_of(world, config(primary=[{"metric": metric, "minimal_effect": 0.1}]))
    times = {"ttft_s": 0.1 + 0.001 * user} if streamed else {"ttft_s": np.full(40, np.nan)}
    columns = {**times, "stream": np.full(40, streamed), "duration_s": 1 + 0.001 * user}
    world.answered(np.linspace(START + 3600.0, START + 3640.0, 40), user, user % 2 == 1, **columns).tell(analysis)
    analysis.tick(NOW)
    (compared,) = analysis.report(NOW).primary
    assert compared.verdict == "too_early"
    assert compared.reason == reason


def test_a_score_that_nobody_has_given_says_so() -> None:
    compared = scored((0.0, 0.0), (0.5, 0.5), 0.1).primary[0]
    assert compared.reason == "0 units on blue have a value so far, 30 are needed: only answers with a score count"


class Timer:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def test_a_turn_is_followed_by_ten_times_its_length() -> None:
    timer = Timer()
    pace = Pace(timer)
    assert pace.allows()
    with pace:
        assert not pace.is_over()
        timer.now += 2 * TURN_S
        assert pace.is_over()
    timer.now += 2 * TURN_S * REST - 0.01
    assert not pace.allows()
    timer.now += 0.02
    assert pace.allows()


def test_turns_are_at_least_a_second_apart() -> None:
    timer = Timer()
    pace = Pace(timer)
    with pace:
        pass
    timer.now += EVERY_S - 0.01
    assert not pace.allows()
    timer.now += 0.02
    assert pace.allows()


@pytest.mark.parametrize("busier", [1.0, 1.06, 1.12, 1.3])
@pytest.mark.parametrize("later", [1, 7, 15, 40])
def test_a_past_report_rests_on_the_looks_that_were_shown(busier: float, later: int) -> None:
    """Units' numbers of requests are compared again only once there are a fiftieth more."""
    rng = np.random.default_rng(3)
    user = np.repeat(np.arange(600), rng.poisson(2 * np.where(np.arange(600) % 2, busier, 1.0)) + 1)
    rng.shuffle(user)
    at = np.arange(START, START + 60.0 * len(user), 60.0, np.float64)
    world = World()
    recorded = world.answered(at, user, user % 2 == 1)
    cut = len(user) - later
    first, rest = (
        (recorded.starts.take(part), recorded.rows.take(part)) for part in (np.arange(cut), np.arange(cut, len(user)))
    )
    now, then = at[-1] + 3600.0, at[cut - 1] + 30.0

    live = analysis_of(world)
    live.add_starts(first[0])
    live.add_rows(first[1])
    live.tick(then)
    live.add_starts(rest[0])
    live.add_rows(rest[1])
    shown = live.report(now)

    assert shown.sample_ratio.returns_compared_at == (then if later < 30 else None)
    older = {RETURNS} if later < 30 else set()
    again = analysis_of(world)
    again.add_starts(first[0])
    again.add_rows(first[1])
    again.look(older, then)
    again.add_starts(rest[0])
    again.add_rows(rest[1])
    assert again.report_again(now, older) == shown


def test_units_that_moved_to_the_treatment_are_explained() -> None:
    """Users return after a step of the ramp: nearly all of them came to control first."""
    world = World(weights=(99, 1), plan="0-first")
    early = world.requests(3000, hours=6)
    world.weights, world.plan = (50, 50), "1-second"
    late = world.requests(3000, hours=6, since=START + 6 * 3600)
    analysis = analysis_of(world, config((99, 1)))
    early.tell(analysis)
    before = analysis.report(START + 6 * 3600)
    late.tell(analysis)
    report = analysis.report(NOW)
    (said,) = (warning for warning in report.warnings if warning.startswith("Units are counted"))
    moved = max(value.units for value in report.primary[0].values if value.arm == "green")
    assert said == (
        f"Units are counted where they came first: to green {report.units['green']}, and {moved} that it has answered "
        "are compared."
    )
    assert report.units["green"] < 10 < 100 < moved
    assert not any(warning.startswith("Units are counted") for warning in before.warnings)
