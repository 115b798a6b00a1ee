import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.experiments.analysis.arrays import Growing, HashIndex, combined, kept_share

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
