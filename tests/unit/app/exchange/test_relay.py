"""Running an awaitable without a task, as is done to send chunks to a client."""

import asyncio
from collections.abc import Awaitable

import pytest

from app.aio import run_until_blocked


async def test_an_awaitable_that_does_not_wait_runs_at_once() -> None:
    done = []

    async def at_once() -> None:
        done.append(1)

    assert run_until_blocked(at_once()) is None
    assert done == [1]


async def test_the_rest_resumes_where_it_waited() -> None:
    go, seen = asyncio.Event(), []

    async def in_steps() -> None:
        seen.append("started")
        await go.wait()
        seen.append("woken")
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        seen.append("done")

    rest = run_until_blocked(in_steps())
    assert rest is not None
    assert seen == ["started"]
    asyncio.get_running_loop().call_soon(go.set)
    await rest
    assert seen == ["started", "woken", "done"]


async def test_the_awaited_event_may_happen_before_the_rest_is_awaited() -> None:
    go = asyncio.Event()
    rest = run_until_blocked(_waiting(go))
    go.set()
    assert rest is not None
    await asyncio.wait_for(_all_of(rest), 1)


async def test_errors_come_out_of_both_parts() -> None:
    async def fails(first: bool) -> None:
        if not first:
            await asyncio.sleep(0)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        run_until_blocked(fails(True))
    rest = run_until_blocked(fails(False))
    assert rest is not None
    with pytest.raises(ConnectionError):
        await rest


async def test_a_cancellation_reaches_the_waiting_awaitable() -> None:
    ended = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    rest = run_until_blocked(waits())
    assert rest is not None
    task = asyncio.create_task(_all_of(rest))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [1]


async def _waiting(go: asyncio.Event) -> None:
    await go.wait()


async def _all_of(rest: Awaitable[None]) -> None:
    await rest
