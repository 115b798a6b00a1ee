"""The bounds that the statistics must keep on simulated traffic, with negative controls that must fail."""

import math
from collections.abc import Iterator
from concurrent.futures import Executor

import numpy as np
import pytest

from tests.simulation import (
    alarms,
    audits,
    callers,
    delays,
    false_positives,
    feedback,
    flaps,
    guardrails,
    large_users,
    outages,
    plans,
    quantiles,
    ramps,
    reports,
    sample_ratios,
    shadows,
    small_arms,
    verdicts,
)
from tests.simulation.pool import processes


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with processes() as executor:
        yield executor


PEEKED = {"ln TTFT, users, 50/50", "ln TTFT, users, ramp", "mean TTFT, users, ramp", "tokens/s, users, ramp"}
IGNORING_USERS = {
    "ln TTFT, users, 50/50",
    "ln TTFT, users, ramp",
    "tokens/s (ratio), users, 50/50",
    "tokens/s, users, ramp",
}


@pytest.mark.parametrize("row", false_positives.ROWS, ids=lambda row: row.name)
def test_no_difference_is_not_rejected_by_continuous_looks(executor: Executor, row: false_positives.Row) -> None:
    """400 runs at 5 %. Without plan strata, without users or with peeked z-tests the same traffic fails."""
    rates = false_positives.rates(executor, row, 400)
    if row.world.plan_strata:
        assert rates.cs <= 0.075
        assert rates.peeked >= 0.10
        assert rates.fixed <= 0.10
    else:
        assert rates.fixed >= 0.2
    if row.name in IGNORING_USERS:
        assert rates.cs_single >= 0.12


@pytest.mark.parametrize("hard", false_positives.HARDER, ids=lambda hard: hard.row.name)
def test_harder_worlds_are_not_rejected_either(executor: Executor, hard: false_positives.Hard) -> None:
    assert false_positives.rates(executor, hard.row, 200, hard.looks).cs <= 0.085


@pytest.mark.parametrize(("tail", "share"), small_arms.CASES)
def test_a_rare_value_that_a_small_arm_has_not_met_makes_no_verdict_false(
    executor: Executor, tail: str, share: str
) -> None:
    sequence, own = small_arms.rejections(executor, tail, share, 200)
    assert sequence <= 0.05
    if own is not None:
        assert own >= 0.05


@pytest.mark.parametrize("large", large_users.LARGE)
def test_a_few_users_with_large_prompts_make_no_verdict_false(executor: Executor, large: int) -> None:
    assert large_users.rejections(executor, large, 200) <= 0.05


def test_a_few_users_in_a_stratum_of_their_own_would_make_verdicts_false(executor: Executor) -> None:
    assert large_users.rejections(executor, 3, 200, merge=False) >= 0.08


def test_a_few_requests_with_large_prompts_make_no_verdict_false(executor: Executor) -> None:
    """Every request is a unit. In a stratum of their own, they would."""
    assert large_users.rejections_of_requests(executor, 400) <= 0.03
    assert large_users.rejections_of_requests(executor, 400, merge=False) >= 0.04


@pytest.mark.parametrize("row", verdicts.ROWS, ids=lambda row: row.name)
def test_the_true_effect_is_covered_and_found_about_as_soon_as_by_a_single_look(
    executor: Executor, row: verdicts.Row
) -> None:
    result = verdicts.verdicts(executor, row, 200)
    assert 1 - result.missed >= 0.93
    assert result.wrong_sign <= 0.01
    if row.world.effect == 1.0:
        assert result.power <= 0.07
        assert result.peeked_power >= 0.3
    else:
        assert result.ratio <= (1.6 if row.minimal_effect >= 0.05 else 2.5)
        assert result.power >= 0.75


def test_the_planner_keeps_its_promise(executor: Executor) -> None:
    promise = plans.promise(executor, 1_000)
    assert promise.power >= 0.78
    assert promise.half <= 0.7
    assert promise.false <= 0.05


@pytest.mark.parametrize("name", quantiles.ROWS)
def test_quantiles_without_a_difference_are_not_rejected(executor: Executor, name: str) -> None:
    sequence, peeked = quantiles.rejections(executor, name, 120)
    assert sequence <= 0.05
    assert peeked > 0.05


@pytest.mark.parametrize(("rates", "design"), alarms.DESIGN.items(), ids=str)
def test_alarms_come_after_the_designs_number_of_requests(
    executor: Executor, rates: tuple[float, float], design: tuple[float, float]
) -> None:
    """Medians are within 15 %, or within one request where there are few."""
    weight, rate = rates
    alarm = alarms.median_alarm(executor, alarms.Rates(weight, alarms.CONTROL, rate), 1_000)
    assert alarm.requests == pytest.approx(design[0], rel=0.15)
    assert alarm.treated == pytest.approx(design[1], rel=0.15, abs=1)


@pytest.mark.parametrize(("late", "expected"), alarms.LATE.items(), ids=str)
def test_the_detector_finds_a_late_regression(
    executor: Executor, late: tuple[float, float, int], expected: tuple[float, float]
) -> None:
    weight, rate, healthy = late
    design, most = expected
    whole, detector = alarms.median_late(executor, alarms.Rates(weight, alarms.CONTROL, rate), healthy, 100)
    if math.isfinite(design):
        assert whole == pytest.approx(design, rel=0.2, abs=1)
    assert detector <= most


@pytest.mark.parametrize("case", guardrails.CASES, ids=lambda case: case.name)
def test_no_coin_counts_twice(executor: Executor, case: guardrails.Case) -> None:
    """At 5 %. Judged by the present plan, nearly all runs with a lowered weight alarm. Users who count every day alarm
    in 5 to 11 % of the runs. Without regard to requests per user, half of the runs alarm in which they are three times
    as many.
    """
    runs = {guardrails.Lowered: 60, guardrails.Broken: 200, guardrails.Longer: 100}[type(case)]
    assert guardrails.alarms(executor, case, runs) <= 0.03


@pytest.mark.parametrize("size", callers.MOST)
def test_several_callers_find_a_regression_nearly_as_soon_as_one(executor: Executor, size: int) -> None:
    alone = np.median(callers.alarms(executor, callers.ALONE, 20))
    assert np.median(callers.alarms(executor, callers.among(size), 20)) <= callers.MOST[size] * alone


def test_a_hostile_caller_with_half_of_the_traffic_moves_nothing(executor: Executor) -> None:
    """Without the bound, all runs act after about 60 requests."""
    assert np.isinf(callers.alarms(executor, callers.HOSTILE, 4)).all()


def test_harm_after_a_change_of_weights_is_found(executor: Executor) -> None:
    assert guardrails.alarms(executor, guardrails.HARM, 20) == 1


@pytest.mark.parametrize("outage", outages.OF_BOTH, ids=lambda outage: outage.name)
def test_an_outage_of_both_arms_is_never_an_alarm_of_an_absolute_limit(
    executor: Executor, outage: outages.Outage
) -> None:
    """Judged by each user's first request in an hour, all runs alarm where users return, or most have the treatment."""
    assert outages.alarms(executor, outage, 40)[0] == 0


@pytest.mark.parametrize("outage", outages.OF_ONE, ids=lambda outage: outage.name)
def test_an_outage_of_the_treatment_alone_is_an_alarm_after_a_few_requests(
    executor: Executor, outage: outages.Outage
) -> None:
    alarmed, requests = outages.alarms(executor, outage, 40)
    assert alarmed == 1
    assert requests <= (16 if outage.share > 0.5 else 12)


@pytest.mark.parametrize("world", ramps.DESIGN_FALSE)
def test_guardrails_raise_no_false_alarm_where_thresholds_do(executor: Executor, world: ramps.World) -> None:
    guardrail, every_event, peeked, window = ramps.false_alarm_rates(executor, world, 400)
    assert guardrail <= 0.05
    assert peeked >= 0.3
    assert window >= 0.3
    if world == "a failing user in a hundred":
        assert every_event >= 0.1


@pytest.mark.parametrize("scenario", ramps.SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_ramp_stops_what_fails_and_nothing_else(executor: Executor, scenario: ramps.Scenario) -> None:
    rolled_back, treated = ramps.rollbacks(executor, scenario, 200)
    if scenario.design_treated is not None:
        assert rolled_back == 1
        assert treated <= 1.5 * scenario.design_treated
    elif scenario.name == "errors 1 %":
        assert rolled_back <= 0.25
    else:
        assert rolled_back <= 0.01
    if scenario.name == "always failing":
        assert treated <= 10


@pytest.mark.parametrize(("lost", "design"), sample_ratios.DESIGN.items(), ids=str)
def test_lost_exposures_raise_an_alarm(executor: Executor, lost: tuple[float, float], design: float) -> None:
    median, _ = sample_ratios.alarms(executor, *lost, 200)
    assert median <= 1.5 * design
    if lost == (0.10, 0.5):
        assert median <= 8_000


@pytest.mark.parametrize("weight", [0.01, 0.25, 0.5])
def test_without_a_loss_the_sample_ratio_is_quiet(executor: Executor, weight: float) -> None:
    median, share = sample_ratios.alarms(executor, 0.0, weight, 400)
    assert median == math.inf
    assert share <= 0.003


@pytest.mark.parametrize("world", sample_ratios.RETURNING, ids=lambda world: world.name)
def test_requests_that_are_missing_are_found_and_activity_alone_is_not(
    executor: Executor, world: sample_ratios.Returning
) -> None:
    """At 1 %. Without the means, a tenth that is lost is found in hardly any run."""
    assert world.least <= sample_ratios.returns(executor, world, 60 if world.lost else 200) <= world.most


def test_feedback_counts_only_once_it_has_matured(executor: Executor) -> None:
    assert feedback.false_verdicts(executor, matured=True, count=200) <= 0.05
    assert feedback.false_verdicts(executor, matured=False, count=100) >= 0.3


@pytest.mark.parametrize("row", shadows.ROWS, ids=lambda row: row.name)
def test_a_shadow_without_a_difference_is_not_reported_as_different(executor: Executor, row: shadows.Row) -> None:
    """400 runs at 5 %, 40 looks at pairs of users that come back. Peeked, or without users, the same pairs fail."""
    rates = shadows.rates(executor, row, 400)
    assert rates.cs <= 0.075
    assert rates.missed <= 0.075
    assert rates.peeked >= 0.10
    if row.user_sd >= 0.1:
        assert rates.cs_single >= 0.12


def test_a_shadow_that_is_later_is_found(executor: Executor) -> None:
    rates = shadows.rates(executor, shadows.LATER, 200)
    assert rates.cs >= 0.95
    assert rates.missed <= 0.085


def test_equally_frequent_events_of_pairs_are_not_reported_as_different(executor: Executor) -> None:
    assert shadows.discordant_rate(executor, 1000) <= 0.06


@pytest.mark.parametrize("ill", delays.ILL, ids=lambda ill: ill.name)
def test_the_real_controller_stops_a_bad_treatment_as_soon(executor: Executor, ill: delays.Ill) -> None:
    """Only a few ramps, so the table's numbers are checked to within a factor."""
    delayed = delays.delays(executor, ill, 4)
    assert delayed.stopped == 1
    if ill.design is not None:
        assert ill.design / 3 <= delayed.median <= 3 * ill.design
    documented = delays.documented()[ill.name]
    assert documented / 3 <= delayed.median <= 3 * documented


def test_prompts_that_hold_the_arms_own_answers_are_no_stratum(executor: Executor) -> None:
    """The treatment is faster for a prompt of the same size, and slower for its users: 8.8 % later."""
    for strata in ([], ["prompt_bytes"]):
        said = reports.said(executor, strata, 100)
        assert said.missed <= 0.05
        assert said.better == 0
        assert said.worse >= 0.6


@pytest.mark.parametrize("p", [None, 0.5, 0.9], ids=str)
def test_intervals_hold_while_users_come_and_go_and_a_ramp_begins(executor: Executor, p: float | None) -> None:
    assert quantiles.coverage(executor, p, 200) >= 0.93


@pytest.mark.parametrize("row", verdicts.HISTORY_ROWS, ids=lambda row: row.name)
def test_history_brings_verdicts_sooner_and_makes_none_false(executor: Executor, row: verdicts.HistoryRow) -> None:
    adjusted = verdicts.adjusted(executor, row, 60)
    assert adjusted.missed <= 0.075
    if row.world.effect == 1.0:
        return
    assert adjusted.with_history <= 1.05 * adjusted.without
    if row.name in ("ln TTFT -15 %", "mean TTFT -15 %"):
        assert adjusted.ratio <= 0.6
        assert adjusted.variance <= 0.4


@pytest.mark.parametrize("row", verdicts.PROMPT_ROWS, ids=lambda row: row.name)
def test_first_prompts_bring_verdicts_sooner_and_make_none_false(executor: Executor, row: verdicts.PromptRow) -> None:
    """Strata alone are better than the covariate alone where units come back; both are better than either."""
    by_estimator = dict(zip(verdicts.ESTIMATORS, verdicts.prompted(executor, row, 60), strict=True))
    assert all(rates.false <= 0.075 for rates in by_estimator.values())
    assert by_estimator["both"].variance <= min(
        0.99 * by_estimator["strata"].variance, 1.02 * by_estimator["covariate"].variance
    )
    if row.users is not None:
        assert by_estimator["strata"].variance < by_estimator["covariate"].variance


@pytest.mark.parametrize("world", reports.DRIFTS, ids=lambda world: world.name)
def test_nothing_false_is_said_while_the_effect_changes(executor: Executor, world: reports.Drift) -> None:
    """A first word that is kept becomes false in nearly all runs of a step."""
    drifts = reports.drifts(executor, world, 40)
    assert drifts.false <= 0.05
    if world.name.startswith("none"):
        assert drifts.first_is_false <= 0.05
        assert drifts.alarmed <= 0.025
    if world.name.startswith("step"):
        assert drifts.first_is_false >= 0.9
        assert drifts.flipped <= 2.5


def test_none_of_fifty_secondary_metrics_has_a_direction_where_nothing_differs(executor: Executor) -> None:
    assert reports.false_directions(executor, 12) <= 0.05


@pytest.mark.parametrize("users", reports.BIASED)
def test_scores_that_content_users_send_more_often_on_one_arm_have_no_verdict(
    executor: Executor, users: reports.Biased
) -> None:
    assert reports.biased_verdicts(executor, users, 20) <= 0.05


@pytest.mark.parametrize("answers", reports.ANSWERS, ids=lambda answers: answers.name)
def test_requests_that_are_running_or_lost_make_no_verdict_false(executor: Executor, answers: reports.Answers) -> None:
    wrong, found = reports.verdicts_on_answers(executor, answers, 20)
    assert wrong <= 0.05
    if abs(answers.effect) > 0:
        assert found >= 0.9


@pytest.mark.parametrize("world", delays.HANGING, ids=lambda world: world.name)
def test_whole_answers_that_never_come_are_noticed_by_the_clock(executor: Executor, world: delays.Hanging) -> None:
    """`slow` waits for 20 s; where both arms hang alike, nothing is stopped."""
    delayed = delays.delays(executor, world, 4)
    if world.control:
        assert delayed.stopped == 0
    else:
        assert delayed.stopped == 1
        assert delayed.seconds <= 45


@pytest.mark.parametrize("loop", flaps.LOOPS, ids=lambda loop: loop.name)
def test_conversations_that_begin_at_a_change_keep_their_deployment(executor: Executor, loop: flaps.Loop) -> None:
    """And those that begin later follow the change."""
    moved, followed = flaps.flaps(executor, loop, 20)
    assert moved <= 0.005
    assert 0.4 <= followed <= 0.6


def test_no_report_of_the_past_says_anything_that_was_not_shown_then(executor: Executor) -> None:
    audited = audits.audits(executor, 4)
    assert audited.shown == 4 * (audits.STEPS + 1)
    assert audited.other == 0
