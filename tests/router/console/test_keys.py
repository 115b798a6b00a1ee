"""The page Keys: the caller, its remaining limits, and for managers everyone's usage."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Locator, Page, expect

from app.access.keys import append, create
from app.config.access import Limits
from tests.router.conftest import Rig
from tests.router.console.conftest import Managed, OpenPage
from tests.support.clients.browser import accessibility_problems, overflow, screenshot

HOSTILE = "<img src=x onerror=alert(1)>"


class Keys:
    """Ann may use `chat`, with her own limits; Eve is a manager; there is one more caller, and `others`."""

    def __init__(self, rig: Rig, directory: Path, others: Sequence[str]) -> None:
        self.rig = rig
        self.keys: dict[str, str] = {}
        own = Limits(requests_per_minute=5, tokens_per_minute=20_000, concurrent_requests=4)
        for name, endpoints, limits in (
            ("ann", ("chat",), own),
            ("eve", (), None),
            ("nightly-batch", (), None),
            *((name, (), None) for name in others),
        ):
            self.keys[name], record = create(name, endpoints=endpoints, limits=limits)
            append(directory / "keys.yaml", record.line)
        rig.change(access={"keys_file": str(directory / "keys.yaml"), "managers": ["eve"]})

    def chat(self, name: str, requests: int) -> None:
        with httpx.Client(headers={"authorization": f"Bearer {self.keys[name]}"}) as client:
            for _ in range(requests):
                body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True}
                client.post(f"{self.rig.url}/v1/chat/completions", json=body)

    async def sign_in(self, page: Page, name: str) -> None:
        await page.goto("/ui#/keys")
        await page.get_by_label("API key").fill(self.keys[name])
        await page.get_by_role("dialog").get_by_role("button", name="Sign in").click()


@pytest.fixture
def keys(rig: Rig, tmp_path: Path, request: pytest.FixtureRequest) -> Keys:
    return Keys(rig, tmp_path, getattr(request, "param", ()))


async def test_a_caller_sees_its_own_limits_only(open_page: OpenPage, keys: Keys) -> None:
    page, watch = await open_page(keys.rig.url)
    watch.expected = ["status of 401"]
    calls: list[str] = []
    page.on("request", lambda request: calls.append(request.url))
    await keys.sign_in(page, "ann")
    await expect(page.get_by_text("You are ann.")).to_be_visible()
    chat = page.get_by_role("article", name="chat")
    await expect(chat).to_contain_text("5 of 5 left")
    keys.chat("ann", 2)
    await expect(chat).to_contain_text("3 of 5 left")
    await expect(chat).to_contain_text("19,976 of 20,000 left")
    await expect(chat).to_contain_text("4 of 4 left")
    await expect(page.get_by_text("Limits are counted by this router alone.")).to_be_visible()
    assert await page.get_by_role("article").count() == 1
    await expect(page.get_by_text("Usage by caller")).to_be_hidden()
    assert not any("/api/callers" in url for url in calls)
    assert keys.keys["ann"] not in await page.content()


@pytest.mark.parametrize(
    ("keys", "other", "width", "scheme"),
    [((), "nightly-batch", 1280, "light"), ((HOSTILE,), HOSTILE, 360, "dark")],
    indirect=["keys"],
    ids=["large", "small"],
)
async def test_a_manager_sees_the_usage_of_all_callers(
    open_page: OpenPage, keys: Keys, other: str, width: int, scheme: str
) -> None:
    keys.rig.change(access={**keys.rig.config["access"], "limits": {"default": {"requests_per_minute": 10}}})
    for caller, requests in (("ann", 3), ("eve", 9), (other, 1)):
        keys.chat(caller, requests)
    page, watch = await open_page(keys.rig.url, width=width, height=560, scheme=scheme)
    watch.expected = ["status of 401"]
    await keys.sign_in(page, "eve")
    await expect(page.get_by_text("You are a manager")).to_be_visible()
    rows = page.get_by_role("region", name="Usage by caller").locator("tbody tr")
    await expect(rows).to_have_count(3)
    await expect(rows.filter(has_text="ann")).to_contain_text("chat30279")
    await expect(rows.filter(has_text=other)).to_have_count(1)
    held = page.get_by_role("region", name="API keys").locator("tbody tr")
    await expect(held).to_have_count(len(keys.keys))
    await expect(held.get_by_role("rowheader", name=re.compile("^eve"))).to_have_count(1)
    await expect(page.get_by_text("Keys are in the keys file")).to_be_visible()
    assert await page.get_by_role("main").locator("img").count() == 0
    await expect(page.get_by_role("article", name="chat")).to_contain_text("1 of 10 left")
    assert await overflow(page) == 0
    assert await accessibility_problems(page) == []
    if other != HOSTILE:
        await screenshot(page, "keys")


async def test_the_limits_of_a_caller_are_its_keys_and_those_of_the_configuration(
    open_page: OpenPage, keys: Keys
) -> None:
    configured = {
        "nightly-batch": {"requests_per_minute": 9000, "tokens_per_minute": None},
        "ann": {"requests_per_minute": 7},
    }
    keys.rig.change(access={**keys.rig.config["access"], "limits": {"callers": configured}})
    page, watch = await open_page(keys.rig.url)
    watch.expected = ["status of 401"]
    await keys.sign_in(page, "eve")
    rows = page.get_by_role("region", name="API keys").locator("tbody tr")

    def limits(name: str) -> Locator:
        return rows.filter(has=page.get_by_role("rowheader", name=re.compile(f"^{name}"))).locator("td").nth(1)

    batch = "9,000 requests/min (configuration)no tokens/min (configuration)"
    await expect(limits("nightly-batch")).to_have_text(batch)
    await expect(limits("ann")).to_have_text("5 requests/min20,000 tokens/min4 at once")
    await expect(limits("eve")).to_have_text("default")


async def test_a_viewer_and_an_operator_see_what_they_may_do(open_page: OpenPage, keys: Keys) -> None:
    access = keys.rig.config["access"]
    keys.rig.change(access={**access, "viewers": ["nightly-batch"], "operators": {"chat": ["ann"]}})
    for name, text, usage in (
        ("ann", "You are an operator of chat: you can change the traffic there", 0),
        ("nightly-batch", "You are a viewer: you can see everyone's usage.", 1),
    ):
        page, watch = await open_page(keys.rig.url)
        watch.expected = ["status of 401"]
        await keys.sign_in(page, name)
        await expect(page.get_by_text(text)).to_be_visible()
        await expect(page.get_by_role("heading", name="Usage by caller")).to_have_count(usage)


async def test_a_server_without_keys_and_an_unreachable_server_are_reported(open_page: OpenPage, rig: Rig) -> None:
    page, watch = await open_page(rig.url)
    watch.expected = ["ERR_FAILED"]
    await page.goto("/ui#/keys")
    await expect(page.get_by_text("You are not signed in. This server has no keys")).to_be_visible()
    await expect(page.get_by_text("No calls yet.")).to_be_visible()
    said = page.get_by_role("alert")
    for name in ("keys", "requests"):
        await page.goto(f"/ui#/{name}")
        await expect(page.get_by_text("No calls yet." if name == "keys" else "No requests yet")).to_be_visible()
        await page.route("**/api/**", lambda route: route.abort())
        await expect(said).to_have_text(
            re.compile(r"The server cannot be reached\. The data on this page is from \d\d:\d\d:\d\d\.")
        )
        await page.goto("/ui#/glossary")
        await page.goto(f"/ui#/{name}")  # opened while the server is away
        await expect(said).to_contain_text("There is nothing to show until it answers. This page asks again by itself.")
        await page.unroute("**/api/**")
        await expect(said).to_be_hidden()


@pytest.mark.parametrize(
    ("name", "caller", "width", "scheme"),
    [("keys-issued", "mobile app", 1280, "light"), ("keys-390", HOSTILE, 390, "dark")],
)
async def test_a_manager_creates_changes_and_revokes_a_key(
    open_page: OpenPage, managed: Managed, name: str, caller: str, width: int, scheme: str
) -> None:
    boss = managed.guard()["boss"]
    managed.deliver(access={**managed.config["access"], "issue_keys": True})
    page, watch = await open_page(managed.url, width=width, scheme=scheme)
    watch.expected = ["status of 401", "status of 409"]
    await page.goto("/ui#/keys")
    await page.get_by_label("API key").fill(boss)
    await page.get_by_role("dialog").get_by_role("button", name="Sign in").click()

    await page.get_by_role("button", name="Create a key").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("boss")
    await dialog.get_by_label("chat", exact=True).check()
    await dialog.get_by_label("Requests per minute").fill("600")
    assert await accessibility_problems(page) == []
    assert await overflow(page) == 0
    await dialog.get_by_role("button", name="Create").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("'boss' has a key already")
    await dialog.get_by_label("Name").fill(caller)
    await dialog.get_by_role("button", name="Create").click()
    await expect(dialog).to_contain_text("This is the only time that it is shown")
    secret = await dialog.locator("code").inner_text()
    headers = {"authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(base_url=managed.url, headers=headers) as client:

        async def status() -> int:
            body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
            return (await client.post("/v1/chat/completions", json=body)).status_code

        assert await status() == 200
        for key in ("Escape", "Escape"):  # the first one alone may be ignored by a browser's own rules
            await page.keyboard.press(key)
        await expect(dialog.locator("code")).to_have_text(secret)
        asked = asyncio.create_task(page.wait_for_event("dialog"))
        await page.keyboard.press("Tab")  # a page that nobody has touched may not ask
        await page.evaluate("void setTimeout(() => location.reload())")
        await (await asked).dismiss()
        await dialog.get_by_role("button", name="Done").click()
        await expect(page.locator("dialog")).to_have_count(0)
        assert secret not in await page.content()
        row = page.get_by_role("region", name="API keys").locator("tbody tr").filter(has_text=caller)
        await expect(row).to_contain_text("600 requests/min")
        used = row.get_by_role("cell").nth(3)
        await expect(used).to_have_text(re.compile(r"^\d\d:\d\d$"))  # the server knows it to the minute
        await expect(row).to_contain_text("by boss")
        await expect(row.get_by_role("slider")).to_have_attribute("aria-label", re.compile("last 14 days: (0, ){13}1"))
        await expect(page.locator("[role=slider][tabindex='0']")).to_have_count(1)  # all keys' charts are one stop
        assert await page.get_by_role("main").locator("img").count() == 0
        assert await overflow(page) == 0
        assert await accessibility_problems(page) == []
        await screenshot(page, name, whole=True)

        await row.get_by_role("button", name="Change").click()
        await dialog.get_by_label("chat", exact=True).uncheck()
        await dialog.get_by_label("embed", exact=True).check()
        await dialog.get_by_role("button", name="Change").click()
        await expect(row).to_contain_text("embed")
        assert await status() == 403
        await row.get_by_role("button", name="Rotate").click()
        await dialog.get_by_label("The old secret ends").select_option("in a day")
        await dialog.get_by_label("Why?").fill("a laptop is lost")
        assert await overflow(page) == 0
        assert await accessibility_problems(page) == []
        await dialog.get_by_role("button", name="Rotate").click()
        await expect(dialog).to_contain_text("This is the only time that it is shown")
        assert await dialog.locator("code").inner_text() != secret
        await dialog.get_by_role("button", name="Done").click()
        await expect(row).to_contain_text("previous secret:")
        assert await status() == 403, "the old secret works beside the new one, with the same rights"
        await row.get_by_role("button", name="Revoke").click()
        await page.evaluate("location.hash = '#/glossary'")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Glossary")
        await expect(page.locator("dialog")).to_have_count(0)
        await page.evaluate("location.hash = '#/keys'")
        await row.get_by_role("button", name="Revoke").click()
        await dialog.get_by_label("Why?").fill("left the company")
        await dialog.get_by_label("to confirm").fill(caller)
        await dialog.get_by_role("button", name="Revoke").click()
        await expect(row).to_contain_text("revoked")
        await expect(row).to_contain_text("by boss")
        await expect(row.get_by_role("button")).to_have_count(0)
        await expect(row).to_contain_text("600 requests/min")
        await expect(used).to_have_text(re.compile(r"^\d\d:\d\d$"))
        await expect(row.get_by_role("slider")).to_have_attribute("aria-label", re.compile("last 14 days: (0, ){13}"))
        assert await status() == 401
    managed.deliver(access={**managed.config["access"], "managers": [], "viewers": ["boss"]})
    await page.goto("/ui#/glossary")
    await page.goto("/ui#/keys")
    await expect(page.get_by_text("You are a viewer")).to_be_visible()
    await expect(row).to_contain_text("revoked")  # there is no issued key any more
