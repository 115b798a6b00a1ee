"""The pages Experiments and Experiment."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from playwright.async_api import expect

from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.router.console.conftest import OpenPage
from tests.support.deciding_controller import DecidingController
from tests.support.experiment_reader import GREEN_FLOAT32
from tests.support.experiments_rig import BLUE, GREEN
from tests.support.fake_control_plane import MemoryControl
from tests.support.servers import ServerPool


class Compared:
    """A router with an experiment that is decided about, on a controller in memory."""

    def __init__(self) -> None:
        self.controller = DecidingController()
        self.config: dict[str, Any] = {
            "endpoints": {
                "chat": {"tasks": ["chat"], "traffic": {BLUE: 50, GREEN: 50}, "sticky": {"by": "conversation"}}
            },
            "deployments": {name: {"url": f"http://127.0.0.1:1/{name}", "model": name} for name in (BLUE, GREEN)},
            "experiments": {
                "green-float32": {**GREEN_FLOAT32, "ramp": {"steps": [5, 25, 50]}},
                "next": {**GREEN_FLOAT32, "state": "draft"},
            },
        }
        self.control = MemoryControl(self.config, lambda config: self.router.reconfigure(config))
        self.router = Router(
            RuntimeEnvironment(internal_key="internal"),
            random=Random(7),
            control=self.control,
            controller=self.controller,
        )
        self.router.reconfigure(self.config)
        self.url = ""


@pytest.fixture
def compared(rig: Rig, servers: ServerPool) -> Iterator[Compared]:
    compared = Compared()
    with servers.host(compared.router.app) as compared.url:
        yield compared


async def test_debug(open_page: OpenPage, compared: Compared) -> None:
    page, _ = await open_page(compared.url)
    await page.goto("/ui#/experiments")
    await expect(page.get_by_role("link", name="green-float32")).to_be_visible()
    await page.screenshot(path="/tmp/e1.png", full_page=True)
    await page.get_by_role("link", name="green-float32").click()
    await expect(page.get_by_role("heading", level=2, name="Guardrails")).to_be_visible()
    await page.wait_for_timeout(500)
    await page.screenshot(path="/tmp/e2.png", full_page=True)
    await page.get_by_role("button", name="Roll back").click()
    await page.wait_for_timeout(500)
    await page.screenshot(path="/tmp/e3.png")
    await page.keyboard.press("Escape")
    await page.goto("/ui#/experiments?new")
    await page.wait_for_timeout(1000)
    await page.screenshot(path="/tmp/e4.png", full_page=True)
    small, _ = await open_page(compared.url, width=360, scheme="dark")
    await small.goto("/ui#/experiments/green-float32")
    await expect(small.get_by_role("heading", level=2, name="Guardrails")).to_be_visible()
    await small.wait_for_timeout(500)
    await small.screenshot(path="/tmp/e5.png", full_page=True)
