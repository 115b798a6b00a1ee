"""The ratio of two versions' costs, and its interval."""

from random import Random

import pytest

from benchmarks.relay import median_ratio


def test_what_disturbs_both_versions_does_not_change_their_ratio() -> None:
    noise = Random(1)
    pairs = [[(90.0 * load, 100.0 * load) for load in (noise.uniform(1, 5) for _ in range(16))] for _ in range(4)]
    assert median_ratio(pairs) == pytest.approx((0.9, 0.9, 0.9))


def test_starts_that_differ_widen_the_interval() -> None:
    alike = [[(ours, 100.0) for ours in (95.0, 100.0, 105.0)] for _ in range(6)]
    different = [[(ours + start, 100.0) for ours in (95.0, 100.0, 105.0)] for start in (-15, -9, -3, 3, 9, 15)]
    ratio, low, high = median_ratio(alike)
    _, lowest, highest = median_ratio(different)
    assert lowest < low <= ratio == 1.0 <= high < highest
