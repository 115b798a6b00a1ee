import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.experiments.analysis.cells import CellBlock, Cells, Totals
from app.experiments.statistics.look import Look, Moments, look, look_of_requests

STRATA = np.array([0, 1, 1], np.int32)
"""Recorded strata 1 and 2 are one stratum of the comparison."""


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


def looked(cells: Cells, without: Cells | None = None) -> Look:
    found = look(cells.lines(0, STRATA, 2, without), "ratio")
    assert found is not None
    return found


def same(one: Look, other: Look) -> None:
    assert (one.est, one.se, one.nu) == pytest.approx((other.est, other.se, other.nu), rel=1e-9)
    assert one.units == other.units


def test_lines_are_the_sums_of_units_in_strata_and_arms() -> None:
    data, cells = block(500), Cells(2)
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
    whole, split = Cells(2), Cells(2)
    whole.add(data)
    order = np.random.default_rng(parts).permutation(600)
    for part in np.array_split(order, parts):
        split.add(CellBlock._make(column[part] for column in data))
    same(looked(whole), looked(split))


def test_taking_away_requests_is_as_if_they_had_not_been_added() -> None:
    data = block(2000, units=200)
    cold = np.random.default_rng(3).random(2000) < 0.3
    everything, some, rest = Cells(2), Cells(2), Cells(2)
    everything.add(data)
    some.add(data.take(cold))
    rest.add(data.take(~cold))
    same(looked(everything, some), looked(rest))
    totals, part, remaining = Totals(2, 3), Totals(2, 3), Totals(2, 3)
    totals.add(data)
    part.add(data.take(cold))
    remaining.add(data.take(~cold))
    for one, other in zip(totals.moments(0, STRATA, 2, part), remaining.moments(0, STRATA, 2), strict=True):
        assert one == pytest.approx(other)


def test_above_the_bound_whole_units_are_left_out() -> None:
    data, cells = block(20_000, units=4000), Cells(2, max_lines=3000)
    for part in np.array_split(np.arange(20_000), 7):
        cells.add(CellBlock._make(column[part] for column in data))
    assert len(cells) <= 3000
    assert cells.share < 1
    lines, kept = cells.lines(0, STRATA, 1), np.unique(cells.recorded(0, STRATA, 10**6)[1])
    full = Cells(2)
    full.add(data.take(np.isin(data.unit, kept)))
    expected = full.lines(0, STRATA, 1)
    assert np.sort(lines.x) == pytest.approx(np.sort(expected.x))
    assert abs(cells.units(0, 0) - full.units(0, 0) / cells.share) < 2


def test_thinning_does_not_move_the_estimate_beyond_its_error() -> None:
    data = block(20_000, units=4000)
    whole, thinned = Cells(2), Cells(2, max_lines=4000)
    whole.add(data)
    thinned.add(data)
    one, other = looked(whole), looked(thinned)
    assert abs(one.est - other.est) < 4 * other.se
    assert other.se > one.se


def test_recorded_lines_are_ordered_by_unit_and_hold_every_arm() -> None:
    data, cells = block(500), Cells(2)
    cells.add(data)
    lines, hashes = cells.recorded(0, STRATA, 10**6)
    assert (np.diff(lines.unit) >= 0).all()
    assert len(hashes) == lines.unit.max() + 1
    assert lines.x.sum() == pytest.approx(data.x[:, 0].sum())
    fewer, _ = cells.recorded(0, STRATA, 20)
    assert len(np.unique(fewer.unit)) <= 20


def test_totals_give_the_look_of_requests() -> None:
    data, totals = block(3000), Totals(2, 3)
    for part in np.array_split(np.arange(3000), 4):
        totals.add(CellBlock._make(column[part] for column in data))
    here = (data.arm != 1) & (data.n[:, 0] > 0)
    cell = 2 * STRATA[data.stratum[here]] + (data.arm[here] == 2)
    n, x, d = (column[here, 0] for column in data[3:])
    sums = [np.bincount(cell, it, 4).astype(np.float64).reshape(2, 2) for it in (n, x, d, x * x, x * d, d * d)]
    expected = look_of_requests(Moments(*sums), "ratio")
    found = look_of_requests(totals.moments(0, STRATA, 2), "ratio")
    assert expected is not None
    assert found is not None
    same(found, expected)
    assert totals.of_arms(0)[:, 0].sum() == data.n[:, 0].sum()
