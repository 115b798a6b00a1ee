"""Event-loop lag and task count."""

import asyncio
import time

from app.telemetry.metrics import Telemetry, monitor_event_loop


async def test_a_blocked_loop_shows_as_lag() -> None:
    telemetry = Telemetry()
    async with monitor_event_loop(telemetry, every_s=0.01):
        await asyncio.sleep(0)
        time.sleep(0.2)  # noqa: ASYNC251  blocking is what the test is about
        while not telemetry.registry.get_sample_value("switchyard_asyncio_tasks"):  # noqa: ASYNC110  it polls itself
            await asyncio.sleep(0)
        lag = telemetry.registry.get_sample_value("switchyard_event_loop_lag_seconds")
    assert lag is not None
    assert lag >= 0.15


async def test_the_monitor_task_is_cancelled_on_exit() -> None:
    before = asyncio.all_tasks()
    async with monitor_event_loop(Telemetry()):
        assert len(asyncio.all_tasks()) == len(before) + 1
    assert asyncio.all_tasks() == before
