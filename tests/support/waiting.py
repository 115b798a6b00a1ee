"""Waiting for what another thread, process or task does."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar, overload

PATIENCE_S = 60.0
"""Far more than anything takes here: a busy machine is no failure."""

T = TypeVar("T")


def wait_until(
    value: Callable[[], T | None],
    state: Callable[[], object] = lambda: "it did not happen",
    *,
    within_s: float = PATIENCE_S,
) -> T:
    """The first true result of `value`. Raises AssertionError with `state()` if there is none in time."""
    pauses = _pauses(within_s)
    while not (found := value()):
        pause = next(pauses)
        assert pause, state()
        time.sleep(pause)
    return found


@overload
async def wait_until_async(value: Callable[[], Awaitable[T | None]], state: Callable[[], object] = ...) -> T: ...


@overload
async def wait_until_async(value: Callable[[], T | None], state: Callable[[], object] = ...) -> T: ...


async def wait_until_async(value: Callable[[], Any], state: Callable[[], object] = lambda: "it did not happen") -> Any:
    """As `wait_until`, on the event loop. `value` may be a coroutine function."""
    pauses = _pauses(PATIENCE_S)
    while True:
        found = value()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        pause = next(pauses)
        assert pause, state()
        await asyncio.sleep(pause)


def _pauses(within_s: float) -> Iterator[float]:
    """The seconds until the next look: a tenth of the time waited so far, 5 to 200 ms. 0 once the time is over."""
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < within_s:
        yield min(max(waited / 10, 0.005), 0.2)
    yield 0.0
