import math

import numpy as np
import pytest
import ssrm_test.ssrm_test as reference
from hypothesis import given
from hypothesis import strategies as st

from app.experiments.statistics.events import CERTAIN, CONCENTRATION, THRESHOLD, ln_e


@pytest.mark.parametrize(
    ("counts", "weights", "expected"),
    [((5100, 4900), (50, 50), 0.619272), ((10300, 9700), (1, 1), 7.050504), ((120, 9880), (1, 99), 0.446162)],
)
def test_the_evidence_is_the_designs(counts: tuple[int, int], weights: tuple[int, int], expected: float) -> None:
    assert ln_e([(counts, weights)]) == pytest.approx(expected, abs=1e-5)


arms = st.integers(2, 4).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 30_000), min_size=n, max_size=n), st.lists(st.integers(1, 99), min_size=n, max_size=n)
    )
)


@given(arms)
def test_the_evidence_is_that_of_ssrm_test(arms: tuple[list[int], list[int]]) -> None:
    counts, weights = np.array(arms[0], dtype=float), np.array(arms[1], dtype=float)
    p = weights / weights.sum()
    expected = reference.log_posterior_predictive(counts, CONCENTRATION * p) - reference.multinomiallogpmf(
        counts, counts.sum(), p
    )
    assert ln_e([arms]) == pytest.approx(float(expected), abs=1e-6)


@given(st.lists(arms, max_size=4))
def test_plans_add_up(plans: list[tuple[list[int], list[int]]]) -> None:
    assert ln_e(plans) == pytest.approx(sum(ln_e([plan]) for plan in plans), abs=1e-9)


def test_no_units_are_no_evidence() -> None:
    assert ln_e([]) == 0
    assert ln_e([((0, 0), (50, 50))]) == pytest.approx(0, abs=1e-9)
    assert ln_e([((70, 0), (100, 0))]) == 0


def test_a_unit_in_an_arm_without_weight_is_certain() -> None:
    assert ln_e([((70, 1), (100, 0))]) == CERTAIN
    assert math.log(1000) == THRESHOLD


def test_the_evidence_is_a_martingale_of_the_units() -> None:
    """The mean of E after one more unit is E, whatever the units before were."""
    p = np.array([0.2, 0.8])
    for counts in [(0, 0), (7, 3), (200, 900)]:
        after = [ln_e([((counts[0] + (arm == 0), counts[1] + (arm == 1)), (20, 80))]) for arm in (0, 1)]
        assert p @ np.exp(after) == pytest.approx(math.exp(ln_e([(counts, (20, 80))])), rel=1e-9)
