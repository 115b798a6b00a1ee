"""Answers that many requests share."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class AnswerCache(Generic[T]):
    """Reuses answers for `fresh_s` seconds, failures too. Concurrent callers share one call."""

    def __init__(self, fresh_s: float, clock: Callable[[], float]) -> None:
        self._fresh_s, self._clock = fresh_s, clock
        self._kept: dict[Hashable, tuple[float, asyncio.Future[T]]] = {}

    def forget(self) -> None:
        """Lets the next caller ask anew."""
        self._kept.clear()

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer, cached or new. A caller that is cancelled does not cancel the call for the others."""
        now = self._clock()
        self._kept = {k: answer for k, answer in self._kept.items() if now - answer[0] < self._fresh_s}
        if key not in self._kept:
            task = asyncio.ensure_future(ask())
            task.add_done_callback(_retrieved)
            self._kept[key] = (now, task)
        return await asyncio.shield(self._kept[key][1])


def _retrieved(answer: "asyncio.Future[T]") -> None:
    """Keeps asyncio from logging a failure for which no caller waits any more."""
    if not answer.cancelled():
        answer.exception()
