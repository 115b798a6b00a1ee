"""Work beside a block."""

import asyncio

import pytest

from app.background import beside


async def test_it_goes_on_while_the_block_runs_and_ends_with_it() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            while True:
                seen.append("tick")
                await asyncio.sleep(0)
        finally:
            seen.append("ended")

    async with beside(work()):
        while seen.count("tick") < 3:
            await asyncio.sleep(0)
    assert seen[-1] == "ended"


async def test_what_it_raised_is_raised_at_the_end() -> None:
    async def broken() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        async with beside(broken()):
            await asyncio.sleep(0)
