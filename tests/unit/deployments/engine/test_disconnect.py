"""A request whose client disconnects may end by itself first, and is cancelled otherwise."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from deployments.engine.server import DisconnectMiddleware


async def send(message: Message) -> None:
    """The client has disconnected: messages are discarded."""


class Connection:
    """The receiving side: nothing arrives until the client disconnects."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_an_answer_in_a_task_of_its_own_ends_by_reading_the_disconnect() -> None:
    ended: list[str] = []

    async def generate() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("generation")
            raise

    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # what vLLM's with_cancellation does
        work = asyncio.create_task(generate())
        await asyncio.sleep(0)
        await receive()
        work.cancel()

    connection = Connection()
    request = asyncio.create_task(DisconnectMiddleware(app)({"type": "http"}, connection.receive, send))
    await asyncio.sleep(0.01)
    connection.gone.set()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await asyncio.sleep(0)
    assert ended == ["generation"]


async def test_an_application_that_does_not_end_by_itself_is_cancelled() -> None:
    ended = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    middleware = DisconnectMiddleware(app, grace_s=0.01)
    request = asyncio.create_task(middleware({"type": "http"}, Connection().receive, send))
    await asyncio.sleep(0.01)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await asyncio.wait_for(ended.wait(), timeout=30)


async def test_an_error_of_the_application_passes() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("from the engine")

    with pytest.raises(ValueError, match="from the engine"):
        await DisconnectMiddleware(app)({"type": "http"}, Connection().receive, send)
