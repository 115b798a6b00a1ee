"""The console's shell: pages by their hash, signing in, and what no page may do."""

import pytest
from playwright.async_api import Page, expect


@pytest.mark.parametrize("name", ["Traffic", "Experiments", "Playground", "Requests", "Keys"])
async def test_every_page_has_an_address_and_a_link(browser_page: Page, name: str) -> None:
    await browser_page.goto("/ui")
    link = browser_page.get_by_role("navigation").get_by_role("link", name=name)
    await link.click()
    await expect(browser_page.get_by_role("heading", level=1)).to_have_text(name)
    await expect(link).to_have_attribute("aria-current", "page")
    assert browser_page.url.endswith(f"#/{name.lower()}")
    await browser_page.reload()
    await expect(browser_page.get_by_role("heading", level=1)).to_have_text(name)


@pytest.mark.parametrize("hash", ["#/nothing", "#/experiments/%E0%A4%A", "#/../keys"])
async def test_an_unknown_address_says_so(browser_page: Page, hash: str) -> None:
    await browser_page.goto(f"/ui{hash}")
    await expect(browser_page.get_by_role("heading", level=1)).to_have_text("There is no such page")


async def test_the_first_tab_stop_skips_to_the_content(browser_page: Page) -> None:
    await browser_page.goto("/ui")
    await browser_page.keyboard.press("Tab")
    skip = browser_page.get_by_role("link", name="Skip to the content")
    await expect(skip).to_be_focused()
    await browser_page.keyboard.press("Enter")
    await expect(browser_page.get_by_role("main")).to_be_focused()
