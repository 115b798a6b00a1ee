"""A set of numbers as ranges is a set of numbers."""

from hypothesis import given
from hypothesis import strategies as st

from app.experiments.storage.segments import Numbers

SETS = st.sets(st.integers(1, 30))


@given(SETS, SETS, st.integers(1, 30), st.integers(0, 31))
def test_numbers_behave_like_a_set(one: set[int], other: set[int], added: int, floor: int) -> None:
    a, b = Numbers(one), Numbers(other)
    assert set(a) == one
    assert set(a.union(b)) == one | other
    assert a.is_within(b) == (one <= other)
    assert set(Numbers(ranges=a.dump())) == one
    reached = floor
    while reached + 1 in one:
        reached += 1
    assert a.reach(floor) == reached
    a.add(added)
    a.update(b)
    assert set(a) == one | other | {added}
    assert all((number in a) == (number in one | other | {added}) for number in range(32))


def test_numbers_in_order_are_one_range() -> None:
    numbers = Numbers()
    for number in range(1, 1000):
        numbers.add(number)
    assert numbers.dump() == [[1, 999]]
