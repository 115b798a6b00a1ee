"""Counts requests for which no replica had room: waiting at this router, or refused. Autoscalers treat them as demand.

A refused request counts for `COUNTED_S`, so that the demand lasts longer than the delay after which replicas are added.
Clients repeat refused requests after a second or two, and the same request must not count twice: only the busiest
moment of the last `COUNTED_S` counts.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

COUNTED_S = 15.0
"""Seconds. Three times the recommended `upscale_delay_s`."""

MOMENT_S = 1.0
"""Seconds, the `Retry-After` of a refusal: refusals that are further apart may be of the same request."""


class Unserved:
    """The unserved requests of each deployment. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: Counter[str] = Counter()
        self._refused: dict[str, deque[tuple[float, int]]] = {}

    @contextmanager
    def waiting(self, deployment: str) -> Iterator[None]:
        """Counts a request for the deployment as waiting while the block runs."""
        self._waiting[deployment] += 1
        try:
            yield
        finally:
            self._waiting[deployment] -= 1

    def refused(self, deployment: str) -> None:
        """Counts a request that was refused, by the deployment or by its endpoint's queue."""
        now = self._clock()
        moments = self._refused.setdefault(deployment, deque())
        if moments and now - moments[-1][0] < MOMENT_S:
            moments[-1] = (moments[-1][0], moments[-1][1] + 1)
        else:
            moments.append((now, 1))
        self._forget(moments, now)

    def demand(self) -> dict[str, int]:
        """The number of requests for which each deployment has no room; deployments with 0 are left out."""
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
