import pytest

from app.experiments.contract.report import Effect, Verdict
from app.experiments.rendering import words
from tests.support.experiments.reports import START, TAIL, THUMBS, TTFT


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.08, "8.0 %"), (0.00025, "0.025 %"), (1.0, "100 %"), (2.4, "240 %"), (0.0, "0.0 %"), (-0.0091, "-0.91 %")],
)
def test_a_percentage_has_as_many_digits_as_mean_something(share: float, text: str) -> None:
    assert words.percent(share) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0003124, "0.312 ms"), (0.312, "312 ms"), (1.42, "1.42 s"), (3600.0, "3,600 s")]
)
def test_short_times_are_milliseconds(value: float, text: str) -> None:
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(45.0, "45 s"), (720.0, "12 min"), (12600.0, "3.5 h"), (181440.0, "2.1 days")]
)
def test_a_time_span_is_in_its_largest_unit(value: float, text: str) -> None:
    assert words.duration(value) == text


def test_a_time_shows_the_year_only_if_it_is_not_the_present_one() -> None:
    assert words.moment(START, START) == "12 November 14:05"
    assert words.moment(START, START + 366 * 86400) == "12 November 2025 14:05"
    assert words.moment(START, START, short=True) == "12 Nov 14:05"


def test_values_have_the_metrics_own_unit() -> None:
    assert words.metric_value(TTFT, 0.312) == "312 ms"
    assert words.metric_value(TAIL, 1.42) == "1.42 s"
    assert words.metric_value(THUMBS, 0.712) == "71.2 %"
    assert words.metric_value(TTFT, None) == "-"


def test_an_effect_is_a_lift_or_a_difference() -> None:
    assert words.effect_value(TTFT, -0.0769) == "-7.7 %"
    assert words.effect_value(TTFT, -0.0769, "absolute") == "-76.9 ms"
    assert words.interval(TTFT, TTFT.effect) == "-13.4 % to -1.7 %"
    assert words.interval(TTFT, Effect()) == "-"


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [
        ("better", "better"),
        ("equivalent", "equivalent"),
        ("undecided", "undecided, non-inferior"),
        ("worse", "worse, but by less than the minimal effect"),
    ],
)
def test_non_inferiority_is_said_where_the_verdict_does_not_imply_it(verdict: Verdict, shown: str) -> None:
    assert words.verdict(verdict, non_inferior=True) == shown
    assert words.verdict(verdict) == verdict


def test_a_latched_verdict_says_since_when() -> None:
    assert (
        words.verdict("undecided", non_inferior=True, since="13 Nov 13:58")
        == "undecided since 13 Nov 13:58, non-inferior"
    )
    assert words.verdict("invalid", non_inferior=True) == "invalid"
