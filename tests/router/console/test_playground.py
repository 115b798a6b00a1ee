"""The playground in a browser: streaming side by side, stopping, hostile text, failures, and every task."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect
from starlette.responses import JSONResponse, Response, StreamingResponse

from app.access.keys import append, create
from tests.router.conftest import Rig
from tests.router.console.conftest import OpenPage
from tests.support.clients.browser import accessibility_problems, overflow, screenshot
from tests.support.engine.fake_engine import USAGE, Answer, chunk, frame, refuse, stream
from tests.support.waiting import wait_until_async

HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"

NONE = "\N{EN DASH}"


def token(text: str, logprob: float, others: dict[str, float], finish_reason: str | None = None) -> str:
    """One frame with one token and its alternatives."""
    top = [{"token": name, "logprob": value, "bytes": None} for name, value in {text: logprob, **others}.items()]
    content = [{"token": text, "logprob": logprob, "bytes": None, "top_logprobs": top}]
    choice = {"index": 0, "delta": {"content": text}, "logprobs": {"content": content}, "finish_reason": finish_reason}
    return frame(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    )


def says(*parts: str, finish_reason: str = "stop", tokens: int | None = None) -> Answer:
    """Streams these parts, then the usage."""
    usage = {"prompt_tokens": 9, "completion_tokens": tokens or len(parts), "total_tokens": 9 + (tokens or len(parts))}
    last = frame({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": usage})
    frames = [*(chunk(part) for part in parts), chunk("", finish_reason=finish_reason), last, "data: [DONE]\n\n"]
    return lambda body: stream(frames)


class HeldStream:
    """Streams one part, waits for `go`, then streams the rest. `left` is set if the client disconnects before."""

    def __init__(self, first: str, rest: str = "") -> None:
        self.first, self.rest = first, rest
        self.go, self.left = threading.Event(), threading.Event()

    def __call__(self, body: dict[str, Any]) -> Response:
        return StreamingResponse(self._frames(), media_type="text/event-stream")

    async def _frames(self) -> AsyncIterator[str]:
        try:
            yield chunk(self.first)
            while not self.go.is_set():  # noqa: ASYNC110  it is set by another thread
                await asyncio.sleep(0.005)
            yield chunk(self.rest, finish_reason="stop")
            yield frame({"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": USAGE})
            yield "data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            self.left.set()
            raise


class Playground:
    """The page."""

    def __init__(self, page: Page, rig: Rig) -> None:
        self.page, self.rig = page, rig
        self.prompt = page.get_by_label(re.compile("^(Message|Prompt|Query)$"))
        self.run_button = page.get_by_role("button", name=re.compile("^(Send|Run)"))

    async def open(self, query: str = "") -> None:
        await self.page.goto(f"/ui#/playground{query}")
        await expect(self.page.get_by_role("heading", name="Playground")).to_be_visible()
        await expect(self.prompt).to_be_visible()

    async def ask(self, prompt: str = "Say hello") -> None:
        await self.prompt.fill(prompt)
        await self.run_button.click()

    def answer(self, name: str) -> Locator:
        """One deployment's card."""
        return self.page.get_by_role("article", name=name)

    def text(self, name: str) -> Locator:
        return self.answer(name).locator(".answer-text")

    def state(self, name: str) -> Locator:
        return self.answer(name).locator(".state")

    async def option(self, label: str, value: str) -> None:
        """Fills an option in."""
        await (await self.shown(self.page.get_by_label(label))).fill(value)

    async def shown(self, field: Locator) -> Locator:
        """The option, once it can be seen."""
        if not await field.is_visible():
            await self.page.get_by_text("Options", exact=True).click()
        return field

    async def probabilities(self) -> None:
        """Asks for each token's probability from now on."""
        await (await self.shown(self.page.get_by_label("Ask for each token's probability"))).check()


@pytest.fixture
async def playground(browser_page: Page, rig: Rig) -> Playground:
    return Playground(browser_page, rig)


async def test_answers_stream_side_by_side_as_they_arrive(playground: Playground, rig: Rig) -> None:
    rig.blue.answer = slow = HeldStream("Good ", "morning")
    rig.green.answer = says("Good ", "evening")
    await playground.open()
    await playground.ask()
    await expect(playground.text("green")).to_have_text("Good evening")
    await expect(playground.state("green")).to_have_text("finished")
    await expect(playground.text("blue")).to_have_text("Good ")
    await expect(playground.state("blue")).to_have_text("streaming")
    await expect(playground.page.get_by_role("region", name="Comparison")).to_be_hidden()
    slow.go.set()
    await expect(playground.text("blue")).to_have_text("Good morning")
    facts = playground.answer("blue").locator("dd")
    await expect(facts.nth(3)).to_have_text("3")
    await expect(facts.nth(4)).to_have_text("9")
    await expect(facts.first).to_have_text(re.compile(r"\d\s(ms|s)$"))
    difference = playground.page.get_by_role("region", name="Comparison")
    await expect(difference.locator("del")).to_contain_text("morning")
    await expect(difference.locator("ins")).to_contain_text("evening")
    await expect(difference.get_by_role("status")).to_contain_text("50 % of the words are the same")
    for engine, name in ((rig.blue, "blue"), (rig.green, "green")):
        (request,) = engine.requests
        assert request == {
            "model": f"{name}-model",
            "messages": [{"role": "user", "content": "Say hello"}],
            "max_tokens": 256,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    metrics = rig.router.state.telemetry.expose().decode()
    chosen = re.findall(r'switchyard_requests_total\{.*deployment="(\w+)".*reason="(\w+)".*\} 1\.0', metrics)
    assert sorted(chosen) == [("blue", "header"), ("green", "header")]


BUSY = """() => document.querySelector("form").addEventListener("submit", () => setTimeout(() => {
    const until = performance.now() + 1500;
    while (performance.now() < until) {}
}, 50), true)"""
"""Keeps the page from running anything else for 1.5 s, as a slow machine does that draws."""


async def test_times_begin_with_the_request_and_count_no_work_of_the_page(playground: Playground, rig: Rig) -> None:
    frames: list[str | bytes | float] = [
        0.15,
        chunk("Hel"),
        0.2,
        chunk("lo"),
        chunk("", finish_reason="stop"),
        "data: [DONE]\n\n",
    ]
    rig.blue.answer = rig.green.answer = lambda body: stream(frames)
    page = playground.page
    await playground.open()
    await page.evaluate(BUSY)
    for turn in range(2):
        await playground.ask()
        await expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
        ids = [await playground.answer(name).last.get_by_role("link").inner_text() for name in ("blue", "green")]
        shown = [await playground.answer(name).last.locator("dd").first.inner_text() for name in ("blue", "green")]
        for id, text in zip(ids, shown, strict=True):
            assert text.endswith("ms"), (turn, text)
            server = 1000 * (await listed_request(page, id))["first_byte_s"]
            assert 150 <= server <= int(text.split()[0]) + 1 < server + 400, (turn, text, server)


async def listed_request(page: Page, id: str) -> dict[str, Any]:
    """The server's account of a request, once it lists it."""

    async def found() -> list[dict[str, Any]]:
        answer = await page.request.get(f"/api/requests?id={id}")
        listed: list[dict[str, Any]] = (await answer.json())["requests"]
        return listed

    await wait_until_async(found)
    return (await found())[0]


def contents(request: dict[str, Any]) -> list[str]:
    """The texts of a chat's messages."""
    return [message["content"] for message in request["messages"]]


async def test_a_conversation_goes_on_can_be_edited_and_asked_again(playground: Playground, rig: Rig) -> None:
    page = playground.page
    rig.blue.answer, rig.green.answer = says("B1"), says("G1")
    await playground.open()
    await playground.option("System prompt", "Be brief")
    await playground.prompt.fill("one")
    await playground.prompt.press("Shift+Enter")
    await playground.prompt.press("Enter")
    await expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
    await expect(playground.prompt).to_have_value("")
    rig.blue.answer, rig.green.answer = says("B2"), says("G2")
    await playground.ask("two")
    await expect(playground.text("blue")).to_have_text(["B1", "B2"])
    await expect(playground.text("green")).to_have_text(["G1", "G2"])
    assert contents(rig.blue.requests[1]) == ["Be brief", "one\n", "B1", "two"]
    assert contents(rig.green.requests[1]) == ["Be brief", "one\n", "G1", "two"]
    await expect(page.get_by_role("tabpanel")).to_contain_text('"content": "two"')
    rig.blue.answer = says("B3")
    await page.get_by_role("button", name="Edit").click()
    await expect(playground.prompt).to_be_focused()
    await expect(playground.prompt).to_have_value("two")
    await playground.ask("three")
    await expect(playground.text("blue")).to_have_text(["B1", "B3"])
    assert contents(rig.blue.requests[2]) == ["Be brief", "one\n", "B1", "three"]
    rig.blue.answer = says("B4")
    await page.get_by_role("button", name="Regenerate").click()
    await expect(playground.text("blue")).to_have_text(["B1", "B4"])
    assert rig.blue.requests[3] == rig.blue.requests[2]
    messages = page.get_by_role("group", name="Your message")
    await expect(messages).to_have_text(["one", "three"])
    await page.get_by_role("navigation").get_by_role("link", name="Keys").click()
    await page.go_back()
    await expect(playground.text("blue")).to_have_text(["B1", "B4"])
    await playground.ask("four")
    await expect(messages).to_have_text(["one", "three", "four"])
    await expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
    assert contents(rig.blue.requests[4]) == ["Be brief", "one\n", "B1", "three", "B4", "four"]
    await page.get_by_role("button", name="New conversation").click()
    await expect(messages).to_have_count(0)
    await expect(playground.prompt).to_be_focused()
    assert await accessibility_problems(page) == []


async def test_a_browser_keeps_a_conversation_only_if_it_is_told_to(
    open_page: OpenPage, rig: Rig, tmp_path: Path
) -> None:
    key, record = create("ann")
    append(tmp_path / "keys.yaml", record.line)
    rig.change(access={"keys_file": str(tmp_path / "keys.yaml")})
    page, watch = await open_page(rig.url)
    watch.expected = ["status of 401"]
    playground = Playground(page, rig)
    rig.blue.answer = rig.green.answer = says("# Good\n\nmorning")

    async def sign_in() -> None:
        await page.get_by_label("API key").fill(key)
        await page.get_by_label("Keep it until this tab is closed").check()
        await page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        await expect(playground.prompt).to_be_visible()

    await page.goto("/ui#/playground")
    await sign_in()
    again = page.get_by_role("button", name="Regenerate")
    await playground.ask()
    await expect(again).to_be_visible()
    await page.reload()
    await expect(playground.prompt).to_be_visible()
    await expect(again).to_have_count(0)
    keep = page.get_by_label("Keep in this browser")
    await keep.check()
    await playground.ask()
    await expect(again).to_be_visible()
    await page.reload()
    await expect(again).to_be_visible()
    await expect(playground.answer("blue").get_by_role("heading", name="Good")).to_be_visible()
    await expect(playground.state("blue")).to_have_text("finished")
    await expect(keep).to_be_checked()
    await page.get_by_role("button", name="New conversation").click()
    assert await page.evaluate("localStorage.length") == 0
    await expect(keep).not_to_be_checked()
    await keep.check()
    await playground.ask()
    await expect(again).to_be_visible()
    assert await page.evaluate("localStorage.length") == 1
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    assert await page.evaluate("localStorage.length") == 0
    await sign_in()
    await expect(again).to_have_count(0)
    await expect(playground.prompt).to_have_value("")


async def test_the_traffics_choice_is_named_with_its_reason(playground: Playground, rig: Rig) -> None:
    rig.chat_endpoint(sticky={"by": "user"})
    page = playground.page
    await playground.open()
    await expect(page.get_by_text("No experiment counts requests")).to_be_visible()
    await page.get_by_label("Answered by").select_option("the traffic's choice")
    await expect(page.get_by_text("a running experiment counts the requests")).to_be_visible()
    await playground.ask()
    await expect(playground.state("blue")).to_have_text("finished")
    await expect(playground.answer("blue")).to_contain_text("Answered by blue: drawn by the traffic's percentages.")
    await page.get_by_label("Answered by").select_option("green (0\u00a0%)")
    await playground.ask("again")
    await expect(playground.state("green")).to_have_text("finished")
    assert contents(rig.green.requests[0])[0] == contents(rig.blue.requests[0])[0] == "Say hello"
    metrics = rig.router.state.telemetry.expose().decode()
    chosen = re.findall(r'switchyard_requests_total\{.*deployment="(\w+)".*reason="(\w+)".*\} 1\.0', metrics)
    assert sorted(chosen) == [("blue", "traffic"), ("green", "header")]


ANSWER = """## A plan

Some **bold** text with `code`, and [a page](https://docs.example/x).

1. One
2. Two

| a | b |
|---|--:|
| 1 | 2 |

```python
print("hello")
```
"""


async def test_answers_are_shown_as_markdown_and_copied_as_they_came(open_page: OpenPage, rig: Rig) -> None:
    page, _ = await open_page(rig.url)
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    playground = Playground(page, rig)
    rig.blue.answer = says(*(ANSWER[n : n + 3] for n in range(0, len(ANSWER), 3)))
    await playground.open()
    await playground.ask()
    await expect(playground.state("blue")).to_have_text("finished")
    answer = playground.answer("blue")
    await expect(answer.get_by_role("heading", level=4)).to_have_text("A plan")
    await expect(answer.locator("strong")).to_have_text("bold")
    await expect(answer.get_by_role("listitem")).to_have_text(["One", "Two"])
    await expect(answer.get_by_role("cell")).to_have_text(["1", "2"])
    link = answer.get_by_role("link", name="a page")
    await expect(link).to_have_attribute("rel", "noopener noreferrer")
    await expect(answer.locator("pre code")).to_have_text('print("hello")')

    async def copied(name: str, within: Locator) -> str:
        await within.get_by_role("button", name=name, exact=True).click()
        await expect(within.get_by_role("button", name="Copied")).to_be_visible()
        text: str = await page.evaluate("navigator.clipboard.readText()")
        return text

    assert await copied("Copy code", answer) == 'print("hello")\n'
    await expect(answer.get_by_role("button", name="Copied")).to_have_count(0)
    assert await copied("Copy", answer) == ANSWER
    program = page.get_by_role("region", name="As code")
    assert "/v1/chat/completions" in await copied("Copy", program)
    assert await accessibility_problems(page) == []


async def test_no_document_becomes_more_than_text_and_links(browser_page: Page) -> None:
    """Each document of hostile parts has only known elements and attributes, and loads nothing."""
    await browser_page.goto("/ui#/playground")
    wrong = await browser_page.evaluate(
        """async (parts) => {
        const { MarkdownView } = await import("/ui/static/js/playground/markdown.js");
        const tags = new Set(("DIV P H3 H4 H5 H6 UL OL LI BLOCKQUOTE PRE CODE TABLE THEAD TBODY TR TH TD EM STRONG S "
            + "HR BR A SPAN BUTTON").split(" "));
        const attributes = new Set("class href target rel start tabindex role aria-label type".split(" "));
        const wrong = [];
        let seed = 7;
        const random = (below) => (seed = (seed * 16807) % 2147483647) % below;
        for (let turn = 0; turn < 1500; turn += 1) {
            const text = Array.from({ length: 1 + random(8) }, () => parts[random(parts.length)]).join("");
            const view = new MarkdownView(() => {});
            document.body.append(view.element);
            for (let at = 0; at < text.length; at += 7) {
                view.add(text.slice(at, at + 7));
                view.draw();
            }
            view.end(text);
            for (const element of view.element.querySelectorAll("*")) {
                const names = element.getAttributeNames();
                const isKnown = tags.has(element.tagName) && names.every((name) => attributes.has(name));
                const isSafe = !names.includes("href") || /^https?:/i.test(element.href);
                if (!isKnown || !isSafe) wrong.push(element.outerHTML);
            }
            view.element.remove();
        }
        return wrong.slice(0, 3);
    }""",
        [
            *(HOSTILE, "<svg onload=document.title='taken'>", "<iframe src=javascript:0>", "<style>*{}</style>"),
            *("![x](http://evil.example/a.png)", "![x](/ui/static/icon.svg)", "![x](data:image/gif;base64,R0)"),
            *("[a](javascript:document.title='taken')", "[a](JaVaScRiPt&#58;alert(1))", "[a](\tjavascript:0)"),
            *("[a](vbscript:0)", "[a](data:text/html,x)", "[a](//evil.example)", "<javascript:alert(1)>", "[r]"),
            *('[a](https://a.example "x" onclick=alert(1)")', "\n\n[r]: javascript:0\n", "\n[r]: http://a.example\n"),
            *(
                "```html onclick=x\n",
                "\n```\n",
                "\n| a |\n|:-:|\n| <b> |\n",
                "\n\n> ",
                "\n- ",
                "\n    ",
                "\n\n",
                "&lt;img&gt;",
            ),
            *("http://a.example/<script>", "`<b>`", "\x00", "</div></section>", "<!--", "-->", "<![CDATA[", "**", "_"),
        ],
    )
    assert wrong == []
    assert await browser_page.title() != "taken"


async def test_an_error_of_the_api_is_next_to_the_field_that_it_names(open_page: OpenPage, rig: Rig) -> None:
    page, watch = await open_page(rig.url)
    watch.expected = ["status of 400"]
    playground = Playground(page, rig)
    await playground.open()
    await playground.option("Temperature", "3")
    await playground.ask()
    field = page.locator(".field-temperature")
    await expect(field.get_by_role("alert")).to_contain_text("temperature")
    await expect(page.get_by_label("Temperature")).to_have_attribute("aria-describedby", "playground-problem")
    await expect(page.get_by_label("Temperature")).to_have_attribute("aria-invalid", "")
    assert await accessibility_problems(page) == []
    await page.get_by_label("Temperature").fill("1")
    await page.get_by_role("button", name="Regenerate").click()
    await expect(playground.state("blue")).to_have_text("finished")
    await expect(field.get_by_role("alert")).to_have_count(0)


async def test_reasoning_is_folded(playground: Playground, rig: Rig) -> None:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    thoughts = [
        frame({**head, "choices": [{"index": 0, "delta": {"reasoning": text}}]}) for text in ("First ", "<b>this</b>")
    ]
    rig.blue.answer = lambda body: stream([*thoughts, chunk("42", finish_reason="stop"), "data: [DONE]\n\n"])
    await playground.open()
    await playground.ask()
    await expect(playground.text("blue")).to_have_text("42")
    thought = playground.answer("blue").locator(".reasoning-text")
    await expect(thought).to_be_hidden()
    await playground.answer("blue").get_by_text("Reasoning", exact=True).click()
    await expect(thought).to_have_text("First <b>this</b>")


@pytest.mark.parametrize("start", ["", "```\n"], ids=["text", "code"])
async def test_the_pages_work_is_linear_in_the_length_of_an_answer(
    playground: Playground, rig: Rig, start: str
) -> None:
    """Four times the tokens cost the main thread at most eight times as much."""
    devtools = await playground.page.context.new_cdp_session(playground.page)
    await devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    async def spent() -> float:
        performance = await devtools.send("Performance.getMetrics")
        return float(next(metric["value"] for metric in performance["metrics"] if metric["name"] == "TaskDuration"))

    await playground.open()
    await playground.page.get_by_label("Answered by").select_option("the traffic's choice")
    costs = []
    for tokens in (5_000, 20_000):
        rig.blue.answer = says(start, *(f"word{'.' if n % 40 else chr(10) * 2} " for n in range(tokens)))
        before = await spent()
        await playground.ask()
        await expect(playground.state("blue")).to_have_text("finished")
        costs.append(await spent() - before)
        await playground.page.get_by_role("button", name="New conversation").click()
    assert costs[1] < 8 * costs[0], costs


async def test_stop_ends_the_engines_work_and_keeps_the_text_so_far(playground: Playground, rig: Rig) -> None:
    rig.blue.answer, rig.green.answer = endless = HeldStream("Once "), HeldStream("Twice ")
    await playground.open()
    await playground.ask()
    for name, part in (("blue", "Once "), ("green", "Twice ")):
        await expect(playground.text(name)).to_have_text(part)
    await playground.page.get_by_role("button", name="Stop").click()
    for name, part in (("blue", "Once "), ("green", "Twice ")):
        await expect(playground.state(name)).to_have_text("stopped")
        await expect(playground.text(name)).to_have_text(part)
    for engine in endless:
        assert await asyncio.to_thread(engine.left.wait, 10)
    await expect(playground.page.get_by_role("button", name="Stop")).to_be_disabled()


async def test_leaving_the_page_stops_the_engines(playground: Playground, rig: Rig) -> None:
    rig.blue.answer = endless = HeldStream("Once ")
    await playground.open()
    await playground.ask()
    await expect(playground.text("blue")).to_have_text("Once ")
    await playground.page.get_by_role("navigation").get_by_role("link", name="Keys").click()
    assert await asyncio.to_thread(endless.left.wait, 10)
    await playground.page.go_back()
    await expect(playground.page.get_by_role("group", name="Your message")).to_have_text("Say hello")


async def test_hostile_model_output_and_names_stay_text(open_page: OpenPage, rig: Rig) -> None:
    page, watch = await open_page(rig.url)
    watch.expected = ["status of 400"]
    playground = Playground(page, rig)
    rig.blue.answer = says(HOSTILE, "<b>bold</b>")
    rig.green.answer = refuse(400, HOSTILE)
    await playground.open()
    await playground.ask(HOSTILE)
    await expect(playground.text("blue")).to_have_text(HOSTILE + "<b>bold</b>")
    await expect(playground.answer("green").get_by_role("alert")).to_contain_text(HOSTILE)
    await expect(playground.page.get_by_role("tabpanel")).to_contain_text("<img src=x onerror=")
    main = playground.page.get_by_role("main")
    assert await main.locator("img[src=x], script, b").count() == 0
    assert "taken" not in await playground.page.title()


@pytest.mark.parametrize("title", ["curl", "OpenAI", "Databricks", "Anthropic"])
async def test_the_request_is_shown_as_code(playground: Playground, title: str) -> None:
    await playground.open()
    await playground.prompt.fill("It's “so”")
    await playground.page.get_by_role("tab", name=title).click()
    code = playground.page.get_by_role("tabpanel")
    await expect(code).to_contain_text("It'\\''s “so”" if title == "curl" else "It's “so”")
    await expect(code).not_to_contain_text("azureml-model-deployment")
    await expect(code).not_to_contain_text("logprobs")
    await expect(code).to_contain_text(playground.rig.url)
    await playground.page.get_by_label("Deployment", exact=True).select_option("blue")
    await expect(code).to_contain_text(
        "azureml-model-deployment" if title != "Databricks" else '"model": json.dumps("blue")'
    )


async def test_the_form_says_what_cannot_be_sent(playground: Playground, rig: Rig) -> None:
    await playground.open()
    problem = playground.page.get_by_role("alert")
    await playground.run_button.click()
    await expect(problem).to_have_text("Write a prompt")
    await expect(playground.prompt).to_be_focused()
    await playground.prompt.fill("hi")
    await playground.option("Tools (JSON list)", "[{]")
    await playground.run_button.click()
    await expect(problem).to_contain_text("The tools are not valid JSON")
    await expect(playground.page.get_by_label("Tools (JSON list)")).to_be_focused()
    await playground.option("Tools (JSON list)", "{}")
    await playground.run_button.click()
    await expect(problem).to_have_text("The tools are a list: […]")
    await playground.option("Tools (JSON list)", "")
    await playground.option("Seed", "1.5")
    await playground.run_button.click()
    await expect(problem).to_have_text("The seed is a whole number")
    assert rig.blue.requests == []
    await playground.option("Seed", "7")
    await playground.option("Temperature", "0")
    await playground.option("System prompt", "Be brief")
    await playground.option("JSON schema of the answer", '{"type": "object"}')
    await playground.page.get_by_role("checkbox", name="green").uncheck()
    await playground.run_button.click()
    await expect(playground.state("blue")).to_have_text("finished")
    (sent,) = rig.blue.requests
    assert (sent["seed"], sent["temperature"], sent["messages"][0]) == (7, 0, {"role": "system", "content": "Be brief"})
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert rig.green.requests == []


async def test_failures_are_reported_in_words(open_page: OpenPage, rig: Rig) -> None:
    page, watch = await open_page(rig.url)
    watch.expected = ["status of 429", "status of 400"]
    playground = Playground(page, rig)
    rig.blue.answer = lambda body: stream(
        [chunk("Half an"), frame({"error": {"message": "out of memory", "code": 500}})]
    )
    rig.green.answer = refuse(400, "This model's maximum context length is 100 tokens")
    await playground.open()
    await playground.ask()
    await expect(playground.state("blue")).to_have_text("failed")
    await expect(playground.text("blue")).to_have_text("Half an")
    await expect(playground.answer("blue").get_by_role("alert")).not_to_be_empty()
    await expect(playground.answer("green").get_by_role("alert")).to_contain_text(
        "maximum context length is 100 tokens"
    )
    rig.change(access={"limits": {"default": {"requests_per_minute": 1}}})
    await playground.page.get_by_role("button", name="Regenerate").click()
    await expect(playground.page.get_by_role("alert").filter(has_text="Limit reached").first).to_be_visible()
    await expect(playground.page.get_by_role("button", name="Stop")).to_be_disabled()


async def test_token_probabilities_are_shown_by_keyboard_and_mouse(playground: Playground, rig: Rig) -> None:
    frames = [token("The", -0.01, {"A": -4.6}), token(" <b>", -1.2, {" cat": -0.7}), token(" sat", -3.0, {}, "stop")]
    rig.blue.answer = lambda body: stream([*frames, "data: [DONE]\n\n"])
    await playground.open()
    await playground.page.get_by_role("checkbox", name="green").uncheck()
    await playground.probabilities()
    await playground.ask()
    await expect(playground.text("blue")).to_have_text("The <b> sat")
    await playground.page.mouse.move(0, 0)  # the answer may stand where the button was
    assert (rig.blue.requests[0]["logprobs"], rig.blue.requests[0]["top_logprobs"]) == (True, 3)
    shade = playground.answer("blue").get_by_role("button", name="Token probabilities")
    await shade.focus()
    await playground.page.keyboard.press("Enter")
    await expect(shade).to_have_attribute("aria-pressed", "true")
    await playground.text("blue").focus()
    facts = playground.answer("blue").locator(".token-facts")
    await expect(facts).to_contain_text("arrow keys")
    await playground.page.keyboard.press("ArrowRight")
    await expect(facts).to_have_text("“The” 99 %; instead “A” 1.0 %. ")
    await playground.page.keyboard.press("ArrowRight")
    await expect(facts).to_have_text("“·<b>” 30 %; instead “·cat” 50 %. ")
    await playground.page.keyboard.press("End")
    await expect(facts).to_have_text("“·sat” 5.0 %. ")
    await playground.text("blue").get_by_text("The").hover()
    await expect(facts).to_contain_text("“The” 99 %")


async def test_tool_calls_and_truncated_answers_are_marked(playground: Playground, rig: Rig) -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    choice = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    rig.blue.answer = lambda body: stream([frame({**head, "choices": [choice]}), "data: [DONE]\n\n"])
    rig.green.answer = says("cut", finish_reason="length")
    await playground.open()
    await playground.ask()
    await expect(playground.answer("blue").locator(".tool-calls")).to_have_text('add({"a": 1})')
    await expect(playground.state("blue")).to_have_text("calls a tool")
    await expect(playground.state("green")).to_have_text("cut at max tokens")


async def test_the_playground_works_by_keyboard_alone(playground: Playground, rig: Rig) -> None:
    rig.blue.answer = endless = HeldStream("Once ")
    await playground.open()
    await playground.prompt.focus()
    await playground.page.keyboard.type("Say hello")
    await playground.page.keyboard.press("Control+Enter")
    await expect(playground.text("blue")).to_have_text("Once ")
    await playground.page.keyboard.press("Escape")
    await expect(playground.state("blue")).to_have_text("stopped")
    assert await asyncio.to_thread(endless.left.wait, 10)
    await playground.page.get_by_role("tab", name="curl").focus()
    await playground.page.keyboard.press("ArrowRight")
    await expect(playground.page.get_by_role("tab", name="OpenAI")).to_be_focused()
    await expect(playground.page.get_by_role("tabpanel")).to_contain_text("from openai import OpenAI")
    await playground.page.keyboard.press("End")
    await expect(playground.page.get_by_role("tabpanel")).to_contain_text("from anthropic import Anthropic")


async def test_an_image_is_sent_where_a_deployment_takes_images(
    playground: Playground, rig: Rig, tmp_path: Path
) -> None:
    picture = tmp_path / "dot.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    await playground.open()
    image = playground.page.get_by_label("Image", exact=True)
    await expect(image).to_be_hidden()
    rig.change(deployments={"blue": {**rig.config["deployments"]["blue"], "images": True}})
    await playground.page.reload()
    await image.set_input_files(picture)
    await expect(playground.page.get_by_alt_text("The chosen image")).to_be_visible()
    await playground.ask("What is this?")
    for name in ("blue", "green"):
        await expect(playground.state(name)).to_have_text("finished")
    text, sent = rig.blue.requests[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is this?"}
    assert sent == {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


async def test_embeddings_show_dimension_norm_and_cosine(playground: Playground, rig: Rig) -> None:
    vectors = {"cat": [3.0, 4.0], "dog": [4.0, 3.0], HOSTILE: [0.0, 0.0]}

    def embed(body: dict[str, Any]) -> Response:
        data = [{"object": "embedding", "index": i, "embedding": vectors[text]} for i, text in enumerate(body["input"])]
        usage = {"prompt_tokens": 3, "total_tokens": 3}
        return JSONResponse({"id": "e", "object": "list", "model": "m", "created": 1, "data": data, "usage": usage})

    rig.mini.answer = embed
    await playground.open("?endpoint=embed")
    await expect(playground.page.get_by_text("One input a line.")).to_be_visible()
    await playground.ask(f"cat\ndog\n\n{HOSTILE}")
    card = playground.answer("mini")
    await expect(card.locator("dd").first).to_have_text("2")
    rows = card.locator("tbody tr")
    await expect(rows.nth(0)).to_have_text(f"1. cat5.0001.0000.960{NONE}")
    await expect(rows.nth(1)).to_have_text(f"2. dog5.0000.9601.000{NONE}")
    await expect(rows.nth(2)).to_have_text(f"3. {HOSTILE}0.000{NONE * 3}")


async def test_an_endpoint_with_only_completions_gets_completion_requests(playground: Playground, rig: Rig) -> None:
    rig.chat_endpoint(tasks=["completions"])
    choice = {"index": 0, "text": " time", "finish_reason": "stop"}
    choice["logprobs"] = {"tokens": [" time"], "token_logprobs": [-0.5], "top_logprobs": [{" day": -1.5}]}
    event = frame({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]})
    rig.blue.answer = rig.green.answer = lambda body: stream([event, "data: [DONE]\n\n"])
    await playground.open()
    await playground.probabilities()
    await playground.ask("Once upon a")
    await expect(playground.text("blue")).to_have_text(" time")
    await expect(
        playground.page.get_by_text("The answers of blue and green are the same, word for word.")
    ).to_be_visible()
    assert rig.blue.paths == ["/v1/completions"]
    assert rig.blue.requests[0]["logprobs"] == 3
    await playground.page.get_by_role("tab", name="Azure").click()
    await expect(playground.page.get_by_role("tabpanel")).to_have_text(
        "# The SDK of Azure AI Inference has no text completions.\n"
    )


def event(type_: str, **fields: Any) -> str:
    """An event of a response's stream."""
    return f"event: {type_}\n{frame({'type': type_, 'sequence_number': 0, **fields})}"


def responds(*parts: str, status: str = "completed", items: list[dict[str, Any]] | None = None) -> Answer:
    """Streams these parts as a response, and ends it with `items`."""
    head = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "tools": [],
        "parallel_tool_calls": True,
    }
    begun = {**head, "status": "in_progress", "output": []}
    usage = {"input_tokens": 9, "output_tokens": 5, "total_tokens": 14}
    where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    deltas = [event("response.output_text.delta", **where, delta=part, logprobs=[]) for part in parts]
    end = {**head, "status": status, "output": items or [], "usage": usage}
    frames = [event("response.created", response=begun), *deltas, event("response.completed", response=end)]
    return lambda body: stream(frames)


async def test_an_endpoint_with_only_responses_gets_response_requests(playground: Playground, rig: Rig) -> None:
    rig.chat_endpoint(tasks=["responses"])
    call = {
        "type": "function_call",
        "id": "f",
        "call_id": "c",
        "name": "add",
        "arguments": '{"a": 1}',
        "status": "completed",
    }
    rig.blue.answer = responds("Good ", "morning")
    rig.green.answer = responds(items=[call])
    await playground.open()
    await expect(playground.page.get_by_label("Task")).to_have_value("responses")
    await playground.option("System prompt", "Be brief")
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    await playground.option("Tools (JSON list)", json.dumps([tool]))
    await expect(playground.page.get_by_label("probability")).to_be_hidden()
    await playground.ask()
    await expect(playground.text("blue")).to_have_text("Good morning")
    await expect(playground.state("blue")).to_have_text("finished")
    facts = playground.answer("blue").locator("dd")
    await expect(facts.nth(3)).to_have_text("5")
    await expect(facts.nth(4)).to_have_text("9")
    await expect(playground.answer("green").locator(".tool-calls")).to_have_text('add({"a": 1})')
    await expect(playground.state("green")).to_have_text("calls a tool")
    assert rig.blue.paths == ["/v1/responses"]
    (sent,) = rig.blue.requests
    assert sent == {
        "model": "blue-model",
        "instructions": "Be brief",
        "input": "Say hello",
        "max_output_tokens": 256,
        "store": False,
        "tools": [{"type": "function", **tool["function"]}],  # type: ignore[dict-item]
        "stream": True,
    }
    await playground.page.get_by_role("tab", name="OpenAI").click()
    await expect(playground.page.get_by_role("tabpanel")).to_contain_text("client.responses.create(")
    await playground.page.get_by_role("tab", name="Databricks").click()
    await expect(playground.page.get_by_role("tabpanel")).to_have_text("# The SDK of Databricks has no responses.\n")


async def test_truncated_and_failed_responses_are_reported(playground: Playground, rig: Rig) -> None:
    rig.chat_endpoint(tasks=["responses"])
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": []}
    rig.blue.answer = responds("Good ", status="incomplete", items=[item])
    rig.green.answer = lambda body: stream([event("response.output_text.delta", delta="Half")])
    await playground.open()
    await playground.ask()
    await expect(playground.state("blue")).to_have_text("cut at max tokens")
    await expect(playground.state("green")).to_have_text("failed")
    await expect(playground.text("green")).to_have_text("Half")
    await expect(playground.answer("green").get_by_role("alert")).not_to_be_empty()


def ranks(body: dict[str, Any]) -> Response:
    """Ranks documents by their length, in vLLM's format of `/v1/rerank`."""
    order = sorted(range(len(body["documents"])), key=lambda n: -len(body["documents"][n]))
    results = [
        {"index": n, "document": {"text": body["documents"][n]}, "relevance_score": 0.75 / (1 + rank)}
        for rank, n in enumerate(order)
    ]
    usage = {"prompt_tokens": 40, "total_tokens": 40}
    return JSONResponse({"id": "r", "model": "m", "usage": usage, "results": results})


async def test_documents_are_ranked_for_a_query(playground: Playground, rig: Rig) -> None:
    mini = {**rig.config["deployments"]["mini"], "tasks": ["rerank"]}
    embed = {"tasks": ["rerank"], "traffic": {"mini": 100}}
    rig.change(deployments={"mini": mini}, endpoints={"embed": embed})
    rig.mini.answer = ranks
    page = playground.page
    await page.goto("/ui#/playground?endpoint=embed")
    query, documents = page.get_by_label("Query", exact=True), page.get_by_label("Documents", exact=True)
    problem = page.get_by_role("alert")
    await playground.run_button.click()
    await expect(problem).to_have_text("Write a query")
    await query.fill("a green frog")
    await playground.run_button.click()
    await expect(problem).to_have_text("Write a document, or several: one a line")
    await expect(documents).to_be_focused()
    await documents.fill(f"a bank\n\n{HOSTILE}")
    await playground.run_button.click()
    card = playground.answer("mini")
    await expect(playground.state("mini")).to_have_text("finished")
    rows = card.locator("tbody tr")
    await expect(rows.nth(0)).to_have_text(f"{HOSTILE}0.75002")
    await expect(rows.nth(1)).to_have_text("a bank0.37501")
    await expect(card.locator("dd").nth(2)).to_have_text("40")
    (sent,) = rig.mini.requests
    typed = {"model": "mini-model", "query": "a green frog", "documents": ["a bank", HOSTILE]}
    assert sent == typed | {"truncate_prompt_tokens": -1}
    assert await page.title() != "taken"
    await page.get_by_role("tab", name="Cohere").click()
    await expect(page.get_by_role("tabpanel")).to_contain_text("cohere.ClientV2(")
    assert await overflow(page) == 0
    assert await accessibility_problems(page) == []


async def test_no_endpoint_is_reported_and_a_missing_key_is_asked_for(
    open_page: OpenPage, rig: Rig, tmp_path: Path
) -> None:
    key, record = create("ann", endpoints=["another"])
    append(tmp_path / "keys.yaml", record.line)
    rig.change(access={"keys_file": str(tmp_path / "keys.yaml")})
    page, watch = await open_page(rig.url)
    watch.expected = ["status of 401"]
    await page.goto("/ui#/playground")
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    await expect(page.get_by_text("You have access to no endpoint on this server.")).to_be_visible()


async def test_an_answer_that_ends_early_is_reported(open_page: OpenPage, rig: Rig) -> None:
    page, _ = await open_page(rig.url)
    playground = Playground(page, rig)
    rig.blue.answer = lambda body: stream([chunk("Half")])
    await playground.open()
    await page.get_by_role("checkbox", name="green").uncheck()
    await playground.ask()
    await expect(playground.state("blue")).to_have_text("failed")
    await expect(playground.text("blue")).to_have_text("Half")
    await expect(playground.answer("blue").get_by_role("alert")).to_contain_text("ended its response before")


async def test_a_request_that_fails_before_its_answer_begins_has_a_link(open_page: OpenPage, rig: Rig) -> None:
    page, watch = await open_page(rig.url)
    watch.expected.append("502")
    playground = Playground(page, rig)
    rig.blue.answer = refuse(500, "broken")
    await playground.open()
    await page.get_by_role("checkbox", name="green").uncheck()
    await playground.ask()
    await expect(playground.state("blue")).to_have_text("failed")
    link = playground.answer("blue").get_by_role("link")
    assert await link.get_attribute("href") == f"#/requests?id={await link.inner_text()}"


STORY = (
    "A switchyard sorts wagons: each train that arrives is taken apart, its wagons roll down a small hill, and points "
    "send every one of them to the right track."
)
OTHER = (
    "A switchyard sorts wagons: every arriving train is split up, its wagons roll over a small hump, and points send "
    "each of them to the right track, where new trains are made."
)


def streamed(parts: list[Any]) -> Answer:
    """An engine that streams these parts."""
    return lambda body: stream([*parts, "data: [DONE]\n\n"])


def tokens_of(text: str) -> list[str]:
    """A stream of the words of `text`, some of them with low probabilities."""
    words = re.findall(r"\s*\S+", text)
    doubts = [-0.02, -0.05, -0.4, -0.01, -1.4, -0.1, -0.03, -2.9]
    last = len(words) - 1
    return [
        token(word, doubts[n % len(doubts)], {" yard": -2.1, " the": -3.4}, "stop" if n == last else None)
        for n, word in enumerate(words)
    ]


@pytest.mark.parametrize(
    ("picture", "width", "scheme"),
    [("playground", 1280, "light"), (None, 1280, "dark"), ("playground-360", 360, "light"), (None, 390, "dark")],
)
async def test_the_page_fits_its_window(
    open_page: OpenPage, rig: Rig, picture: str | None, width: int, scheme: str
) -> None:
    page, _ = await open_page(rig.url, width=width, scheme=scheme)
    playground = Playground(page, rig)
    for engine, text in ((rig.blue, STORY), (rig.green, OTHER)):
        count = {"prompt_tokens": 17, "completion_tokens": len(text.split()), "total_tokens": 17 + len(text.split())}
        usage = frame({"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": count})
        parts = [part for word in tokens_of(text) for part in (word, 0.004)]
        engine.answer = streamed([*parts, usage])
    rig.chat_endpoint(traffic={"blue": 90, "green": 10})
    await playground.open()
    await playground.probabilities()
    await playground.ask("What does a switchyard do? One sentence.")
    await expect(page.get_by_role("region", name="Comparison")).to_be_visible()
    await page.get_by_role("button", name="Token probabilities").first.click()
    await playground.text("blue").focus()
    for _ in range(5):
        await page.keyboard.press("ArrowRight")
    await page.get_by_role("tab", name="OpenAI").click()
    await page.get_by_role("tab", name="OpenAI").blur()
    assert await overflow(page) == 0
    assert await accessibility_problems(page) == []
    at = page.get_by_role("region", name="Answers") if width < 1000 else page.get_by_role("banner")
    await at.evaluate("(it) => it.scrollIntoView()")
    await page.get_by_role("region", name="Settings").evaluate("(it) => it.scrollTo(0, 0)")
    if picture is not None:
        await screenshot(page, picture, whole=False)
