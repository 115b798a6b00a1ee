"""CPU time on machines that are shared: a busy neighbour makes the same work take several times as much."""

import time
from collections.abc import Callable

TRIES = 5


def least(measure: Callable[[], float], enough: float) -> float:
    """The least of up to `TRIES` measurements; the first that is below `enough` is the last. What is slow by itself is
    slow each time."""
    value = measure()
    for _ in range(TRIES - 1):
        if value < enough:
            break
        value = min(value, measure())
    return value


def least_s(call: Callable[[], object], enough_s: float) -> float:
    """The least CPU time of this thread in which `call` returns, in seconds."""

    def measure() -> float:
        began = time.thread_time()
        call()
        return time.thread_time() - began

    return least(measure, enough_s)
