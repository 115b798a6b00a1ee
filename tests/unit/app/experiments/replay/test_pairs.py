"""The unit of a replay is the recorded request, because what its answers share cancels out."""

import numpy as np
import pytest

from app.experiments.statistics.look import UnitSums, look

PAIRS, EFFECT = 400, 0.1


def lines(*, paired: bool) -> UnitSums:
    """Logarithms of times: requests differ widely, their two answers little, and the treatment's are longer."""
    random = np.random.default_rng(1)
    request = random.normal(0.0, 1.0, PAIRS)
    times = [request + arm * EFFECT + random.normal(0.0, 0.1, PAIRS) for arm in (0, 1)]
    pair = np.arange(PAIRS)
    ones = np.ones(2 * PAIRS)
    return UnitSums(
        unit=np.concatenate([pair, pair if paired else pair + PAIRS]),
        stratum=np.zeros(2 * PAIRS, np.int64),
        arm=np.repeat([0, 1], PAIRS),
        n=ones,
        x=np.concatenate(times),
        d=ones,
    )


def test_pairs_show_a_difference_that_single_requests_do_not() -> None:
    pairs, singles = look(lines(paired=True), "difference"), look(lines(paired=False), "difference")
    assert pairs is not None
    assert singles is not None
    assert pairs.est == pytest.approx(singles.est)
    assert pairs.se == pytest.approx(0.1 * np.sqrt(2 / PAIRS), rel=0.15)
    assert singles.se > 5 * pairs.se
    interval, wide = (estimate.interval(effect=0.05, alpha=0.05) for estimate in (pairs, singles))
    assert interval is not None
    assert interval.lower > 0
    assert wide is not None
    assert wide.lower < 0
