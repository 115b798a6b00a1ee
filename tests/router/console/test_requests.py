"""The page Requests: one request by its id, the deployment that answered it and the reason, and thumbs."""

import asyncio
import re

import httpx
import pytest
from playwright.async_api import Page, expect

from tests.router.conftest import Rig
from tests.router.console.conftest import Managed, OpenPage
from tests.support.clients.browser import accessibility_problems, overflow, screenshot
from tests.support.waiting import wait_until_async

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


async def chat(managed: Managed, *, key: str = "", **headers: str) -> str:
    """The id of a streamed request, once the controller has its exposure."""
    credentials = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=managed.url, headers=credentials) as client:
        answer = await client.post("/v1/chat/completions", json={**CHAT, "user": "u", "stream": True}, headers=headers)
        id = answer.headers["x-request-id"]

        async def recorded() -> bool:
            return (await client.get(f"/api/requests/{id}")).status_code == 200

        await wait_until_async(recorded)
    return id


async def found(page: Page, id: str) -> None:
    await page.goto("/ui#/requests")
    await page.get_by_label("Request id").fill(id)
    await page.keyboard.press("Enter")


@pytest.fixture
def judged(managed: Managed) -> Managed:
    """A running experiment that takes a thumb and stars."""
    experiment = {
        "endpoint": "chat",
        "control": "blue",
        "treatments": ["green"],
        "primary": [{"metric": "ttft", "minimal_effect": 0.1}],
        "feedback": {"liked": {}, "stars": {"type": "number", "min": 1, "max": 5}},
    }
    managed.deliver(experiments={"colours": experiment})
    return managed


@pytest.mark.parametrize(("name", "width"), [("requests", 1280), ("requests-360", 360)])
async def test_a_request_is_found_and_gets_a_thumb(open_page: OpenPage, judged: Managed, name: str, width: int) -> None:
    page, _ = await open_page(judged.url, width=width, height=640 if width > 360 else 800)
    await found(page, await chat(judged))
    card = page.get_by_role("article", name="Request at chat")
    facts = {
        "Deployment": "blue",
        "Why": "its sticky key maps there",
        "Status": "200, stop",
        "Attempts": "1",
        "Tokens": "9 in the prompt, 3 in the answer",
        "Sent as": "openai, chat, streamed",
    }
    for title, words in facts.items():
        await expect(card.locator("dl > div").filter(has=page.get_by_text(title, exact=True))).to_have_text(
            title + words
        )
    await expect(card.locator("dl")).to_contain_text(re.compile(r"Plan0-[0-9a-f]{8}: blue \d+\s%, green \d+\s%"))
    up = card.get_by_role("button", name="liked: thumb up")
    await up.click()
    await expect(card.get_by_role("status")).to_have_text("Recorded.")
    await expect(up).to_have_attribute("aria-pressed", "true")
    assert await card.get_by_role("button", name="stars").count() == 0
    given = card.locator("dl > div").filter(has_text="Feedback")
    await expect(given).to_have_text("Feedbacknone yet")
    async with asyncio.timeout(30):
        while await given.inner_text() != "Feedback\nliked 1":
            await asyncio.sleep(0.05)
            await page.get_by_role("button", name="Find").click()
            await expect(card).to_be_visible()
    await expect(up).to_have_attribute("aria-pressed", "true")
    assert await overflow(page) == 0
    assert await accessibility_problems(page) == []
    await screenshot(page, name, whole=width > 360)


async def test_a_request_that_no_experiment_counts_has_no_thumbs(open_page: OpenPage, judged: Managed) -> None:
    page, _ = await open_page(judged.url)
    await found(page, await chat(judged, **{"azureml-model-deployment": "green"}))
    card = page.get_by_role("article", name="Request at chat")
    await expect(card).to_contain_text("the request named the deployment in a header")
    await expect(card).to_contain_text("no experiment counts it: its deployment was named")
    await expect(card).to_contain_text("A thumb would not count")
    assert await card.get_by_role("button").count() == 0


async def test_the_playground_links_to_its_request(open_page: OpenPage, judged: Managed) -> None:
    page, watch = await open_page(judged.url)
    watch.expected = ["status of 404"]  # until the exposure is there
    await page.goto("/ui#/playground")
    await page.get_by_label("Prompt", exact=True).fill("hi")
    await page.get_by_role("button", name="Run").click()
    link = page.get_by_role("article", name="blue").get_by_role("link")
    id = await link.inner_text()
    await link.click()
    await expect(page.get_by_label("Request id")).to_have_value(id)
    # The page looks again by itself until the exposure is there.
    card = page.get_by_role("article", name="Request at chat")
    await expect(card).to_contain_text("the request named the deployment in a header")


async def test_unknown_ids_and_those_of_other_callers_are_not_found(open_page: OpenPage, judged: Managed) -> None:
    keys = judged.guard()
    id = await chat(judged, key=keys["chat team"])
    page, watch = await open_page(judged.url)
    watch.expected = ["status of 401", "status of 404"]
    await page.goto("/ui#/requests")
    for wanted in ("<img src=x onerror=alert(1)>/../..", id):
        await page.get_by_label("Request id").fill(wanted)
        await page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        if await page.evaluate("sessionStorage.length") == 0 and wanted != id:
            await dialog.get_by_label("API key").fill(keys["embed team"])
            await dialog.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_contain_text(f"No exposure of the request '{wanted}'")
        await expect(page.get_by_text("A request appears a second or two after it has ended.")).to_be_visible()
    assert await page.get_by_role("main").locator("img").count() == 0


async def test_a_request_that_is_not_found_is_explained(open_page: OpenPage, rig: Rig) -> None:
    page, watch = await open_page(rig.url)
    watch.expected = ["status of 404", "status of 503"]
    await found(page, "abc")
    await expect(page.get_by_role("alert")).to_contain_text("or of an endpoint without a running experiment")
    await expect(
        page.get_by_text("Only recorded requests are found: those of endpoints with a running experiment")
    ).to_be_visible()
    rig.chat_endpoint(ledger="always")
    await page.get_by_role("button", name="Find").click()
    await expect(page.get_by_role("alert")).to_have_text("this controller answers nothing")
    assert await page.get_by_role("article").count() == 0
