"""Reports as text and as Markdown."""

import msgspec
import pytest

from app.experiments.contract.report import ArmDistribution, Distribution, Effect, Report
from app.experiments.rendering import document as markdown
from app.experiments.rendering import document as text
from app.experiments.rendering.reports import document
from tests.support.experiments.reports import BLUE, EMPTY, GREEN, INVALID, SHIP, TTFT, guardrail, values


def as_text(report: Report) -> str:
    return text.text(document(report))


def as_markdown(report: Report) -> str:
    return markdown.markdown(document(report))


def line(report: Report, start: str) -> str:
    return next(it for it in as_text(report).splitlines() if it.startswith(start))


def test_the_verdict_comes_first() -> None:
    first = as_text(SHIP).splitlines()[:2]
    assert first[0] == SHIP.headline
    assert SHIP.details[0].startswith(first[1])
    assert as_markdown(SHIP).startswith(f"# {SHIP.headline}\n\n{SHIP.details[0]}")


@pytest.mark.parametrize("report", [SHIP, INVALID])
def test_text_fits_100_columns(report: Report) -> None:
    assert max(len(it) for it in as_text(report).splitlines()) <= 100


def test_long_names_of_deployments_do_not_break_the_tables() -> None:
    long = "a" * 63
    report = msgspec.json.decode(msgspec.json.encode(SHIP).replace(GREEN.encode(), long.encode()), type=Report)
    assert max(len(it) for it in as_text(report).splitlines()) <= 100


def test_absurd_numbers_do_not_break_the_tables() -> None:
    absurd = Effect(estimate=987654.321, lower=-987654.321, upper=987654.321)
    wide = msgspec.structs.replace(TTFT, metric="a" * 63, effect=absurd, values=values(123456.7, 987654.3))
    guarded = msgspec.structs.replace(guardrail("invalid_output", 5.0, 10**10, 10**10), detectable=12345.6)
    counts = {BLUE: 10**10, GREEN: 10**10}
    report = msgspec.structs.replace(
        SHIP, primary=[wide], guardrails=[guarded], units=counts, requests=counts, forced=counts, rows_lost=counts
    )
    assert max(len(it) for it in as_text(report).splitlines()) <= 100


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


def test_an_alarm_is_shown_with_its_time_and_action() -> None:
    assert "ALARM since 12 Nov 14:55 |" in as_markdown(INVALID)


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
            assert len({it.count(" | ") for it in block.splitlines()}) == 1


def test_both_arms_are_in_the_order_control_treatment() -> None:
    arms = as_text(SHIP).split("Arms\n")[1].splitlines()[1:3]
    assert [it.split()[0] for it in arms] == ["control", "treatment"]
    assert [it.split()[1] for it in arms] == [BLUE, GREEN]


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
    primary = [msgspec.structs.replace(it, variance_ratio=0.314) for it in SHIP.primary]
    shown = as_markdown(msgspec.structs.replace(SHIP, primary=primary))
    assert "Adjusted for what was known of units before; variance by what it would be: ttft 0.31." in shown


def test_thinned_units_are_reported_with_what_guardrails_and_the_split_keep() -> None:
    shown = as_markdown(msgspec.structs.replace(SHIP, thinned=0.25))
    assert "25.0 % of the units are kept for metrics. Guardrails keep up to two million units with an event" in shown
