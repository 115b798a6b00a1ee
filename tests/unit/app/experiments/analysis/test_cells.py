from random import Random
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.experiments import Stratum
from app.experiments.analysis import cells as cold_minutes
from app.experiments.analysis.cells import (
    MAX_SHARES,
    WAIT_MINUTES,
    ArmMoments,
    CellBlock,
    ColdMinutes,
    FirstRequests,
    Strata,
    UnitTable,
    within,
)
from app.experiments.statistics.look import Estimate, Moments, look, look_of_requests
from tests.simulation import reports
from tests.support.experiments.exposure_columns import Fields, Recorder
from tests.support.experiments.exposures import NAMES

STRATA = np.array([0, 1, 1], np.int32)
"""Recorded strata 1 and 2 are one stratum of the comparison."""
BANDS = np.array([0, 1, 1], np.int64)
"""Their shares: none is merged."""


def block(size: int, seed: int = 1, units: int = 40) -> CellBlock:
    rng = np.random.default_rng(seed)
    valid = (rng.random((size, 2)) < 0.9).astype(np.float64)
    unit = rng.integers(0, units, size)
    arm = np.where(rng.random(size) < 0.1, rng.integers(0, 3, size), unit % 3)
    return CellBlock(
        (unit * 7919 + 13).astype(np.uint64),
        rng.integers(0, 3, size).astype(np.int32),
        arm.astype(np.int8),
        valid,
        valid * np.exp(rng.normal(0, 1, (size, 2))),
        valid * rng.random((size, 2)),
    )


def looked(cells: UnitTable, without: UnitTable | None = None) -> Estimate:
    estimate = look(cells.lines(0, STRATA, 2, without), "ratio")
    assert estimate is not None
    return estimate


def same(one: Estimate, other: Estimate) -> None:
    assert (one.est, one.se, one.nu) == pytest.approx((other.est, other.se, other.nu), rel=1e-9)
    assert one.units == other.units


def test_lines_are_the_sums_of_units_in_strata_and_arms() -> None:
    data, cells = block(500), UnitTable(2)
    cells.add(data)
    lines = cells.lines(1, STRATA, 1)
    expected = dict[tuple[int, int, int], list[float]]()
    for unit, stratum, arm, n, x, d in zip(*data, strict=True):
        if n[1] and arm in (0, 1):
            sums = expected.setdefault((int(unit), int(stratum), int(arm)), [0.0, 0.0, 0.0])
            for place, value in enumerate((n[1], x[1], d[1])):
                sums[place] += value
    assert len(lines.n) == len(expected)
    assert sorted(lines.n) == sorted(n for n, _, _ in expected.values())
    assert np.sort(lines.x) == pytest.approx(np.sort([x for _, x, _ in expected.values()]))
    assert lines.d.sum() == pytest.approx(sum(d for _, _, d in expected.values()))
    assert cells.units(1, 0) == len({unit for unit, _, arm in expected if arm == 0})


@given(st.integers(1, 9))
def test_order_and_batches_change_no_look(parts: int) -> None:
    data = block(600)
    whole, split = UnitTable(2), UnitTable(2)
    whole.add(data)
    order = np.random.default_rng(parts).permutation(600)
    for part in np.array_split(order, parts):
        split.add(CellBlock._make(column[part] for column in data))
    same(looked(whole), looked(split))


def test_taking_away_requests_is_as_if_they_had_not_been_added() -> None:
    data = block(2000, units=200)
    cold = np.random.default_rng(3).random(2000) < 0.3
    everything, some, rest = UnitTable(2), UnitTable(2), UnitTable(2)
    everything.add(data)
    some.add(data.take(cold))
    rest.add(data.take(~cold))
    same(looked(everything, some), looked(rest))
    totals, part, remaining = ArmMoments(2, 3), ArmMoments(2, 3), ArmMoments(2, 3)
    totals.add(data)
    part.add(data.take(cold))
    remaining.add(data.take(~cold))
    for one, other in zip(
        totals.moments(0, STRATA, BANDS, 2, part), remaining.moments(0, STRATA, BANDS, 2), strict=True
    ):
        assert one == pytest.approx(other)


def test_above_the_bound_whole_units_are_left_out() -> None:
    data, cells = block(20_000, units=4000), UnitTable(2, max_lines=3000)
    for part in np.array_split(np.arange(20_000), 7):
        cells.add(CellBlock._make(column[part] for column in data))
    assert len(cells) <= 3000
    assert cells.share < 1
    lines, kept = cells.lines(0, STRATA, 1), np.unique(cells.recorded(0, STRATA, 10**6)[1])
    full = UnitTable(2)
    full.add(data.take(np.isin(data.unit, kept)))
    expected = full.lines(0, STRATA, 1)
    assert np.sort(lines.x) == pytest.approx(np.sort(expected.x))
    assert abs(cells.units(0, 0) - full.units(0, 0) / cells.share) < 2


def test_thinning_does_not_move_the_estimate_beyond_its_error() -> None:
    data = block(20_000, units=4000)
    whole, thinned = UnitTable(2), UnitTable(2, max_lines=4000)
    whole.add(data)
    thinned.add(data)
    one, other = looked(whole), looked(thinned)
    assert abs(one.est - other.est) < 4 * other.se
    assert other.se > one.se


def test_recorded_lines_are_ordered_by_unit_and_hold_every_arm() -> None:
    data, cells = block(500), UnitTable(2)
    cells.add(data)
    lines, hashes = cells.recorded(0, STRATA, 10**6)
    assert (np.diff(lines.unit) >= 0).all()
    assert len(hashes) == lines.unit.max() + 1
    assert lines.x.sum() == pytest.approx(data.x[:, 0].sum())
    fewer, _ = cells.recorded(0, STRATA, 20)
    assert len(np.unique(fewer.unit)) <= 20


def test_totals_give_the_look_of_requests() -> None:
    data, totals = block(3000), ArmMoments(2, 3)
    for part in np.array_split(np.arange(3000), 4):
        totals.add(CellBlock._make(column[part] for column in data))
    here = (data.arm != 1) & (data.n[:, 0] > 0)
    cell = 2 * STRATA[data.stratum[here]] + (data.arm[here] == 2)
    n, x, d = (column[here, 0] for column in data[3:])
    sums = [
        np.bincount(cell, weights, 4).astype(np.float64).reshape(2, 2) for weights in (n, x, d, x * x, x * d, d * d)
    ]
    expected = look_of_requests(Moments(*sums), "ratio")
    estimate = look_of_requests(totals.moments(0, STRATA, BANDS, 2), "ratio")
    assert expected is not None
    assert estimate is not None
    same(estimate, expected)
    assert totals.of_arms(0)[:, 0].sum() == data.n[:, 0].sum()


def requests(arms: list[int]) -> CellBlock:
    size = len(arms)
    ones = np.ones((size, 1))
    return CellBlock(
        np.arange(size, dtype=np.uint64), np.zeros(size, np.int32), np.array(arms, np.int8), ones, ones, ones
    )


def counted(cold: ColdMinutes[ArmMoments]) -> list[float]:
    sums = cold.sums
    assert sums is not None
    counts: list[float] = sums.of_arms(0)[:, 0].tolist()
    return counts


def test_a_cold_replica_excludes_its_whole_minute_from_both_arms() -> None:
    cold = ColdMinutes(ArmMoments(1, 2))
    cold.add(np.array([10.0, 70.0, 75.0]), np.array([False, False, False]), requests([0, 0, 1]))
    assert cold.sums is None
    cold.add(np.array([80.0, 130.0]), np.array([True, False]), requests([1, 0]))
    assert counted(cold) == [1, 2]
    cold.add(np.array([90.0]), np.array([False]), requests([0]))
    assert counted(cold) == [2, 2]
    assert cold.minutes.tolist() == [1]


def test_no_request_counts_twice() -> None:
    cold = ColdMinutes(ArmMoments(1, 2))
    for _ in range(3):
        cold.add(np.array([10.0, 70.0]), np.array([True, True]), requests([0, 1]))
    assert counted(cold) == [3, 3]


def test_requests_stop_waiting_after_a_while() -> None:
    cold = ColdMinutes(ArmMoments(1, 2))
    cold.add(np.array([10.0]), np.array([False]), requests([0]))
    cold.add(np.array([60.0 * (WAIT_MINUTES + 2)]), np.array([False]), requests([0]))
    cold.add(np.array([20.0]), np.array([True]), requests([1]))
    assert counted(cold) == [0, 1]


def test_no_more_than_a_bounded_number_waits() -> None:
    cold, size = ColdMinutes(ArmMoments(1, 2)), cold_minutes.MAX_WAITING // 2
    for _ in range(3):
        cold.add(np.full(size, 10.0), np.zeros(size, np.bool_), requests([0] * size))
    cold.add(np.array([20.0]), np.array([True]), requests([1]))
    assert counted(cold) == [2 * size, 1]


ONES = np.ones(1000)


def test_prompts_are_compared_within_five_sizes() -> None:
    sizes = [0, 255, 256, 1023, 1024, 4095, 4096, 16383, 16384, 10**6]
    rows = Recorder().rows(*({"prompt_bytes": size} for size in sizes))
    strata = Strata(("prompt_bytes",)).codes_of(rows, np.zeros(len(rows), np.int32))
    assert strata.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_hour_dialect_and_stream_are_strata_where_declared() -> None:
    recorder = Recorder()
    rows = recorder.rows(
        {"at": 0.0}, {"at": 3601.0}, {"at": 86400.0}, {"at": 0.0, "dialect": 3}, {"at": 0.0, "stream": False}
    )
    zeros = np.zeros(5, np.int32)
    first, hour, day, dialect, whole = Strata(("hour", "dialect", "stream")).codes_of(rows, zeros).tolist()
    assert first == day
    assert len({first, hour, dialect, whole}) == 4
    assert Strata(("hour",)).codes_of(rows, zeros).tolist() == [0, 1, 0, 0, 0]
    assert Strata(()).codes_of(rows, zeros).tolist() == [0] * 5


@pytest.mark.parametrize(
    ("sizes", "strata"),
    [
        ([20, 20, 20], [0, 1, 2]),
        ([40, 6, 20], [0, 0, 1]),  # too few for a stratum of their own: with the largest
        ([40, 12, 12], [0, 1, 1]),  # enough together
        ([6, 6, 6], [0, 0, 0]),
    ],
)
def test_units_are_compared_within_declared_strata_that_have_ten_units_of_each_arm(
    sizes: list[int], strata: list[int]
) -> None:
    code = np.repeat(np.arange(3, dtype=np.int32), sizes)
    unit = np.arange(len(code))
    stratum = within(np.zeros(len(code), np.int32), code, unit, unit % 2)
    assert stratum[np.cumsum(sizes) - 1].tolist() == strata
    again = [np.tile(column, 2) for column in (code, unit, unit % 2)]
    shares = np.repeat(np.arange(2, dtype=np.int32), len(code))
    both = within(shares, *again)
    assert both.tolist() == [*stratum, *(stratum + 1 + max(strata))]  # requests change nothing, and shares stay apart


def test_plans_with_the_same_share_are_one_stratum_for_a_treatment() -> None:
    strata, rows = Strata(()), Recorder().rows({}, {}, {})
    recorded = strata.codes_of(rows, np.array([0, 1, 2], np.int32))
    weights = np.array([[80, 10, 10], [40, 5, 55], [50, 50, 0]])
    first = strata.compared(1, weights, ONES[:3]).codes[recorded]
    second = strata.compared(2, weights, ONES[:3]).codes[recorded]
    assert first[0] == first[1] != first[2]
    assert len(set(second.tolist())) == 3


def test_many_shares_become_twelve_bands_of_neighbours_with_about_as_many_requests() -> None:
    strata = Strata(())
    rows = Recorder().rows(*({} for _ in range(60)))
    strata.codes_of(rows, np.arange(60, dtype=np.int32))
    share = np.random.default_rng(1).permutation(60)
    weights = np.stack([100 - share, share], axis=1)
    requests = np.random.default_rng(2).integers(50, 150, 60).astype(float)
    band = strata.compared(1, weights, requests).codes
    assert set(band.tolist()) == set(range(MAX_SHARES))
    order = np.argsort(share)
    assert (np.diff(band[order]) >= 0).all()
    sums = np.bincount(band, requests)
    assert sums.max() < 2 * sums.min()


LATER = {
    "prompt_bytes": st.integers(0, 10**6),
    "at": st.floats(1, 10**6),
    "dialect": st.integers(0, len(NAMES) - 1),
    "stream": st.booleans(),
    "turn": st.integers(1, 100),
}


@given(
    st.lists(st.tuples(st.integers(1, 4), st.fixed_dictionaries(LATER)), max_size=20), st.randoms(use_true_random=False)
)
def test_nothing_after_a_units_first_request_changes_its_strata(
    later: list[tuple[int, dict[str, object]]], random: Random
) -> None:
    """For every declared stratum, and the prompt's size: a later request comes after the unit has met its arm."""
    recorder = Recorder()
    first = [
        {"unit": unit, "at": 0.0, "prompt_bytes": 300 * unit, "dialect": unit % len(NAMES)} for unit in (1, 2, 3, 4)
    ]
    alone, after = FirstRequests(get_args(Stratum)), FirstRequests(get_args(Stratum))
    alone.add(recorder.rows(*first))
    rows: list[Fields] = [*first, *({"unit": unit, **values} for unit, values in later)]
    after.add(recorder.rows(*first))
    random.shuffle(rows)
    after.add(recorder.rows(*rows))
    units = np.array([1, 2, 3, 4], np.uint64)
    assert after.codes(units).tolist() == alone.codes(units).tolist()
    assert after.sizes(units).tolist() == alone.sizes(units).tolist()
    assert alone.sizes(units) == pytest.approx(np.log(300 * np.arange(1, 5)), abs=0.05)
    assert np.isnan(alone.sizes(np.array([9], np.uint64)))


def test_prompts_that_hold_the_arms_own_answers_are_no_stratum() -> None:
    """The treatment is faster for a prompt of the same size, and slower for its users."""
    missed, better, worse = reports.converse(["prompt_bytes"], reports.truth(), 2)
    assert not missed
    assert not better
    assert worse


def test_strata_of_few_requests_are_compared_together_where_every_request_is_a_unit() -> None:
    """But not across the shares of the treatment, and the numbers of requests stay."""
    data, totals = block(600, units=600), ArmMoments(2, 3)
    few = np.flatnonzero((data.stratum == 2) & (data.arm != 1))[8:]
    totals.add(data.take(~np.isin(np.arange(600), few)))
    apart = np.array([0, 1, 2], np.int32)
    own = totals.moments(0, apart, np.array([0, 1, 2]), 2)
    together = totals.moments(0, apart, np.array([0, 1, 1]), 2)
    assert 0 < own.n[2].min() < 10
    assert together.n[2].tolist() == [0, 0]
    assert together.n[1].tolist() == (own.n[1] + own.n[2]).tolist()
    assert together.xx.sum() == pytest.approx(own.xx.sum())
