"""The event loop's own signs of life."""

import asyncio
import time

import pytest

from app.telemetry.event_loop import monitor_event_loop
from app.telemetry.metrics import Telemetry


async def test_a_loop_that_is_held_up_tells_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.telemetry.event_loop.SAMPLE_EVERY_S", 0.01)
    telemetry = Telemetry()
    async with monitor_event_loop(telemetry):
        await asyncio.sleep(0)
        time.sleep(0.2)  # noqa: ASYNC251  that is what is to be seen
        while not telemetry.registry.get_sample_value("switchyard_asyncio_tasks"):  # noqa: ASYNC110  it polls itself
            await asyncio.sleep(0)
        lag = telemetry.registry.get_sample_value("switchyard_event_loop_lag_seconds")
    assert lag is not None
    assert lag >= 0.15


async def test_it_ends_with_its_block() -> None:
    before = asyncio.all_tasks()
    async with monitor_event_loop(Telemetry()):
        assert len(asyncio.all_tasks()) == len(before) + 1
    assert asyncio.all_tasks() == before
