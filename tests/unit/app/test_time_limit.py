"""Time limits, with event loops whose limits have already passed: nothing here waits for a clock."""

import asyncio

import pytest

from app.aio import TimeLimit, within


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
        async with within(3600):
            await asyncio.sleep(0)
        return await _uncancelled()

    assert asyncio.run(run())


def test_a_block_that_still_runs_is_ended() -> None:
    async def run() -> bool:
        with pytest.raises(TimeoutError):
            async with TimeLimit(_now() - 1, asyncio.get_running_loop()):
                await _forever()
        return await _uncancelled()

    assert asyncio.run(run())


def test_the_outer_of_two_limits_ends_both_blocks() -> None:
    async def nested() -> None:
        async with TimeLimit(_now() - 1, asyncio.get_running_loop()):
            async with within(3600):
                await _forever()
            pytest.fail("the outer block went on")

    async def run() -> bool:
        with pytest.raises(TimeoutError):
            await nested()
        return await _uncancelled()

    assert asyncio.run(run())


def test_errors_of_the_block_stay() -> None:
    async def run() -> bool:
        with pytest.raises(ValueError, match="x"):
            async with within(3600):
                raise ValueError("x")
        return await _uncancelled()

    assert asyncio.run(run())


def test_a_task_that_is_cancelled_from_outside_stays_cancelled() -> None:
    async def limited() -> None:
        task = asyncio.current_task()
        assert task is not None
        limit = within(3600)
        async with limit:
            limit.pass_now()
            task.cancel()
            await _forever()

    async def run() -> None:
        await asyncio.create_task(limited())

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
