import numpy as np

from app.experiments.analysis import cells as cold_minutes
from app.experiments.analysis.cells import WAIT_MINUTES, CellBlock, ColdMinutes, Totals


def requests(arms: list[int]) -> CellBlock:
    size = len(arms)
    ones = np.ones((size, 1))
    return CellBlock(
        np.arange(size, dtype=np.uint64), np.zeros(size, np.int32), np.array(arms, np.int8), ones, ones, ones
    )


def counted(cold: ColdMinutes[Totals]) -> list[float]:
    sums = cold.sums
    assert sums is not None
    counts: list[float] = sums.of_arms(0)[:, 0].tolist()
    return counts


def test_a_cold_replica_excludes_its_whole_minute_from_both_arms() -> None:
    cold = ColdMinutes(Totals(1, 2))
    cold.add(np.array([10.0, 70.0, 75.0]), np.array([False, False, False]), requests([0, 0, 1]))
    assert cold.sums is None
    cold.add(np.array([80.0, 130.0]), np.array([True, False]), requests([1, 0]))
    assert counted(cold) == [1, 2]
    cold.add(np.array([90.0]), np.array([False]), requests([0]))
    assert counted(cold) == [2, 2]
    assert cold.minutes.tolist() == [1]


def test_no_request_counts_twice() -> None:
    cold = ColdMinutes(Totals(1, 2))
    for _ in range(3):
        cold.add(np.array([10.0, 70.0]), np.array([True, True]), requests([0, 1]))
    assert counted(cold) == [3, 3]


def test_requests_stop_waiting_after_a_while() -> None:
    cold = ColdMinutes(Totals(1, 2))
    cold.add(np.array([10.0]), np.array([False]), requests([0]))
    cold.add(np.array([60.0 * (WAIT_MINUTES + 2)]), np.array([False]), requests([0]))
    cold.add(np.array([20.0]), np.array([True]), requests([1]))
    assert counted(cold) == [0, 1]


def test_no_more_than_a_bounded_number_waits() -> None:
    cold, size = ColdMinutes(Totals(1, 2)), cold_minutes.MAX_WAITING // 2
    for _ in range(3):
        cold.add(np.full(size, 10.0), np.zeros(size, np.bool_), requests([0] * size))
    cold.add(np.array([20.0]), np.array([True]), requests([1]))
    assert counted(cold) == [2 * size, 1]
