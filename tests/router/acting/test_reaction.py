"""The time from an alarm until the last of three routers stops a treatment, with a real installation's intervals."""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from app.config.schema import Config
from app.control_plane import Delivery, restore_expired
from app.experiments.host import host_controller
from app.experiments.storage.journal import read_entries
from app.experiments.storage.store import LocalStore
from app.internal_api import APP_PREFIX, EXPERIMENTS
from app.internal_keys import Purpose, derived
from app.server.application import Router
from app.server.experiments_host import experiments_app
from app.upstream.controller_client import HttpController
from app.upstream.target import RuntimeEnvironment
from deployments.engine.internal_key import InternalKeyMiddleware
from tests.router.acting.conftest import ROUTERS, ActingRig, empty, failed
from tests.support.processes.servers import ServerPool

KEY = "internal"
GENEROUS_S = 15.0
"""Allows for a busy machine; `--log-cli-level=INFO` logs the measured time."""

_log = logging.getLogger(__name__)


@pytest.fixture
def hosted(acting: ActingRig, servers: ServerPool, tmp_path: Path) -> Iterator[ActingRig]:
    """A rig whose routers reach a hosted controller over HTTP, every second, as they do on Ray Serve."""

    async def read_configuration() -> Config | None:
        return await restore_expired(acting.control, time.time())

    app = experiments_app(host_controller(read_configuration, tmp_path / "hosted", acting.control))
    mounted = Starlette(
        routes=[
            Mount(f"{APP_PREFIX}{EXPERIMENTS}", InternalKeyMiddleware(app, keys=[derived(KEY, Purpose.CONTROLLER)]))
        ],
        lifespan=app.router.lifespan_context,
    )
    with ExitStack() as stack:
        acting.deploy(green=50, guardrails=[{"event": "empty", "action": "rollback"}])
        environment = RuntimeEnvironment(stack.enter_context(servers.host(mounted)), KEY)
        acting.routers = [
            Router(environment, random=Random(number), controller=HttpController(environment))
            for number in range(ROUTERS)
        ]
        acting.control.deliver()
        acting.urls = [stack.enter_context(servers.host(router.app)) for router in acting.routers]
        yield acting


async def test_the_last_router_stops_soon_after_the_alarm_though_the_control_plane_is_busy(
    hosted: ActingRig, tmp_path: Path
) -> None:
    hosted.green.answer = empty
    hosted.control.delivery = Delivery.DELIVERING
    begun = asyncio.get_running_loop().time()
    sending = asyncio.create_task(keep_sending(hosted))
    stopped: dict[int, float] = {}
    while len(stopped) < ROUTERS:
        assert asyncio.get_running_loop().time() < begun + 60
        stopped |= {n: time.time() for n, share in enumerate(hosted.shares()) if share == 0 and n not in stopped}
        await asyncio.sleep(0.005)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await hosted.until(lambda: bool(guardrail_alarms(tmp_path)))  # routers may stop before it is on disk
    (alarm,) = guardrail_alarms(tmp_path)
    treated = len(hosted.green.requests)
    after = sorted(at - alarm for at in stopped.values())
    _log.info(
        "Stopped %s s after the alarm, %d empty answers", " ".join(f"{seconds:.2f}" for seconds in after), treated
    )
    assert after[-1] < GENEROUS_S
    assert hosted.weight == 50, "the plan has not followed yet"
    assert failed(await hosted.send(30)) == []


def guardrail_alarms(directory: Path) -> list[float]:
    """The times of the guardrail's alarms in the hosted controller's journal on disk.

    Empty answers lack `output_tokens` too: with enough of them, that is an alarm of its own.
    """
    return [
        entry.at
        for entry in read_entries(LocalStore(directory / "hosted" / "ledger"))
        if entry.kind == "alarm" and entry.detail["kind"] == "guardrail"
    ]


async def keep_sending(rig: ActingRig) -> None:
    """Sends about 30 requests a second."""
    while True:
        asyncio.create_task(rig.send(3))  # noqa: RUF006  the rig keeps their outcomes
        await asyncio.sleep(0.1)
