"""The cost of a page's first paint, without data, for the browser's main thread."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from playwright.async_api import Browser, Response, Route

PAGES = {
    "/ui#/traffic": "Traffic",
    "/ui#/experiments": "Experiments",
    "/ui#/experiments/any": "any",
    "/ui#/models": "Models",
    "/ui#/playground": "Playground",
    "/ui#/requests": "Requests",
    "/ui#/keys": "Keys",
    "/ui#/audit": "Audit",
}
"""Every page, and the heading of its first paint."""

_BEGUN = "/ui/static/icon.svg"
"""A page of the same origin: the measured page is then drawn by the process whose counters are already running."""


@dataclass(frozen=True, slots=True)
class FirstPaint:
    """CPU seconds of the main thread (Chromium's `threadTicks`, which a busy machine hardly affects), by kind of work,
    and the scripts that it waited for, with their sizes as sent in bytes."""

    task_s: float
    script_s: float
    layout_s: float
    style_s: float
    layouts: int
    styles: int
    elements: int
    scripts: Mapping[str, int]


async def first_paint(browser: Browser, url: str, path: str, heading: str) -> FirstPaint:
    """Measures a page in a fresh profile, whose requests for data are never answered. `heading`: the text of its
    `h1`."""
    context = await browser.new_context(base_url=url, viewport={"width": 1440, "height": 900})
    scripts: dict[str, int] = {}
    held: list[Route] = []
    try:
        page = await context.new_page()
        await page.route("**/api/**", lambda route: held.append(route))
        await page.goto(_BEGUN)
        devtools = await context.new_cdp_session(page)
        await devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

        async def counters() -> dict[str, float]:
            performance = await devtools.send("Performance.getMetrics")
            return {metric["name"]: metric["value"] for metric in performance["metrics"]}

        responses: list[Response] = []
        page.on("response", lambda response: responses.append(response))
        before = await counters()
        await page.goto(path)
        await page.get_by_role("heading", level=1, name=heading).wait_for()
        await page.evaluate("new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
        after = await counters()
        for response in responses:
            if response.request.resource_type == "script":
                await response.finished()
                scripts[response.url.removeprefix(url)] = (await response.request.sizes())["responseBodySize"]
        elements = await page.evaluate("document.querySelectorAll('*').length")
        await asyncio.gather(*(route.abort() for route in held))
    finally:
        await context.close()
    spent = {name: after[name] - before.get(name, 0) for name in after}
    return FirstPaint(
        task_s=spent["TaskDuration"],
        script_s=spent["ScriptDuration"],
        layout_s=spent["LayoutDuration"],
        style_s=spent["RecalcStyleDuration"],
        layouts=round(spent["LayoutCount"]),
        styles=round(spent["RecalcStyleCount"]),
        elements=elements,
        scripts=scripts,
    )
