import numpy as np
import pytest
from scipy import stats

from app.experiments.statistics.look import Lines, Look, look
from app.experiments.statistics.planner import PeekedTest, p_value


def look_at(difference: float, n: int = 100, seed: int = 3) -> tuple[Look, np.ndarray, np.ndarray]:
    y = np.random.default_rng(seed).normal(size=2 * n)
    y[n:] += difference
    arm, zeros = np.repeat([0, 1], n), np.zeros(2 * n)
    result = look(Lines(np.arange(2 * n), zeros.astype(int), arm, zeros + 1, y, zeros + 1), "difference")
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
