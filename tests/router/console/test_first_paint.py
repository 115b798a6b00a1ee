"""The cost of a page before it has data.

`benchmarks/first_paint.py` measures the time; these tests count scripts and layouts, which do not depend on the
machine's load.
"""

import pytest
from playwright.async_api import Browser

from tests.router.conftest import Rig
from tests.support.clients.first_paint import PAGES, first_paint

WITH_CHARTS = "/ui#/experiments/any"


@pytest.mark.parametrize(("path", "heading"), PAGES.items(), ids=PAGES)
async def test_a_page_without_data_needs_few_scripts_and_layouts(
    rig: Rig, browser: Browser, path: str, heading: str
) -> None:
    paint = await first_paint(browser, rig.url, path, heading)
    own = {name: size for name, size in paint.scripts.items() if "uPlot" not in name}
    assert sum(own.values()) < 48 * 1024, own
    assert len(own) <= 16
    if path != WITH_CHARTS:
        assert len(own) == len(paint.scripts), "the chart's script is for the page that has charts"
    assert paint.elements < 60
    # One layout for the shell, one for the page, one for a focus: reading sizes between writes would make many.
    assert paint.layouts <= 6
    assert paint.styles <= 8
    assert paint.task_s > 0


async def test_no_script_blocks_the_parser(rig: Rig, browser: Browser) -> None:
    context = await browser.new_context(base_url=rig.url)
    try:
        page = await context.new_page()
        await page.goto("/ui")
        scripts = await page.locator("script").evaluate_all("(all) => all.map((it) => [it.type, it.async || it.defer])")
        assert scripts
        assert all(kind == "module" or later for kind, later in scripts)
    finally:
        await context.close()
