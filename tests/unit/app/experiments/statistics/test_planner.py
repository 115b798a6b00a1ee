import math

import numpy as np
import pytest
import ville
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtri

from app.experiments.statistics.look import Estimate, UnitSums, look
from app.experiments.statistics.planner import (
    PeekedTest,
    e_bh,
    information_needed,
    levels,
    p_value,
    units_needed,
    weight_of_place,
)
from app.experiments.statistics.sequences import boundary


def test_the_plan_solves_the_formulas() -> None:
    """The roots at forty digits (mpmath)."""
    v = information_needed(0.05, alpha=0.05, power=0.8)
    assert v == pytest.approx(6589.344673, abs=1e-5)
    assert units_needed(v, 1, 0.5) == 26_358
    assert units_needed(v, 1, 0.1) == 73_215
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


def test_the_discoveries_are_the_designs() -> None:
    assert e_bh([math.log(e) for e in (200, 3, 45, 0.5, 22, 1)], 0.1) == [0, 2, 4]


@given(st.lists(st.floats(-5, 9), max_size=30), st.sampled_from([0.05, 0.1, 0.25]))
def test_the_discoveries_are_villes(log_e_values: list[float], level: float) -> None:
    assert e_bh(log_e_values, level) == np.flatnonzero(ville.evalues.ebh(np.exp(log_e_values), level)).tolist()


@given(st.lists(st.floats(-5, 9), min_size=1, max_size=30), st.sampled_from([0.05, 0.1, 0.25]))
def test_exactly_the_discoveries_have_an_interval_without_zero(log_e_values: list[float], level: float) -> None:
    """An interval at level a excludes 0 if the e-value is at least 1/a."""
    excluding = [
        number
        for number, (log_e_value, own) in enumerate(zip(log_e_values, levels(log_e_values, level), strict=True))
        if log_e_value >= math.log(1 / own)
    ]
    assert excluding == e_bh(log_e_values, level)
    assert max(levels(log_e_values, level)) <= level


def test_evidence_beyond_a_floats_range_is_a_discovery() -> None:
    assert e_bh([5000.0, 0.0, -5000.0], 0.05) == [0]
    assert e_bh([], 0.05) == levels([], 0.05) == []


def look_at(difference: float, n: int = 100, seed: int = 3) -> tuple[Estimate, np.ndarray, np.ndarray]:
    y = np.random.default_rng(seed).normal(size=2 * n)
    y[n:] += difference
    arm, zeros = np.repeat([0, 1], n), np.zeros(2 * n)
    result = look(UnitSums(np.arange(2 * n), zeros.astype(int), arm, zeros + 1, y, zeros + 1), "difference")
    assert result is not None
    return result, y[:n], y[n:]


def test_with_one_request_per_unit_it_is_the_t_test() -> None:
    result, control, treatment = look_at(0.3)
    assert p_value(result) == pytest.approx(stats.ttest_ind(treatment, control).pvalue, rel=0.02)


def test_the_test_rejects_once_any_look_does() -> None:
    test = PeekedTest(0.05)
    test.add(None)
    test.add(look_at(0.0)[0])
    assert not test.rejects
    test.add(look_at(1.0)[0])
    test.add(look_at(0.0)[0])
    assert test.rejects


def test_the_test_also_waits_for_thirty_units() -> None:
    test = PeekedTest(0.05)
    test.add(look_at(9.0, n=29)[0])
    assert test.smallest == 1


def test_a_family_that_grows_names_nothing_more_often_than_its_level_says() -> None:
    """Twelve bets on nothing, one after the other. Each is looked at until the family of those so far would keep it;
    those of earlier ones that have won something help it.
    """
    rng, level, runs = np.random.default_rng(1), 0.05, 1000
    weights = [weight_of_place(place) for place in range(12)]
    named = {"equal weights": 0, "weights of places": 0}
    for _ in range(runs):
        so_far: list[float] = []
        found = dict.fromkeys(named, False)
        for place in range(12):
            steps = np.log1p(0.6 * rng.choice([-0.5, 1.0], size=300, p=[2 / 3, 1 / 3])).cumsum()
            reached = np.flatnonzero(steps >= math.log((place + 1) / level))
            stopped = float(steps[reached[0]] if len(reached) else steps[-1])
            found["equal weights"] |= bool(e_bh([*so_far, stopped], level))
            top = [*so_far, float(steps.max())]
            found["weights of places"] |= bool(e_bh(top, level, weights[: place + 1]))
            so_far.append(float(steps[-1]))
        for name, was_found in found.items():
            named[name] += was_found
    assert named["equal weights"] > 1.5 * level * runs
    assert named["weights of places"] <= 1.3 * level * runs
    assert sum(weight_of_place(place) for place in range(1000)) <= 1


@pytest.mark.parametrize("place", [999, 1000, 8591, 10**9])
def test_a_late_place_keeps_nothing_and_takes_nothing_from_the_others(place: int) -> None:
    weights = [weight_of_place(0), weight_of_place(place)]
    assert e_bh([10.0, 80.0], 0.05, weights) == [0]
    known, late = levels([10.0, 80.0], 0.05, weights)
    assert known == 0.05 * weights[0]
    assert 0 <= late < 1e-38
