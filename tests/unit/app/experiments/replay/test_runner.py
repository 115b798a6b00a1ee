"""Arrival times are kept, divided by the speed, and the first arm is drawn at random."""

import asyncio
from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from app.experiments.replay.runner import Punctuality, due, order
from app.request_recordings.recorder import RecordedRequest
from tests.unit.app.experiments.replay.test_traces import request_requests


class Time:
    """A clock that advances only by sleeping and by the test's work."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def requests(*ats: float) -> list[RecordedRequest]:
    return [request_requests(at=at) for at in ats]


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=20).map(sorted), st.sampled_from([0.5, 1.0, 4.0]))
async def test_requests_go_out_at_their_times_divided_by_the_speed(ats: list[float], speed: float) -> None:
    time, punctuality = Time(), Punctuality()
    slots = asyncio.Semaphore(len(ats))
    sent = [time.now async for _ in due(requests(*ats), speed, slots, punctuality, clock=time, sleep=time.sleep)]
    expected = [100 + (at - ats[0]) / speed for at in ats]
    assert all(abs(moment - wanted) < 1e-6 for moment, wanted in zip(sent, expected, strict=True))
    assert punctuality == Punctuality()


async def test_without_a_free_slot_a_request_waits_and_counts_as_late() -> None:
    time, punctuality, slots = Time(), Punctuality(), asyncio.Semaphore(1)
    sent = []
    async for number, _ in due(requests(0, 1, 2), 1.0, slots, punctuality, clock=time, sleep=time.sleep):
        sent.append((number, time.now - 100))
        time.now += 3  # the answer takes longer than the next request waits
        slots.release()
    assert sent == [(0, 0), (1, 3), (2, 6)]
    assert punctuality == Punctuality(late=2, most_s=4)


def test_the_first_arm_is_drawn_by_the_weights() -> None:
    random, arms, weights = Random(1), ["blue", "green", "red"], [34, 33, 33]
    orders = [tuple(order(arms, weights, random)) for _ in range(6000)]
    assert all(sorted(names) == sorted(arms) for names in orders)
    assert all(850 < count < 1150 for count in Counter(orders).values())
    assert len(set(orders)) == 6
