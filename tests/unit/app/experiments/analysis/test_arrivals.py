import math
import random
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.experiments.analysis.arms import HORIZON_S, ArmAssignment, Arrivals
from app.experiments.storage.columns import DTYPES, RowColumns, StartColumns

REQUESTS = st.lists(st.tuples(st.integers(0, 1000), st.booleans(), st.booleans(), st.integers(1, 3)), max_size=30)
"""Of each request: its arrival, whether it has ended, whether it is on the treatment, and its router."""


C = TypeVar("C", StartColumns, RowColumns)
Request = tuple[int, bool, bool, int]


def columns(
    kind: type[C], seq: list[int], at: list[int], router: list[int] | None = None, arrived: list[float] | None = None
) -> C:
    """`arrived`: when the controller had the records, by default when the requests arrived."""
    empty: dict[str, Any] = {name: np.zeros(len(seq), DTYPES[name]) for name in kind.names()}
    known: dict[str, Any] = {"seq": np.array(seq, np.uint64), "router": np.array(router or [1] * len(seq), np.uint64)}
    known |= {"at": np.array(at, np.float64), "arrived": np.array(arrived or at, np.float64)}
    return kind(**(empty | known))


def placed(treated: list[bool]) -> ArmAssignment:
    arm = np.array(treated, np.int8)
    return ArmAssignment(np.ones(len(arm), np.bool_), arm, np.zeros(len(arm), np.int32))


@given(REQUESTS, st.integers(1, 7), st.randoms(use_true_random=False), st.integers(0, 3000), st.sets(st.integers(1, 3)))
def test_exactly_the_requests_before_every_running_one_are_released_each_once(
    requests: list[Request], size: int, order: random.Random, later: int, gone: set[int]
) -> None:
    """Of those that began long ago, or whose router is gone, none is waited for."""
    latest = max((at for at, *_ in requests), default=0)
    now = latest + later
    running = [
        (at, arm, at >= now - HORIZON_S and router not in gone) for at, ended, arm, router in requests if not ended
    ]
    holding = [at for at, _, holds in running if holds]
    tested = Arrivals(2)
    numbers = list(range(len(requests)))

    def of(kind: type[C], which: list[int]) -> tuple[C, ArmAssignment]:
        chosen = [requests[number] for number in which]
        at, routers = [row[0] for row in chosen], [row[3] for row in chosen]
        return columns(kind, which, at, routers), placed([row[2] for row in chosen])

    tested.start(*of(StartColumns, numbers))
    ended = [number for number in numbers if requests[number][1]]
    order.shuffle(ended)
    released: list[int] = []
    for start in range(0, len(ended), size):
        tested.end(*of(RowColumns, ended[start : start + size]))
        if start == 0 and (early := tested.release()) is not None:
            released += early.rows.seq.tolist()
    tested.abandon(list(gone))
    for _ in range(2):
        if (last := tested.release(now)) is not None:
            assert last.placed.arm.tolist() == [requests[number][2] for number in last.rows.seq.tolist()]
            released += last.rows.seq.tolist()
    assert sorted(released) == [n for n in sorted(ended) if requests[n][0] < min(holding, default=np.inf)]
    waiting = tested.held.requests if tested.held is not None else 0
    assert len(requests) == len(released) + tested.running.sum() + waiting, "each is in one of the three"
    for arm in (0, 1):
        assert tested.running[arm].sum() == sum(its == arm for _, its, _ in running)
        assert tested.unknown[arm].sum() == sum(its == arm and not holds for _, its, holds in running)


def test_a_start_that_comes_after_its_row_is_not_running() -> None:
    tested = Arrivals(2)
    tested.end(columns(RowColumns, [1], [5]), placed([False]))
    tested.start(columns(StartColumns, [1], [5]), placed([False]))
    assert tested.running.sum() == 0


def test_memory_is_bounded_and_what_was_never_heard_of_stays_unknown() -> None:
    tested = Arrivals(2, least_kept=100)
    for hour in range(40):
        numbers = list(range(1000 * hour, 1000 * hour + 100))
        tested.start(columns(StartColumns, numbers, [3600 * hour] * 100), placed([True] * 100))
        tested.end(columns(RowColumns, numbers[1:], [3600 * hour] * 99), placed([True] * 99))
        tested.release()
    assert len(tested.index) <= 500
    assert tested.running.sum(axis=1).tolist() == [0, 40]
    assert tested.unknown.sum(axis=1).tolist() == [0, 39]


def test_too_many_waiting_requests_are_released_and_the_running_one_is_unknown() -> None:
    tested = Arrivals(2, max_waiting=50)
    numbers = list(range(100))
    tested.start(columns(StartColumns, numbers, numbers), placed([False] * 100))
    tested.end(columns(RowColumns, numbers[1:41], numbers[1:41]), placed([False] * 40))
    assert tested.release() is None
    assert tested.unknown.sum() == 0
    tested.end(columns(RowColumns, numbers[41:], numbers[41:]), placed([False] * 59))
    ended = tested.release()
    assert ended is not None
    assert len(ended.rows) == 99
    assert tested.unknown.sum(axis=1).tolist() == [1, 0]


@pytest.mark.parametrize(("arrived", "unknown"), [(0.0, 0), (math.nan, 100)], ids=["known", "of another version"])
def test_a_router_whose_clock_is_ahead_makes_no_running_request_unknown(arrived: float, unknown: int) -> None:
    """Where records say when the controller had them."""
    tested = Arrivals(2, least_kept=10)
    numbers = list(range(1, 101))
    tested.start(columns(StartColumns, [0], [2 * 86400], arrived=[arrived]), placed([False]))
    tested.start(columns(StartColumns, numbers, numbers), placed([True] * 100))
    tested.release(100.0)
    assert tested.unknown.sum(axis=1).tolist() == [0, unknown]
    tested.end(columns(RowColumns, numbers, numbers), placed([True] * 100))
    assert tested.release(200.0) is not None
    assert tested.running.sum(axis=1).tolist() == [1, unknown], "lost for good once they were forgotten"
