import asyncio
from typing import Any

from app.access.caller import ConfigViews
from app.config.schema import parse
from app.errors import Unavailable
from app.routing.admission import Unserved
from app.server.replicas import UnservedDemand
from tests.support.processes.fake_control_plane import MemoryControl

CONFIG: dict[str, Any] = {
    "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 50, "green": 50}}},
    "deployments": {
        "blue": {"app": "llama", "model": "m"},
        "green": {"app": "llama", "model": "m"},
        "hosted": {"url": "http://elsewhere", "model": "m"},
    },
}
VIEWS = ConfigViews(parse(CONFIG))


def control() -> MemoryControl:
    return MemoryControl(CONFIG, lambda config: None)


async def test_the_demand_of_an_application_is_that_of_its_deployments() -> None:
    unserved, plane = Unserved(), control()
    demand = UnservedDemand(unserved, lambda: VIEWS, plane)
    with unserved.waiting("blue"), unserved.waiting("green"), unserved.waiting("hosted"), unserved.waiting("gone"):
        await demand.report(plane)
    assert plane.unserved == [{"llama": 2}]


async def test_the_end_of_demand_is_reported_once() -> None:
    unserved, plane = Unserved(), control()
    demand = UnservedDemand(unserved, lambda: VIEWS, plane)
    await demand.report(plane)
    with unserved.waiting("blue"):
        await demand.report(plane)
    await demand.report(plane)
    await demand.report(plane)
    assert plane.unserved == [{"llama": 1}, {"llama": 0}]


async def test_an_unavailable_control_plane_is_called_again() -> None:
    unserved, plane = Unserved(), control()
    demand = UnservedDemand(unserved, lambda: VIEWS, plane)
    with unserved.waiting("blue"):
        await demand.report(plane)
    plane.failure = Unavailable("away")
    await demand.report(plane)
    plane.failure = None
    await demand.report(plane)
    assert plane.unserved == [{"llama": 1}, {"llama": 0}]


async def test_demand_is_reported_periodically() -> None:
    unserved, plane = Unserved(), control()
    with unserved.waiting("blue"):
        async with UnservedDemand(unserved, lambda: VIEWS, plane, every_s=0.0).running():
            while not plane.unserved:  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert plane.unserved[0] == {"llama": 1}


async def test_before_the_first_configuration_there_is_no_demand() -> None:
    plane = control()
    await UnservedDemand(Unserved(), lambda: None, plane).report(plane)
    assert plane.unserved == []
