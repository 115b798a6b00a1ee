"""Metrics made in a thread, for those who cannot wait for a thread but can look again.

A router of a thousand busy endpoints has 300,000 samples: to write them takes seconds, in which the event loop would
serve nobody.
"""

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor

FRESH_S = 1.0
"""How long what was made is given again: several may be waiting for it."""

AGAIN_S = 0.02
"""After this time it is worth to look again."""


class PreparedMetrics:
    """`make` gives the metrics, of some endpoints or of all. `clock`: monotonic seconds."""

    def __init__(
        self, make: Callable[[Collection[str] | None], bytes], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make, self._clock = make, clock
        self._thread = ThreadPoolExecutor(1, "metrics")
        self._made: dict[frozenset[str] | None, tuple[float | None, Future[bytes]]] = {}
        """With the time at which it was first seen to be ready."""

    def look(self, endpoints: Collection[str] | None) -> bytes | None:
        """What is ready; None: it is being made, look again. Raises what `make` has raised."""
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
