"""Worlds in which something other than the treatment explains what was measured: no verdict is said."""

from typing import Any

import numpy as np
import pytest

from app.experiments.analysis.arrays import Mask
from app.experiments.automation.state import Interventions
from app.experiments.contract.report import Report
from app.experiments.rendering.document import text
from app.experiments.rendering.reports import document
from app.exposures.wire import Failure, FinishCode, Flag
from tests.support.experiments.world import BLUE, DAY_S, GREEN, START, World, analysis_of, config

SHORT_ANSWERS = Flag.OWN_EMPTY | Flag.OWN_LENGTH | Flag.OWN_FORM
"""The flags of `max_tokens: 8`."""


def impatient(**lost: Any) -> Report:
    """Green is 15 % faster on nine of ten requests and takes 8 s on the tenth. Clients leave after 3 s. `lost`: the
    columns of what they leave.
    """
    rng, world, count = np.random.default_rng(1), World(), 12_000
    user = rng.integers(0, 1500, count)
    green = (rng.random(1500) < 0.5)[user]
    base = np.exp(-1.2 + rng.normal(0, 0.3, 1500)[user] + rng.normal(0, 0.3, count))
    ttft = np.where(rng.random(count) < np.where(green, 0.1, 0.005), 8.0, np.where(green, 0.85, 1.0) * base)
    gone = ttft > 3.0
    columns: dict[str, Any] = {
        "ttft_s": np.where(gone, np.nan, ttft),
        "duration_s": np.where(gone, 3.0, ttft + 0.2),
        "completion_tokens": np.where(gone, np.nan, 8.0),
        "itl_mean_s": np.where(gone, np.nan, 0.02),
        "served": np.where(gone & (lost["status"] != 200), -1, np.where(green, world.codes[GREEN], world.codes[BLUE])),
    }
    columns |= {name: np.where(gone, value, 200 if name == "status" else 0) for name, value in lost.items()}
    at = np.sort(START + rng.random(count) * 1.2 * DAY_S)
    analysis = analysis_of(world)
    world.answered(at, user, green, **columns).tell(analysis, parts=4)
    return analysis.report(START + 1.3 * DAY_S)


def test_a_client_that_leaves_explains_nothing_by_the_tokens_that_it_asked_for() -> None:
    report = impatient(status=499, flags=int(Flag.CLIENT_GONE | SHORT_ANSWERS))
    assert (report.decision, report.primary[0].verdict) == ("invalid", "invalid")
    assert "completeness" in {alarm.kind for alarm in report.alarms}


def leaving(among: Mask | None = None, share: float = 0.2) -> Report:
    """Nothing differs, but that a share of the requests `among` users has no value: green's slowest, and any of blue's.
    Those users have the long prompts.
    """
    rng, world, count = np.random.default_rng(1), World(), 12_000
    user = rng.integers(0, 1500, count)
    green = (rng.random(1500) < 0.5)[user]
    chosen = np.ones(count, np.bool_) if among is None else among[user]
    ttft = np.exp(-1.2 + rng.normal(0, 0.2, 1500)[user] + rng.normal(0, 0.5, count))
    slowest = ttft > np.quantile(ttft[green & chosen], 1 - share)
    lost = chosen & np.where(green, slowest, rng.random(count) < share)
    columns = {
        "ttft_s": np.where(lost, np.nan, ttft),
        "status": np.where(lost, 499, 200),
        "flags": np.where(lost, int(Flag.CLIENT_GONE), 0),
        "prompt_bytes": np.where(chosen, 5000, 500),
    }
    at = np.sort(START + rng.random(count) * 1.2 * DAY_S)
    analysis = analysis_of(world)
    world.answered(at, user, green, **columns).tell(analysis, parts=3)
    return analysis.report(START + 1.3 * DAY_S)


def test_a_subgroup_whose_slowest_requests_have_no_value_is_not_said_to_be_faster() -> None:
    report = leaving(np.arange(1500) % 4 == 0)
    assert report.subgroups is not None
    assert len(report.subgroups.effects) == 2
    for subgroup in report.subgroups.effects:
        assert not subgroup.differs
        effect = subgroup.effect
        assert effect.lower is None or effect.upper is None or effect.lower < 0 < effect.upper


def test_nothing_is_called_certain_that_missing_values_could_explain() -> None:
    report = leaving(share=0.08)
    assert report.primary[0].doubt
    assert "certainty" not in " ".join(report.details)
    assert "covers at all times" not in text(document(report))


@pytest.mark.parametrize("sticky", ["user", None])
def test_where_no_verdict_counts_nothing_is_said_of_subgroups(sticky: str | None) -> None:
    world = World(users=3000, lost=0.3, slower=1.3)
    analysis = analysis_of(world, config(sticky=sticky))
    world.requests(12_000).tell(analysis)
    report = analysis.report(START + 1.3 * DAY_S)
    assert report.decision == "invalid"
    assert report.subgroups is not None
    assert report.subgroups.effects == []
    assert "certainty" not in text(document(report))


def test_an_empty_answer_that_a_request_may_have_decided_counts_as_a_value_that_is_missing() -> None:
    report = impatient(status=200, flags=int(Flag.EMPTY | SHORT_ANSWERS))
    assert (report.decision, report.primary[0].withheld) == ("keep_going", "better")
    assert "requests without a value could explain ttft" in report.headline


def test_failures_of_clients_that_hardly_wait_are_missing_values_and_failures() -> None:
    report = impatient(status=504, error=int(Failure.TIMEOUT), flags=int(Flag.OWN_FAILURE))
    assert (report.decision, report.primary[0].withheld) == ("do_not_ship", "better")
    assert [rail.event for rail in report.guardrails if rail.alarm] == ["error"]


def test_a_guardrail_that_counts_anew_has_proved_what_it_proved() -> None:
    """Green is 20 % faster, and a twentieth of its answers is empty."""
    rng, world, count = np.random.default_rng(1), World(), 6000
    user = rng.integers(0, 1500, count)
    green = (rng.random(1500) < 0.5)[user]
    at = np.sort(START + rng.random(count) * 1.2 * DAY_S)
    ttft = np.exp(-1.2 + rng.normal(0, 0.4, count)) * np.where(green, 0.8, 1.0)
    empty = rng.random(count) < np.where(green, 0.05, 0.005)
    analysis = analysis_of(world)
    world.answered(at, user, green, ttft_s=ttft, flags=np.where(empty, int(Flag.EMPTY), 0)).tell(analysis)
    analysis.tick(START + 1.3 * DAY_S)
    assert analysis.report(START + 1.3 * DAY_S).decision == "do_not_ship"
    later = START + 2.3 * DAY_S
    analysis.intervene(Interventions(armed_since=later))
    report = analysis.report(later)
    assert (report.decision, report.primary[0].verdict) == ("keep_going", "better")
    stands = "The alarm of empty on green stands since 16 January 15:12"
    assert [alarm.text for alarm in report.alarms if alarm.text.startswith(stands)]
    assert stands in report.next
    analysis.intervene(Interventions(armed_since=later, cleared_until=later))
    report = analysis.report(later)
    assert (report.decision, report.alarms) == ("ship", [])


def test_time_in_which_the_treatment_has_no_traffic_is_no_duration() -> None:
    """Green gets its half after 23 hours, with control's traffic as evidence of a whole day."""
    rng, world = np.random.default_rng(1), World(weights=(100, 0), plan="0-p0")
    analysis = analysis_of(world, config(sticky=None))
    told = 0
    for weights, plan, begin, hours, count in (
        ((100, 0), "0-p0", 0.0, 23.4, 5000),
        ((50, 50), "1-p1", 23.5, 0.6, 2000),
    ):
        world.weights, world.plan = weights, plan
        green = rng.random(count) < weights[1] / 100
        at = np.sort(START + (begin + rng.random(count) * hours) * 3600)
        ttft = np.exp(-1.2 + rng.normal(0, 0.4, count)) * np.where(green, 0.8, 1.0)
        world.answered(at, told + np.arange(count), green, ttft_s=ttft).tell(analysis)
        told += count
    report = analysis.report(START + 24.2 * 3600)
    assert (report.primary[0].verdict, report.decision) == ("better", "keep_going")
    assert report.next == "Next: keep going for 21 h of traffic: hours of a day differ (`min_duration_s`)."


def test_frequent_changes_of_the_plan_hold_up_no_promotion() -> None:
    """Every three minutes, of a day and an hour, another plan gives green a percent more or less."""
    rng, world, count = np.random.default_rng(1), World(), 16
    analysis = analysis_of(world, config(sticky=None))
    for number in range(500):
        world.weights, world.plan = (50 + number % 2, 50 - number % 2), f"{number}-p"
        at = np.sort(START + (number + rng.random(count)) * 180)
        green = rng.random(count) < 0.5
        ttft = np.exp(-1.2 + rng.normal(0, 0.4, count)) * np.where(green, 0.8, 1.0)
        world.answered(at, number * count + np.arange(count), green, ttft_s=ttft).tell(analysis)
    report = analysis.report(START + 500 * 180)
    assert (report.primary[0].verdict, report.decision) == ("better", "ship")


def test_guardrails_that_see_nothing_do_not_look_healthy() -> None:
    """All requests ask for fewer than 16 tokens, and green cuts all of its answers off."""
    world, count = World(), 400
    green = np.arange(count) % 2 == 1
    rails = [{"event": "truncated"}, {"event": "empty"}, {"event": "slow", "ttft_above_s": 2.0}]
    analysis = analysis_of(world, config(sticky=None, guardrails=rails))
    finish = np.where(green, int(FinishCode.LENGTH), int(FinishCode.STOP))
    at = START + np.arange(count, dtype=np.float64) * 10
    world.answered(at, np.arange(count), green, finish=finish, flags=int(SHORT_ANSWERS)).tell(analysis)
    report = analysis.report(START + 5000)
    quiet = "Guardrails quiet, but nearly all requests may have decided about truncated and empty themselves."
    assert quiet in report.details[-1]
    (truncated, empty, slow) = report.guardrails
    assert truncated.blind == "of 400 requests none counts: all may have decided about it themselves"
    assert (empty.blind, slow.blind) == (truncated.blind, "")


@pytest.mark.parametrize(("statistic", "helps"), [("geometric_mean", True), ("mean", False)])
def test_no_verdict_is_due_that_requests_without_an_end_forbid(statistic: str, helps: bool) -> None:
    """Twenty of 8,000 have none: the mean of latencies of up to ten minutes may be anything."""
    rng, world, count = np.random.default_rng(1), World(), 8000
    green = rng.random(count) < 0.5
    at = np.sort(START + rng.random(count) * 1.2 * DAY_S)
    recorded = world.answered(at, np.arange(count), green, ttft_s=np.exp(-1.2 + rng.normal(0, 0.5, count)))
    primary = [{"metric": "ttft", "minimal_effect": 0.05, "statistic": statistic}]
    analysis = analysis_of(world, config(sticky=None, primary=primary))
    analysis.add_starts(recorded.starts)
    analysis.add_rows(recorded.rows.take(np.r_[0:3990, 4010:count]))
    report = analysis.report(START + 1.3 * DAY_S)
    assert report.primary[0].verdict == "undecided"
    assert (report.primary[0].units_needed is not None) == helps
    assert report.next.startswith("Next: about") == helps
    assert report.next.startswith("Next: find out why requests have no value or no end") != helps


def of_few_events(errors: Mask, user: Any, green: Mask, minutes: int = 60, ended: Mask | None = None) -> Report:
    """Requests of which some fail, the last tenth of them in the last minute; the metric is their error rate."""
    world, count = World(), len(errors)
    metric = {"metric": "error", "minimal_effect": 0.1}
    analysis = analysis_of(world, config(primary=[metric], guardrails=[], strata=[], covariates=[]))
    columns = {
        "served": np.where(errors, -1, np.where(green, world.codes[GREEN], world.codes[BLUE])),
        "status": np.where(errors, 502, 200),
        "error": np.where(errors, Failure.UNREACHABLE, Failure.NONE),
    }
    at = START + minutes * 60.0 * np.interp(np.arange(count) / count, [0, 0.9, 1], [0, 1 - 1 / minutes, 1])
    recorded = world.answered(at, user, green, **columns)
    analysis.add_starts(recorded.starts)
    analysis.add_rows(recorded.rows if ended is None else recorded.rows.take(np.flatnonzero(ended)))
    return analysis.report(START + minutes * 60.0 + 5)


@pytest.mark.parametrize("failing", [BLUE, GREEN])
def test_users_whose_every_request_fails_do_not_make_an_arms_error_rate_lower(failing: str) -> None:
    """Each arm fails 0.5 % of its requests: one arm those of whole users, the other one any."""
    said = set()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        green, whole = rng.random(900) < 0.5, rng.random(900) < 0.005
        user = np.repeat(np.arange(900), 10)
        in_whole = (green == (failing == GREEN))[user]
        errors = np.where(in_whole, whole[user], rng.random(9000) < 0.005)
        for until in (900, 1800, 3600, 9000):
            (error,) = of_few_events(errors[:until], user[:until], green[user][:until]).primary
            said.add(error.verdict)
    assert said <= {"undecided", "too_early"}


def test_one_request_without_an_end_does_not_hide_an_error_rate_that_many_show() -> None:
    green = np.arange(4000) % 2 == 1
    errors = green & (np.arange(4000) % 16 == 1)
    ended = np.arange(4000) != 10
    report = of_few_events(errors, np.arange(4000), green, minutes=120, ended=ended)
    assert report.primary[0].verdict == "worse"
    assert "Error rate at least" in text(document(report))


def test_requests_that_run_may_fail_before_anything_ships() -> None:
    count = 8000
    green, place = np.arange(count) % 2 == 1, np.arange(count)
    errors = np.where(green, place % 1600 == 1, place % 40 == 0)
    running = green & (place > count - 600)
    report = of_few_events(errors, place, green, minutes=1500, ended=~running)
    assert (report.primary[0].verdict, report.decision) == ("better", "keep_going")


def of_missing(share: float, factor: float, running: float = 0.0, seed: int = 3) -> Report:
    """First tokens of green later by `factor`; in both arms a `share` of the requests has none, and of the 2,500 of the
    last half minute a share is still `running`."""
    rng, world, count = np.random.default_rng(seed), World(), 60_000
    green, lost = rng.random(count) < 0.5, rng.random(count) < share
    ttft = np.exp(rng.normal(-1, 0.25, count)) * np.where(green, factor, 1.0)
    columns = {
        "ttft_s": np.where(lost, np.nan, ttft),
        "served": np.where(lost, -1, np.where(green, world.codes[GREEN], world.codes[BLUE])),
        "status": np.where(lost, 502, 200),
        "error": np.where(lost, Failure.UNREACHABLE, Failure.NONE),
    }
    end, latest = 1.2 * DAY_S, np.arange(count) >= count - 2500
    at = START + np.interp(np.arange(count), [0, count - 2500, count], [0, end - 30, end])
    analysis = analysis_of(world, config(sticky=None, guardrails=[], strata=[], covariates=[]))
    recorded = world.answered(at, np.arange(count), green, **columns)
    analysis.add_starts(recorded.starts)
    analysis.add_rows(recorded.rows.take(np.flatnonzero(~latest | (rng.random(count) >= running))))
    return analysis.report(START + end + 5)


def test_missing_values_that_could_take_non_inferiority_do_not_take_the_word() -> None:
    (ttft,) = of_missing(0.0065, 1.04).primary
    assert (ttft.verdict, ttft.withheld, ttft.non_inferior) == ("worse", None, False)


def test_what_requests_that_run_and_those_without_a_value_could_explain_together_does_not_ship() -> None:
    missing, running = of_missing(0.004, 0.955), of_missing(0.0, 0.955, running=0.09)
    both = of_missing(0.004, 0.955, running=0.09)
    assert (missing.decision, running.decision) == ("ship", "ship"), "neither alone could"
    assert (both.primary[0].verdict, both.decision) == ("better", "keep_going")
