"""How the event loop of the router fares: how late it is, and how much it has to do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from app.telemetry.metrics import Telemetry

SAMPLE_EVERY_S = 1.0


@asynccontextmanager
async def monitor_event_loop(telemetry: Telemetry) -> AsyncIterator[None]:
    """Tells `telemetry` about the running loop while the block runs."""
    task = asyncio.create_task(_sample(telemetry))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _sample(telemetry: Telemetry) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + SAMPLE_EVERY_S
        await asyncio.sleep(SAMPLE_EVERY_S)
        telemetry.loop_lag.set(clock() - due)
        telemetry.tasks.set(len(asyncio.all_tasks()))
