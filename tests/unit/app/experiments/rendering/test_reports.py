"""The acting state in words: what is in force, what was done, and what a person can do.

Reports as text and as Markdown.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from app.experiments.contract.report import (
    ArmDistribution,
    AutomationStatus,
    Cause,
    Distribution,
    Effect,
    Report,
    Verdict,
    summary_of,
)
from app.experiments.rendering import document as markdown
from app.experiments.rendering import document as text
from app.experiments.rendering.reports import Action, acting_blocks, document, list_document, standing
from tests.support.experiments.reports import BLUE, EMPTY, GREEN, INVALID, NOW, SHIP, START, TTFT, guardrail, values

RESUME = "To go on: switchyard experiments decide green-float32 resume --reason TEXT"


def acting(**given: Any) -> AutomationStatus:
    return AutomationStatus(**{"state": "running", "revision": 3, "step": 1, "share": 5, "next_share": 25, **given})


def lines(status: AutomationStatus, actions: Sequence[Action] = ()) -> list[str]:
    return text.text(acting_blocks(SHIP, status, actions)).splitlines()[1:]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "running at 5 % (step 2)"),
        ({"step": None}, "running at 5 %"),
        ({"state": "paused"}, "paused at 5 %"),
        ({"state": "paused", "share": 0, "until": NOW + 3600}, "paused at 0 % until 13 Nov 17:20"),
        ({"state": "paused", "stopped": ["green", "red"]}, "paused at 5 %, no traffic for green and red"),
        ({"state": "stopped"}, "stopped at 5 %"),
    ],
)
def test_the_state_in_a_few_words(given: dict[str, Any], words: str) -> None:
    assert standing(acting(**given), NOW) == words


@pytest.mark.parametrize("cause", ["alarm", "worse"])
def test_a_pause_for_harm_offers_the_rollback_first(cause: Cause) -> None:
    rollback = "To roll back: switchyard experiments decide green-float32 rollback --reason TEXT"
    assert lines(acting(state="paused", cause=cause))[1:] == [rollback, RESUME]
    assert lines(acting(state="paused", cause=cause, share=0))[1:] == [RESUME]


def test_a_ramp_on_its_way() -> None:
    assert lines(acting()) == ["Running: the ramp is at step 2, and the treatment has 5 % of the traffic."]
    before = acting(step=None, share=0, next_share=1)
    assert lines(before) == ["Running: the ramp is before its first step, and the treatment has 0 % of the traffic."]
    assert lines(acting(step=None, next_share=None, share=50)) == ["Running: the treatment has 50 % of the traffic."]


def test_a_rollback_shows_its_freeze_its_actions_and_how_to_resume() -> None:
    status = acting(state="paused", cause="alarm", until=NOW + 3600, share=0, stopped=["smollm2-green"])
    actions = [(START, "The ramp begins"), (START + 60, "smollm2-green exceeds the guardrail error")]
    assert lines(status, actions) == [
        "Paused until 13 November 17:20 UTC: the ramp is at step 2, and the treatment has 0 % of the traffic.",
        "Routers give smollm2-green nothing, and its traffic to smollm2-blue, until the plan says the same.",
        RESUME,
        "",
        "- 12 November 14:05: The ramp begins",
        "- 12 November 14:06: smollm2-green exceeds the guardrail error",
    ]


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ({"state": "paused", "cause": "decision", "by": "ann"}, RESUME),
        ({"state": "paused", "cause": "file"}, None),
        ({"waits_for": ["a manager's `advance`"]}, "advance --reason TEXT"),
        ({"waits_for": ["a manager's `promote`, of a or b"]}, "promote --treatment NAME --reason TEXT"),
        ({"waits_for": ["12 more units"]}, None),
        ({"state": "stopped", "cause": "decision"}, None),
    ],
)
def test_the_command_is_shown_if_a_person_has_to_decide(given: dict[str, Any], command: str | None) -> None:
    last = lines(acting(**given))[-1]
    assert ("switchyard experiments decide green-float32" in last) == (command is not None)
    assert command is None or last.endswith(command)


def test_the_author_of_a_decision_is_named() -> None:
    assert lines(acting(state="paused", cause="decision", by="ann"))[0].startswith("Paused, by ann: ")


def test_the_report_has_it_before_the_tables() -> None:
    shown = markdown.markdown(document(SHIP, acting(state="paused"), [(START, "The ramp begins")]))
    assert shown.index("## What is done about it") < shown.index("- 12 November 14:05: The ramp begins")
    assert shown.index("The ramp begins") < shown.index("## Arms")
    assert "Paused experiment, since 12 November 14:05" in shown
    assert "What is done" not in markdown.markdown(document(SHIP))


def test_the_list_has_the_state_that_acting_gives_it() -> None:
    summary = summary_of(SHIP, acting(state="paused", until=NOW))
    row = text.text(list_document([summary])).splitlines()[1]
    assert "paused at 5 % until 13 Nov 2025 16:20" in row


def test_the_list_shows_the_effect_that_the_verdict_rests_on() -> None:
    exact = Effect(estimate=3.0, lower=1.0, upper=None)
    rare = msgspec.structs.replace(SHIP.primary[0], metric="error", verdict="worse", effect=Effect(), event_test=exact)
    (shown,) = summary_of(msgspec.structs.replace(SHIP, primary=[rare])).primary
    assert (shown.verdict, shown.effect) == ("worse", exact)


def as_text(report: Report) -> str:
    return text.text(document(report))


def as_markdown(report: Report) -> str:
    return markdown.markdown(document(report))


def line(report: Report, start: str) -> str:
    return next(line for line in as_text(report).splitlines() if line.startswith(start))


def test_the_verdict_comes_first() -> None:
    first = as_text(SHIP).splitlines()[:2]
    assert first[0] == SHIP.headline
    assert SHIP.details[0].startswith(first[1])
    assert as_markdown(SHIP).startswith(f"# {SHIP.headline}\n\n{SHIP.details[0]}")


@pytest.mark.parametrize("report", [SHIP, INVALID])
def test_text_fits_100_columns(report: Report) -> None:
    assert max(len(line) for line in as_text(report).splitlines()) <= 100


def test_long_names_of_deployments_do_not_break_the_tables() -> None:
    long = "a" * 63
    report = msgspec.json.decode(msgspec.json.encode(SHIP).replace(GREEN.encode(), long.encode()), type=Report)
    assert max(len(line) for line in as_text(report).splitlines()) <= 100


def test_absurd_numbers_do_not_break_the_tables() -> None:
    absurd = Effect(estimate=987654.321, lower=-987654.321, upper=987654.321)
    wide = msgspec.structs.replace(TTFT, metric="a" * 63, effect=absurd, values=values(123456.7, 987654.3))
    guarded = msgspec.structs.replace(guardrail("invalid_output", 5.0, 10**10, 10**10), detectable=12345.6)
    counts = {BLUE: 10**10, GREEN: 10**10}
    report = msgspec.structs.replace(
        SHIP, primary=[wide], guardrails=[guarded], units=counts, requests=counts, forced=counts, rows_lost=counts
    )
    assert max(len(line) for line in as_text(report).splitlines()) <= 100


def test_a_metrics_row_has_both_values_the_change_its_interval_and_the_verdict() -> None:
    cells = line(SHIP, "ttft ").split("  ")
    assert [cell.strip() for cell in cells if cell.strip()] == [
        "ttft",
        "312 ms",
        "288 ms",
        "-7.7 %",
        "-13.4 % to -1.7 %",
        "better since 13 Nov 13:58",
    ]


def test_few_events_show_their_exact_test() -> None:
    assert "-60.0 % to +240 %" in line(SHIP, "empty")
    assert "- empty: 4 events on control and 6 on treatment; the interval is their exact test." in as_text(SHIP)


def test_a_missing_interval_is_shown_as_a_dash() -> None:
    bare = msgspec.structs.replace(EMPTY, event_test=None, events=None, effect=Effect())
    report = msgspec.structs.replace(SHIP, primary=[bare], secondary=[])
    assert line(report, "empty").split()[-3:] == ["-", "-", "undecided"]
    assert "- empty: fewer than 10 events in an arm." in as_text(report)


def test_the_response_rate_of_feedback_is_shown() -> None:
    assert "thumbs: 12.0 % of control's and 12.4 % of treatment's requests have feedback" in as_text(SHIP)


def test_a_quiet_guardrail_shows_the_detectable_effect() -> None:
    assert (
        "| error | at most 1.5 times control's rate | 14 | 12 | 2.9 times | 23 % | rollback | quiet |"
        in as_markdown(SHIP)
    )


def test_a_guardrail_that_nearly_no_request_counts_for_does_not_look_healthy() -> None:
    status = msgspec.structs.replace(guardrail("truncated", 0.0, 0, 0), blind="of 1,200 requests only 3 count: why")
    report = msgspec.structs.replace(SHIP, guardrails=[status])
    shown = as_markdown(report).splitlines()
    assert [row for row in shown if row.startswith("| truncated") and row.endswith("| sees next to nothing |")]
    assert "- truncated sees next to nothing: of 1,200 requests only 3 count: why." in shown
    alarmed = msgspec.structs.replace(status, alarm=True)
    assert "ALARM" in line(msgspec.structs.replace(SHIP, guardrails=[alarmed]), "truncated")


def test_a_guardrails_requests_are_a_sentence_and_its_cells_are_counts() -> None:
    few = msgspec.structs.replace(
        guardrail("empty", 1.0, 20, 3), requests={BLUE: 0, GREEN: 3}, of_requests={BLUE: 36, GREEN: 1200}
    )
    shown = as_markdown(msgspec.structs.replace(SHIP, guardrails=[few]))
    assert "| 20 | 3 |" in shown
    assert "- empty: 0 of control's 36 ended requests have it, and 3 of treatment's 1,200." in shown
    assert "ended requests" not in as_markdown(SHIP)


def test_the_report_says_why_the_change_is_not_the_difference_of_the_columns() -> None:
    shown = as_markdown(SHIP)
    assert "Control and treatment: the metric over all requests of the arm, as they came, times as geometric " in shown


def test_an_alarm_is_shown_with_its_time_and_action() -> None:
    assert "ALARM since 12 Nov 14:55 |" in as_markdown(INVALID)


@pytest.mark.parametrize("unhealthy", [False, True])
def test_the_evidence_beside_an_alarm_is_never_less_than_an_alarms(unhealthy: bool) -> None:
    over = guardrail("error", 0.0, 9, 3, alarm=True)
    status = msgspec.structs.replace(over, detector=-3.0, unhealthy=unhealthy)
    shown = line(msgspec.structs.replace(SHIP, guardrails=[status]), "error")
    assert "100 %" in shown
    assert "ALARM" in shown


def test_evidence_that_is_no_alarm_yet_says_why() -> None:
    status = msgspec.structs.replace(guardrail("error", 2.649, 9, 2), detector=-3.0)
    quiet = as_markdown(msgspec.structs.replace(SHIP, guardrails=[status]))
    assert "| 50 % | rollback | quiet |" in quiet
    enough = [msgspec.structs.replace(status, log_e_value=6.0)]
    shown = as_markdown(msgspec.structs.replace(SHIP, guardrails=enough))
    assert "| 113 % | rollback | waits for more units, or for control to keep the limit |" in shown


def test_a_guardrail_of_several_treatments_names_its_treatment() -> None:
    report = msgspec.structs.replace(SHIP, treatments=[GREEN, "red"])
    assert line(report, f"error, {GREEN}")


def test_control_above_an_absolute_limit_is_shown() -> None:
    report = msgspec.structs.replace(
        SHIP, guardrails=[msgspec.structs.replace(guardrail("error", 1.0, 900, 3), unhealthy=True)]
    )
    assert "control itself exceeds the limit" in as_markdown(report)


def test_a_wrong_split_is_shown_with_the_differences() -> None:
    shown = as_text(INVALID)
    assert "ALARM since 12 November 16:05: the units contradict the weights. Verdicts are invalid." in shown
    assert "- smollm2-green lost 4,790 rows (30.0 %), smollm2-blue 20 (0.1 %)." in shown
    assert "As configured: 0 % of an alarm's evidence." in as_text(SHIP)


def test_served_is_shown_only_if_it_differs_from_assigned() -> None:
    assert "Assigned and served" in as_text(SHIP)
    assert "Assigned and served" not in as_text(INVALID)


def test_loss_is_shown_only_if_there_is_any() -> None:
    assert "ROWS LOST" not in as_text(SHIP)
    assert line(INVALID, "treatment").split()[-1] == "4,790"


def test_alarms_and_warnings_come_before_the_tables() -> None:
    shown = as_text(INVALID)
    assert shown.index("Alarms\n- 12 November 16:05") < shown.index("Warnings\n- A router's") < shown.index("Arms\n")


def test_markdown_shows_names_as_they_are() -> None:
    report = msgspec.structs.replace(SHIP, warnings=["<img onerror=x> | `b` *c* _d_ a_b"])
    assert r"- \<img onerror=x\> \| \`b\` \*c\* \_d\_ a_b" in as_markdown(report)


def test_every_line_of_a_markdown_table_has_the_same_number_of_cells() -> None:
    for block in as_markdown(SHIP).split("\n\n"):
        if block.startswith("|"):
            assert len({line.count(" | ") for line in block.splitlines()}) == 1


def test_both_arms_are_in_the_order_control_treatment() -> None:
    arms = as_text(SHIP).split("Arms\n")[1].splitlines()[1:3]
    assert [arm.split()[0] for arm in arms] == ["control", "treatment"]
    assert [arm.split()[1] for arm in arms] == [BLUE, GREEN]


def test_a_metric_that_cannot_be_judged_says_why() -> None:
    report = msgspec.structs.replace(
        SHIP, primary=[msgspec.structs.replace(TTFT, verdict="invalid", reason="12 units")], secondary=[]
    )
    assert line(report, "ttft").endswith("invalid")
    assert "- ttft: 12 units." in as_text(report)


def test_primary_and_secondary_metrics_are_separated() -> None:
    shown = as_text(SHIP)
    assert shown.index("PRIMARY") < shown.index("\nttft ") < shown.index("SECONDARY") < shown.index("\nttft.p95")


def test_missing_units_are_rounded() -> None:
    assert "undecided: about 3,200 more units, 2.1 days" in as_markdown(SHIP)


def test_distributions_are_quantiles_of_each_arm() -> None:
    assert "| metric | arm | requests | p5 | p50 | p95 | p99 |" in as_markdown(SHIP)
    assert f"| ttft | {GREEN} | 15,948 | 65.5 ms | 288 ms | 1.27 s | 2.34 s |" in as_markdown(SHIP)
    assert f"| output_tokens | {BLUE} | 15,922 | 48.3 tokens | 180 tokens |" in as_markdown(SHIP)
    assert "Distributions" not in as_markdown(INVALID)
    silent = Distribution(metric="itl", shares=[0.5], arms=[ArmDistribution(arm=BLUE, requests=0, values=[])])
    report = msgspec.structs.replace(SHIP, distributions=[silent])
    assert f"| itl | {BLUE} | 0 | - | - | - | - |" in as_markdown(report)


def test_the_report_says_by_how_much_history_reduces_the_variance() -> None:
    assert "before the run" not in as_markdown(SHIP)
    primary = [msgspec.structs.replace(comparison, variance_ratio=0.314) for comparison in SHIP.primary]
    shown = as_markdown(msgspec.structs.replace(SHIP, primary=primary))
    assert "Adjusted for what was known of units before; variance by what it would be: ttft 0.31." in shown


def test_thinned_units_are_reported_with_what_guardrails_and_the_split_keep() -> None:
    shown = as_markdown(msgspec.structs.replace(SHIP, thinned=0.25))
    assert "25.0 % of the units are kept for metrics. Guardrails keep up to two million units with an event" in shown


def test_since_stands_beside_a_verdict_on_the_effect_alone() -> None:
    """While records are counted again, a word outlives its verdict."""
    verdicts: tuple[Verdict, ...] = ("better", "undecided", "invalid")
    said = []
    for verdict in verdicts:
        ttft = msgspec.structs.replace(TTFT, verdict=verdict, since=NOW - 3600)
        shown = " ".join(text.text(document(msgspec.structs.replace(SHIP, primary=[ttft]))).split())
        said.append(f"{verdict} since" in shown)
    assert said == [True, False, False]


def test_a_reason_that_the_details_tell_stands_once_in_the_report() -> None:
    reason = "12 units on smollm2-green have a value so far, 30 are needed"
    early = msgspec.structs.replace(SHIP.primary[0], verdict="too_early", effect=Effect(), reason=reason)
    report = msgspec.structs.replace(SHIP, primary=[early], details=[f"First token: {reason}."])
    assert text.text(document(report)).replace("\n", " ").count("12 units on smollm2-green have") == 1


def test_a_word_that_no_longer_holds_is_noted() -> None:
    withdrawn = msgspec.structs.replace(SHIP.primary[0], verdict="undecided", no_longer="better")
    shown = text.text(document(msgspec.structs.replace(SHIP, primary=[withdrawn])))
    assert "- ttft: no longer better, as it was said to be before.\n" in shown
