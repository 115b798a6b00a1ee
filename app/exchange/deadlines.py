"""Ends requests early: on the client's disconnect, timeouts, and the deadline."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from app.aio import Callbacks, TimeLimit
from app.errors import DeadlinePassed, TimedOut

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
STOPPED = "The deployment stopped responding"
_TOO_LONG = "The response took longer than this server allows"


class ClientDisconnected(Exception):
    """The client closed the connection before its response was complete."""


class while_connected:
    """Cancels the block and raises ClientDisconnected when the client disconnects before its response is complete.

    `is_answered` returns whether the response is complete. Servers report a disconnect after that, too, even if the
    client stays, and the rest of the block (settling limits) must continue.
    """

    __slots__ = ("_disconnected", "_is_answered", "_receive", "_watch", "_work")

    def __init__(self, receive: Receive, is_answered: Callable[[], bool] = lambda: False) -> None:
        self._receive, self._is_answered = receive, is_answered
        self._work: asyncio.Task[Any] | None = None
        self._disconnected = False

    async def __aenter__(self) -> None:
        self._watch = Callbacks(self._disconnect())
        if self._disconnected:
            raise ClientDisconnected
        self._work = asyncio.current_task()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        self._watch.end()
        if self._disconnected and self._work is not None and isinstance(error, asyncio.CancelledError):
            self._work.uncancel()
            raise ClientDisconnected from None

    async def _disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._is_answered():
            self._disconnected = True
            if self._work is not None:
                self._work.cancel()


class until(TimeLimit):
    """Raises DeadlinePassed if the block still runs at `deadline` (event-loop time)."""

    def __init__(self, deadline: float) -> None:
        super().__init__(deadline, asyncio.get_running_loop())

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await super().__aexit__(*raised)
        except TimeoutError as error:
            raise DeadlinePassed(_TOO_LONG) from error


class IdleTimeout(TimeLimit):
    """Raises TimedOut if the block does not update `last` for `idle_s` seconds, DeadlinePassed at `deadline`.

    Both are event-loop times. One timer per idle period checks `last`: a timer per chunk would cost more than relaying
    the chunk.
    """

    def __init__(self, idle_s: float, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        self._idle_s, self._deadline = idle_s, deadline
        self.last = loop.time()
        super().__init__(min(self.last + idle_s, deadline), loop)

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await super().__aexit__(*raised)
        except TimeoutError as error:
            if self.last + self._idle_s < self._deadline:
                raise TimedOut(STOPPED) from error
            raise DeadlinePassed(_TOO_LONG) from error

    def touch(self) -> None:
        """Nothing has been idle until now."""
        self.last = self._loop.time()

    def pause(self) -> None:
        """Until `resume`, only the deadline counts."""
        self.last = self._deadline

    def resume(self) -> None:
        """Nothing is idle from now on."""
        self.touch()
        self._handle.cancel()
        self._due()

    def _due(self) -> None:
        due = min(self.last + self._idle_s, self._deadline)
        if self._loop.time() < due:
            self._handle = self._loop.call_at(due, self._due)
        else:
            self.pass_now()
