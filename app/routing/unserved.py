"""Requests for which no replica had room: they wait at this router, or were refused. To an autoscaler they are demand.

A refused request is gone, but it was there: it counts for `COUNTED_S`, so that the demand lasts longer than the delay
after which replicas are added. Clients repeat refused requests after a second or two, and the same request must not
count twice: of the last `COUNTED_S` only the busiest moment counts.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

COUNTED_S = 15.0
"""Three times the recommended `upscale_delay_s`."""

MOMENT_S = 1.0
"""Refusals that are further apart may be of the same request: that is the `Retry-After` of a refusal."""


class Unserved:
    """By deployment. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: Counter[str] = Counter()
        self._refused: dict[str, deque[tuple[float, int]]] = {}

    @contextmanager
    def waiting(self, deployment: str) -> Iterator[None]:
        """A request for the deployment waits while the block runs."""
        self._waiting[deployment] += 1
        try:
            yield
        finally:
            self._waiting[deployment] -= 1

    def refused(self, deployment: str) -> None:
        """A request was refused, by the deployment or on its way to it."""
        now = self._clock()
        moments = self._refused.setdefault(deployment, deque())
        if moments and now - moments[-1][0] < MOMENT_S:
            moments[-1] = (moments[-1][0], moments[-1][1] + 1)
        else:
            moments.append((now, 1))
        self._forget(moments, now)

    def demand(self) -> dict[str, int]:
        """How many requests each deployment lacks room for; those with 0 are left out."""
        now = self._clock()
        found = Counter({name: count for name, count in self._waiting.items() if count > 0})
        for name, moments in list(self._refused.items()):
            self._forget(moments, now)
            if moments:
                found[name] += max(count for _, count in moments)
            else:
                del self._refused[name]
        return dict(found)

    @staticmethod
    def _forget(moments: deque[tuple[float, int]], now: float) -> None:
        while moments and moments[0][0] <= now - COUNTED_S:
            moments.popleft()
