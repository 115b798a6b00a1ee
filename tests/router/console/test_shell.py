"""The console's shell: routing by hash, signing in and out, polling, and the scripts that all pages share."""

import asyncio
import re
from importlib.metadata import version
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, Request, expect
from playwright.async_api import Route as PageRoute
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route

from deployments.no_router import PAGE
from tests.router.conftest import Rig
from tests.router.console.conftest import Managed, OpenPage, sign_in
from tests.router.console.test_appearance import EXPERIMENT
from tests.support.clients.browser import HIDEABLE, accessibility_problems, overflow, screenshot
from tests.support.clients.first_paint import PAGES
from tests.support.processes.project import ROOT
from tests.support.processes.servers import serve


async def type_key(page: Page, key: str) -> None:
    """Signs in, for as long as the tab is open."""
    await page.get_by_label("API key").fill(key)
    await page.get_by_label("Keep it until this tab is closed").check()
    await page.keyboard.press("Enter")


async def run_example_of_a_chat(page: Page) -> None:
    """On the API's page."""
    await page.get_by_role("navigation").get_by_role("link", name="API").click()
    await page.get_by_role("link", name="OpenAI", exact=True).click()
    await page.get_by_role("button", name="/v1/chat/completions").first.click()
    await expect(page.get_by_label("Body")).to_have_value(re.compile('"model": "chat"'))
    await page.get_by_role("button", name="Execute").click()
    await expect(page.locator(".live-responses-table tbody .response-col_status").first).to_contain_text("200")


@pytest.mark.parametrize("name", ["Traffic", "Experiments", "Models", "Playground", "Requests", "Keys"])
async def test_every_page_has_an_address_and_a_link(browser_page: Page, name: str) -> None:
    await browser_page.goto("/ui")
    link = browser_page.get_by_role("navigation").get_by_role("link", name=name)
    await link.click()
    await expect(browser_page.get_by_role("heading", level=1)).to_have_text(name)
    await expect(link).to_have_attribute("aria-current", "page")
    assert browser_page.url.endswith(f"#/{name.lower()}")
    await browser_page.reload()
    await expect(browser_page.get_by_role("heading", level=1)).to_have_text(name)


async def test_the_servers_address_alone_opens_the_console(browser_page: Page) -> None:
    await browser_page.goto("/")
    await expect(browser_page.get_by_role("navigation")).to_be_visible()
    assert urlsplit(browser_page.url).path == "/ui"


@pytest.mark.parametrize("hash", ["#/nothing", "#/experiments/%E0%A4%A", "#/../keys"])
async def test_an_unknown_address_is_reported(browser_page: Page, hash: str) -> None:
    await browser_page.goto(f"/ui{hash}")
    await expect(browser_page.get_by_role("heading", level=1)).to_have_text("Page not found")
    await expect(browser_page).to_have_title("Page not found · Switchyard")


async def test_the_first_tab_stop_skips_to_the_content(browser_page: Page) -> None:
    await browser_page.goto("/ui")
    await browser_page.keyboard.press("Tab")
    skip = browser_page.get_by_role("link", name="Skip to the content")
    await expect(skip).to_be_focused()
    await browser_page.keyboard.press("Enter")
    await expect(browser_page.get_by_role("main")).to_be_focused()


async def test_without_access_there_is_nothing_to_sign_in_to(browser_page: Page) -> None:
    async with browser_page.expect_response("**/ui/sign-in") as ways:
        await browser_page.goto("/ui")
    assert (await (await ways.value).json())["credentials"] is False
    await expect(browser_page.get_by_role("heading", level=2, name="chat")).to_be_visible()
    await expect(browser_page.locator("#sign-in")).to_be_hidden()


async def test_a_key_is_asked_for_once_and_forgotten_on_reload(managed: Managed, open_page: OpenPage) -> None:
    keys = managed.guard()
    page, watch = await open_page(managed.url)
    watch.expected.append("401")
    await page.goto("/ui")
    await expect(page.get_by_role("dialog")).to_have_count(1)
    await expect(page.locator("#sign-in")).to_be_visible()
    assert await accessibility_problems(page) == []
    await screenshot(page, "console-sign-in", whole=False)
    await sign_in(page, "sk-nonsense")
    await expect(page.get_by_role("alert")).to_have_text("This key is not accepted: The API key is not valid.")
    await sign_in(page, keys["boss"])
    await expect(page.get_by_role("heading", level=2)).to_have_text(["chat", "embed"])
    assert await page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [0, 0, ""]
    await page.get_by_role("link", name="Experiments").first.click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Experiments")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.reload()
    await expect(page.get_by_role("dialog")).to_have_count(1)


async def test_a_key_can_be_kept_for_the_tab_until_sign_out(managed: Managed, open_page: OpenPage) -> None:
    keys = managed.guard()
    page, watch = await open_page(managed.url)
    watch.expected.append("401")
    await page.goto("/ui")
    await type_key(page, keys["chat team"])
    await expect(page.get_by_role("heading", level=2)).to_have_text(["chat"])
    await page.reload()
    await expect(page.get_by_role("heading", level=2)).to_have_text(["chat"])
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("dialog")).to_have_count(1)
    assert await page.evaluate("sessionStorage.length") == 0
    await expect(page.get_by_role("heading", level=2, name="chat")).to_have_count(0)


async def test_without_a_key_the_page_says_why_it_is_empty(managed: Managed, open_page: OpenPage) -> None:
    """And it sends nothing that would be refused: those requests are counted, as an attack's are."""
    managed.guard()
    page, _ = await open_page(managed.url)
    await page.goto("/ui")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("main")).to_contain_text("Nothing is shown here before you have signed in.")
    await page.wait_for_timeout(3000)  # the page polls
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.get_by_role("link", name="Playground").click()
    await expect(page.get_by_role("dialog")).to_have_count(1)


@pytest.mark.parametrize("role", ["manager", "operator", "viewer", "caller", "limited caller", "nobody", "open"])
async def test_the_menu_has_the_pages_that_its_reader_may_open_and_no_others(
    managed: Managed, open_page: OpenPage, role: str
) -> None:
    """Each page of the menu opens without a refusal, and one that it lacks is refused."""
    managed.deliver(experiments={"colours": EXPERIMENT})
    keys = {} if role == "open" else managed.guard()
    access = managed.config.get("access", {})
    if keys:
        roles = {"viewers": ["embed team"], "operators": {"chat": ["chat and embed"]}}
        managed.deliver(access={**access, **roles, "allow_anonymous": role == "nobody"})
    names = {"manager": "boss", "operator": "chat and embed", "viewer": "embed team", "limited caller": "chat team"}
    titles = {"limited caller": "caller", "nobody": "caller", "open": "manager"}
    if role == "caller":
        managed.deliver(access={**access, "allow_anonymous": False})
        names["caller"] = "chat and embed"
    page, watch = await open_page(managed.url)
    watch.expected = ["status of 401"]
    refused: list[str] = []
    page.on("response", lambda answer: refused.append(answer.url) if answer.status == 403 else None)
    await page.goto("/ui#/glossary")
    if role in names:
        await page.get_by_role("button", name="Sign in").click()
        await sign_in(page, keys[names[role]])
    await expect(page.locator("#who")).to_have_text(f"{names.get(role, 'anonymous')} · {titles.get(role, role)}")
    await page.wait_for_load_state("networkidle")
    menu = page.get_by_role("navigation")
    shown = [name for name in await menu.get_by_role("link").all_inner_texts() if name != "API"]
    reads_all = role in ("manager", "viewer", "open")
    models = ["Models"] if reads_all or role == "operator" else []
    audit = ["Audit"] if reads_all else []
    assert shown == ["Traffic", "Experiments", *models, "Playground", "Requests", "Keys", *audit]
    for name in shown:
        await menu.get_by_role("link", name=name).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text(name)
        await page.wait_for_load_state("networkidle")
    if await page.get_by_role("link", name="colours").count() or role != "viewer":
        await page.goto("/ui#/experiments/colours")
        await page.wait_for_load_state("networkidle")
    await expect(page.get_by_role("alert").filter(visible=True)).to_have_count(0)
    assert refused == []
    watch.expected.append("status of 403")
    for missing, why in (("Models", "may not see what is loaded where"), ("Audit", "may not read the audit log")):
        if missing not in shown and role != "open":
            await page.goto(f"/ui#/{missing.lower()}")
            await expect(page.get_by_role("main")).to_contain_text(why)
            assert refused


def glossary() -> dict[str, str]:
    """The words of the documentation's glossary, and their meanings."""
    rows = re.findall(r"^\| (\*\*.+?) \| (.+) \|$", (ROOT / "docs" / "reference" / "glossary.md").read_text(), re.M)
    return {word.replace("*", ""): re.sub("[*`]", "", meaning) for word, meaning in rows}


async def test_the_glossary_is_the_documentations(browser_page: Page) -> None:
    await browser_page.goto("/ui")
    await browser_page.get_by_role("contentinfo").get_by_role("link", name="Glossary").click()
    await expect(browser_page.get_by_role("heading", level=1)).to_have_text("Glossary")
    words = await browser_page.locator(".words dt").all_inner_texts()
    meanings = await browser_page.locator(".words dd").all_inner_texts()
    assert dict(zip(words, meanings, strict=True)) == {word: f"{text}." for word, text in glossary().items()}
    assert len(words) > 20
    assert await accessibility_problems(browser_page) == []


async def test_a_word_says_what_it_means(browser_page: Page) -> None:
    await browser_page.goto("/ui")
    word = browser_page.get_by_role("button", name="plan", exact=True).first
    await word.focus()
    await browser_page.keyboard.press("Enter")
    meaning = browser_page.get_by_role("note")
    await expect(meaning).to_contain_text(f"plan: {glossary()['plan']}.")
    assert await accessibility_problems(browser_page) == []
    await browser_page.keyboard.press("Escape")
    await expect(meaning).to_be_hidden()
    await expect(word).to_be_focused()


def test_every_word_that_a_page_explains_has_an_entry() -> None:
    scripts = (ROOT / "app" / "pages" / "static" / "js").rglob("*.js")
    used = {word for script in scripts for word in re.findall(r"\bterm\(\"([^\"]+)\"", script.read_text())}
    known = {word for words in glossary() for word in words.split(", ")}
    assert used
    assert used <= known


async def test_the_theme_is_the_systems_until_one_is_chosen(managed: Managed, open_page: OpenPage) -> None:
    page, _ = await open_page(managed.url, scheme="dark")

    async def background() -> str:
        colour: str = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        return colour

    await page.goto("/ui")
    theme = page.get_by_role("button", name="Theme: Auto")
    dark = await background()
    await theme.click()
    theme = page.get_by_role("button", name="Theme: Light")
    await expect(theme).to_be_visible()
    light = await background()
    assert light != dark
    await page.reload()
    await expect(theme).to_be_visible()
    assert await background() == light
    await page.goto("/docs")
    await expect(theme).to_be_visible()
    assert await background() == light
    await theme.click()
    await page.get_by_role("button", name="Theme: Dark").click()
    await expect(page.get_by_role("button", name="Theme: Auto")).to_be_visible()
    assert await page.evaluate("localStorage.length") == 0


async def test_the_frame_says_which_server_this_is_and_who_you_are(managed: Managed, open_page: OpenPage) -> None:
    keys = managed.guard()
    managed.deliver(console={"environment": "staging eu", "docs_url": "https://docs.example/switchyard/"})
    page, watch = await open_page(managed.url)
    watch.expected.append("401")
    await page.goto("/ui")
    banner, about = page.get_by_role("banner"), page.get_by_role("contentinfo")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await expect(banner).not_to_contain_text("staging eu")
    await sign_in(page, keys["boss"])
    await expect(banner.get_by_text("staging eu")).to_be_visible()
    await expect(banner.get_by_role("link", name="boss · manager")).to_have_attribute("href", "#/keys")
    await expect(about).to_contain_text(f"Switchyard {version('switchyard')}")
    where = about.get_by_role("link", name="Documentation")
    await expect(where).to_have_attribute("href", "https://docs.example/switchyard/")
    await page.get_by_role("button", name="Sign out").click()
    await expect(banner.get_by_text("boss")).to_be_hidden()


async def test_the_documentation_is_the_apis_own_where_no_other_is_named(rig: Rig, open_page: OpenPage) -> None:
    page, _ = await open_page(rig.url)
    await page.goto("/ui#/keys")
    await expect(page.get_by_text("You are not signed in.")).to_be_visible()
    await page.get_by_role("contentinfo").get_by_role("link", name="API documentation").click()
    await expect(page.get_by_role("heading", name="anthropic").first).to_be_visible()
    assert urlsplit(page.url).path == "/docs"


@pytest.mark.parametrize("anonymous", [False, True])
async def test_the_apis_page_names_the_environment_also_without_a_key(
    managed: Managed, open_page: OpenPage, anonymous: bool
) -> None:
    keys = managed.guard()
    managed.deliver(console={"environment": "staging eu"})
    managed.deliver(access={**managed.config["access"], "allow_anonymous": anonymous})
    page, watch = await open_page(managed.url)
    watch.expected.append("401")
    environment = page.get_by_role("banner").get_by_text("staging eu")
    await page.goto("/docs")
    await expect(page.get_by_role("heading", name="anthropic").first).to_be_visible()
    await expect(environment).to_be_visible(visible=anonymous)
    if not anonymous:
        await page.goto("/ui")
        await sign_in(page, keys["boss"])
        await expect(environment).to_be_visible()
        await page.goto("/docs")  # the key is not kept
        await expect(environment).to_be_visible()
        await expect(page.locator("#who")).to_be_hidden()


async def test_a_key_that_is_not_kept_goes_along_to_the_apis_page_and_back(
    managed: Managed, open_page: OpenPage
) -> None:
    keys = managed.guard()
    page, watch = await open_page(managed.url)
    watch.expected.append("401")
    stored = "JSON.stringify({...sessionStorage, ...localStorage})"
    await page.goto("/ui")
    await sign_in(page, keys["boss"])
    await expect(page.locator("#who")).to_contain_text("boss")
    await page.get_by_role("contentinfo").get_by_role("link", name="API documentation").click()
    await page.wait_for_url("**/docs")
    await expect(page.locator("#who")).to_contain_text("boss")
    assert keys["boss"] not in await page.evaluate(stored)
    await page.get_by_role("link", name="Traffic").click()
    await expect(page.get_by_role("heading", name="chat", exact=True)).to_be_visible()
    assert keys["boss"] not in await page.evaluate(stored)
    await page.reload()
    await expect(page.get_by_role("dialog")).to_be_visible()


async def test_after_authorize_the_examples_name_the_keys_endpoints_and_answers_are_documented(
    managed: Managed, open_page: OpenPage
) -> None:
    keys = managed.guard()
    page, watch = await open_page(managed.url)
    watch.expected += ["401", "404"]
    await page.goto("/docs")
    await page.locator("#operations-tag-OpenAI").get_by_role("button", name="Expand operation").click()
    operation = page.locator(".opblock", has=page.locator('[data-path="/v1/chat/completions"]'))
    await operation.locator(".opblock-summary-control").click()
    body = operation.locator("textarea.body-param__text")
    await expect(body).to_have_value(re.compile("<an endpoint for chat>"))
    await page.get_by_role("button", name="Authorize").first.click()
    dialog = page.locator(".modal-ux")
    await dialog.get_by_role("textbox").first.fill(keys["boss"])
    await dialog.get_by_role("button", name="Authorize").first.click()
    await dialog.get_by_role("button", name="Close").last.click()
    await expect(body).to_have_value(re.compile('"model": "chat"'))
    await operation.get_by_role("button", name="Execute").click()
    answer = operation.locator(".live-responses-table")
    await expect(answer.locator(".response-col_status").last).to_contain_text("200")
    await body.fill('{"model": "nothing", "messages": [{"role": "user", "content": "hi"}]}')
    await operation.get_by_role("button", name="Execute").click()
    await expect(answer.locator(".response-col_status").last).to_contain_text("404")
    await expect(answer).not_to_contain_text("Undocumented")


@pytest.mark.parametrize("width", [390, 360])
async def test_a_phones_header_has_two_rows_and_the_whole_role(
    managed: Managed, open_page: OpenPage, width: int
) -> None:
    keys = managed.guard()
    managed.deliver(console={"environment": "production eu-central-1"})
    managed.deliver(access={**managed.config["access"], "operators": {"chat": ["chat team"]}, "viewers": ["chat team"]})
    page, watch = await open_page(managed.url, width=width)
    watch.expected.append("401")
    await page.goto("/ui")
    await type_key(page, keys["chat team"])
    banner = page.get_by_role("banner")
    await expect(page.get_by_role("heading", level=2, name="chat")).to_be_visible()
    assert await overflow(page) <= 0
    rows: int = await banner.evaluate("""(bar) => new Set([...bar.querySelectorAll("a:not([hidden]), button")]
        .map((it) => it.getBoundingClientRect()).map((it) => Math.round((it.top + it.bottom) / 20))).size""")
    assert rows == 2
    role = banner.locator(".role")
    await expect(role).to_have_text("· operator, viewer")
    ends = "(it) => [it, it.parentElement].map((one) => one.getBoundingClientRect().right)"
    own, outer = await role.evaluate(ends)
    assert own <= outer <= width
    links = page.get_by_role("navigation").get_by_role("link")
    heights = await links.evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().height)")
    assert min(heights) >= 40, "a finger meets it"


async def test_the_headings_of_the_apis_page_leave_no_level_out(open_page: OpenPage, rig: Rig) -> None:
    page, _ = await open_page(rig.url)
    await page.goto("/docs")
    await page.locator("#operations-tag-OpenAI").get_by_role("button", name="Expand operation").click()
    await page.locator('[data-path="/v1/chat/completions"]').click()
    await expect(page.get_by_role("heading", name="Responses")).to_be_visible()
    levels = await page.evaluate("""() => [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")]
        .map((one) => Number(one.getAttribute("aria-level") ?? one.tagName[1]))""")
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels


async def test_all_pages_of_a_manager_are_one_row_on_a_phone(open_page: OpenPage, rig: Rig) -> None:
    page, _ = await open_page(rig.url, width=390)
    await page.goto("/ui")
    await expect(page.get_by_role("heading", level=2, name="chat")).to_be_visible()
    rows = await page.locator("nav").evaluate("""(nav) => {
        nav.style.letterSpacing = ".03em"; // as with a wider font
        const links = [...nav.querySelectorAll("a")];
        for (const link of links) link.hidden = false;
        return new Set(links.map((link) => link.getBoundingClientRect().top)).size;
    }""")
    assert rows == 1


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
async def test_every_page_has_the_frame_and_explains_its_words(
    managed: Managed, open_page: OpenPage, width: int, scheme: str
) -> None:
    keys = managed.guard()
    managed.deliver(console={"environment": "staging eu", "docs_url": "https://docs.example/switchyard/"})
    page, watch = await open_page(managed.url, width=width, scheme=scheme)
    watch.expected.extend(["401", "404"])
    await page.goto("/ui")
    await type_key(page, keys["boss"])
    await expect(page.get_by_role("heading", level=2, name="chat")).to_be_visible()
    banner, about = page.get_by_role("banner"), page.get_by_role("contentinfo")
    for path in [*PAGES, "/ui#/glossary", "/ui#/requests?id=nothing", "/ui#/nothing", "/docs"]:
        await page.goto(path)
        await page.reload()  # a hash alone does not load the page
        await expect(banner.get_by_text("staging eu")).to_be_visible()
        await expect(banner.get_by_role("link", name="boss · manager")).to_be_visible()
        await expect(banner.get_by_role("button", name="Theme: Auto")).to_be_visible()
        await expect(about).to_contain_text(f"Switchyard {version('switchyard')}")
        await expect(about.get_by_role("link", name="Documentation")).to_be_visible()
        await page.wait_for_load_state("networkidle")
        current = await banner.locator("[aria-current=page]").all_inner_texts()
        assert len(current) == (path not in ("/ui#/glossary", "/ui#/nothing")), path
        for word in await page.locator("button.term:visible").all():
            await word.press("Enter")
            await expect(page.get_by_role("note")).not_to_contain_text("no entry")
            await page.keyboard.press("Escape")
        assert await overflow(page) <= 0, path
        assert await accessibility_problems(page) == [], path
        await about.get_by_role("link", name="Glossary").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Glossary")


async def test_a_hidden_page_does_not_poll(managed: Managed, open_page: OpenPage) -> None:
    page, _ = await open_page(managed.url)
    await page.add_init_script(HIDEABLE)
    await page.clock.install()
    calls = 0

    def count(request: Request) -> None:
        nonlocal calls
        calls += request.url.endswith("/api/overview")

    page.on("request", count)
    await page.goto("/ui#/traffic")
    await expect(page.get_by_role("heading", level=2, name="chat")).to_be_visible()
    await page.evaluate("hide(true)")
    before = calls
    await page.clock.run_for(60_000)
    assert calls - before <= 0
    async with page.expect_request("**/api/overview"):
        await page.evaluate("hide(false)")


async def test_a_page_that_a_stopped_server_cannot_send_comes_once_it_answers(
    managed: Managed, open_page: OpenPage
) -> None:
    page, watch = await open_page(managed.url)
    watch.expected = ["ERR_FAILED"]
    await page.goto("/ui#/traffic")
    await expect(page.get_by_role("heading", level=2, name="chat")).to_be_visible()
    await page.route("**/*", lambda route: route.abort())
    await page.get_by_role("link", name="Experiments").first.click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("The server does not answer")
    await expect(page.get_by_role("main")).not_to_contain_text("dynamically")
    await page.unroute("**/*")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Experiments")
    await page.route("**/playground/desk.js", lambda route: route.abort())
    await page.get_by_role("link", name="Playground").click()
    await expect(page.get_by_role("alert")).to_contain_text("if that stays so, reload the page in your browser.")
    await page.unroute("**/playground/desk.js")
    await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    await page.route("**/pages/keys.js*", lambda route: route.abort())
    await page.get_by_role("link", name="Keys").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("This page cannot be shown")
    await expect(page.get_by_role("alert")).to_contain_text("This page asks again by itself.")
    await page.unroute("**/pages/keys.js*")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Keys")


async def test_a_page_recovers_from_an_error_at_its_start(managed: Managed, open_page: OpenPage) -> None:
    """And so does the menu, which has the pages that its reader may open."""
    page, watch = await open_page(managed.url)
    watch.expected = ["status of 500"]
    await page.route("**/api/**", lambda route: route.fulfill(status=500, json={}))
    main = page.get_by_role("main")
    for path in [*PAGES, "/ui#/requests?id=nothing"]:
        await page.goto(path)
        await expect(main).to_contain_text("This page asks again by itself.")
    await page.goto("/ui#/playground")
    await page.reload()
    await expect(main).to_contain_text("The server answered 500.")
    await expect(page.get_by_role("link", name="Audit")).to_be_hidden()
    await page.unroute("**/api/**")
    await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    await expect(page.get_by_role("alert").filter(visible=True)).to_have_count(0)
    await expect(page.get_by_role("link", name="Audit")).to_be_visible()


@pytest.mark.parametrize("page_of", ["traffic", "requests", "keys", "models", "experiments", "audit"])
async def test_a_server_that_hangs_is_told_of_within_seconds(
    managed: Managed, open_page: OpenPage, page_of: str
) -> None:
    """The browser gives an answer up after half a minute."""
    goes_on = asyncio.Event()

    async def hang(route: PageRoute) -> None:
        await goes_on.wait()
        await route.continue_()

    page, _ = await open_page(managed.url)
    await page.goto(f"/ui#/{page_of}")
    told = page.get_by_text("The server has not answered for more than 5 s: what this page shows may be old.")
    await expect(page.get_by_role("heading", level=1)).to_be_visible()
    await expect(told).to_be_hidden()
    await page.route("**/api/**", hang)
    await expect(told).to_be_visible(timeout=20_000)
    assert await accessibility_problems(page) == []
    goes_on.set()
    await expect(told).to_be_hidden()
    await page.unroute_all(behavior="ignoreErrors")


async def test_a_thousand_redraws_leave_no_extra_elements(browser_page: Page) -> None:
    """A redraw replaces the previous elements."""
    await browser_page.goto("/ui#/traffic")
    await expect(browser_page.get_by_role("heading", level=2, name="chat")).to_be_visible()
    counts = await browser_page.evaluate("""async () => {
        const { h, morph } = await import("/ui/static/js/dom.js");
        const root = document.createElement("div");
        const draw = (names) => morph(root, h("p", {}, "first"), names.map((it) => h("b", { key: it }, it)), "last");
        const texts = [];
        for (const names of [["a", "b", "c"], ["c", "a"], [], ["b", "a", "c"], ["b"]]) {
            draw(names);
            texts.push(root.textContent);
        }
        for (let turn = 0; turn < 1000; turn += 1) draw(["a", "b"]);
        return [...texts, root.childNodes.length];
    }""")
    assert counts == ["firstabclast", "firstcalast", "firstlast", "firstbaclast", "firstblast", 4]


async def test_shares_always_sum_to_a_hundred(browser_page: Page) -> None:
    await browser_page.goto("/ui")
    wrong = await browser_page.evaluate("""async () => {
        const { moved } = await import("/ui/static/js/traffic/moves.js");
        const wrong = [];
        let seed = 7;
        const random = (below) => (seed = (seed * 16807) % 2147483647) % below;
        for (let turn = 0; turn < 5000; turn += 1) {
            const names = Array.from({ length: 1 + random(7) }, (_, index) => `d${index}`);
            let weights = Object.fromEntries(names.map((it) => [it, 0]));
            weights[names[0]] = 100;
            for (let step = 0; step < 4; step += 1) {
                const name = names[random(names.length)], value = random(140) - 20;
                const before = weights;
                weights = moved(weights, name, value);
                const all = Object.values(weights);
                const wanted = names.length === 1 ? 100 : Math.min(100, Math.max(0, value));
                const isWhole = all.every((it) => Number.isInteger(it) && it >= 0);
                const isRight = all.reduce((a, b) => a + b, 0) === 100 && isWhole && weights[name] === wanted;
                if (!isRight) wrong.push([before, name, value, weights]);
            }
        }
        return wrong.slice(0, 3);
    }""")
    assert wrong == []
    shares = await browser_page.evaluate("""async () => {
        const { moved } = await import("/ui/static/js/traffic/moves.js");
        const three = { a: 60, b: 30, c: 10 };
        return [moved(three, "c", 40), moved({ a: 100, b: 0, c: 0 }, "a", 40), moved({ a: 1, b: 99 }, "a", "")];
    }""")
    assert shares == [{"a": 40, "b": 20, "c": 40}, {"a": 40, "b": 30, "c": 30}, {"a": 0, "b": 100}]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
async def test_an_example_of_the_api_page_runs(managed: Managed, open_page: OpenPage, width: int, scheme: str) -> None:
    page, _ = await open_page(managed.url, width=width, scheme=scheme)
    await page.goto("/ui")
    await run_example_of_a_chat(page)
    await expect(page.locator(".copy-to-clipboard button:not([aria-label])")).to_have_count(0)
    assert await accessibility_problems(page) == []
    assert await overflow(page) <= 0
    await page.get_by_role("navigation").get_by_role("link", name="Traffic").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Traffic")


async def test_an_example_of_the_api_page_is_sent_with_the_key_that_the_tab_keeps(
    managed: Managed, open_page: OpenPage
) -> None:
    keys = managed.guard()
    page, watch = await open_page(managed.url)
    watch.expected.append("401")
    await page.goto("/ui")
    await type_key(page, keys["chat team"])
    await run_example_of_a_chat(page)
    await expect(page.get_by_role("main")).not_to_contain_text(keys["chat team"])


async def test_the_api_page_loads_under_its_policy_without_other_hosts(browser_page: Page) -> None:
    await browser_page.goto("/ui")
    await browser_page.get_by_role("navigation").get_by_role("link", name="API").click()
    await browser_page.get_by_role("link", name="OpenAI", exact=True).wait_for()
    await browser_page.get_by_role("link", name="Switchyard", exact=True).last.click()
    await expect(browser_page.get_by_text("/api/overview").first).to_be_visible()
    assert await accessibility_problems(browser_page) == []


@pytest.mark.parametrize("address", ["/ui", "/ui#/models"])
async def test_the_page_of_an_ingress_without_a_router_loads_again_at_every_address(
    browser: Browser, address: str
) -> None:
    answers = iter([HTMLResponse(PAGE, 503), HTMLResponse(PAGE, 503)])

    async def ui(request: object) -> HTMLResponse:
        return next(answers, HTMLResponse("<h1>There it is</h1>"))

    with serve(Starlette(routes=[Route("/ui", ui)])) as url:
        page = await browser.new_page()
        await page.goto(url + address)
        await expect(page.get_by_role("heading", name="Switchyard is starting or stopping")).to_be_visible()
        await expect(page.get_by_role("heading", name="There it is")).to_be_visible(timeout=30_000)
        await page.close()
