"""Samples event-loop lag and the number of tasks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.aio import run_in_background
from app.telemetry.metrics import Telemetry

SAMPLE_EVERY_S = 1.0


@asynccontextmanager
async def monitor_event_loop(telemetry: Telemetry, every_s: float = SAMPLE_EVERY_S) -> AsyncIterator[None]:
    """Samples the running loop into `telemetry` while the block runs."""
    async with run_in_background(_sample(telemetry, every_s)):
        yield


async def _sample(telemetry: Telemetry, every_s: float) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + every_s
        await asyncio.sleep(every_s)
        telemetry.loop_lag.set(clock() - due)
        telemetry.tasks.set(len(asyncio.all_tasks()))
