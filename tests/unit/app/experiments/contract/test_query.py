"""Numbers and times in the parameters of questions."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from app.errors import BadRequest
from app.experiments.contract.query import number, unix_seconds
from app.experiments.statistics.planner import information_needed, units_needed

TEXTS = st.one_of(st.floats().map(repr), st.integers().map(str), st.text(max_size=8), st.datetimes().map(str))


@given(TEXTS)
def test_a_time_is_one_that_a_calendar_has_or_none(text: str) -> None:
    try:
        seconds = unix_seconds(text)
    except ValueError:
        return
    datetime.fromtimestamp(seconds, UTC)


@given(TEXTS)
def test_a_number_is_neither_0_nor_without_bound(text: str) -> None:
    try:
        value = number({"effect": text}, "effect", default=1.0)
    except BadRequest:
        return
    assert 1e-6 <= value < 1e6


@given(st.floats(1e-6, 1e6, exclude_max=True), st.floats(1e-6, 1.0, exclude_max=True), st.sampled_from([0.01, 0.1]))
def test_any_such_effect_and_power_has_a_sample_size(effect: float, power: float, minimal_effect: float) -> None:
    information = information_needed(effect, minimal_effect=minimal_effect, alpha=0.05, power=power)
    assert units_needed(information, 1.0, 0.5) > 0
