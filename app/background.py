"""What runs in the background of a block."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any


@asynccontextmanager
async def run_in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs `work` while the block runs, then cancels it. Its errors are raised at the block's end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Callbacks:
    """Runs `work` at once, and then in the callbacks of the futures that it waits for, until its end or `end`.

    For a wait that each request has and hardly any completes: creating a task and cancelling it, which leaves a cycle
    of objects to the garbage collector, cost more than the wait. `work` runs in no task of its own, so that
    `asyncio.timeout` and `current_task` are not for it. Raises the errors of its first step; later ones go to the
    event loop's exception handler.
    """

    __slots__ = ("_is_over", "_work")

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work
        self._is_over = False
        self._continue()

    def end(self) -> None:
        """Ends the work where it waits."""
        self._is_over = True
        self._work.close()

    def _continue(self, _: object = None) -> None:
        if self._is_over:  # the future was done when the work was ended
            return
        try:
            waits_for = self._work.send(None)
        except StopIteration:
            self._is_over = True
            return
        if waits_for is None:  # `asyncio.sleep(0)`
            asyncio.get_running_loop().call_soon(self._continue)
        else:
            waits_for.add_done_callback(self._continue)
