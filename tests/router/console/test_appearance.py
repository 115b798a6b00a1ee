"""Every page with data: large and small, light, dark and in forced colours, without overflow and without any serious
finding of axe-core. `test_experiments.py` does the same for its pages with evidence."""

from collections.abc import Awaitable, Callable
from typing import Literal

import pytest
from playwright.async_api import Page, expect

from tests.router.console.conftest import Managed, OpenPage
from tests.support.clients.browser import accessibility_problems, broken_words, overflow
from tests.support.clients.first_paint import PAGES as FIRST_PAINTS


async def traffic(page: Page, managed: Managed) -> None:
    await page.goto("/ui#/traffic")
    chat = page.get_by_role("region", name="chat", exact=True)
    await chat.get_by_role("button", name="Change the split").click()
    await chat.locator("input[type=range]").first.fill("50")
    await expect(chat.get_by_text("of all keys get another deployment")).to_be_visible()
    assert await overflow(page) <= 0
    assert await accessibility_problems(page) == []
    await chat.get_by_role("button", name="Plans and rollback").click()
    await expect(chat.get_by_role("list").get_by_text("a first step")).to_be_visible()


async def playground(page: Page, managed: Managed) -> None:
    await page.goto("/ui#/playground")
    await page.get_by_label("Message", exact=True).fill("hi")
    await page.get_by_text("Options", exact=True).click()
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("region", name="Comparison")).to_be_visible()
    await page.get_by_role("tab", name="OpenAI").click()


async def requests(page: Page, managed: Managed) -> None:
    await page.goto("/ui#/requests")
    answer = await page.request.post(f"{managed.url}/v1/chat/completions", data=CHAT)
    articles = page.get_by_role("article", name="Request at chat")
    await page.get_by_label("Request id").fill(answer.headers["x-request-id"])
    for _ in range(400):
        await page.get_by_role("button", name="Find").click()
        await expect(articles.or_(page.get_by_role("alert"))).to_be_visible()
        if await articles.is_visible():
            break
        await page.wait_for_timeout(50)
    await expect(articles.get_by_role("button", name="liked: thumb up")).to_be_visible()


async def keys(page: Page, managed: Managed) -> None:
    await page.goto("/ui#/keys")
    await expect(page.get_by_role("region", name="Usage by caller").locator("tbody tr")).not_to_have_count(0)


async def audit(page: Page, managed: Managed) -> None:
    await page.goto("/ui#/audit")
    await expect(page.get_by_role("region", name="Audit log").locator("tbody tr")).not_to_have_count(0)


async def experiments(page: Page, managed: Managed) -> None:
    await page.goto("/ui#/experiments")
    await expect(page.get_by_role("link", name="colours")).to_be_visible()


async def experiment(page: Page, managed: Managed) -> None:
    await page.goto("/ui#/experiments/colours")
    await expect(page.get_by_role("heading", name="colours")).to_be_visible()


async def models(page: Page, managed: Managed) -> None:
    await page.goto("/ui#/models")
    await expect(page.get_by_role("heading", name="Servers at a url")).to_be_visible()


async def form(page: Page, managed: Managed) -> None:
    await page.goto("/ui#/experiments?new")
    await expect(page.get_by_role("heading", name="Declare an experiment", level=1)).to_be_visible()


async def api(page: Page, managed: Managed) -> None:
    await page.goto("/docs")
    await expect(page.get_by_role("heading", name="anthropic").first).to_be_visible()


FORCED_COLOURS: tuple[Literal["active", "none"], ...] = ("active", "none")
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "user": "u", "max_tokens": 5}
PAGES: tuple[Callable[[Page, Managed], Awaitable[None]], ...] = (
    traffic,
    experiments,
    experiment,
    form,
    models,
    playground,
    requests,
    keys,
    audit,
    api,
)


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (360, "dark")])
async def test_every_page_fits_its_window_and_is_accessible(
    managed: Managed, open_page: OpenPage, width: int, scheme: str
) -> None:
    managed.deliver(experiments={"colours": EXPERIMENT})
    managed.put({"blue": 80, "green": 20}, "a first step")
    managed.chat(3, stream=True)
    page, watch = await open_page(managed.url, width=width, scheme=scheme)
    watch.expected = ["status of 404"]  # until the exposure is there
    for shown in PAGES:
        await shown(page, managed)
        for forced in FORCED_COLOURS:
            await page.emulate_media(forced_colors=forced)
            assert await overflow(page) <= 0, (shown.__name__, forced)
            assert await accessibility_problems(page) == [], (shown.__name__, forced)
            assert await invisible(page) == [], (shown.__name__, forced)


async def test_operations_and_the_authorization_of_the_apis_page_are_accessible(
    managed: Managed, open_page: OpenPage
) -> None:
    page, _ = await open_page(managed.url)
    await api(page, managed)
    for tag, path in (("openai", "/v1/chat/completions"), ("switchyard", "/api/history")):
        await page.locator(f'.opblock-tag[data-tag="{tag}" i]').click()
        await page.locator(f'.opblock-summary:has([data-path="{path}"])').click()
    await expect(page.get_by_role("combobox", name="Request content type")).to_be_visible()
    await expect(page.get_by_role("combobox", name="range")).to_be_visible()
    assert await accessibility_problems(page) == []
    await page.get_by_role("button", name="Authorize").first.click()
    await expect(page.get_by_role("button", name="Authorize", exact=True)).to_have_count(4)
    assert await accessibility_problems(page) == []


async def test_no_short_word_is_broken_at_any_width(managed: Managed, open_page: OpenPage) -> None:
    managed.deliver(experiments={"colours": EXPERIMENT})
    managed.put({"blue": 80, "green": 20}, "since the first hours of the new one were quiet " * 3)
    managed.chat(3, stream=True)
    keys = managed.guard()
    limits = {"callers": {"chat and embed": {"requests_per_minute": 9000, "tokens_per_minute": 200_000}}}
    managed.deliver(access={**managed.config["access"], "issue_keys": True, "limits": limits})
    page, watch = await open_page(managed.url, width=1280)
    watch.expected = ["status of 40"]
    for key in (keys["boss"], keys["chat and embed"]):
        headers = {"authorization": f"Bearer {key}"}
        for model in ("chat", "a model that nobody has, with a name that is as long as its text is, " * 2):
            await page.request.post("/v1/chat/completions", data={**CHAT, "model": model}, headers=headers)
    await page.request.post("/api/keys", data={"name": "a-key-that-the-console-made"}, headers=headers)
    headers = {"authorization": f"Bearer {keys['boss']}"}
    await page.request.post("/api/keys", data={"name": "a-key-that-the-console-made"}, headers=headers)
    await page.goto("/ui#/traffic")
    await page.get_by_label("API key").fill(keys["boss"])
    await page.get_by_label("Keep it until this tab is closed").check()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="chat", exact=True)).to_be_visible()
    found = []
    for path in (*FIRST_PAINTS, "/ui#/experiments/colours", "/ui#/experiments?new"):
        await page.goto(path)
        await page.wait_for_load_state("networkidle")
        for width in (1920, 1280, 1024, 768, 390):
            await page.set_viewport_size({"width": width, "height": 800})
            found += [(path, width, word) for word in await broken_words(page)]
            assert await overflow(page) <= 0, (path, width)
            lines = "(menu) => new Set([...menu.querySelectorAll('a:not([hidden])')].map((it) => it.offsetTop)).size"
            assert await page.get_by_role("navigation").evaluate(lines) == 1, (path, width)
    assert found == [], "\n".join(map(str, found))


EXPERIMENT = {
    "endpoint": "chat",
    "control": "blue",
    "treatments": ["green"],
    "primary": [{"metric": "ttft", "minimal_effect": 0.1}],
    "feedback": {"liked": {}},
}


async def invisible(page: Page) -> list[str]:
    """Bars, swatches and curves that have the colour of their background, or no size."""
    texts: list[str] = await page.evaluate("""() => {
        const filled = [...document.querySelectorAll(".share-bar .part, .swatch, .bar > span")];
        const back = (it) => {
            for (let at = it.parentElement; at; at = at.parentElement) {
                const colour = getComputedStyle(at).backgroundColor;
                if (colour !== "rgba(0, 0, 0, 0)") return colour;
            }
            return getComputedStyle(document.documentElement).backgroundColor;
        };
        return filled
            .filter((it) => it.offsetHeight === 0 || getComputedStyle(it).backgroundColor === back(it))
            .map((it) => it.outerHTML);
    }""")
    return texts
