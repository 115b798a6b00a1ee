"""Requests end when their clients disconnect."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.aio import ClientDisconnected, Message, while_connected


class Client:
    """A client whose messages the server receives."""

    def __init__(self, *messages: str) -> None:
        self._messages: asyncio.Queue[str] = asyncio.Queue()
        for message in messages:
            self.sends(message)

    def sends(self, message: str) -> None:
        self._messages.put_nowait(message)

    async def receive(self) -> Message:
        return {"type": await self._messages.get()}


async def _for_ever() -> None:
    await asyncio.Event().wait()


@contextmanager
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_a_block_ends_when_its_client_disconnects() -> None:
    client, task = Client("http.request"), asyncio.current_task()

    async def served() -> None:
        with while_connected(client.receive):
            client.sends("http.disconnect")
            await _for_ever()

    with pytest.raises(ClientDisconnected):
        await served()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_block_does_not_begin_for_a_client_that_has_gone() -> None:
    with pytest.raises(ClientDisconnected), while_connected(Client("http.disconnect").receive):
        pytest.fail("the block began")


async def test_a_block_continues_once_the_response_is_complete() -> None:
    client, steps = Client(), list[str]()
    with while_connected(client.receive, lambda: bool(steps)):
        steps.append("answered")
        client.sends("http.disconnect")
        await asyncio.sleep(0.01)
        steps.append("settled")
    assert steps == ["answered", "settled"]


async def test_a_cancellation_from_outside_stays_one() -> None:
    async def served() -> None:
        with while_connected(Client().receive):
            await _for_ever()

    task = asyncio.create_task(served())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_block_leaves_nothing_to_the_garbage_collector() -> None:
    async def served() -> None:
        with while_connected(Client().receive):
            await asyncio.sleep(0)

    with _without_collector():
        await served()
        assert gc.collect() == 0
