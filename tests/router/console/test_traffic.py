"""The page Traffic: what is shown, and moving traffic with a hand on the brake."""

from playwright.async_api import Page, expect

from tests.router.console.conftest import Managed, OpenPage


async def opened(open_page: OpenPage, managed: Managed, **size: object) -> Page:
    page, _ = await open_page(managed.url, **size)
    await page.goto("/ui#/traffic")
    await expect(page.get_by_role("heading", level=2, name="chat")).to_be_visible()
    return page


async def test_debug(open_page: OpenPage, managed: Managed) -> None:
    managed.put({"blue": 80, "green": 20}, "first step")
    managed.put({"blue": 60, "green": 40}, "second step")
    managed.chat(60, stream=True)
    page = await opened(open_page, managed)
    await page.screenshot(path="/tmp/t1.png", full_page=True)
    await page.get_by_role("button", name="Change the split").first.click()
    slider = page.get_by_role("slider", name="green")
    await slider.fill("55")
    await page.wait_for_timeout(1500)
    await page.screenshot(path="/tmp/t2.png", full_page=True)
    await page.get_by_role("button", name="Plans and rollback").first.click()
    await page.wait_for_timeout(500)
    await page.screenshot(path="/tmp/t3.png", full_page=True)
    small = await opened(open_page, managed, width=360, scheme="dark")
    await small.get_by_role("button", name="Change the split").first.click()
    await small.wait_for_timeout(500)
    await small.screenshot(path="/tmp/t4.png", full_page=True)
