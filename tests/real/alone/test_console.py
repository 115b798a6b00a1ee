"""The console changes the traffic of the real application."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import expect

from tests.real.conftest import Application, restore
from tests.support.clients.browser import accessibility_problems, running_browser, watched_page

pytestmark = pytest.mark.real

BLUE, GREEN = "smollm2-blue", "smollm2-green"


def weights(application: Application) -> dict[str, int]:
    """The endpoint's traffic, as Serve's control plane has it."""
    answer = httpx.get(f"{application.url}/api/endpoints/chat/traffic", timeout=30).raise_for_status()
    shares: dict[str, int] = answer.json()["weights"]
    return shares


@pytest.fixture
def changed(application: Application) -> Iterator[Application]:
    """The application, whose own configuration is restored afterwards."""
    try:
        yield application
    finally:
        restore(application)


async def test_the_split_is_changed_and_rolled_back_by_its_buttons(changed: Application, tmp_path: Path) -> None:
    before = weights(changed)
    async with (
        running_browser(tmp_path) as browser,
        watched_page(browser, changed.url) as (page, _),
    ):
        await page.goto("/ui#/traffic")
        chat = page.get_by_role("region", name="chat", exact=True)
        await chat.get_by_role("button", name="Plans and rollback").click()
        first = chat.locator(".plans > li").filter(has_text="in force")
        generation = (await first.locator("strong").inner_text()).removeprefix("Generation ")
        await chat.get_by_role("button", name="Change the split").click()
        await chat.get_by_role("slider", name=GREEN).fill("60")
        await expect(chat.get_by_text("of all keys get another deployment")).to_be_visible()
        await chat.get_by_label("Why?").fill("a mistake")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("main").get_by_text("The split of chat is changed.")).to_be_visible()
        assert weights(changed) == {BLUE: 40, GREEN: 60}
        await chat.get_by_role("button", name="Plans and rollback").click()
        await chat.get_by_role("button", name=f"Roll back to this: generation {generation}").first.click()
        dialog = page.get_by_role("dialog")
        await expect(dialog.get_by_text("falls from 60 %")).to_be_visible()
        await dialog.get_by_label("Why?").fill("it was slower")
        await dialog.get_by_role("button", name="Roll back").click()
        done = f"chat is back at the weights of generation {generation}."
        await expect(page.get_by_role("main").get_by_text(done)).to_be_visible()
        assert weights(changed) == before
        share = chat.get_by_role("row").filter(has=page.get_by_role("rowheader", name=GREEN))
        await expect(share).to_contain_text(f"{before[GREEN]} %")
        assert await accessibility_problems(page) == []
