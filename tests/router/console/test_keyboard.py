"""Every page by keyboard alone: each control is reached in the order in which it stands, with a focus that can be seen;
dialogs keep the focus, close with Escape, and give it back."""

from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from tests.router.console.conftest import Managed, OpenPage
from tests.router.console.test_appearance import EXPERIMENT
from tests.support.clients.browser import HIDEABLE

PATHS = (
    "/ui#/traffic",
    "/ui#/experiments",
    "/ui#/experiments/colours",
    "/ui#/experiments?new",
    "/ui#/models",
    "/ui#/playground",
    "/ui#/requests",
    "/ui#/keys",
    "/ui#/glossary",
    "/docs",
)

FOCUSABLE = """() => {
    const wanted = "a[href], button, input, select, textarea, summary, [tabindex]";
    window.numbers = new Map();
    const isGroup = (one) => one.type === "radio" || one.getAttribute("role") === "tab";
    return [...document.querySelectorAll(wanted)].filter((one) =>
        one.tabIndex >= 0 && !one.disabled && !isGroup(one) && one.checkVisibility({ visibilityProperty: true })
    ).map((one, index) => (numbers.set(one, index), one.outerHTML.slice(0, 200)));
}"""
"""Everything that Tab must reach, in the document's order. Arrow keys move within radio buttons and tabs."""

FOCUSED = """() => {
    const one = document.activeElement;
    if (one === document.body || one === null) return null;
    const box = one.getBoundingClientRect();
    const style = getComputedStyle(one);
    return {
        index: numbers.get(one) ?? null,
        html: one.outerHTML.slice(0, 200),
        isSeen: (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) || style.boxShadow !== "none",
        isInView: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
    };
}"""


async def walked(page: Page) -> list[dict[str, Any]]:
    """The stops of Tab, from the page's beginning until it leaves the page."""
    await page.evaluate("document.activeElement?.blur()")
    stops: list[dict[str, Any]] = []
    for _ in range(400):
        await page.keyboard.press("Tab")
        stop = await page.evaluate(FOCUSED)
        if stop is None or (stops and stop["index"] is not None and stop["index"] == stops[0]["index"]):
            return stops
        stops.append(stop)
    raise AssertionError(f"Tab never leaves the page: {stops[-1]}")


async def opened(page: Page, path: str) -> None:
    """The page once it shows what it has read. It is not drawn anew meanwhile: the browser believes it hidden."""
    await page.goto("/ui#/nothing")
    await page.goto(path)
    await page.reload()
    await expect(page.locator("h1, .opblock-tag").first).to_be_visible()
    await expect(page.get_by_text("Loading …")).to_have_count(0)
    await page.wait_for_timeout(1000)
    await page.evaluate("hide(true)")


@pytest.mark.parametrize("width", [1280, 390])
async def test_tab_reaches_every_control_in_its_order_with_a_visible_focus(
    managed: Managed, open_page: OpenPage, width: int
) -> None:
    managed.deliver(experiments={"colours": EXPERIMENT})
    managed.put({"blue": 80, "green": 20}, "a first step")
    managed.chat(3, stream=True)
    page, _ = await open_page(managed.url, width=width)
    await page.add_init_script(HIDEABLE)
    for path in PATHS:
        await opened(page, path)
        wanted = await page.evaluate(FOCUSABLE)
        stops = await walked(page)
        assert [stop for stop in stops if not (stop["isSeen"] and stop["isInView"])] == [], path
        reached = [stop["index"] for stop in stops if stop["index"] is not None]
        assert reached == sorted(reached), path
        assert [html for index, html in enumerate(wanted) if index not in reached] == [], path
        back = list(reversed(stops))
        await page.keyboard.press("Shift+Tab")
        assert (await page.evaluate(FOCUSED))["index"] == back[0]["index"], path


async def focus_stays_in(page: Page, dialog: Locator) -> None:
    """Tab goes round within the dialog, or to the browser's own bars, and never to the page behind it."""
    inside = "(dialog) => dialog.contains(document.activeElement) || document.activeElement === document.body"
    for _ in range(12):
        await page.keyboard.press("Tab")
        assert await dialog.evaluate(inside)


async def test_a_dialog_takes_the_focus_closes_with_escape_and_gives_it_back(
    managed: Managed, open_page: OpenPage
) -> None:
    managed.deliver(experiments={"colours": EXPERIMENT})
    managed.put({"blue": 80, "green": 20}, "a first step")
    keys = managed.guard()
    access = managed.config["access"]
    managed.deliver(access={**access, "issue_keys": True})
    page, watch = await open_page(managed.url)
    watch.expected = ["status of 401"]
    dialog = page.get_by_role("dialog")
    await page.goto("/ui#/keys")
    await expect(dialog.get_by_label("API key")).to_be_focused()
    await focus_stays_in(page, dialog)
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    sign_in = page.get_by_role("button", name="Sign in")
    await sign_in.press("Enter")
    await dialog.get_by_label("API key").fill(keys["boss"])
    await page.keyboard.press("Enter")
    create = page.get_by_role("button", name="Create a key")
    await create.press("Enter")
    await dialog.get_by_label("Name").fill("team")
    await dialog.get_by_role("button", name="Create").press("Enter")
    await expect(dialog).to_contain_text("sk-sy-")
    await page.keyboard.press("Escape")  # a secret that is shown once stays
    await dialog.get_by_role("button", name="Done").press("Enter")
    await expect(dialog).to_have_count(0)
    await expect(create).to_be_focused()
    for path, name in (
        ("keys", "Create a key"),
        ("keys", "Change team"),
        ("keys", "Rotate team"),
        ("keys", "Revoke team"),
        ("experiments/colours", "Pause"),
        ("experiments/colours", "Roll back"),
    ):
        await page.get_by_role("navigation").get_by_role("link", name=path.split("/")[0].capitalize()).press("Enter")
        if "/" in path:
            await page.get_by_role("link", name=path.split("/")[1], exact=True).press("Enter")
        button = page.get_by_role("button", name=name, exact=True)
        await button.press("Enter")
        await expect(dialog).to_be_visible()
        assert await dialog.evaluate("(dialog) => dialog.contains(document.activeElement)"), name
        await focus_stays_in(page, dialog)
        await page.wait_for_timeout(2500)  # the page behind it is drawn anew meanwhile
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        await expect(button).to_be_focused()


async def test_a_panel_takes_the_focus_and_gives_it_back(managed: Managed, open_page: OpenPage) -> None:
    managed.put({"blue": 80, "green": 20}, "a first step")
    managed.put({"blue": 70, "green": 30}, "a second step")
    page, _ = await open_page(managed.url)
    await page.goto("/ui#/traffic")
    chat = page.get_by_role("region", name="chat", exact=True)
    for name in ("Change the split", "Plans and rollback", "Explain a key"):
        button = chat.locator(".actions > button").filter(has_text=name).first
        await button.press("Enter")
        await expect(button).to_have_attribute("aria-expanded", "true")
        await page.wait_for_timeout(2500)
        await button.press("Enter")
        await expect(button).to_have_attribute("aria-expanded", "false")
        await expect(button).to_be_focused()
    await chat.get_by_role("button", name="Plans and rollback").press("Enter")
    roll_back = chat.get_by_role("button", name="Roll back to this").first
    await roll_back.press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(roll_back).to_be_focused()
