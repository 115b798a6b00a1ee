"""The arithmetic of sliding windows, and the token estimate."""

import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.limits.limiter import estimate
from app.limits.sliding_window import PERIOD_S, Window, duration

counts = st.integers(0, 10_000)
moments = st.floats(0.001, PERIOD_S)


def later(window: Window, seconds: float) -> Window:
    """The same counts `seconds` later, with nothing added, as the library's storages return them."""
    left = window.current_left_s - seconds
    if left > PERIOD_S:
        return Window(window.previous, window.previous_left_s - seconds, window.current, left)
    return Window(window.current, max(0.0, left), 0, max(0.0, left) + PERIOD_S)


@given(previous=counts, current=counts, left=moments, limit=st.integers(1, 10_000), cost=st.integers(1, 10_000))
def test_a_rejected_request_fits_at_its_retry_time_and_not_much_sooner(
    previous: int, current: int, left: float, limit: int, cost: int
) -> None:
    assume(cost <= limit)
    window = Window(previous, left, current, PERIOD_S + left)
    wait = window.frees_in_s(limit, cost)
    assert 0 <= wait <= 2 * PERIOD_S
    assert later(window, wait + 1e-6).used + cost <= limit
    if wait > 0:
        assert window.used + cost > limit
        # Within the weight of one count, because the window rounds down.
        assert later(window, wait * 0.99).used + cost >= limit - max(1, 0.01 * (previous + current))


@given(previous=counts, current=counts, left=moments, limit=st.integers(1, 10_000))
def test_the_remainder_and_the_time_until_the_window_is_empty(
    previous: int, current: int, left: float, limit: int
) -> None:
    window = Window(previous, left, current, PERIOD_S + left)
    assert 0 <= window.remaining(limit) <= limit
    assert window.remaining(limit) in (0, limit - window.used)
    assert later(window, window.resets_in_s + 1e-6).used == 0


def test_an_untouched_window_is_empty() -> None:
    empty = Window(0, 0.0, 0, 0.0)
    assert (empty.used, empty.remaining(5), empty.resets_in_s, empty.frees_in_s(5, 5)) == (0, 5, 0.0, 0.0)


def test_a_late_refund_leaves_no_more_than_the_limit() -> None:
    assert Window(0, 0.0, -3, 100.0).remaining(5) == 5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0ms"),
        (0, "0ms"),
        (0.02, "20ms"),
        (0.9999, "1s"),
        (1, "1s"),
        (12.5, "12.5s"),
        (60, "1m0s"),
        (61.25, "1m1.25s"),
    ],
)
def test_durations_look_like_openais(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 1000))
def test_every_duration_has_the_form_that_clients_parse(seconds: float) -> None:
    assert re.fullmatch(r"\d{1,3}ms|(\d+m)?\d{1,2}(\.\d{1,3})?s", duration(seconds))


DATA_URL = "data:image/png;base64," + "iVBORw0KGgo" * 100_000


@pytest.mark.parametrize(
    ("body", "low", "high"),
    [
        ({}, 1, 1),
        ({"messages": [{"role": "user", "content": "x" * 400}]}, 100, 105),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "word " * 100}]}]}, 125, 130),
        ({"messages": [{"content": [{"type": "image_url", "image_url": {"url": DATA_URL}}]}]}, 400, 600),
        ({"messages": [{"content": [{"type": "input_audio", "input_audio": {"data": "QUJD" * 10_000}}]}]}, 400, 600),
        ({"messages": [{"content": "words and words " * 10_000}]}, 39_000, 41_000),
        ({"input": [{"content": [{"type": "input_image", "image_url": DATA_URL}]}]}, 400, 600),
        ({"messages": [{"content": "x" * 40_000}]}, 10_000, 10_001),  # no space, and no image either
        ({"prompt": "漢字" * 100}, 150, 150),
        ({"prompt": [1, 2, 3]}, 3, 3),
        ({"prompt": [[1, 2], [3]]}, 3, 3),
        ({"input": ["abcd" * 10, "abcd" * 10]}, 20, 20),
        ({"prompt": "a\ud800" * 4}, 1, 10),
        ({"max_tokens": 4000, "model": "x" * 1000}, 1, 1),
        ({"messages": 3, "prompt": None, "input": {"a": True}}, 1, 1),
    ],
)
def test_an_estimate_is_about_right(body: dict[str, Any], low: int, high: int) -> None:
    assert low <= estimate(body) <= high
