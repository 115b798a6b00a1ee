from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.experiments.analysis.arrays import FirstSeen, Growing, HashIndex, combined, kept_share

Exposure = tuple[int, float, int, int]
EXPOSURES = st.lists(
    st.tuples(st.integers(0, 8), st.floats(0, 4).map(round).map(float), st.integers(0, 3), st.integers(0, 1)),
    min_size=1,
    max_size=40,
)


def add(seen: FirstSeen, exposures: Sequence[Exposure]) -> None:
    unit, at, group, arm = zip(*exposures, strict=True)
    seen.add(np.array(unit, np.uint64), np.array(at), np.array(group, np.int32), np.array(arm, np.int8))


@given(EXPOSURES, st.integers(1, 7))
def test_a_unit_counts_once_where_it_came_first_in_any_order(exposures: list[Exposure], size: int) -> None:
    seen = FirstSeen(arms=2)
    for start in range(0, len(exposures), size):
        add(seen, exposures[start : start + size])
    first = {unit: min(exposure[1:] for exposure in exposures if exposure[0] == unit) for unit, *_ in exposures}
    expected = np.zeros((4, 2), np.int64)
    for _, group, arm in first.values():
        expected[group, arm] += 1
    assert seen.counts.tolist() == expected[: len(seen.counts)].tolist()
    assert expected[len(seen.counts) :].sum() == 0
    everyone = np.arange(10, dtype=np.uint64)
    assert seen.groups(everyone).tolist() == [first.get(unit, (0.0, 0, 0))[1] for unit in range(10)]
    assert seen.groups(everyone, unknown=-1).tolist() == [first.get(unit, (0.0, -1, 0))[1] for unit in range(10)]
    times = [sum(exposure[0] == unit for exposure in exposures) for unit in range(10)]
    for number, reached in zip((1, 2, 4), seen.reached(np.array([1, 2, 4])), strict=True):
        often = np.zeros((4, 2), np.int64)
        for unit, (_, group, arm) in first.items():
            often[group, arm] += times[unit] >= number
        assert reached.tolist() == often[: len(reached)].tolist()
    assert seen.new_since(2.0) == sum(at >= 2 for at, _, _ in first.values())


def test_above_the_bound_half_of_the_units_are_counted_and_no_unit_twice() -> None:
    rng, seen = np.random.default_rng(1), FirstSeen(arms=2, max_units=1000)
    units = rng.integers(0, 2**63, 5000).astype(np.uint64)
    for _ in range(3):
        for part in np.array_split(units, 20):
            seen.add(part, np.zeros(len(part)), np.zeros(len(part), np.int32), (part % 2).astype(np.int8))
    assert len(seen) <= 1000
    assert seen.counts.sum() == len(seen)
    assert abs(seen.counts.sum() / seen.share - 5000) < 900


BATCHES = st.lists(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 40), max_size=80), max_size=12)


@given(BATCHES)
def test_every_hash_keeps_the_position_in_which_it_came(batches: list[list[int]]) -> None:
    index, known = HashIndex(), dict[int, int]()
    for batch in batches:
        keys = np.unique(np.array(batch, np.uint64))
        positions = index.add(keys)
        for key, position in zip(keys.tolist(), positions.tolist(), strict=True):
            assert known.setdefault(key, position) == position
    everything = np.array(list(known), np.uint64)
    assert index.find(everything).tolist() == list(known.values())
    assert sorted(known.values()) == list(range(len(index)))
    assert index.find(np.array([2**63 + 12345], np.uint64)).tolist() == [known.get(2**63 + 12345, -1)]


@given(BATCHES, st.integers(0, 5))
def test_kept_hashes_are_found_at_their_new_position(batches: list[list[int]], every: int) -> None:
    index = HashIndex()
    for batch in batches:
        index.add(np.unique(np.array(batch, np.uint64)))
    kept = np.arange(0, len(index), every + 1)
    keys = index.keys[kept].copy()
    index.keep(kept)
    assert index.find(keys).tolist() == list(range(len(kept)))


def test_a_growing_array_keeps_its_rows() -> None:
    array = Growing(np.float64, 2)
    for number in range(100):
        array.append(np.full((3, 2), float(number)))
    assert array.values.shape == (300, 2)
    assert array.values[::3, 0].tolist() == list(map(float, range(100)))
    array.keep(np.arange(300) % 3 == 0)
    assert len(array) == 100


def test_thinning_keeps_about_half_each_time_and_only_of_what_was_kept_before() -> None:
    units = combined(np.arange(20_000, dtype=np.uint64), np.zeros(20_000, np.int64))
    shares = [kept_share(units, bits) for bits in range(4)]
    for bits, kept in enumerate(shares):
        assert abs(kept.mean() - 0.5**bits) < 0.02
    assert not (shares[2] & ~shares[1]).any()
