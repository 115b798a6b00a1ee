"""The metrics of the last minute are the difference of two readings of the counters."""

import math
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.output import Usage
from app.errors import CLIENT_GONE
from app.telemetry.logs import Record
from app.telemetry.metrics import FIRST_TOKEN, Telemetry
from app.telemetry.periods import MOST_STREAMS
from app.telemetry.recent import BucketCounts, Counts, Recent, in_flight, read

BOUNDS = (1.0, 2.0, 4.0, math.inf)


def count(telemetry: Telemetry, *, deployment: str = "blue", reason: str = "traffic", **more: object) -> None:
    record = Record("openai", "chat", "id", endpoint="chat", deployment=deployment, reason=reason)
    for name, value in {"status": 200, **more}.items():
        setattr(record, name, value)
    telemetry.finish(record)


@pytest.mark.parametrize(
    ("counts", "median"),
    [
        ([0, 0, 0, 0], None),
        ([4, 0, 0, 0], 0.5),
        ([0, 4, 0, 0], 1.5),
        ([2, 0, 2, 0], 1.0),
        ([0, 0, 0, 4], 4.0),
        ([1, 1, 2, 0], 2.0),
    ],
)
def test_a_quantile_is_interpolated_within_its_bucket(counts: list[float], median: float | None) -> None:
    assert BucketCounts(BOUNDS, counts).quantile(0.5) == median


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.floats(0, 1), st.floats(0, 1))
def test_quantiles_rise_with_the_share_and_stay_within_the_bounds(counts: list[float], a: float, b: float) -> None:
    buckets = BucketCounts(BOUNDS, counts)
    low, high = buckets.quantile(min(a, b)), buckets.quantile(max(a, b))
    if sum(counts) == 0:
        assert low is None
    else:
        assert low is not None
        assert high is not None
        assert 0 <= low <= high <= 4.0


@given(st.lists(st.floats(0.0, 400.0), min_size=1, max_size=30), st.floats(0, 1), st.booleans())
def test_no_percentile_exceeds_the_longest_time(times: list[float], share: float, are_known: bool) -> None:
    """Of a histogram, and of the values themselves."""
    bounds = [*FIRST_TOKEN, math.inf]
    counts = [0.0] * len(bounds)
    for time in times:
        counts[bisect_left(bounds, time)] += 1
    value = BucketCounts(bounds, counts, max(times), times if are_known else ()).quantile(share)
    assert value is not None
    assert value <= max(times) or max(times) == 0
    assert not are_known or value in times


def test_the_percentiles_of_few_streams_are_their_own_times() -> None:
    telemetry = Telemetry()
    recent = Recent(telemetry, 0.0)
    for first_byte in (41.0, 0.5):
        count(telemetry, streamed=True, started=0.0, first_byte=first_byte, usage=Usage(9, 1))
    recent.sample(10.0)
    count(telemetry, streamed=True, started=0.0, first_byte=42.0, usage=Usage(9, 1))
    first_token = recent.window(20.0).counts["chat", "blue"].first_token
    assert [first_token.quantile(share) for share in (0.3, 0.5, 0.95)] == [0.5, 41.0, 42.0]
    recent.sample(65.0)
    first_token = recent.window(75.0).counts["chat", "blue"].first_token
    assert [first_token.quantile(share) for share in (0.5, 0.95)] == [42.0, 42.0]


def test_of_more_streams_than_are_kept_no_percentile_exceeds_the_longest_of_the_minute() -> None:
    telemetry = Telemetry()
    recent = Recent(telemetry, 0.0)
    count(telemetry, streamed=True, started=0.0, first_byte=70.0)
    recent.sample(10.0)
    for _ in range(MOST_STREAMS + 1):
        count(telemetry, streamed=True, started=0.0, first_byte=42.0)
    reading = recent.sample(80.0)
    assert reading["chat", "blue"].first_token.longest == 42.0, "since the reading before"
    assert recent.window(90.0).counts["chat", "blue"].first_token.quantile(0.95) == 42.0


def test_the_window_has_the_plans_that_drew_its_requests() -> None:
    telemetry = Telemetry()
    recent = Recent(telemetry, 0.0)
    telemetry.period.drew("chat", "0-a", {"blue": 100})
    recent.sample(10.0)
    telemetry.period.drew("chat", "0-a", {"blue": 100})
    recent.sample(20.0)
    telemetry.period.drew("chat", "1-b", {"blue": 50, "green": 50})
    drawn = recent.window(75.0).drawn
    assert {plan: one.requests for (_, plan), one in drawn.items()} == {"0-a": 1, "1-b": 1}


def test_requests_without_a_deployment_are_left_out() -> None:
    telemetry = Telemetry()
    telemetry.limited("chat", "requests")
    telemetry.limit_used("chat", "requests", 0.5)
    telemetry.routing.waited("chat", 0.1)
    assert read(telemetry) == {}


def test_a_reading_sums_dialects_and_statuses_by_endpoint_and_deployment() -> None:
    telemetry = Telemetry()
    count(telemetry, usage=Usage(9, 3))
    count(telemetry, dialect="anthropic", reason="sticky", usage=Usage(9, 4))
    count(telemetry, reason="header")
    count(telemetry, status=502, error="unavailable")
    count(telemetry, status=400, error="bad_request")
    count(telemetry, deployment="green", reason="failover")
    reading = read(telemetry)
    blue = reading["chat", "blue"]
    assert (blue.requests, blue.drawn, blue.errors, blue.refused, blue.output_tokens) == (5, 4, 1, 1, 7)
    assert (blue.answered, blue.failures, blue.refusals) == (3, {"unavailable": 1}, {"bad_request": 1})
    assert (blue.reasons["failover"], reading["chat", "green"].drawn) == (0, 1)
    assert reading["chat", "green"].since(reading["chat", "green"]).reasons["failover"] == 0


@given(
    st.lists(
        st.sampled_from(
            [
                (200, ""),
                (200, "incomplete"),
                (499, CLIENT_GONE),
                (429, "limit_exceeded"),
                (424, "unavailable"),
                (503, "unavailable"),
                (404, "not_found"),
            ]
        )
    )
)
def test_every_request_has_one_outcome(requests: list[tuple[int, str]]) -> None:
    """Also where a dialect words a failure with a status below 500."""
    telemetry = Telemetry()
    for status, error in requests:
        count(telemetry, status=status, error=error)
    counts = read(telemetry).get(("chat", "blue"), Counts())
    kinds = [error for _, error in requests]
    assert counts.requests == len(requests)
    assert counts.answered == kinds.count("")
    assert counts.left == kinds.count(CLIENT_GONE)
    assert counts.refused == kinds.count("limit_exceeded") + kinds.count("not_found")
    assert counts.errors == kinds.count("unavailable") + kinds.count("incomplete")


def test_times_are_those_of_streams() -> None:
    telemetry = Telemetry()
    count(telemetry, streamed=True, started=0.0, first_byte=0.05, usage=Usage(9, 3))
    count(telemetry)
    counts = read(telemetry)["chat", "blue"]
    assert sum(counts.first_token.counts) == sum(counts.inter_token.counts) == 1
    assert counts.first_token.quantile(0.5) == pytest.approx(0.05)


def test_the_window_is_the_last_minute() -> None:
    telemetry = Telemetry()
    recent = Recent(telemetry, 0.0)
    for second in range(0, 200, 10):
        recent.sample(second)
        count(telemetry)
    window = recent.window(200.0)
    assert window.seconds == 60.0
    assert window.counts["chat", "blue"].requests == 6


def test_before_a_minute_has_passed_it_is_the_time_since_the_start() -> None:
    telemetry = Telemetry()
    count(telemetry)
    window = Recent(telemetry, 100.0).window(104.0)
    assert (window.seconds, window.counts["chat", "blue"].requests) == (4.0, 1)


def test_old_readings_are_forgotten() -> None:
    recent = Recent(Telemetry(), 0.0)
    for second in range(0, 10_000, 10):
        recent.sample(second)
    assert len(recent.readings) <= 8


def test_requests_in_flight_are_those_of_all_dialects() -> None:
    telemetry = Telemetry()
    blue = Record("openai", "chat", "id", endpoint="chat", deployment="blue")
    with telemetry.working(blue), telemetry.working(Record("tgi", "chat", "id", endpoint="chat", deployment="blue")):
        assert in_flight(telemetry) == {("chat", "blue"): 2}
    assert in_flight(telemetry) == {("chat", "blue"): 0}


def test_a_deployment_without_requests_counts_nothing() -> None:
    assert read(Telemetry()) == {}
    assert Counts().since(Counts()) == Counts()
