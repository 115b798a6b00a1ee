"""What units did before the run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.experiments.analysis.aggregates import SHRINKAGE, UnitHistory
from app.experiments.analysis.metrics import Values

requests = st.lists(st.tuples(st.integers(1, 9), st.floats(-50, 50), st.floats(0.1, 9), st.booleans()), max_size=60)
EVERYBODY = np.arange(1, 10).astype(np.uint64)


def history_of(parts: list[list[tuple[int, float, float, bool]]], max_units: int = 100) -> UnitHistory:
    history = UnitHistory(2, max_units)
    for part in parts:
        unit, x, d, valid = np.array(part, np.float64).reshape(-1, 4).T
        values = Values(x * valid, d * valid, valid > 0, valid == 0, valid == 0)
        history.add(unit.astype(np.uint64), [values, None])
    return history


@given(requests=requests, cut=st.integers(0, 60))
def test_covariates_are_the_excess_of_a_units_sum_and_its_shrunken_mean(
    requests: list[tuple[int, float, float, bool]], cut: int
) -> None:
    """In whatever order and batches requests come."""
    known = [request for request in requests if request[3]]
    history = history_of([requests[cut:][::-1], requests[:cut]])
    covariates = history.covariates(0, EVERYBODY)
    assert history.covariates(1, EVERYBODY) is None
    if not known:
        assert covariates is None
        return
    mean = sum(x for _, x, _, _ in known) / sum(d for _, _, d, _ in known)
    assert covariates is not None
    for unit, values in zip(EVERYBODY.tolist(), covariates.tolist(), strict=True):
        mine = [(x, d) for known_unit, x, d, _ in known if known_unit == unit]
        excess = sum(x - mean * d for x, d in mine)
        assert values == pytest.approx([excess, excess / (len(mine) + SHRINKAGE)], abs=1e-9)


def test_a_unit_without_history_has_the_mean() -> None:
    history = history_of([[(1, 3.0, 1.0, True), (2, 5.0, 1.0, True), (3, 9.0, 1.0, False)]])
    covariates = history.covariates(0, np.array([1, 2, 3, 4], np.uint64))
    assert covariates is not None
    assert covariates[:, 0].tolist() == [-1.0, 1.0, 0.0, 0.0]
    assert covariates.mean() == 0


def test_memory_is_bounded_and_who_is_left_out_depends_on_the_unit_alone() -> None:
    everything = [(unit, float(unit), 1.0, True) for unit in range(1, 2001)]
    forwards, backwards = (
        history_of([columns[:900], columns[900:]], 300) for columns in (everything, everything[::-1])
    )
    assert 100 < len(forwards) == len(backwards) <= 300
    units = np.arange(1, 2001).astype(np.uint64)
    one, other = forwards.covariates(0, units), backwards.covariates(0, units)
    assert one is not None
    assert other is not None
    assert one == pytest.approx(other)
    assert np.count_nonzero(one[:, 0]) == len(forwards)
