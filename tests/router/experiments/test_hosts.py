"""The controller's host: a Serve application that several routers reach over HTTP, or `switchyard router` itself."""

import json
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from app.config.schema import Config, parse
from app.experiments.host import host_controller
from app.internal_api import APP_PREFIX, EXPERIMENTS, LEDGER_VARIABLE
from app.internal_keys import Purpose, derived
from app.server.application import Router
from app.server.experiments_host import experiments_app
from app.upstream.controller_client import HttpController
from app.upstream.target import RuntimeEnvironment
from deployments.cli.main import main
from deployments.engine.internal_key import InternalKeyMiddleware
from deployments.local.processes import RUN_DIRECTORY
from tests.router.experiments.conftest import LiveRig
from tests.support.processes.load import Lane, ask_all, lanes, unexplained
from tests.support.processes.servers import ServerPool
from tests.support.processes.standalone_router import standalone_router
from tests.support.waiting import wait_until

KEY = "internal"


def traffic(count: int) -> Iterator[Lane]:
    """Streams of as many users."""
    (lane,) = (lane for lane in lanes(tokens=50) if (lane.name, lane.streamed) == ("openai", True))
    for number in range(count):
        yield replace(lane, headers={"x-user": f"user-{number}"})


def report(url: str, requests: int) -> dict[str, Any]:
    """The report, once that many requests have arrived."""

    def get() -> httpx.Response:
        return httpx.get(f"{url}/api/experiments/first/report", timeout=30)

    def arrived() -> dict[str, Any] | None:
        answer = get()
        report: dict[str, Any] | None = answer.json() if answer.status_code == 200 else None
        return report if report and sum(report["requests"].values()) >= requests else None

    return wait_until(arrived, lambda: get().text)


@pytest.fixture
def routers(live: LiveRig, servers: ServerPool, tmp_path: Path) -> Iterator[list[str]]:
    """The URLs of two routers with one controller, which they reach over HTTP as they do on Ray Serve."""
    config = parse({**live.config, "ledger": {"url": "shared"}})

    async def read_configuration() -> Config:
        return config

    hosted = experiments_app(host_controller(read_configuration, tmp_path))
    mounted = Starlette(
        routes=[
            Mount(f"{APP_PREFIX}{EXPERIMENTS}", InternalKeyMiddleware(hosted, keys=[derived(KEY, Purpose.CONTROLLER)]))
        ],
        lifespan=hosted.router.lifespan_context,
    )
    with ExitStack() as stack:
        environment = RuntimeEnvironment(stack.enter_context(servers.host(mounted)), KEY)
        urls = []
        for number in range(2):
            router = Router(
                environment, random=Random(number), controller=HttpController(environment), send_every_s=0.02
            )
            router.reconfigure(config)
            urls.append(stack.enter_context(servers.host(router.app)))
        yield urls


async def test_two_routers_fill_one_report_and_a_user_stays_on_its_deployment(routers: list[str]) -> None:
    outcomes = [await ask_all(url, traffic(40)) for url in routers]
    assert unexplained([*outcomes[0], *outcomes[1]]) == []
    one, other = (
        {outcome.lane.headers["x-user"]: outcome.headers["azureml-model-deployment"] for outcome in shown}
        for shown in outcomes
    )
    assert one == other
    shown = [report(url, 80) for url in routers]
    for arm in shown:
        assert sum(arm["requests"].values()) == 80
        assert sum(arm["units"].values()) == 40, "the same user has the same hash on both"
    assert shown[0]["requests"] == shown[1]["requests"]


async def test_a_wrong_clock_of_a_router_is_reported_and_its_rows_count(live: LiveRig) -> None:
    live.controller.ahead_s = -5.0
    assert unexplained(await ask_all(live.url, traffic(30))) == []
    report = await live.report_of(30)
    (warning,) = [sentence for sentence in report.service if sentence.startswith("The clock of router ")]
    assert re.search(r" is [45]\.\d s ahead of the controller's", warning)
    assert sum(report.requests.values()) == 30


def test_a_standalone_router_judges_and_its_ledger_agrees(
    live: LiveRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    variables = {LEDGER_VARIABLE: str(base), RUN_DIRECTORY: str(tmp_path)}
    with (
        standalone_router(live.config, tmp_path, **variables) as router,
        httpx.Client(base_url=router.url, timeout=30) as http,
    ):
        assert http.get("/health").status_code == 200
        for lane in traffic(20):
            assert http.post(lane.path, json=lane.body, headers=lane.headers).status_code == 200
        live_report = report(router.url, 20)
    files = [path for path in base.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert "unit-secret" in {path.name for path in files}
    assert main(["experiments", "report", "first", "--ledger", str(base / "ledger"), "--format", "json"]) == 0
    stored = json.loads(capsys.readouterr().out)
    for name in ("requests", "units", "served"):
        assert stored[name] == live_report[name]
