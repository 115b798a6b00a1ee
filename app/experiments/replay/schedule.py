"""The schedule of a replay: each request's time, and the arm to which it is sent first."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random

from app.request_recordings.recorder import RecordedRequest

LATE_S = 1.0
"""The delay from which a request counts as late."""


@dataclass(slots=True)
class Punctuality:
    """The accuracy with which the arrival times were kept."""

    late: int = 0
    most_s: float = 0.0


def offsets(requests: Sequence[RecordedRequest], speed: float) -> list[float]:
    """Seconds after the first request, at `speed` times the recorded pace."""
    return [(it.at - requests[0].at) / speed for it in requests]


def order(arms: Sequence[str], weights: Sequence[int], random: Random) -> list[str]:
    """The arms in the order in which they get a request. The first is drawn by the weights, so that the split of first
    requests is what the test of the split expects."""
    first = random.choices(arms, weights)[0]
    others = [arm for arm in arms if arm != first]
    random.shuffle(others)
    return [first, *others]


async def due(
    requests: Sequence[RecordedRequest],
    speed: float,
    slots: asyncio.Semaphore,
    punctuality: Punctuality,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[tuple[int, RecordedRequest]]:
    """Each request with its number, once it is time for it and a slot is free, which the caller gives back."""
    began = clock()
    for number, (offset, request) in enumerate(zip(offsets(requests, speed), requests, strict=True)):
        if (pause := began + offset - clock()) > 0:
            await sleep(pause)
        await slots.acquire()
        if (behind := clock() - began - offset) > LATE_S:
            punctuality.late += 1
            punctuality.most_s = max(punctuality.most_s, behind)
        yield number, request
