"""The console on the real application, with data from Serve and real engines, in a real browser."""

import time
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.real.conftest import Application
from tests.support.clients.browser import running_browser, watched_page

pytestmark = pytest.mark.real

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}


async def test_the_console_shows_the_real_split_replicas_and_times(application: Application, tmp_path: Path) -> None:
    for _ in range(3):
        list(application.sdk.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
    async with (
        running_browser(tmp_path) as browser,
        watched_page(browser, application.url) as (page, _),
    ):
        await page.goto("/ui#/traffic")
        chat = page.get_by_role("region", name="chat", exact=True)
        await expect(chat.get_by_text("replica runs").first).to_be_visible()
        await expect(chat.get_by_role("cell").filter(has_text="ms").first).to_be_visible()
        await chat.get_by_role("button", name="Change the split").click()
        first = chat.get_by_role("slider").first
        await first.fill("60" if await first.input_value() != "60" else "70")
        await expect(chat.get_by_text("of all keys get another deployment")).to_be_visible()
        for name in ("Experiments", "Playground", "Requests", "Keys"):
            await page.get_by_role("navigation").get_by_role("link", name=name).click()
            await expect(page.get_by_role("heading", level=1)).to_have_text(name)
        await page.goto("/docs")
        await expect(page.get_by_role("link", name="Switchyard", exact=True)).to_be_visible()


async def test_the_console_lists_the_real_requests_of_all_routers(application: Application, tmp_path: Path) -> None:
    headers = {"x-request-id": f"listed-{time.time_ns()}"}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    list(application.sdk.chat.completions.create(**CHAT, **options, extra_headers=headers))
    async with (
        running_browser(tmp_path) as browser,
        watched_page(browser, application.url) as (page, watch),
    ):
        watch.expected = ["status of 404"]  # no experiment has recorded the request
        await page.goto("/ui#/requests?endpoint=chat&status=answered")
        rows = page.get_by_role("region", name="Requests").locator("tbody tr")
        await expect(page.get_by_text("of all routers, everyone's")).to_be_visible()
        await rows.get_by_role("link", name=headers["x-request-id"]).click()
        timeline = page.get_by_role("article").first
        await expect(timeline.get_by_role("listitem")).to_have_count(4)
        await expect(timeline).to_contain_text("Deployment, until the first byte")
        await expect(timeline).to_contain_text(" in the answer of at most ")
        await page.goto("/ui#/traffic")
        await page.get_by_label("Charts of the last").select_option("15 minutes")
        chat = page.get_by_role("region", name="chat", exact=True)
        await expect(chat.get_by_role("figure").filter(has_text="First token p95").first).to_be_visible()
        await expect(page.get_by_text("counted by all routers")).to_be_visible()
