"""A time limit on a block of a coroutine."""

import asyncio
from typing import Any, Self


class TimeLimit:
    """Raises TimeoutError if the block still runs at `when`, in the event loop's time.

    What `asyncio.timeout_at` does, for limits that every request has: that one finds the running loop three times, each
    with a system call (getpid) in Python 3.11, and can be rescheduled.
    """

    __slots__ = ("_before", "_handle", "_loop", "_passed", "_task", "_when")

    def __init__(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        self._when, self._loop = when, loop
        self._passed = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task(self._loop)
        assert task is not None, "a coroutine of a task"
        self._task, self._before = task, task.cancelling()
        self._handle = self._loop.call_at(self._when, self._due)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        self._handle.cancel()
        # A task that was cancelled from outside, too, stays cancelled.
        if self._passed and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _due(self) -> None:
        self.pass_now()

    def pass_now(self) -> None:
        """The time is over."""
        if not self._passed:
            self._passed = True
            self._task.cancel()


def within(seconds: float) -> TimeLimit:
    """A limit from now on."""
    loop = asyncio.get_running_loop()
    return TimeLimit(loop.time() + seconds, loop)
