"""The Chromium of the tests, driven from Python. `watched_page` fails its test for anything that a customer would
notice in the browser's own tools: an error, a violated policy, a request to another host."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

from PIL import Image
from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright, expect

from tests.support.clients.node import SCRIPTS, run_script
from tests.support.processes.project import ROOT

PATIENCE_MS = 60_000
"""The timeout of a page: the browser shares the machine with engines."""

IMAGES = ROOT / "docs" / "images"
_UNPACKED = SCRIPTS / "node_modules" / ".chromium"
_ARGUMENTS = [
    "--no-sandbox",
    "--no-zygote",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-proxy-server",
    "--host-resolver-rules=MAP *.example 127.0.0.1",  # other people's names, which lead here
]

# The package's own settings name folders that do not exist here.
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{fonts}</dir>
  <dir>/usr/share/fonts/truetype/dejavu</dir>
  <cachedir>{cache}</cachedir>
  <alias binding="same"><family>system-ui</family><prefer><family>Open Sans</family></prefer></alias>
  <alias binding="same"><family>sans-serif</family><prefer><family>Open Sans</family></prefer></alias>
  <alias binding="same"><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""

# A policy that is violated is an event of the document; it says what was refused.
_REPORT_VIOLATIONS = """document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} refused ${event.blockedURI} ${event.sample}`))"""

HIDEABLE = """
    let hidden = false;
    Object.defineProperty(document, "hidden", { get: () => hidden });
    window.hide = (value) => { hidden = value; document.dispatchEvent(new Event("visibilitychange")); };
"""
"""A script for a page that `hide(true)` hides, as switching tabs does: headless pages are always visible."""


@asynccontextmanager
async def running_browser(folder: Path) -> AsyncIterator[Browser]:
    """A browser, with its fonts' settings in `folder`."""
    if not _UNPACKED.is_dir():
        run_script("unpack_browser.mjs")
    settings = folder / "fonts.conf"
    settings.write_text(_FONTS.format(fonts=_UNPACKED / "fonts" / "fonts", cache=folder / "fonts-cache"))
    environment = {
        **os.environ,
        "FONTCONFIG_FILE": str(settings),
        "LD_LIBRARY_PATH": str(_UNPACKED / "al2023" / "lib"),
    }
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=_UNPACKED / "chromium",
            args=_ARGUMENTS,
            env={name: value for name, value in environment.items() if value},
        )
        expect.set_options(timeout=PATIENCE_MS)
        try:
            yield browser
        finally:
            await browser.close()


class Watch:
    """Problems of a page. `expected`: parts of the errors that a test provokes itself."""

    def __init__(self, page: Page, host: str) -> None:
        self.problems: list[str] = []
        self.expected: list[str] = []
        self._host = host
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._problem(f"error: {error}"))
        page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._problem(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    def _request(self, request: Request) -> None:
        where = urlsplit(request.url)
        if where.scheme not in ("data", "blob") and where.netloc != self._host:
            self._problem(f"request to another host: {request.url}")

    def _problem(self, words: str) -> None:
        if not any(expectation in words for expectation in self.expected):
            self.problems.append(words)


@asynccontextmanager
async def watched_page(
    browser: Browser, url: str, *, width: int = 1280, height: int = 800, scheme: str = "light"
) -> AsyncIterator[tuple[Page, Watch]]:
    """A page in a context of its own, with `url` as its base URL. Fails at the end if `Watch` saw a problem."""
    assert scheme in ("light", "dark")
    context = await browser.new_context(
        base_url=url,
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
        locale="en-GB",
        timezone_id="UTC",
    )
    try:
        context.set_default_timeout(PATIENCE_MS)
        await context.add_init_script(_REPORT_VIOLATIONS)
        page = await context.new_page()
        watch = Watch(page, urlsplit(url).netloc)
        yield page, watch
    finally:
        await context.close()
    assert watch.problems == [], "\n".join(watch.problems)


async def screenshot(page: Page, name: str, *, whole: bool = True) -> None:
    """Writes docs/images/<name>.png, of the `whole` page or of the window.

    Only if it is missing, or SWITCHYARD_SCREENSHOTS is 1: an ordinary run changes no file.
    """
    file = IMAGES / f"{name}.png"
    if os.environ.get("SWITCHYARD_SCREENSHOTS") == "1" or not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        await page.mouse.move(0, 0)  # what it hovers over looks different, and so does what has the focus
        await page.evaluate("document.activeElement?.blur()")
        picture = Image.open(BytesIO(await page.screenshot(full_page=whole)))
        # A page has few colours: a palette makes the file a third as large.
        colours = picture.convert("RGB").quantize(128, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        colours.save(file, optimize=True)


async def accessibility_problems(page: Page) -> list[str]:
    """The serious and critical findings of axe-core, each with its elements."""
    file = SCRIPTS / "node_modules" / "axe-core" / "axe.min.js"
    assert file.is_file(), "axe-core is not installed: run `make setup`"
    await page.evaluate(file.read_text())  # not as a script of the page: its policy refuses that
    # axe leaves this rule to validators of HTML, which nobody runs on what a script has drawn.
    rules = "{'duplicate-id-active': {enabled: true}}"
    result = await page.evaluate(f"axe.run(document, {{resultTypes: ['violations'], rules: {rules}}})")
    return [
        f"{violation['id']}: {violation['help']}: {[node['html'] for node in violation['nodes']]}"
        for violation in result["violations"]
        if violation["impact"] in ("serious", "critical")
    ]


async def overflow(page: Page) -> int:
    """The number of pixels by which the page is wider than the window."""
    wider: int = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return wider


async def broken_words(page: Page) -> list[str]:
    """The words of at most 20 letters that go on in the next line, other than after a hyphen or a slash."""
    words: list[str] = await page.evaluate(r"""() => {
        const broken = [], range = document.createRange();
        const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        for (let text = texts.nextNode(); text; text = texts.nextNode()) {
            if (text.parentElement.closest("pre, code, .mono, .unseen, script, option")) continue;
            for (const { 0: word, index } of text.data.matchAll(/[^\s\u00a0/-]{2,20}(?![^\s\u00a0/-])/g)) {
                if (/[^\s\u00a0/-]/.test(text.data[index - 1] ?? " ")) continue;  // the end of a longer one
                range.setStart(text, index);
                range.setEnd(text, index + word.length);
                const boxes = [...range.getClientRects()].filter((it) => it.width);
                if (new Set(boxes.map((it) => Math.round(it.top))).size > 1)
                    broken.push(`${word} in ${text.parentElement.outerHTML.slice(0, 120)}`);
            }
        }
        return broken;
    }""")
    return words
