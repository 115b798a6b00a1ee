"""The queue: never more at a time than allowed, first come first served, and no request is forgotten."""

import asyncio
import json
from contextlib import nullcontext
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.schema import Admission
from app.errors import BadRequest, Unavailable
from app.exchange.request import check_length, check_lists
from app.routing.admission import COUNTED_S, MOMENT_S, AdmissionQueue, UnmetDemand


async def test_the_queue_is_served_in_order() -> None:
    queue, limits, served = AdmissionQueue(), Admission(max_concurrent=1, max_queued=9), []

    async def visit(number: int) -> None:
        async with queue.slot("chat", limits):
            served.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(visit(number) for number in range(10)))
    assert served == list(range(10))
    assert (queue.running, queue.waiting) == (0, 0)


async def test_a_full_queue_rejects_at_once() -> None:
    queue, limits = AdmissionQueue(), Admission(max_concurrent=1, max_queued=0)
    async with queue.slot("chat", limits):
        with pytest.raises(Unavailable, match=r"at capacity \(1 running, 0 queued\)") as refused:
            async with queue.slot("chat", limits):
                raise AssertionError
    assert refused.value.retry_after == 1
    assert not refused.value.is_fault


async def test_a_request_that_waits_too_long_is_rejected_and_leaves_the_queue() -> None:
    queue, limits = AdmissionQueue(), Admission(max_concurrent=1, max_queued=1, max_wait_s=0.01)
    async with queue.slot("chat", limits):
        with pytest.raises(Unavailable, match=r"Timed out after 0\.01 s"):
            async with queue.slot("chat", limits):
                raise AssertionError
        assert queue.waiting == 0
    assert queue.running == 0


async def test_more_room_lets_several_in() -> None:
    queue, inside = AdmissionQueue(), 0
    narrow, wide = Admission(max_concurrent=1, max_queued=9), Admission(max_concurrent=3, max_queued=9)
    leave = asyncio.Event()

    async def visit() -> None:
        nonlocal inside
        async with queue.slot("chat", wide):
            inside += 1
            await leave.wait()

    async with queue.slot("chat", narrow):
        visits = [asyncio.create_task(visit()) for _ in range(2)]
        await asyncio.sleep(0)
    async with queue.slot("chat", wide):
        await asyncio.sleep(0)
        assert inside == 2
        leave.set()
    await asyncio.gather(*visits)
    assert queue.running == 0


@given(
    plan=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["stay", "cancel", "raise"])), max_size=30),
    room=st.integers(1, 3),
    most_queued=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_the_bound_holds_and_every_place_is_returned(
    plan: list[tuple[int, str]], room: int, most_queued: int, seed: int
) -> None:
    queue, limits, random = AdmissionQueue(), Admission(max_concurrent=room, max_queued=most_queued), Random(seed)
    most = 0

    async def visit(steps: int, how: str) -> None:
        nonlocal most
        async with queue.slot("chat", limits):
            most = max(most, queue.running)
            for _ in range(steps):
                await asyncio.sleep(0)
            if how == "raise":
                raise KeyError

    async def run() -> None:
        tasks = []
        for steps, how in plan:
            tasks.append((asyncio.create_task(visit(steps, how)), how))
            if random.random() < 0.7:
                await asyncio.sleep(0)
            for task, what in tasks:
                if what == "cancel" and random.random() < 0.5:
                    task.cancel()
            assert queue.waiting <= most_queued
        ends = await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
        assert all(end is None or isinstance(end, Unavailable | KeyError | asyncio.CancelledError) for end in ends)

    asyncio.run(run())
    assert most <= room
    assert (queue.running, queue.waiting) == (0, 0)


@pytest.mark.parametrize("name", ["messages", "input", "prompt"])
def test_the_length_of_a_conversation_is_bounded(name: str) -> None:
    check_length({name: ["x"] * 3}, 3)
    check_length({name: "x" * 9}, 3)
    with pytest.raises(BadRequest, match=f"{name}: has 4 items, at most 3") as refused:
        check_length({name: ["x"] * 4}, 3)
    assert refused.value.param == name
    with pytest.raises(BadRequest, match=f"{name}: has 4 items, at most 3"):
        check_length({name: [[1]] * 4}, 3)
    with pytest.raises(BadRequest, match="texts: has 4 items, at most 3"):
        check_length({name: ["x"] * 4}, 3, {name: "texts"})


def test_a_text_given_as_its_tokens_is_no_batch() -> None:
    check_length({"prompt": [5] * 9, "input": [5] * 9}, 3)
    check_length({"prompt": [5] * 50_000}, 3)
    with pytest.raises(BadRequest, match="prompt: has 50001 items"):
        check_length({"prompt": [*[5] * 50_000, "x"]}, 3)


@given(
    value=st.lists(st.sampled_from([5, 1.5, None, "a", "[", [1], {}, "5, 6"]), max_size=6)
    | st.sampled_from(["1,2,3,4", {"a": 1}, 5]),
    name=st.sampled_from(["messages", "input", "prompt", "other"]),
)
def test_what_the_text_of_a_body_says_of_its_lists_is_what_they_say(value: Any, name: str) -> None:
    """Of lists with numbers alone their text says nothing."""
    numbers = isinstance(value, list) and not any(isinstance(item, str | list | dict) for item in value)
    text = json.dumps({name: value}).encode()
    with pytest.raises(BadRequest) if _is_too_long({name: value}) and not numbers else nullcontext():
        check_lists(text, 3)


def _is_too_long(body: dict[str, Any]) -> bool:
    try:
        check_length(body, 3)
    except BadRequest:
        return True
    return False


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"input":[1,}', b'{"input":' + b"[" * 100_000])
def test_a_text_that_is_no_object_has_no_long_lists(text: bytes) -> None:
    check_lists(text, 3)


async def test_waiting_and_refused_requests_count_as_unserved() -> None:
    queue, limits, unserved = AdmissionQueue(), Admission(max_concurrent=1, max_queued=1), UnmetDemand()
    async with queue.slot("chat", limits, "blue", unserved):
        assert unserved.demand() == {}, "it runs"

        async def visit() -> None:
            async with queue.slot("chat", limits, "green", unserved):
                pass

        waiting = asyncio.create_task(visit())
        await asyncio.sleep(0)
        assert unserved.demand() == {"green": 1}
        with pytest.raises(Unavailable):
            async with queue.slot("chat", limits, "blue", unserved):
                raise AssertionError
        assert unserved.demand() == {"green": 1, "blue": 1}
    await waiting
    assert unserved.demand() == {"blue": 1}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_waiting_requests_are_demand_while_they_wait() -> None:
    unserved = UnmetDemand()
    with unserved.waiting("blue"), unserved.waiting("blue"), unserved.waiting("green"):
        assert unserved.demand() == {"blue": 2, "green": 1}
    with pytest.raises(KeyError), unserved.waiting("blue"):
        raise KeyError
    assert unserved.demand() == {}


def test_refused_requests_of_one_moment_add_up_and_are_forgotten() -> None:
    clock = Clock()
    unserved = UnmetDemand(clock)
    for _ in range(28):
        unserved.refused("blue")
        clock.now += 0.01
    assert unserved.demand() == {"blue": 28}
    clock.now = 100.0 + COUNTED_S - 0.01
    assert unserved.demand() == {"blue": 28}
    clock.now = 100.0 + COUNTED_S
    assert unserved.demand() == {}


def test_a_request_refused_repeatedly_counts_once() -> None:
    clock = Clock()
    unserved = UnmetDemand(clock)
    for _ in range(10):
        unserved.refused("blue")
        clock.now += MOMENT_S
    assert unserved.demand() == {"blue": 1}


@given(st.lists(st.floats(0, 40), max_size=60))
def test_the_demand_is_at_most_the_recently_refused_requests(pauses: list[float]) -> None:
    clock, refused = Clock(), []
    unserved = UnmetDemand(clock)
    for pause in pauses:
        clock.now += pause
        refused.append(clock.now)
        unserved.refused("blue")
    lately = sum(at > clock.now - COUNTED_S for at in refused)
    assert (
        (lately > 0)
        <= unserved.demand().get("blue", 0)
        <= lately + sum(clock.now - COUNTED_S - MOMENT_S < at <= clock.now - COUNTED_S for at in refused)
    )
