"""Metrics that a thread prepares, for readers that cannot wait for a thread but can poll.

A router of a thousand busy endpoints has 300,000 samples: writing them takes seconds, in which the event loop would
serve no requests.
"""

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor

FRESH_S = 1.0
"""Seconds for which prepared metrics are reused: several readers may be polling."""

AGAIN_S = 0.02
"""Seconds between two polls."""


class PreparedMetrics:
    """Prepares metrics. `make` returns them, of some endpoints or of all. `clock`: monotonic seconds."""

    def __init__(
        self, make: Callable[[Collection[str] | None], bytes], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make, self._clock = make, clock
        self._thread = ThreadPoolExecutor(1, "metrics")
        self._made: dict[frozenset[str] | None, tuple[float | None, Future[bytes]]] = {}
        """The metrics, with the time at which they were first seen to be ready."""

    def look(self, endpoints: Collection[str] | None) -> bytes | None:
        """The metrics; None while they are being prepared: poll again. Raises the error of `make`."""
        key, now = None if endpoints is None else frozenset(endpoints), self._clock()
        self._made = {k: it for k, it in self._made.items() if it[0] is None or now - it[0] < FRESH_S}
        if key not in self._made:
            self._made[key] = (None, self._thread.submit(self._make, key))
            return None
        seen_at, future = self._made[key]
        if not future.done():
            return None
        if seen_at is None:
            self._made[key] = (now, future)
        return future.result()
