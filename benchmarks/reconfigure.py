"""How long a new configuration holds the router's event loop, with as many deployments as endpoints.

One endpoint's weights change, as in a step of a ramp. `reconfigure` builds everything on the event loop, `apply` in a
thread. Per size: the loop's own CPU time in `apply`, and the longest gap of a heartbeat of one millisecond, without a
change and during one, with either method. The minimum of several rounds counts, since the machine may be busy.

    python -m benchmarks.reconfigure [ENDPOINTS …]
"""

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from app.server.application import Router
from app.upstream.target import RuntimeEnvironment

SIZES = (100, 1000, 5000)
ROUNDS = 7
BEAT_S = 0.001


class Times(NamedTuple):
    """In seconds. `loop`: the loop's CPU time in `apply`; the others are the longest gaps of the heartbeat."""

    loop: float
    idle: float
    reconfigure: float
    apply: float


def document(endpoints: int, share: int) -> dict[str, Any]:
    """A configuration whose first endpoint gives `share` percent to its second deployment."""
    shares = [share] + [10] * (endpoints - 1)
    return {
        "endpoints": {
            f"endpoint-{number}": {
                "tasks": ["chat", "completions"],
                "traffic": {f"model-{number}": 100 - share, f"model-{(number + 1) % endpoints}": share},
                "sticky": {"by": "conversation"},
            }
            for number, share in enumerate(shares)
        },
        "deployments": {f"model-{number}": {"app": f"model-{number}", "model": "m"} for number in range(endpoints)},
    }


async def measured(endpoints: int) -> Times:
    """The times with this many endpoints."""
    router = Router(RuntimeEnvironment(internal_key="internal"))
    router.reconfigure(document(endpoints, 10))
    loops: list[float] = []

    async def applied(config: object) -> None:
        begun = time.thread_time()
        await router.apply(config)
        loops.append(time.thread_time() - begun)

    async def reconfigured(config: object) -> None:
        router.reconfigure(config)

    async def idle(config: object) -> None:
        await asyncio.sleep(0.02)

    found: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        ways: dict[str, Callable[[object], Awaitable[None]]] = {"idle": idle, "old": reconfigured, "new": applied}
        for place, (name, way) in enumerate(ways.items()):
            config = document(endpoints, 11 + 3 * number + place)
            found.setdefault(name, []).append(await _longest_gap(way, config))
    return Times(min(loops), min(found["idle"]), min(found["old"]), min(found["new"]))


async def _longest_gap(way: Callable[[object], Awaitable[None]], config: object) -> float:
    gaps: list[float] = []

    async def beat() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(BEAT_S)
            now = time.perf_counter()
            gaps.append(now - last - BEAT_S)
            last = now

    beating = asyncio.create_task(beat())
    await asyncio.sleep(5 * BEAT_S)
    gaps.clear()
    await way(config)
    await asyncio.sleep(3 * BEAT_S)
    beating.cancel()
    with suppress(asyncio.CancelledError):
        await beating
    return max(gaps)


def main(sizes: Sequence[int]) -> None:
    """Prints the table."""
    logging.disable(logging.WARNING)
    print("| endpoints | loop's CPU time | longest gap: idle | `reconfigure` | `apply` |")
    print("| --- | --- | --- | --- | --- |")
    for size in sizes:
        times = asyncio.run(measured(size))
        print(f"| {size:,} | " + " | ".join(f"{1000 * seconds:.1f} ms" for seconds in times) + " |")


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or SIZES)
