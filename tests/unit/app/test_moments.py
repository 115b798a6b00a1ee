from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.moments import minute, read, shown


def test_a_time_is_shown_to_the_second_in_utc() -> None:
    assert shown(1762956131.9) == "2025-11-12 14:02:11 UTC"
    assert minute(1762956131.9) == "2025-11-12 14:02 UTC", "no more is known"


@given(st.integers(0, 4_000_000_000))
def test_a_time_that_is_shown_can_be_read(at: int) -> None:
    assert read(shown(at)) == datetime.fromtimestamp(at, UTC)
    assert read(minute(at)) == datetime.fromtimestamp(at // 60 * 60, UTC)


@pytest.mark.parametrize("text", ["2026-11-12", "2026-11-12T00:00", "2026-11-12 02:00+02:00", "2026-11-12T00:00:00Z"])
def test_dates_and_times_are_utc_unless_they_have_a_zone(text: str) -> None:
    assert read(text) == datetime(2026, 11, 12, tzinfo=UTC)
