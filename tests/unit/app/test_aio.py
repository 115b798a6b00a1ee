"""What runs in the background of a block.

Time limits, with event loops whose limits have already passed: nothing here waits for a clock.
"""

import asyncio

import pytest

from app.aio import Callbacks, IdleTimeout, TimeLimit, run_in_background, within
from app.errors import DeadlinePassed, TimedOut


async def test_work_runs_while_the_block_runs_and_ends_with_it() -> None:
    going_on, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(0)
            going_on.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with run_in_background(work()):
        await going_on.wait()
        assert not ended.is_set()
    assert ended.is_set()


async def test_an_error_of_the_task_is_raised_at_the_end() -> None:
    async def broken() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        async with run_in_background(broken()):
            await asyncio.sleep(0)


class Waits:
    """Work for callbacks: it counts what it waits for."""

    def __init__(self) -> None:
        self.future = asyncio.get_running_loop().create_future()
        self.steps: list[str] = []

    async def run(self) -> None:
        self.steps.append("begun")
        try:
            self.steps.append(await self.future)
            await asyncio.sleep(0)
            self.steps.append("slept")
        finally:
            self.steps.append("over")


async def _turns() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_callbacks_begin_at_once_and_continue_whenever_the_wait_is_over() -> None:
    waits = Waits()
    Callbacks(waits.run())
    assert waits.steps == ["begun"]
    waits.future.set_result("woken")
    await _turns()
    assert waits.steps == ["begun", "woken", "slept", "over"]


@pytest.mark.parametrize("is_woken", [False, True])
async def test_ended_callbacks_do_not_continue(is_woken: bool) -> None:
    waits = Waits()
    callbacks = Callbacks(waits.run())
    if is_woken:
        waits.future.set_result("woken")
    callbacks.end()
    assert waits.steps == ["begun", "over"]
    await _turns()
    callbacks.end()
    assert waits.steps == ["begun", "over"]


async def test_an_error_of_the_first_step_is_raised() -> None:
    async def broken() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        Callbacks(broken())


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _forever() -> None:
    await asyncio.get_running_loop().create_future()


async def _uncancelled() -> bool:
    task = asyncio.current_task()
    assert task is not None
    await asyncio.sleep(0)  # a leftover cancellation would be raised here
    return task.cancelling() == 0


def test_a_block_that_ends_in_time_is_left_alone() -> None:
    async def run() -> bool:
        with within(3600):
            await asyncio.sleep(0)
        return await _uncancelled()

    assert asyncio.run(run())


def test_a_block_that_still_runs_is_ended() -> None:
    async def run() -> bool:
        with pytest.raises(TimeoutError), TimeLimit(_now() - 1, asyncio.get_running_loop()):
            await _forever()
        return await _uncancelled()

    assert asyncio.run(run())


def test_each_of_many_limits_ends_its_own_block() -> None:
    async def limited(number: int) -> int:
        with pytest.raises(TimeoutError), TimeLimit(_now() + number % 10 / 1000, asyncio.get_running_loop()):
            await _forever()
        return number

    async def run() -> list[int]:
        with within(3600):
            return await asyncio.gather(*map(limited, range(500)))

    assert asyncio.run(run()) == list(range(500))


def test_the_outer_of_two_limits_ends_both_blocks() -> None:
    async def nested() -> None:
        with TimeLimit(_now() - 1, asyncio.get_running_loop()):
            with within(3600):
                await _forever()
            pytest.fail("the outer block went on")

    async def run() -> bool:
        with pytest.raises(TimeoutError):
            await nested()
        return await _uncancelled()

    assert asyncio.run(run())


def test_errors_of_the_block_stay() -> None:
    async def run() -> bool:
        with pytest.raises(ValueError, match="x"), within(3600):
            raise ValueError("x")
        return await _uncancelled()

    assert asyncio.run(run())


def test_a_task_that_is_cancelled_from_outside_stays_cancelled() -> None:
    async def limited() -> None:
        task = asyncio.current_task()
        assert task is not None
        limit = within(3600)
        with limit:
            limit.pass_now()
            task.cancel()
            await _forever()

    async def run() -> None:
        await asyncio.create_task(limited())

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())


async def test_a_silent_block_gives_a_sign_once_in_a_while_and_none_when_it_is_over() -> None:
    signs: list[bool] = []
    with IdleTimeout(100, _now() + 1000, 5, lambda: signs.append(True)) as idle:

        async def looked(silent_s: float) -> int:
            idle.shown = _now() - silent_s
            idle.touch()  # what came was nothing to pass on
            idle.due()
            await asyncio.sleep(0)
            return len(signs)

        assert await looked(4) == 0
        assert await looked(6) == 1
        idle.due()
        await asyncio.sleep(0)
        assert len(signs) == 1, "the last sign is not that old"
    with IdleTimeout(100, _now() + 1000, 5, lambda: signs.append(True)) as idle:
        idle.shown -= 6
        idle.due()
    await asyncio.sleep(0)
    assert len(signs) == 1


@pytest.mark.parametrize(("is_paused", "ended"), [(False, TimedOut), (True, DeadlinePassed)])
async def test_a_block_that_is_paused_ends_at_its_deadline_alone(is_paused: bool, ended: type[Exception]) -> None:
    async def run() -> None:
        with IdleTimeout(0.01, _now() + 0.1) as idle:
            if is_paused:
                idle.pause()
            await _forever()

    with pytest.raises(ended):
        await run()
