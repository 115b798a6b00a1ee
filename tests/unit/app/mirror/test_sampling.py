"""Units are drawn whole, in the configured share, and independently of the draw of arms."""

from hypothesis import given
from hypothesis import strategies as st

from app.mirror.mirrors import is_drawn
from app.routing.traffic import rendezvous


def test_the_share_is_the_percentage() -> None:
    units = range(20_000)
    for percent in (0.5, 5.0, 50.0, 100.0):
        share = sum(is_drawn(unit, "chat", percent) for unit in units) / 20_000
        assert abs(share - percent / 100) <= 4.5 * (percent / 100 * (1 - percent / 100) / 20_000) ** 0.5


@given(st.integers(0, 2**64 - 1), st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_larger_share_keeps_the_units_of_a_smaller_one(unit: int, one: float, other: float) -> None:
    small, large = sorted((one, other))
    assert is_drawn(unit, "chat", large) or not is_drawn(unit, "chat", small)
    assert is_drawn(unit, "chat", 100)


def test_arms_and_endpoints_are_drawn_independently() -> None:
    units = [f"user {number}" for number in range(8000)]
    hashes = {unit: hash_of(unit) for unit in units}
    on_blue = [unit for unit in units if rendezvous(unit, {"blue": 50, "green": 50}) == "blue"]
    for share in (
        sum(is_drawn(hashes[unit], "chat", 50) for unit in on_blue) / len(on_blue),
        sum(is_drawn(it, "chat", 50) == is_drawn(it, "other", 50) for it in hashes.values()) / len(units),
    ):
        assert abs(share - 0.5) < 0.04


def hash_of(unit: str) -> int:
    from app.exposures.identity import Hashes

    return Hashes(b"s" * 32).unit(unit)
