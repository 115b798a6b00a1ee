"""One browser for the run, and pages of it on the test's own router."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from playwright.async_api import Browser, Page

from tests.router.conftest import Rig
from tests.support.browser import Watch, running_browser, watched_page


@pytest.fixture(scope="session")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """A running Chromium."""
    async with running_browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


OpenPage = Callable[..., Awaitable[tuple[Page, Watch]]]


@pytest.fixture
async def open_page(browser: Browser) -> AsyncIterator[OpenPage]:
    """Opens a page: `open_page(url, width=…, scheme=…)`, with its `Watch`."""
    async with AsyncExitStack() as pages:

        async def opened(
            url: str, *, width: int = 1280, height: int = 800, scheme: str = "light"
        ) -> tuple[Page, Watch]:
            return await pages.enter_async_context(
                watched_page(browser, url, width=width, height=height, scheme=scheme)
            )

        yield opened


@pytest.fixture
async def browser_page(open_page: OpenPage, rig: Rig) -> Page:
    """An empty page on `rig`'s router: `await browser_page.goto("/ui#/traffic")`."""
    page, _ = await open_page(rig.url)
    return page
