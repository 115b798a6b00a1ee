"""The host carries out its controller's changes on the event loop, in any state of the control plane."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.config.experiments import LedgerSettings
from app.config.schema import Config, parse
from app.control_plane import Delivery, Replicas
from app.errors import Unavailable
from app.experiments.controller import Controller
from app.experiments.host import ControllerHost
from app.experiments.storage.keeper import Submit
from app.exposures.wire import Plan, TrafficBlock, decode_acknowledgement, encode
from tests.support.experiments.exposures import batch, row, start
from tests.support.processes.fake_control_plane import MemoryControl
from tests.support.processes.stage import plain
from tests.support.waiting import wait_until_async


class Rig:
    """A host, a control plane, and one router."""

    def __init__(self, directory: Path) -> None:
        self.control = MemoryControl(plain(50), lambda config: None)
        self.directory, self.number = directory, 0
        self.host = ControllerHost(self.read, self.controller, self.control, tick_s=0.02)

    def controller(self, ledger: LedgerSettings, submit: Submit) -> Controller:
        return Controller(ledger, base=self.directory, has_control_plane=True, submit=submit)

    async def read(self) -> Config | None:
        return (await self.control.applied()).parsed()

    @property
    def green(self) -> int:
        traffic: dict[str, int] = self.control.config["endpoints"]["chat"]["traffic"]
        return traffic["green"]

    async def fail(self) -> list[TrafficBlock]:
        """Lets green fail thirty times. Returns the stops of the acknowledgement."""
        self.number += 1
        fields: list[dict[str, Any]] = [
            {"seq": number, "at": 4e9, "unit": number, "assigned": int(number > 60)} for number in range(1, 91)
        ]
        failed = {"status": 502, "served": -1, "error": 1}
        sent = batch(
            self.number,
            starts=[start(**values) for values in fields],
            rows=[row(**values, **(failed if values["assigned"] else {})) for values in fields],
            plans=[Plan("chat", "0-aaaaaaaa", {"blue": 50, "green": 50})],
        )
        return decode_acknowledgement(await self.host.send(encode(sent))).stops

    async def receive_stops(self) -> list[TrafficBlock]:
        return decode_acknowledgement(await self.host.send(encode(batch(0)))).stops


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@asynccontextmanager
async def stopped(rig: Rig) -> AsyncIterator[None]:
    """Runs the block once green is stopped, by the acknowledgement of the batch with the alarm or a later one."""
    async with rig.host:
        stops = await rig.fail() or await wait_until_async(rig.receive_stops)
        assert [stop.deployment for stop in stops] == ["green"]
        yield


async def test_an_alarm_ends_in_a_plan_and_the_stop_is_lifted_once_routers_have_it(rig: Rig) -> None:
    async with stopped(rig):
        await wait_until_async(lambda: rig.green == 0)
        assert await rig.receive_stops() != []
        rig.control.deliver()

        async def lifted() -> bool:
            return not await rig.receive_stops()

        await wait_until_async(lifted)
        assert await rig.receive_stops() == []
        assert rig.control.replaced == 1


async def test_a_busy_control_plane_is_asked_until_it_takes_the_change(rig: Rig) -> None:
    rig.control.delivery = Delivery.DELIVERING
    async with stopped(rig):
        await asyncio.sleep(0.2)
        assert (rig.green, await rig.receive_stops() != []) == (50, True)
        rig.control.deliver()
        await wait_until_async(lambda: rig.green == 0)


async def test_a_control_plane_that_fails_ends_nothing(rig: Rig) -> None:
    async with stopped(rig):
        rig.control.failure = Unavailable("away")
        await asyncio.sleep(0.2)
        assert await rig.receive_stops() != []
        rig.control.failure = None
        await wait_until_async(lambda: rig.green == 0)


async def test_an_invalid_configuration_ends_nothing(rig: Rig) -> None:
    async with stopped(rig):
        valid = rig.control.config
        rig.control.config = {**valid, "endpoints": {}}
        await asyncio.sleep(0.2)
        assert await rig.receive_stops() != []
        rig.control.config = valid
        await wait_until_async(lambda: rig.green == 0)


async def test_a_managers_change_in_between_is_kept(rig: Rig) -> None:
    rig.control.delivery = Delivery.DELIVERING
    async with stopped(rig):
        chat = rig.control.config["endpoints"]["chat"]
        changed = {**chat, "traffic": {"blue": 30, "green": 70}, "plan": {"generation": 4, "by": "bob"}}
        rig.control.config = {**rig.control.config, "endpoints": {"chat": changed}}
        rig.control.deliver()
        await wait_until_async(lambda: rig.green == 0)
        plan = parse(rig.control.config).endpoints["chat"].plan
        assert (plan.by, plan.generation) == ("experiment trial", 5)


async def test_the_controller_is_given_the_replicas_that_run(rig: Rig) -> None:
    observed: list[Mapping[str, int] | None] = []

    class Observed(Controller):
        def observe_replicas(self, running: Mapping[str, int] | None) -> None:
            observed.append(running)

    def controller(ledger: LedgerSettings, submit: Submit) -> Controller:
        return Observed(ledger, base=rig.directory, has_control_plane=True, submit=submit)

    host = ControllerHost(rig.read, controller, rig.control, tick_s=0.02, configuration_s=0.0)
    rig.control.running = Replicas({"blue": {"STARTING": 1, "RUNNING": 2}, "green": {"STARTING": 1}}, {"RUNNING": 1})
    async with host:
        await wait_until_async(lambda: {"blue": 2, "green": 0} in observed)
        rig.control.failure = Unavailable("down", retry_after=1)
        await wait_until_async(lambda: observed[-1] is None)
