import math
from typing import Any

import numpy as np
import pytest

from app.config.experiments import EVENTS
from app.experiments.analysis.metrics import (
    EventThresholds,
    Measure,
    Values,
    can_be_missing,
    facts_of,
    happened,
    late_events,
    measures_of,
    values_of,
)
from app.exposures.wire import Flag
from tests.support.experiments.exposure_columns import Fields, Recorder
from tests.support.experiments.world import config

FAILED: Fields = {
    "error": 1, "status": 502, "served": -1, "ttft_s": None, "itl_mean_s": None, "itl_max_s": None,
    "completion_tokens": None, "prompt_tokens": None,
}  # fmt: skip


def measure(metric: str, statistic: str | None = None, **more: Any) -> Measure:
    declared = {"metric": metric, "minimal_effect": 0.05, **more} | ({"statistic": statistic} if statistic else {})
    return measures_of(config(primary=[declared]).experiments["green-float32"])[0]


def values(calls: Measure, *fields: Fields) -> Values:
    recorder = Recorder()
    rows = recorder.rows(*fields)
    return values_of(calls, rows, facts_of(config(), recorder.tables))


def test_a_geometric_mean_is_of_logarithms() -> None:
    measured = values(measure("ttft"), {"ttft_s": 0.25}, {"ttft_s": 0.0})
    assert measured.x.tolist() == pytest.approx([math.log(0.25), math.log(1e-4)])
    assert measured.d.tolist() == [1, 1]


def test_a_failed_stream_lacks_its_first_token_and_a_whole_answer_never_has_one() -> None:
    measured = values(measure("ttft"), FAILED, {"stream": False, "ttft_s": None}, {})
    assert measured.missing.tolist() == [True, False, False]
    assert measured.valid.tolist() == [False, False, True]
    assert measured.x[:2].tolist() == measured.d[:2].tolist() == [0, 0]


def test_the_duration_of_a_failure_is_no_duration() -> None:
    gone = {"flags": int(Flag.CLIENT_GONE), "status": 499}
    measured = values(measure("duration"), FAILED, gone, {"stream": False, "duration_s": 2.0})
    assert measured.missing.tolist() == [True, True, False]
    assert measured.x[2] == pytest.approx(math.log(2))


def test_a_fallbacks_answer_counts_for_the_deployment_that_was_assigned() -> None:
    measured = values(measure("duration"), {"error": 1, "served": 1, "assigned": 0, "duration_s": 3.0})
    assert measured.valid.all()
    assert values(measure("error"), {"error": 1, "served": 1, "assigned": 0}).x.tolist() == [1]


def test_the_mean_of_a_latency_is_capped_at_the_longest_request_allowed() -> None:
    assert values(measure("duration", "mean"), {"duration_s": 9999.0}).x.tolist() == [3600]


def test_tokens_per_second_is_a_ratio_after_the_first_token() -> None:
    measured = values(
        measure("tokens_per_second"),
        {"completion_tokens": 31, "ttft_s": 0.5, "duration_s": 2.0},
        {"completion_tokens": None},
        {"flags": int(Flag.CLIENT_GONE)},
    )
    assert (measured.x[0], measured.d[0]) == (30, 1.5)
    assert measured.missing.tolist() == [False, True, True]


def test_cost_uses_the_price_of_the_deployment_that_answered() -> None:
    measured = values(
        measure("cost"),
        {"prompt_tokens": 1000, "completion_tokens": 100, "served": 0},
        {"prompt_tokens": 1000, "completion_tokens": 100, "served": 1},
        {"prompt_tokens": 1000, "completion_tokens": None, "served": 0},
        FAILED,
    )
    assert measured.x.tolist() == pytest.approx([0.0012, 0.0013, 0.001, 0])
    assert measured.missing.tolist() == [False, False, False, True]


def test_goodput_counts_every_request() -> None:
    calls = measure("goodput", within={"ttft_s": 1.0, "itl_s": 0.1})
    measured = values(
        calls,
        {"ttft_s": 0.5, "itl_mean_s": 0.05},
        {"ttft_s": 1.5},
        {"itl_mean_s": 0.2},
        {"itl_mean_s": None},
        {"stream": False, "ttft_s": None, "itl_mean_s": None},
        FAILED,
        {"error": 4},
        {"status": 499, "flags": int(Flag.CLIENT_GONE)},
    )
    assert measured.x.tolist() == [1, 0, 0, 1, 1, 0, 0, 0]
    assert measured.valid.all()
    assert not can_be_missing(calls)


EVENT_CASES: dict[str, tuple[Fields, Fields]] = {
    "error": ({"error": 3}, {"status": 404}),
    "slow": ({"ttft_s": 12.0}, {"ttft_s": 9.0}),
    "empty": ({"flags": int(Flag.EMPTY)}, {}),
    "truncated": ({"finish": 2}, {"finish": 1}),
    "stalled": ({"itl_max_s": 6.0}, {"itl_max_s": 4.0}),
    "invalid_output": ({"flags": int(Flag.INVALID_OUTPUT)}, {}),
    "client_gone": ({"flags": int(Flag.CLIENT_GONE)}, {"status": 500}),
    "unfinished": ({"duration_s": 700.0}, {"duration_s": 500.0}),
}


@pytest.mark.parametrize("event", EVENTS)
def test_each_event_is_recognised(event: Any) -> None:
    rows = Recorder().rows(*EVENT_CASES[event])
    assert happened(event, rows, EventThresholds()).tolist() == [True, False]


def test_a_stream_that_ends_without_a_first_token_after_the_limit_was_slow() -> None:
    none: Fields = {"ttft_s": None}
    rows = Recorder().rows(
        none | {"duration_s": 15.0}, none | {"duration_s": 2.0}, {"stream": False, "duration_s": 15.0}
    )
    assert happened("slow", rows, EventThresholds()).tolist() == [True, False, False]


def test_a_whole_answer_is_slow_by_its_own_limit() -> None:
    none: Fields = {"ttft_s": None, "stream": False}
    rows = Recorder().rows(none | {"duration_s": 25.0}, none | {"duration_s": 15.0}, {"duration_s": 25.0})
    assert happened("slow", rows, EventThresholds()).tolist() == [True, False, False]
    assert happened("slow", rows, EventThresholds(answer_above_s=12.0)).tolist() == [True, True, False]


def test_late_records_are_slow_or_unfinished_by_their_limits() -> None:
    limits = [(0, 10.0), (0, 2.0), (1, 600.0), (2, 20.0), (2, 10.0)]
    late = Recorder().late(*({"kind": kind, "above_s": above_s} for kind, above_s in limits))
    assert late_events("slow", late, EventThresholds()).tolist() == [True, False, False, True, False]
    assert late_events("unfinished", late, EventThresholds()).tolist() == [False, False, True, False, False]
    assert not late_events("error", late, EventThresholds()).any()


def test_metrics_of_events_take_the_limit_of_the_guardrail() -> None:
    declared = config(
        primary=[{"metric": "slow", "minimal_effect": 0.1}], guardrails=[{"event": "slow", "ttft_above_s": 2.0}]
    )
    assert measures_of(declared.experiments["green-float32"])[0].limits.ttft_above_s == 2.0


def test_feedback_metrics_come_with_their_response_rate() -> None:
    declared = config(
        feedback={"thumbs": {}, "stars": {"type": "number", "min": 1, "max": 5, "better": "lower"}},
        secondary=[{"metric": "thumbs", "minimal_effect": 0.02}, {"metric": "stars", "minimal_effect": 0.2}],
    )
    measures = measures_of(declared.experiments["green-float32"])
    assert [(measure.key, measure.kind, measure.scale, measure.better) for measure in measures[1:]] == [
        ("thumbs", "proportion", "relative", "higher"),
        ("stars", "mean", "absolute", "lower"),
        ("thumbs.response_rate", "proportion", "relative", "neither"),
        ("stars.response_rate", "proportion", "relative", "neither"),
        ("output_tokens", "mean", "relative", "neither"),
    ]


@pytest.mark.parametrize(
    ("declared", "compared"),
    [
        ({}, [("output_tokens", "neither", True)]),
        ({"mode": "aa", "treatments": ["label"]}, []),
        ({"secondary": [{"metric": "output_tokens", "minimal_effect": 0.1}]}, [("output_tokens", "neither", False)]),
        (
            {"secondary": [{"metric": "output_tokens", "minimal_effect": 0.1, "better": "lower"}]},
            [("output_tokens", "lower", False)],
        ),
    ],
)
def test_the_answers_length_is_compared_wherever_something_may_ship(
    declared: dict[str, Any], compared: list[tuple[str, str, bool]]
) -> None:
    measures = measures_of(config(**declared).experiments["green-float32"])
    assert [(measure.key, measure.better, measure.guard) for measure in measures[1:]] == compared


def test_a_quantile_has_its_own_key_and_its_share() -> None:
    calls = measure("ttft", "p95")
    assert (calls.key, calls.kind, calls.quantile) == ("ttft.p95", "quantile", 0.95)
    assert np.isfinite(values(calls, {}).x).all()
