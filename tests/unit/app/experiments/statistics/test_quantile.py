import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.experiments.statistics.look import UnitSums, look
from app.experiments.statistics.quantile import FARTHEST, QuantileEstimate, quantile_shift
from app.experiments.statistics.sequences import boundary

STEP = 2e-5
"""The tolerance of the interval's ends."""

Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def rows(n: int, seed: int, shift: float = 0.0, users: int = 200) -> Rows:
    """Rows of ln y, unit, stratum and arm."""
    rng = np.random.default_rng(seed)
    unit = rng.integers(0, users, n)
    arm = unit % 2
    stratum = rng.integers(0, 3, n)
    return (
        rng.normal(size=n) * 0.5 + rng.normal(size=users)[unit] * 0.2 + 0.1 * stratum + shift * arm,
        unit,
        stratum,
        arm,
    )


def z_of_the_design(data: Rows, p: float, shift: float) -> float:
    """S/√V by the look's difference of proportions."""
    values, unit, stratum, arm = data
    shifted = values - shift * arm
    q = np.quantile(shifted, p, method="inverted_cdf")
    ones = np.ones(len(values))
    result = look(UnitSums(unit, stratum, arm, ones, (shifted > q).astype(float), ones), "difference")
    assert result is not None
    return result.est / result.se


def found(data: Rows, p: float) -> QuantileEstimate:
    result = quantile_shift(*data, p)
    assert result is not None
    return result


@pytest.mark.parametrize("p", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("seed", range(4))
def test_the_ends_are_where_the_difference_of_proportions_reaches_its_bounds(p: float, seed: int) -> None:
    data = rows(3000, seed, shift=-0.2)
    result = found(data, p)
    interval = result.interval(effect=0.1, alpha=0.05)
    assert interval is not None
    k = float(boundary(result.se, result.nu, effect=0.1, alpha=0.05))
    assert z_of_the_design(data, p, interval.lower) > k >= z_of_the_design(data, p, interval.lower + STEP)
    assert z_of_the_design(data, p, interval.upper - STEP) > -k >= z_of_the_design(data, p, interval.upper)
    assert z_of_the_design(data, p, result.est - STEP) >= 0 >= z_of_the_design(data, p, result.est + STEP)
    assert interval.lower < -0.2 < interval.upper


@given(seed=st.integers(0, 500), p=st.sampled_from([0.5, 0.9]), shift=st.floats(-0.4, 0.4))
def test_the_evidence_reaches_the_level_exactly_where_the_interval_excludes_zero(
    seed: int, p: float, shift: float
) -> None:
    result = found(rows(1500, seed, shift), p)
    interval = result.interval(effect=0.1, alpha=0.05)
    assert interval is not None
    excluded = interval.lower > 0 or interval.upper < 0
    evidence = result.log_e_value(effect=0.1, alpha=0.05)
    if min(abs(interval.lower), abs(interval.upper)) > 1e-4:
        assert (evidence >= math.log(20)) is excluded


@given(seed=st.integers(0, 500), factor=st.floats(-1, 1))
def test_a_common_factor_shifts_nothing_and_a_factor_of_the_treatment_shifts_by_it(seed: int, factor: float) -> None:
    values, unit, stratum, arm = rows(1000, seed)
    one = found((values, unit, stratum, arm), 0.5)
    assert found((values + factor, unit, stratum, arm), 0.5).est == pytest.approx(one.est, abs=1e-4)
    moved = found((values + factor * arm, unit, stratum, arm), 0.5)
    assert moved.est == pytest.approx(one.est + factor, abs=1e-4)
    assert moved.se == pytest.approx(one.se, rel=0.1)  # the steps of z lie elsewhere


@given(seed=st.integers(0, 500))
def test_the_order_of_rows_changes_nothing(seed: int) -> None:
    data = rows(1000, seed)
    order = np.random.default_rng(seed).permutation(1000)
    one, other = found(data, 0.9), found(tuple(column[order] for column in data), 0.9)  # type: ignore[arg-type]
    assert (one.est, one.se, one.units) == (other.est, other.se, other.units)
    assert one.nu == pytest.approx(other.nu)


def test_the_degrees_of_freedom_are_those_of_the_smaller_arm_where_it_has_most_of_the_variance() -> None:
    values, unit, stratum, arm = rows(4000, 1, users=2000)
    few = (arm == 0) | (unit < 80)
    known = found((values[few], unit[few], stratum[few], arm[few]), 0.5)
    assert known.units[1] < 45 < 800 < known.units[0]
    assert known.units[1] - 6 < known.nu < 2 * known.units[1]


def test_no_estimate_before_thirty_requests_lie_above_the_quantile() -> None:
    values, unit, stratum, arm = rows(1400, 1)
    assert quantile_shift(values, unit, stratum, arm, 0.99) is None
    assert quantile_shift(values, unit, stratum, arm, 0.95) is not None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(tuple(np.empty(0, dtype=t) for t in (float, int, int, int)), id="nothing"),
        pytest.param((*rows(500, 1)[:3], np.zeros(500, dtype=int)), id="one arm"),
        pytest.param((rows(500, 1)[0], np.zeros(500, dtype=int), *rows(500, 1)[2:]), id="one unit"),
        pytest.param((np.ones(500), *rows(500, 1)[1:]), id="no variance"),
        pytest.param(rows(500, 1, shift=2 * FARTHEST), id="too far"),
    ],
)
def test_without_enough_data_there_is_no_estimate(data: Rows) -> None:
    result = quantile_shift(*data, 0.5)
    assert result is None or (result.se < 1e-4 and result.interval(effect=0.1, alpha=0.05) is None)


def test_few_units_make_no_claim() -> None:
    result = found(rows(3000, 1, shift=1.0, users=58), 0.5)
    assert result.units == (29, 29)
    assert result.interval(effect=0.1, alpha=0.05) is None
    assert result.log_e_value(effect=0.1, alpha=0.05) == 0
