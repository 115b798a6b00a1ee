from typing import Any

import msgspec
import pytest

from app.experiments.analysis import reporting
from app.experiments.contract.report import Comparison, Decision, Effect, Report
from tests.support.experiments.reports import GREEN, SHIP, TTFT, guardrail


def compared(**fields: Any) -> Comparison:
    return msgspec.structs.replace(TTFT, **fields)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"effect": Effect(estimate=-0.08, lower=-0.134, upper=-0.017)},
            "First token 8.0 % earlier (between 1.7 % and 13.4 % earlier).",
        ),
        (
            {"effect": Effect(estimate=1.18, lower=0.71, upper=1.78)},
            "First token 118 % later (between 71.0 % and 178 % later).",
        ),
        (
            {"effect": Effect(estimate=0.01, lower=-0.02, upper=0.04)},
            "First token 1.0 % later (between 2.0 % earlier and 4.0 % later).",
        ),
        (
            {"metric": "tokens_per_second", "effect": Effect(estimate=0.1, lower=0.05, upper=0.15)},
            "Tokens per second 10.0 % higher (between 5.0 % and 15.0 % higher).",
        ),
        (
            {"metric": "ttft.p95", "statistic": "p95", "effect": Effect(estimate=-0.1, lower=-0.2, upper=-0.05)},
            "First token (p95) 10.0 % earlier (between 5.0 % and 20.0 % earlier).",
        ),
        (
            {"metric": "stars", "statistic": "mean", "scale": "absolute",
             "effect": Effect(estimate=-0.25, lower=-0.5, upper=0.1)},
            "stars 0.250 lower (between 0.500 lower and 0.100 higher).",
        ),
        (
            {"metric": "error", "effect": Effect(), "event_test": Effect(estimate=3.0, lower=1.0, upper=None)},
            "Error rate 300 % higher (at least 100 % higher).",
        ),
        (
            {"metric": "error", "effect": Effect(), "event_test": Effect(estimate=0.2, lower=-1.0, upper=None)},
            "Error rate 20.0 % higher (no upper bound yet).",
        ),
        ({"effect": Effect(), "reason": "12 units on green so far, 30 are needed"},
         "First token: 12 units on green so far, 30 are needed."),
    ],
)  # fmt: skip
def test_an_effect_in_words(fields: dict[str, Any], sentence: str) -> None:
    assert reporting.effect_sentence(compared(**fields)) == sentence


def test_an_invalid_effect_is_not_shown() -> None:
    invalid = compared(verdict="invalid", reason="the units contradict the weights")
    report = msgspec.structs.replace(SHIP, primary=[invalid])
    assert reporting.details(report, 0.05, "users")[0] == "First token: the units contradict the weights."


def headline(**fields: Any) -> str:
    return reporting.headline(msgspec.structs.replace(SHIP, **fields)).removeprefix("green-float32 on chat: ")


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        (["better"], "smollm2-green is better than smollm2-blue."),
        (["worse", "worse"], "smollm2-green is worse than smollm2-blue."),
        (["worse", "undecided"], "smollm2-green is worse than smollm2-blue in ttft, undecided in ttft."),
        (["undecided", "better"], "smollm2-green is better than smollm2-blue in ttft, undecided in ttft."),
        (["equivalent"], "smollm2-green is equivalent to smollm2-blue."),
        (["undecided", "equivalent"], "no verdict on smollm2-green against smollm2-blue yet."),
        (["too_early"], "too few units yet to compare smollm2-green with smollm2-blue."),
        (["better", "worse"], "smollm2-green is better than smollm2-blue in ttft, worse in ttft."),
    ],
)
def test_the_headline_reports_the_primary_metrics(verdicts: list[Any], words: str) -> None:
    assert headline(primary=[compared(verdict=verdict) for verdict in verdicts]) == words


def test_alarms_and_invalid_evidence_come_first_in_the_headline() -> None:
    assert (
        headline(guardrails=[guardrail("error", 9.0, 1, 40, alarm=True)])
        == "smollm2-green exceeds the guardrail error."
    )
    assert headline(decision="invalid") == "no verdict can be trusted, see the alarms."
    assert headline(mode="aa") == "A/A, no difference found where there is none."
    neutral = compared(verdict="different", better="neither", metric="output_tokens")
    assert headline(primary=[neutral]) == "smollm2-green differs from smollm2-blue."


NOTHING_MISSING = dict.fromkeys(("t1", "t2", "t3", "green", "red", "smollm2-green"), 0.0)
THREE: dict[str, Decision] = {"t1": "keep_going", "t2": "invalid", "t3": "do_not_ship"}


def three(decisions: dict[str, Decision], **fields: Any) -> Report:
    """A report on three treatments: the first is better, the second's values are missing, the third is worse."""
    missing = "more units lack values on one arm"
    primary = [
        compared(treatment="t1", verdict="better"),
        compared(treatment="t2", verdict="invalid", reason=missing),
        compared(treatment="t3", verdict="worse"),
    ]
    decision = reporting.overall(list(decisions.values()))
    return msgspec.structs.replace(
        SHIP, treatments=list(decisions), decisions=decisions, decision=decision, primary=primary, **fields
    )


def test_one_arms_invalid_evidence_takes_nothing_from_the_others() -> None:
    report = three(THREE)
    assert report.decision == "keep_going"
    assert reporting.headline(report) == (
        "green-float32 on chat: t1 is better than smollm2-blue; "
        "no verdict on t2 can be trusted, more units lack values on one arm; t3 is worse than smollm2-blue."
    )
    find = " For t2, find what differs by arm (see the alarms), then start a new run."
    assert (
        reporting.next_step(report, THREE, NOTHING_MISSING)
        == f"Next: take t3 out of the traffic. Keep going with t1.{find}"
    )
    assert reporting.next_step(
        three(THREE | {"t1": "do_not_ship"}), THREE | {"t1": "do_not_ship"}, NOTHING_MISSING
    ) == (f"Next: take t1 and t3 out of the traffic.{find}")
    assert reporting.next_step(three(THREE | {"t1": "ship"}), THREE | {"t1": "ship"}, NOTHING_MISSING) == (
        "Next: give t1 all traffic."
    )


@pytest.mark.parametrize(
    ("decisions", "decision"),
    [
        (["invalid", "ship", "do_not_ship"], "ship"),
        (["invalid", "keep_going", "do_not_ship"], "keep_going"),
        (["invalid", "do_not_ship"], "do_not_ship"),
        (["invalid", "invalid"], "invalid"),
    ],
)
def test_nothing_can_be_trusted_only_if_no_arms_evidence_can(decisions: list[Decision], decision: Decision) -> None:
    assert reporting.overall(decisions) == decision


def test_the_details_have_effect_certainty_counts_guardrails_and_split() -> None:
    first, last = reporting.details(SHIP, 0.05, "users")
    assert first.endswith("True at any time you look, with 95 % certainty.")
    assert last == (
        "1,204 users on smollm2-blue, 1,198 on smollm2-green, 31,870 requests, since 12 November 14:05. "
        "Guardrails quiet. Split as configured (no alarm)."
    )
    running = msgspec.structs.replace(SHIP, running={SHIP.control: 7, "smollm2-green": 5})
    assert "31,870 requests (12 more have not ended), since" in reporting.details(running, 0.05, "users")[-1]
    held = msgspec.structs.replace(running, waiting=1)
    lost = msgspec.structs.replace(running, unknown={SHIP.control: 4})
    said = "31,870 requests (8 more have not ended, of 4 more the end is not known), since"
    assert said in reporting.details(lost, 0.05, "users")[-1]
    said = "31,870 of them counted (12 more have not ended, 1 waits for an earlier one), since"
    assert said in reporting.details(held, 0.05, "requests")[-1]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"decision": "ship"}, "Next: give smollm2-green all traffic."),
        ({"decision": "do_not_ship"}, "Next: take smollm2-green out of the traffic."),
        ({"decision": "invalid"}, "Next: find what differs by arm (see the alarms), then start a new run."),
        (
            {"primary": [compared(verdict="undecided", units_needed=3214, days_needed=2.1)]},
            "Next: about 3,200 more units, 2.1 days at the rate of the last 6.6 h, to find a difference of 5.0 %.",
        ),
        ({"primary": [compared(verdict="undecided", units_needed=0)]}, "Next: keep going; a verdict is due."),
        (
            {"primary": [compared(verdict="undecided", units_needed=3200)]},
            "Next: about 3,200 more units, and no new ones have come of late, to find a difference of 5.0 %.",
        ),
        (
            {"primary": [compared(verdict="undecided", effect=Effect(estimate=0.01))]},
            "Next: find out why requests have no value or no end: they could explain a difference of ttft by 5.0 %, "
            "whatever the number of units.",
        ),
        ({}, "Next: keep going for 16 h of traffic: hours of a day differ (`min_duration_s`)."),
        (
            {"guardrails": [msgspec.structs.replace(guardrail("error", 9.0, 1, 40, alarm=True), action="alert")]},
            "Next: look into the guardrails that alarmed, error on smollm2-green.",
        ),
        ({"primary": [compared(verdict="equivalent")]}, "Next: take the one that you prefer for other reasons."),
        (
            {"primary": [compared(verdict="too_early", reason="12 units on green so far, 30 are needed")]},
            "Next: keep going.",
        ),
        ({"mode": "aa"}, "Next: nothing to do; a difference would raise an alarm."),
    ],
)
def test_the_next_step_is_named(fields: dict[str, Any], words: str) -> None:
    report = msgspec.structs.replace(SHIP, **({"decision": "keep_going"} | fields))
    decisions = {GREEN: report.decision}
    assert reporting.next_step(report, decisions, dict.fromkeys(report.treatments, 57600.0)) == words


def test_one_bad_treatment_of_several_is_taken_out_while_the_others_go_on() -> None:
    report = msgspec.structs.replace(SHIP, treatments=["red", "green"], decision="keep_going")
    decisions: dict[str, Decision] = {"red": "do_not_ship", "green": "keep_going"}
    assert (
        reporting.next_step(report, decisions, NOTHING_MISSING)
        == "Next: take red out of the traffic. Keep going with green."
    )


def test_nothing_is_said_of_the_guardrails_and_the_split_where_the_ledger_cannot_be_read() -> None:
    damaged = msgspec.structs.replace(SHIP, incomplete=["a.parquet: not a Parquet file"])
    last = reporting.details(damaged, 0.05, "users")[-1]
    assert "quiet" not in last
    assert "no alarm" not in last
    assert "only a part is known" in last
