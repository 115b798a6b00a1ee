"""Bounds hold for every fill of what is missing, and are reached."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.experiments.statistics.look import NO_SLACK, Floats, LookScale, Slack
from app.experiments.statistics.missing import StrataSums, reach, reach_anywhere, reach_without_excess

Value = tuple[float, float]
Cells = dict[tuple[int, int], list[Value]]
"""Numerators with their denominators of each stratum and arm."""

SCALES: tuple[LookScale, ...] = ("ratio", "difference")
ROUNDING = 1e-9


def estimate(cells: Cells, scale: LookScale) -> float | None:
    """The overlap-weighted estimate, from its definition."""
    sums, weights = [0.0, 0.0], 0.0
    for stratum in {stratum for stratum, _ in cells}:
        both = [cells.get((stratum, arm), []) for arm in (0, 1)]
        if min(map(len, both)) < 2:
            continue
        x, d = ([sum(value[part] for value in of_arm) for of_arm in both] for part in (0, 1))
        weight = d[0] * d[1] / sum(d)
        weights += weight
        for arm in (0, 1):
            sums[arm] += weight * x[arm] / d[arm]
    if not weights or (scale == "ratio" and min(sums) <= 0):
        return None
    return (sums[1] - sums[0]) / weights if scale == "difference" else math.log(sums[1] / sums[0])


def sums_of(cells: Cells, strata: int) -> StrataSums:
    shape = (strata, 2)
    n, x, d = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for cell, values in cells.items():
        n[cell], x[cell], d[cell] = len(values), sum(x for x, _ in values), sum(d for _, d in values)
    return StrataSums(n, x, d)


def joined(cells: Cells, more: list[tuple[tuple[int, int], Value]]) -> Cells:
    filled = {cell: list(values) for cell, values in cells.items()}
    for cell, value in more:
        filled.setdefault(cell, []).append(value)
    return filled


def pairs_of(cells: Cells) -> Floats:
    return np.array([value for values in cells.values() for value in values]).reshape(-1, 2)


def within(value: float | None, est: float, slack: Slack) -> bool:
    return value is None or est - slack.down - ROUNDING <= value <= est + slack.up + ROUNDING


def worlds(scale: LookScale) -> st.SearchStrategy[Cells]:
    value = (
        st.tuples(st.sampled_from([0.0, 1.0, 3.0, 20.0]), st.sampled_from([0.5, 1.0, 8.0]))
        if scale == "ratio"
        else st.tuples(st.sampled_from([-4.0, -1.0, 0.5, 2.0, 9.0]), st.just(1.0))
    )
    cell = st.tuples(st.integers(0, 2), st.integers(0, 1))
    return st.dictionaries(cell, st.lists(value, min_size=1, max_size=5), min_size=2)


@pytest.mark.parametrize("scale", SCALES)
@given(data=st.data())
def test_every_fill_is_within_the_bounds(data: st.DataObject, scale: LookScale) -> None:
    cells = data.draw(worlds(scale))
    est = estimate(cells, scale)
    assume(est is not None)
    assert est is not None
    places = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), max_size=4)
    missing, number = data.draw(places), np.zeros((4, 2))
    for place in missing:
        number[place] += 1
    pairs = pairs_of(cells)
    slack = reach(sums_of(cells, 4), number, pairs, scale)
    assert min(slack) >= 0
    distinct = sorted(set(map(tuple, pairs.tolist())))[:4]
    for values in itertools.product([*distinct, None], repeat=len(missing)):
        fill = [(place, value) for place, value in zip(missing, values, strict=True) if value is not None]
        assert within(estimate(joined(cells, fill), scale), est, slack), "or only some of them have a value"


@pytest.mark.parametrize("scale", SCALES)
@given(data=st.data())
def test_every_place_of_those_that_may_be_anywhere_is_within_the_bounds(data: st.DataObject, scale: LookScale) -> None:
    cells = data.draw(worlds(scale))
    est = estimate(cells, scale)
    assume(est is not None)
    assert est is not None
    band = np.array([0, 0, 1])
    arms = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=3))
    number = np.zeros((3, 2))
    for of_band, arm in arms:
        number[of_band, arm] += 1
    pairs, sums = pairs_of(cells), sums_of(cells, 3)
    known = np.where(sums.n.any(axis=1), band, -1)
    slack = reach_anywhere(sums, np.zeros((3, 2)), known, number, pairs, scale)
    assert min(slack) >= 0
    places = [[(s, arm) for s in np.flatnonzero(known == of_band).tolist() or [3 + of_band]] for of_band, arm in arms]
    distinct = sorted(set(map(tuple, pairs.tolist())))[:4]
    for chosen in itertools.product(*places):
        for values in itertools.product(distinct, repeat=len(arms)):
            assert within(estimate(joined(cells, list(zip(chosen, values, strict=True))), scale), est, slack)


@pytest.mark.parametrize("arm", [0, 1])
@pytest.mark.parametrize("scale", SCALES)
@given(data=st.data())
def test_whichever_values_of_an_arm_are_in_excess_the_rest_is_within_the_bounds(
    data: st.DataObject, scale: LookScale, arm: int
) -> None:
    """They weigh at most the share of the arm's, as the estimate without them does."""
    value = st.sampled_from([0.0, 1.0] if scale == "ratio" else [-4.0, 0.0, 2.0, 9.0])
    both = st.tuples(st.lists(value, max_size=5), st.lists(value, max_size=5))
    strata = data.draw(st.lists(both, min_size=1, max_size=3))
    cells: Cells = {(k, of): [(x, 1.0) for x in both[of]] for k, both in enumerate(strata) for of in (0, 1)}
    est = estimate(cells, scale)
    assume(est is not None and sum(len(both[arm]) for both in strata) <= 9)
    assert est is not None
    share, pairs = data.draw(st.sampled_from([0.1, 0.3, 0.6])), pairs_of(cells)
    seen = float(pairs[:, 0].min()), float(pairs[:, 0].max())
    slack = reach_without_excess(sums_of(cells, 3), arm, share, seen, scale)
    assert min(slack) >= 0
    own = [(k, number) for k, both in enumerate(strata) for number in range(len(both[arm]))]
    compared = [k for k, both in enumerate(strata) if min(map(len, both)) >= 2]
    for kept in itertools.product([True, False], repeat=len(own)):
        left = {
            k: [both[arm][n] for (of, n), keeps in zip(own, kept, strict=True) if of == k and keeps]
            for k, both in enumerate(strata)
        }
        other = {k: len(strata[k][1 - arm]) for k in compared}
        weights = {k: other[k] / (other[k] + len(left[k])) for k in compared}
        gone = sum(weights[k] * (len(strata[k][arm]) - len(left[k])) for k in compared)
        if gone <= share * sum(weights[k] * len(strata[k][arm]) for k in compared):
            rest = cells | {(k, arm): [(x, 1.0) for x in values] for k, values in left.items()}
            assert within(estimate(rest, scale), est, slack)


def test_in_one_stratum_excess_values_are_the_extreme_share_of_the_arms() -> None:
    sums = StrataSums(*np.array([[[900, 1000]], [[450, 600]], [[900, 1000]]], np.float64))
    slack = reach_without_excess(sums, 1, 0.1, (0.0, 1.0), "ratio")
    assert slack == pytest.approx((math.log(0.6 / (0.5 / 0.9)), math.log(0.6 / 0.9 / 0.6)))
    slack = reach_without_excess(sums, 0, 0.1, (0.0, 1.0), "difference")
    assert slack == pytest.approx((0.5 / 0.9 - 0.5, 0.5 - 0.4 / 0.9))


def test_where_the_split_changes_excess_values_count_where_they_weigh_most() -> None:
    """Nearly all of the treatment's scores are of its last step, and good; those that are compared are not."""
    n = np.array([[9900.0, 100.0], [5000.0, 5000.0], [100.0, 9900.0]])
    sums = StrataSums(n, n * np.array([[0.3, 0.3], [0.3, 0.3], [0.3, 0.9]]), n)
    slack = reach_without_excess(sums, 1, 0.1, (0.0, 1.0), "ratio")
    pooled = float(sums.x[:, 1].sum() / n[:, 1].sum())
    assert slack.down > 3 * math.log(pooled / ((pooled - 0.1) / 0.9)), "the bound from the arm's mean"


def test_in_one_stratum_an_arms_mean_moves_as_far_as_its_values_reach() -> None:
    sums = StrataSums(np.array([[900.0, 100.0]]), np.array([[450.0, 60.0]]), np.array([[900.0, 100.0]]))
    missing, pairs = np.array([[30, 7]]), np.array([[0.1, 1.0], [8.0, 1.0]])
    control, treated = (
        [(x + m * value) / (d + m) for value in (0.1, 8.0)] for x, d, m in ((450, 900, 30), (60, 100, 7))
    )
    slack = reach(sums, missing, pairs, "ratio")
    assert slack.up == pytest.approx(math.log(treated[1] / 0.6) + math.log(0.5 / control[0]))
    assert slack.down == pytest.approx(math.log(0.6 / treated[0]) + math.log(control[1] / 0.5))
    slack = reach(sums, missing, pairs, "difference")
    assert slack == pytest.approx((0.6 - treated[0] + control[1] - 0.5, treated[1] - 0.6 + 0.5 - control[0]))


def test_what_one_arm_alone_lacks_in_a_stratum_that_the_other_never_has_allows_for_nothing() -> None:
    sums = StrataSums(*np.array([[[50, 50], [80, 0]], [[20, 30], [70, 0]], [[50, 50], [80, 0]]], np.float64))
    missing, pairs = np.array([[0, 0], [40, 0]]), np.array([[0.1, 1.0], [8.0, 1.0]])
    assert reach(sums, missing, pairs, "ratio") == NO_SLACK


def test_a_few_values_of_an_unknown_stratum_cost_about_what_those_of_a_known_one_do() -> None:
    sums = StrataSums(*np.array([[[5000, 5000]] * 2, [[2000, 2500], [9000, 9900]], [[5000, 5000]] * 2], np.float64))
    pairs, number = np.array([[0.1, 1.0], [30.0, 1.0]]), np.array([[3.0, 2.0]])
    one = reach(StrataSums._make(column.sum(axis=0, keepdims=True) for column in sums), number, pairs, "ratio")
    slack = reach_anywhere(sums, np.zeros((2, 2)), np.zeros(2, np.int64), number, pairs, "ratio")
    assert slack == pytest.approx(one, rel=0.1)
