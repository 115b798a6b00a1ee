import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from app.experiments.statistics.planner import fixed_units_needed, information_needed, units_needed
from app.experiments.statistics.sequences import boundary


def test_the_plan_solves_the_formulas() -> None:
    """The roots at forty digits (mpmath)."""
    v = information_needed(0.05, alpha=0.05, power=0.8)
    assert v == pytest.approx(6589.344673, abs=1e-5)
    assert units_needed(v, 1, 0.5) == 26_358
    assert units_needed(v, 1, 0.1) == 73_215
    assert math.floor(fixed_units_needed(0.05, 1, 0.5, alpha=0.05)) == pytest.approx(12_558, abs=1)
    assert units_needed(information_needed(0.1, alpha=0.05, power=0.8), 1, 0.5) == 6_590


@given(st.floats(0.01, 0.5), st.floats(0.01, 0.5), st.sampled_from([0.05, 0.01]), st.floats(0.5, 0.95))
def test_the_plan_is_the_smallest_information_that_suffices(
    effect: float, minimal_effect: float, alpha: float, power: float
) -> None:
    def excess(v: float) -> float:
        k = float(boundary(1 / math.sqrt(v), math.inf, effect=minimal_effect, alpha=alpha))
        return effect * math.sqrt(v) - k - float(ndtri(power))

    v = information_needed(-effect, minimal_effect=minimal_effect, alpha=alpha, power=power)
    assert excess(v) == pytest.approx(0, abs=1e-6)
    assert excess(0.99 * v) < 0


@pytest.mark.parametrize(("multiple", "most"), [(1, 1.31), (4, 1.41), (8, 1.5), (22.4, 1.65), (40, 2)])
def test_half_of_the_verdicts_come_soon_whatever_the_size_of_the_effect(multiple: float, most: float) -> None:
    """By the information of a test that looks once, with 80 % power. 22.4 times 1 % is -20 %."""
    delta = math.log1p(0.01)
    sequential = information_needed(multiple * delta, minimal_effect=delta, alpha=0.05, power=0.5)
    once = (float(ndtri(0.975) + ndtri(0.8)) / (multiple * delta)) ** 2
    assert sequential / once <= most


def test_a_share_or_its_complement_is_the_same() -> None:
    assert units_needed(1000, 2, 0.1) == units_needed(1000, 2, 0.9) > units_needed(1000, 2, 0.5)
