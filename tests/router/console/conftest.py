"""One browser for the run, and pages of it on the test's own router."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Page

from app.access.keys import append, create
from app.config.schema import parse
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.support.clients.browser import Watch, running_browser, watched_page
from tests.support.experiments.compared_router import Compared
from tests.support.experiments.live_controller import LiveController
from tests.support.processes.fake_control_plane import MemoryControl
from tests.support.processes.servers import ServerPool

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


@pytest.fixture(scope="session")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """Chromium, started once per run."""
    async with running_browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


async def sign_in(page: Page, key: str) -> None:
    """Answers the dialog that asks for a key."""
    await page.get_by_label("API key").fill(key)
    await page.keyboard.press("Enter")


OpenPage = Callable[..., Awaitable[tuple[Page, Watch]]]


@pytest.fixture
async def open_page(browser: Browser, rig: Rig) -> AsyncIterator[OpenPage]:
    """Opens a page: `open_page(url, width=…, scheme=…)`, with its `Watch`.

    A test names its router's fixture before this one, so that pages close while their server still answers.
    """
    async with AsyncExitStack() as pages:

        async def opened(
            url: str, *, width: int = 1280, height: int = 800, scheme: str = "light"
        ) -> tuple[Page, Watch]:
            return await pages.enter_async_context(
                watched_page(browser, url, width=width, height=height, scheme=scheme)
            )

        yield opened


@pytest.fixture
async def browser_page(rig: Rig, open_page: OpenPage) -> Page:
    """An empty page for `rig`'s router: `await browser_page.goto("/ui#/traffic")`. It closes before the router."""
    page, _ = await open_page(rig.url)
    return page


class Managed:
    """A router whose traffic can be changed: with a control plane and the real controller of experiments."""

    def __init__(self, rig: Rig, directory: Path) -> None:
        self.directory = directory
        self.blue, self.green = rig.blue, rig.green
        endpoints = rig.config["endpoints"]
        chat = {**endpoints["chat"], "traffic": {"blue": 90, "green": 10}, "sticky": {"by": "user"}}
        self.config: dict[str, Any] = {**rig.config, "endpoints": {**endpoints, "chat": chat}}
        self.control = MemoryControl(self.config, self.take)
        self.control.delivers_at_once = True
        self.controller = LiveController(directory / "ledger")
        self.router = Router(
            RuntimeEnvironment(internal_key="internal"),
            random=Random(7),
            control=self.control,
            controller=self.controller,
            recordings=self.controller,
            send_every_s=0.02,
            recording_file_s=0.05,
        )
        self.take(self.config)
        self.url = ""

    def take(self, config: Any) -> None:
        self.router.reconfigure(config)
        self.controller.configure(parse(config))

    def deliver(self, **sections: Any) -> None:
        """Applies a file with these sections."""
        self.config = {**self.config, **sections}
        self.control.config = self.config
        self.take(self.config)

    def chat(self, requests: int, *, stream: bool = False) -> None:
        """Sends one request for each of that many users."""
        with httpx.Client() as client:
            for number in range(requests):
                body = {**CHAT, "user": f"user-{number}", "stream": stream}
                client.post(f"{self.url}/v1/chat/completions", json=body)

    def put(self, weights: dict[str, int], reason: str) -> None:
        """Creates a plan over the API."""
        body = {"weights": weights, "reason": reason}
        answer = httpx.put(f"{self.url}/api/endpoints/chat/traffic", json=body, headers={"if-match": "*"})
        assert answer.status_code == 200, answer.text

    def weights(self) -> dict[str, int]:
        """The applied percentages."""
        shares: dict[str, int] = self.control.config["endpoints"]["chat"]["traffic"]
        return shares

    def guard(self) -> dict[str, str]:
        """Requires keys from now on. Returns those of a manager and of three teams."""
        keys: dict[str, str] = {}
        file = self.directory / "keys.yaml"
        for name, endpoints in (
            ("boss", []),
            ("chat team", ["chat"]),
            ("embed team", ["embed"]),
            ("chat and embed", []),
        ):
            keys[name], record = create(name, endpoints=endpoints)
            append(file, record.line)
        self.deliver(access={"keys_file": str(file), "managers": ["boss"]})
        return keys


@pytest.fixture
def managed(rig: Rig, tmp_path: Path, servers: ServerPool) -> Iterator[Managed]:
    """A fresh `Managed`, on a server."""
    managed = Managed(rig, tmp_path)
    with servers.host(managed.router.app) as managed.url:
        yield managed
    managed.controller.close()


@pytest.fixture
def compared(rig: Rig, servers: ServerPool) -> Iterator[Compared]:
    """Tests name it before `open_page`, so that pages and their streams close before the server stops."""
    compared = Compared()
    with servers.host(compared.router.app) as compared.url:
        yield compared
