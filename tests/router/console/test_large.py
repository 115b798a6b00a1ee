"""Two hundred deployments, and a week of history."""

from typing import Any

from playwright.async_api import expect

from tests.router.conftest import Rig
from tests.router.console.conftest import Managed, OpenPage
from tests.router.console.test_experiments import EXPERIMENT
from tests.support.clients.browser import overflow
from tests.support.experiments.compared_router import Compared, Evidence

DEPLOYMENTS = 200
WEEK_OF_LOOKS = 7 * 24 * 60
"""One look a minute."""


def many(rig: Rig) -> dict[str, Any]:
    """The sections of an endpoint with `DEPLOYMENTS` deployments, half of them with 1 %."""
    names = [f"variant-{number:03}" for number in range(DEPLOYMENTS)]
    model = {"url": rig.config["deployments"]["blue"]["url"], "model": "m"}
    traffic = {name: int(index < 100) for index, name in enumerate(names)}
    return {
        "endpoints": {"large": {"tasks": ["chat"], "traffic": traffic, "sticky": {"by": "user"}}},
        "deployments": dict.fromkeys(names, model),
    }


async def test_two_hundred_deployments_are_redrawn_in_place(rig: Rig, managed: Managed, open_page: OpenPage) -> None:
    managed.deliver(**many(rig))
    page, _ = await open_page(managed.url)
    await page.goto("/ui#/traffic")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(DEPLOYMENTS)
    await page.evaluate("document.querySelectorAll('tbody td').forEach((it) => (it.isFirst = true))")
    for _ in range(2):
        async with page.expect_response("**/api/overview"):
            pass
    await page.evaluate("new Promise((resolve) => requestAnimationFrame(resolve))")
    kept = await page.evaluate("[...document.querySelectorAll('tbody td')].every((it) => it.isFirst)")
    assert kept, "a redraw makes no new cells"
    assert await overflow(page) <= 0


async def test_the_shares_of_two_hundred_deployments_are_moved(rig: Rig, managed: Managed, open_page: OpenPage) -> None:
    managed.deliver(**many(rig))
    page, _ = await open_page(managed.url)
    await page.goto("/ui#/traffic")
    await page.get_by_role("button", name="Change the split").click()
    await page.get_by_role("slider", name="variant-000").fill("51")
    await expect(page.get_by_text("Sum: 100 %")).to_be_visible()
    await expect(page.get_by_text("rises from 1 % to 51 %")).to_be_visible()


async def test_a_week_of_looks_is_one_chart(compared: Compared, open_page: OpenPage) -> None:
    compared.reader.judged = Evidence(looks=WEEK_OF_LOOKS)
    page, _ = await open_page(compared.url)
    await page.goto(EXPERIMENT)
    await expect(page.locator(".plot canvas")).to_have_count(1)
    await expect(page.get_by_text(f"{WEEK_OF_LOOKS} looks from")).to_be_visible()
