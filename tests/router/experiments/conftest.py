"""The real router with the real controller of experiments, in front of fake deployments."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from app.access.guard import AccessTiming
from app.config.schema import parse
from app.experiments.contract.report import Report
from tests.router.conftest import Rig
from tests.support.engine.fake_engine import CARD, FakeEngine
from tests.support.engine.other_answers import every_route
from tests.support.experiments.live_controller import LiveController
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until_async


class LiveRig(Rig):
    """The experiment `first` runs on the endpoint `chat`: green against blue, half of the users each.

    A user is the header `x-user`.
    """

    def __init__(self, engines: dict[str, FakeEngine], url: str, timing: AccessTiming, base: Path) -> None:
        self.controller = LiveController(base)
        self.headers: dict[str, str] = {}
        """The headers of `report`'s requests: a key, where one is needed."""
        super().__init__(engines, url, timing, self.controller, self.controller)
        self.change(
            ledger={"url": "ledger"},
            endpoints={
                **self.config["endpoints"],
                "chat": {
                    "tasks": ["chat", "completions", "responses"],
                    "traffic": {"blue": 50, "green": 50},
                    "sticky": {"by": "header", "name": "x-user"},
                },
            },
            experiments={
                "first": {
                    "endpoint": "chat",
                    "control": "blue",
                    "treatments": ["green"],
                    "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
                }
            },
        )

    def change(self, **sections: Any) -> None:
        super().change(**sections)
        self.controller.configure(parse(self.config))

    def experiment(self, **fields: Any) -> None:
        """Changes fields of the experiment."""
        self.change(experiments={"first": {**self.config["experiments"]["first"], **fields}})

    async def report(self, holds: Callable[[Report], bool] = lambda report: True) -> Report:
        """The experiment's report over HTTP, once the condition holds."""
        last: Report | None = None
        async with httpx.AsyncClient(base_url=self.url, headers=self.headers) as client:

            async def held() -> Report | None:
                nonlocal last
                answer = await client.get("/api/experiments/first/report")
                last = msgspec.json.decode(answer.raise_for_status().content, type=Report)
                return last if holds(last) else None

            return await wait_until_async(held, lambda: last)

    async def report_of(self, requests: int) -> Report:
        """The report, once that many requests have arrived."""
        return await self.report(lambda report: sum(report.requests.values()) >= requests)


@pytest.fixture
def live(
    engines: tuple[dict[str, FakeEngine], str], servers: ServerPool, access_timing: AccessTiming, tmp_path: Path
) -> Iterator[LiveRig]:
    """Both deployments answer every dialect, equally fast."""
    fakes, url = engines
    for fake in fakes.values():
        fake.reset()
        fake.card, fake.answer = CARD, every_route(fake)
    rig = LiveRig(fakes, url, access_timing, tmp_path)
    with servers.host(rig.router.app) as rig.url:
        yield rig
    rig.controller.close()
