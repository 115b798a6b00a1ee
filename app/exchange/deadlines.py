"""What ends a request from outside: the client that leaves, and time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

from app.errors import DeadlinePassed, TimedOut

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
_TOO_LONG = "The response took longer than this server allows"


class ClientDisconnected(Exception):
    """The client closed the connection: nobody is there to answer."""


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancels the block and raises ClientGone when the client goes away."""
    work = asyncio.current_task()
    assert work is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        work.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone:
            raise
        work.uncancel()
        raise ClientDisconnected from None
    finally:
        watcher.cancel()


@asynccontextmanager
async def until(deadline: float) -> AsyncIterator[None]:
    """Raises DeadlinePassed when the block is still running at `deadline` (the event loop's time)."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError as error:
        raise DeadlinePassed(_TOO_LONG) from error


class IdleTimeout:
    """Raises DeadlinePassed when the block outlasts `deadline`, TimedOut when `last` has not been moved for `idle_s`.

    One timer per idle period looks at `last`; a timer per chunk would cost more than passing the chunk on.
    """

    def __init__(self, idle_s: float, deadline: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle_s = idle_s
        self._limit = asyncio.timeout_at(deadline)
        self._idle = False
        self.last = self._loop.time()

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._timer = self._loop.call_at(self.last + self._idle_s, self._look)
        return self

    async def __aexit__(self, *raised: Any) -> None:
        self._timer.cancel()
        try:
            await self._limit.__aexit__(*raised)
        except TimeoutError as error:
            if self._idle:
                raise TimedOut("The deployment stopped responding") from error
            raise DeadlinePassed(_TOO_LONG) from error

    def _look(self) -> None:
        due = self.last + self._idle_s
        self._idle = self._loop.time() >= due
        if self._idle:
            self._limit.reschedule(self._loop.time())
        else:
            self._timer = self._loop.call_at(due, self._look)
