"""Tasks that run in the background of a `with` block."""

import asyncio

import pytest

from app.background import run_in_background


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
