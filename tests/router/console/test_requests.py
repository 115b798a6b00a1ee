"""The page Requests: one request by its id, the deployment that answered it and the reason, and thumbs."""

import asyncio
import re
import time

import httpx
import pytest
from playwright.async_api import Page, Route, expect

from app.activity.report import ActivityReport, ListedRequest
from tests.router.conftest import Rig
from tests.router.console.conftest import Managed, OpenPage, sign_in
from tests.support.clients.browser import accessibility_problems, overflow, screenshot
from tests.support.engine.fake_engine import chunk, frame, stream
from tests.support.waiting import wait_until_async

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
HOSTILE = "<img/src=x/onerror=alert(1)>"


async def chat(managed: Managed, *, key: str = "", **headers: str) -> str:
    """The id of a streamed request, once the controller has its exposure and lists it."""
    credentials = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=managed.url, headers=credentials) as client:
        answer = await client.post("/v1/chat/completions", json={**CHAT, "user": "u", "stream": True}, headers=headers)
        id = answer.headers["x-request-id"]

        async def recorded() -> bool:
            listed = (await client.get("/api/requests", params={"id": id})).json()["requests"]
            return bool(listed) and (await client.get(f"/api/requests/{id}")).status_code == 200

        await wait_until_async(recorded)
    return id


async def found(page: Page, id: str) -> None:
    await page.goto("/ui#/requests")
    await page.get_by_label("Request id").fill(id)
    await page.keyboard.press("Enter")


@pytest.fixture
def judged(managed: Managed) -> Managed:
    """A running experiment that takes a thumb and stars."""
    experiment = {
        "endpoint": "chat",
        "control": "blue",
        "treatments": ["green"],
        "primary": [{"metric": "ttft", "minimal_effect": 0.1}],
        "feedback": {"liked": {}, "stars": {"type": "number", "min": 1, "max": 5}},
    }
    managed.deliver(experiments={"colours": experiment})
    return managed


@pytest.mark.parametrize(("name", "width"), [("requests", 1280), ("requests-360", 360)])
async def test_a_request_is_found_and_gets_a_thumb(open_page: OpenPage, judged: Managed, name: str, width: int) -> None:
    page, _ = await open_page(judged.url, width=width, height=640 if width > 360 else 800)
    await found(page, await chat(judged))
    timeline, card = (
        page.get_by_role("article", name="Timeline of"),
        page.get_by_role("article", name="Request at chat"),
    )
    facts: dict[str, str | re.Pattern[str]] = {
        "Deployment": "blue",
        "Why": "its sticky key maps there",
        "Attempts": "1",
        "Tokens": re.compile("Tokens9 in the prompt, 3 in the answer"),
        "Sent as": "openai, chat, streamed",
        "Ended with": "stop",
    }
    for title, words in facts.items():  # each is said once
        fact = page.locator("article dl > div").filter(has=page.get_by_text(title, exact=True))
        await expect(fact).to_have_text(title + words if isinstance(words, str) else words)
    await expect(timeline.locator("header")).to_contain_text("200")
    await expect(card.locator("header")).to_have_text("For experiments")
    await expect(card.locator("dl")).to_contain_text(re.compile(r"Plan0-[0-9a-f]{8}: blue \d+\s%, green \d+\s%"))
    up = card.get_by_role("button", name="liked: thumb up")
    await up.click()
    await expect(card.get_by_role("status")).to_have_text("Recorded.")
    await expect(up).to_have_attribute("aria-pressed", "true")
    assert await card.get_by_role("button", name="stars").count() == 0
    given = card.locator("dl > div").filter(has_text="Feedback")
    await expect(given).to_have_text("Feedbacknone yet")
    async with asyncio.timeout(30):
        while await given.inner_text() != "Feedback\nliked 1":
            await asyncio.sleep(0.05)
            await page.get_by_role("button", name="Find").click()
            await expect(card).to_be_visible()
    await expect(up).to_have_attribute("aria-pressed", "true")
    assert await overflow(page) == 0
    assert await accessibility_problems(page) == []
    await screenshot(page, name, whole=width > 360)


async def test_a_request_that_no_experiment_counts_has_no_thumbs(open_page: OpenPage, judged: Managed) -> None:
    page, _ = await open_page(judged.url)
    await found(page, await chat(judged, **{"azureml-model-deployment": "green"}))
    card = page.get_by_role("article", name="Request at chat")
    await expect(card).to_contain_text("no experiment counts it: its deployment was named")
    await expect(card).to_contain_text("A thumb would not count")
    assert await card.get_by_role("button").count() == 0


async def test_the_playground_links_to_its_request(open_page: OpenPage, judged: Managed) -> None:
    page, watch = await open_page(judged.url)
    watch.expected = ["status of 404"]  # until the exposure is there
    await page.goto("/ui#/playground")
    await page.get_by_label("Message", exact=True).fill("hi")
    await page.get_by_role("button", name="Send").click()
    link = page.get_by_role("article", name="blue").get_by_role("link")
    id = await link.inner_text()
    await link.click()
    await expect(page.get_by_label("Request id")).to_have_value(id)
    # The page looks again by itself until the exposure is there.
    await expect(page.get_by_role("article", name="Request at chat")).to_be_visible()
    await expect(page.get_by_role("main")).to_contain_text("the request named the deployment in a header")


async def test_an_unknown_id_is_answered_at_once_and_looked_for_again(open_page: OpenPage, rig: Rig) -> None:
    page, watch = await open_page(rig.url)
    watch.expected = ["status of 404"]
    await page.goto("/ui#/requests")  # it has the scripts then
    await expect(page.get_by_text("No requests yet")).to_be_visible()
    await page.clock.install()
    await page.goto("/ui#/requests?id=late")
    await expect(page.get_by_role("alert")).to_contain_text("Nothing is recorded of a request with the id 'late'")
    await expect(page.get_by_text("This page looks again for some seconds.")).to_be_visible()
    assert await asyncio.to_thread(send, rig, headers={"x-request-id": "late"}) == 200
    await page.clock.run_for(2000)
    await expect(page.get_by_role("article", name="Timeline of late")).to_be_visible()
    await expect(page.get_by_role("alert")).to_have_count(0)


async def test_an_address_names_a_request_and_one_that_is_not_known_any_more_is_said(
    open_page: OpenPage, rig: Rig
) -> None:
    page, watch = await open_page(rig.url)
    watch.expected = ["status of 404"]
    assert await asyncio.to_thread(send, rig, headers={"x-request-id": "a/b"}) == 200
    await page.goto("/ui#/requests/a%2Fb")
    await expect(page.get_by_role("article", name="Timeline of a/b")).to_be_visible()
    await page.goto("/ui#/requests/gone")
    await expect(page.get_by_role("alert")).to_contain_text("Nothing is recorded of a request with the id 'gone'")
    await expect(page.get_by_text(re.compile(r"ended before [\d:]+ may not be known any more"))).to_be_visible()
    await expect(page.get_by_label("Request id")).to_have_value("gone")
    for address in ("traffic/chat", "requests/a/b"):
        await page.goto(f"/ui#/{address}")
        await expect(page.get_by_role("heading", name="Page not found")).to_be_visible()


async def test_a_request_that_is_opened_while_the_server_is_away_comes_once_it_answers(
    open_page: OpenPage, rig: Rig
) -> None:
    page, watch = await open_page(rig.url)
    watch.expected = ["ERR_FAILED", "status of 404"]
    assert await asyncio.to_thread(send, rig, headers={"x-request-id": "one"}) == 200
    await page.goto("/ui#/requests")
    await expect(page.get_by_role("link", name="request one")).to_be_visible()
    await page.route("**/api/**", lambda route: route.abort())
    await page.get_by_role("link", name="request one").click()
    await expect(page.get_by_role("alert")).to_contain_text("There is nothing to show until it answers.")
    await page.unroute("**/api/**")
    await expect(page.get_by_role("article", name="Timeline of one")).to_be_visible()


async def test_unknown_ids_and_those_of_other_callers_are_not_found(open_page: OpenPage, judged: Managed) -> None:
    keys = judged.guard()
    id = await chat(judged, key=keys["chat team"])
    page, watch = await open_page(judged.url)
    watch.expected = ["status of 401", "status of 404"]
    await page.goto("/ui#/requests")
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("API key").fill(keys["embed team"])
    await dialog.get_by_role("button", name="Sign in").click()
    for wanted in ("<img src=x onerror=alert(1)>/../..", id):
        await page.get_by_label("Request id").fill(wanted)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text(
            f"Nothing is recorded of a request with the id '{wanted}'"
        )
        await expect(page.get_by_text("A request appears within seconds of its arrival")).to_be_visible()
    assert await page.get_by_role("main").locator("img").count() == 0


async def test_a_request_that_is_not_found_is_explained(open_page: OpenPage, rig: Rig) -> None:
    page, watch = await open_page(rig.url)
    watch.expected = ["status of 404", "status of 503"]
    await found(page, "abc")
    said = page.get_by_role("alert")
    for reason in ("no experiment", "still running", "expired", "the id is another one"):
        await expect(said).to_contain_text(reason)
    rig.chat_endpoint(ledger="always")
    await page.get_by_role("button", name="Find").click()
    await expect(page.get_by_role("alert")).to_have_text("this controller answers nothing")
    assert await page.get_by_role("article").count() == 0


def send(rig: Rig, *, headers: dict[str, str] | None = None, **fields: object) -> int:
    url = f"{rig.url}/v1/chat/completions"
    return httpx.post(url, json={**CHAT, **fields}, headers=headers, timeout=60).status_code


def kept(rig: Rig) -> int:
    return int(httpx.get(f"{rig.url}/api/requests").json()["kept"])


async def test_a_request_that_nothing_records_shows_where_its_time_went(open_page: OpenPage, rig: Rig) -> None:
    docs_url = "https://docs.example/switchyard/"
    rig.change(console={"trace_url": "https://traces.example.com/{trace_id}", "docs_url": docs_url})
    page, _ = await open_page(rig.url)  # which has no error in its console
    traced = {"x-request-id": HOSTILE, "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    assert send(rig, headers=traced, stream=True) == 200
    await page.goto("/ui#/requests")
    await page.get_by_role("link", name=f"request {HOSTILE}").click()
    card = page.get_by_role("article", name=f"Timeline of {HOSTILE}")
    await expect(card.get_by_role("listitem")).to_have_count(4)
    await expect(card).to_contain_text("blue: until the first byte")
    await expect(card).to_contain_text("drawn by the traffic's percentages")
    await expect(card).to_contain_text("9 in the prompt, 3 in the answer")
    await expect(page.get_by_text("Nothing more is recorded.")).to_be_visible()
    text = page.get_by_role("region", name=f"Recorded text of {HOSTILE}")
    await expect(text).to_contain_text("Texts are not recorded: chat has no record: {text: full}.")
    await expect(text).to_contain_text("Answers are recorded nowhere.")
    await expect(text.get_by_role("link")).to_have_attribute("href", f"{docs_url}split/replay/#record-and-replay")
    await expect(card.get_by_role("link")).to_have_attribute("href", f"https://traces.example.com/{'a' * 32}")
    assert await page.get_by_role("main").locator("img").count() == 0
    await page.get_by_role("link", name="All requests").click()
    await expect(page.get_by_role("region", name="Requests").locator("tbody tr")).to_have_count(1)


async def test_a_manager_reads_the_recorded_text_and_a_caller_has_no_button(
    open_page: OpenPage, judged: Managed
) -> None:
    keys = judged.guard()
    endpoints = judged.config["endpoints"]
    judged.deliver(endpoints={**endpoints, "chat": {**endpoints["chat"], "record": {"text": "full"}}})
    id = await chat(judged, key=keys["chat team"])
    for name, buttons in (("boss", 1), ("chat team", 0)):
        page, watch = await open_page(judged.url, width=390)
        watch.expected = ["status of 401", "status of 404"]
        await page.goto(f"/ui#/requests?id={id}")
        await sign_in(page, keys[name])
        await expect(page.get_by_role("article", name=f"Timeline of {id}")).to_be_visible()
        button = page.get_by_role("button", name="Show the recorded text")
        await expect(button).to_have_count(buttons)
        await expect(page.get_by_text("Its text is recorded. Managers read it here")).to_have_count(1 - buttons)
        if buttons:
            text = page.get_by_label("Recorded text", exact=True)
            while await text.count() == 0:  # its file may not be written yet
                await button.click()
                await expect(button.and_(page.locator(":enabled")).or_(text).first).to_be_visible()
            await expect(text).to_contain_text('"content": "hi"')
            await expect(page.get_by_text("Answers are recorded nowhere.")).to_be_visible()
            assert await overflow(page) == 0
            assert await accessibility_problems(page) == []


async def test_a_slow_request_is_marked_in_the_list_and_on_its_page(open_page: OpenPage, rig: Rig) -> None:
    page, watch = await open_page(rig.url)
    watch.expected = ["status of 404"]
    for id in ("quick", "late"):
        assert await asyncio.to_thread(send, rig, headers={"x-request-id": id}, stream=True) == 200

    async def delayed(route: Route) -> None:
        answer = await route.fetch()
        listed = await answer.json()
        for request in listed["requests"]:
            if request["id"] == "late":
                request |= {"first_byte_s": 12.0, "duration_s": 13.0}
        await route.fulfill(response=answer, json=listed)

    await page.route("**/api/requests?*", delayed)
    await page.goto("/ui#/requests")
    rows = page.get_by_role("region", name="Requests").locator("tbody tr")
    await expect(rows).to_have_count(2)
    await expect(rows.get_by_text("!slow", exact=True)).to_have_count(1)
    await rows.filter(has_text="!slow").get_by_role("link", name="request late").click()
    fact = page.get_by_role("article", name="Timeline of late").locator("dl > div").filter(has_text="Slow")
    await expect(fact).to_have_text("Slowno first byte within 10 s")


async def test_requests_of_a_router_that_is_not_heard_say_so_and_are_lost_with_it(
    managed: Managed, open_page: OpenPage
) -> None:
    now, board = time.time(), managed.controller.activity.board
    streams = [
        ListedRequest(f"s{one}", now - 9, "openai", "chat", 200, 2.8, "chat", "blue", stream=True, running=True)
        for one in range(4)
    ]
    board.take(ActivityReport("killed", 0, [], [], streams), now - 7)
    page, _ = await open_page(managed.url)
    await page.goto("/ui#/requests")
    rows = page.locator("table.requests tbody tr")
    row = rows.filter(has=page.get_by_role("link", name="request s0"))
    await expect(row).to_contain_text(re.compile(r"its router has not answered for \d"))
    await expect(row).to_contain_text("2.8\u00a0s when it answered last")
    board.take(ActivityReport("killed", 0, [], [], streams), now - 20)
    await expect(row).to_contain_text("200, then lost with its router")
    await expect(row).to_contain_text("2.8\u00a0s or more")
    group = page.get_by_role("region", name="Not answered").get_by_role("listitem")
    await expect(group).to_have_text(re.compile("^4 .*200, then lost with its router at chat on blue"))
    await group.get_by_role("button").click()
    await expect(page.get_by_label("Error")).to_have_value("router_lost")
    await expect(rows).to_have_count(4)
    assert await accessibility_problems(page) == []
    await page.get_by_role("link", name="request s0").click()
    await expect(page.get_by_role("article", name="Timeline of s0")).to_contain_text("not known: its router answered")


async def test_a_running_request_is_shown_while_it_runs_and_then_as_it_ended(open_page: OpenPage, rig: Rig) -> None:
    parts = [frame({"id": "x", "model": "m", "choices": [{"index": 0, "delta": {"content": "a"}}]})]
    rig.blue.answer = lambda body: stream([*parts, 12.0, "data: [DONE]\n\n"])
    page, watch = await open_page(rig.url)
    watch.expected = ["status of 404"]
    await page.goto("/ui#/requests")
    answer = asyncio.create_task(asyncio.to_thread(send, rig, headers={"x-request-id": "long"}, stream=True))
    rows = page.get_by_role("region", name="Requests").locator("tbody tr")
    await expect(rows).to_contain_text("running")
    await expect(rows).to_contain_text("so far")
    await expect(page.get_by_text(re.compile("1 request since .*, 1 of them running"))).to_be_visible()
    await page.get_by_role("link", name="request long").click()
    card = page.get_by_role("article", name="Timeline of long")
    await expect(card).to_contain_text("running")
    await expect(card.get_by_role("listitem").last).to_contain_text("so far")
    assert await accessibility_problems(page) == []
    assert await answer == 200
    await expect(card.get_by_role("listitem").last).not_to_contain_text("so far")
    await expect(card).not_to_contain_text("running")


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
async def test_a_stream_that_waits_for_another_engine_is_paused_in_the_list_and_on_its_page(
    open_page: OpenPage, rig: Rig, width: int, scheme: str
) -> None:
    page, watch = await open_page(rig.url, width=width, scheme=scheme)
    watch.expected = ["status of 404"]
    assert await asyncio.to_thread(send, rig, headers={"x-request-id": "waits"}, stream=True) == 200
    lost = {"deployment": "blue", "engine": "7g54uu1y", "at_s": 0.1, "until_s": 20.0, "why": "its connection ended"}

    async def paused(route: Route) -> None:
        answer = await route.fetch()
        listed = await answer.json()
        for request in listed["requests"]:  # none until the router has seen the request's end
            request |= {"running": True, "outcome": None, "duration_s": 60.0, "engine": "7g54uu1y", "first_byte_s": 3.0}
            request |= {"failed_attempts": [{**lost, "interrupted": True, "continued": False}]}
            request |= {"pauses": [[19.5, 40.5]], "pause_s": 40.5, "paused_s": 40.5, "completion_tokens": None}
            request |= {"prompt_tokens": None, "sent_tokens": 17}
        await route.fulfill(response=answer, json=listed)

    await page.route("**/api/requests?*", paused)
    await page.goto("/ui#/requests")
    rows = page.get_by_role("region", name="Requests").locator("tbody tr")
    await expect(rows).to_contain_text("paused for 40.5 s: waits for an engine")
    assert await overflow(page) == 0
    await rows.get_by_role("link").click()
    card = page.get_by_role("article", name="Timeline of waits")
    await expect(card.locator("header")).to_contain_text("paused for 40.5 s: waits for an engine")
    await expect(card).to_contain_text("its connection ended after 19.9 s; the stream has waited 40.5 s for another")
    await expect(card).to_contain_text("blue (replica 7g54uu1y): until the first byte")
    await expect(card.locator(".steps li").last).to_contain_text("waited for another: 40.5 s so far")
    for words in ("went on", "it answer"):
        await expect(card).not_to_contain_text(words)
    assert await overflow(page) == 0
    assert await accessibility_problems(page) == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
async def test_a_failed_request_says_what_its_client_was_told(
    open_page: OpenPage, rig: Rig, width: int, scheme: str
) -> None:
    page, watch = await open_page(rig.url, width=width, scheme=scheme)
    watch.expected = ["status of 404"]
    message = "temperature: Input should be a valid number"
    assert send(rig, headers={"x-request-id": "wrong"}, temperature="hot") == 400
    assert send(rig, headers={"x-request-id": "lost"}, model="none") == 404
    rig.blue.answer = lambda body: stream([chunk("Hel")])
    assert send(rig, stream=True) == 200
    await page.goto("/ui#/requests")
    rows = page.get_by_role("region", name="Requests").locator("tbody tr")
    await expect(rows).to_have_count(3)
    await expect(rows.filter(has_text="200, then cut short: deployment failed")).to_have_count(1)
    assert await page.get_by_role("region", name="Requests").evaluate("(it) => it.scrollWidth - it.clientWidth") <= 0
    wrong, lost = rows.filter(has_text="400"), rows.filter(has_text="404")
    await expect(wrong).to_contain_text(message)
    await expect(wrong).to_contain_text("chat")
    await expect(lost).to_contain_text("no endpoint or deployment has this name")
    groups = page.get_by_role("region", name="Not answered")
    if width < 600:  # one kind leaves the list on the first screen
        await groups.get_by_role("button", name="more kinds").click()
    await expect(groups.get_by_role("listitem").filter(has_text="400")).to_contain_text(message)
    await expect(groups).to_contain_text("404 not found at no endpoint (no endpoint or deployment has this name)")
    assert await overflow(page) == 0
    assert await accessibility_problems(page) == []
    await wrong.get_by_role("link").click()
    facts = page.get_by_role("article", name="Timeline of wrong").locator("dl > div")
    await expect(facts.filter(has=page.get_by_text("Message", exact=True))).to_have_text(f"Message{message}")
    await expect(facts.filter(has=page.get_by_text("Field", exact=True))).to_have_text("Fieldtemperature")
    await expect(facts.filter(has=page.get_by_text("Code", exact=True))).to_have_count(0)
    await expect(facts.filter(has=page.get_by_text("Type", exact=True))).to_have_text("Typeinvalid_request_error")
    await expect(facts.filter(has_text="Endpoint")).to_have_count(0)
    assert await overflow(page) == 0
    await page.goto("/ui#/requests?id=lost")
    card = page.get_by_role("article", name="Timeline of lost")
    await expect(card).to_contain_text("none: no endpoint or deployment has this name")
    await expect(card).to_contain_text("The model 'none' does not exist")
    assert await accessibility_problems(page) == []


async def test_a_long_message_leaves_a_callers_name_its_line_and_a_wide_window_is_used(
    open_page: OpenPage, managed: Managed
) -> None:
    keys = managed.guard()
    page, watch = await open_page(managed.url, width=1280)
    watch.expected = ["status of 401"]
    body = {**CHAT, "model": "a model that nobody has, with a name that is as long as its text is, " * 3}
    await page.request.post("/v1/chat/completions", data=body, headers={"api-key": keys["chat and embed"]})
    await page.goto("/ui#/requests")
    await sign_in(page, keys["boss"])
    caller = page.get_by_role("region", name="Requests").get_by_text("chat and embed")
    await expect(caller).to_be_visible()
    lines = """(it) => {
        const range = document.createRange();
        range.selectNodeContents(it);
        return range.getClientRects().length;
    }"""
    assert await caller.evaluate(lines) == 1
    await page.set_viewport_size({"width": 1920, "height": 1000})
    width = await page.get_by_role("region", name="Requests").evaluate("(it) => it.clientWidth")
    assert width > 1800
    assert await overflow(page) <= 0


async def test_requests_without_valid_credentials_are_counted_by_minute_and_reason(
    open_page: OpenPage, managed: Managed
) -> None:
    keys = managed.guard()
    page, watch = await open_page(managed.url, width=390)
    watch.expected = ["status of 401"]
    for key in ("sk-sy-000000000000-" + 43 * "x", ""):
        for _ in range(3):
            await page.request.post("/v1/chat/completions", data=CHAT, headers={"api-key": key} if key else {})
    await page.goto("/ui#/requests")
    await sign_in(page, keys["boss"])
    counted = page.get_by_role("region", name="Without valid credentials")
    await expect(counted).to_contain_text(re.compile(r"\b3 . The API key is not valid"))
    await expect(counted).to_contain_text(re.compile(r"\d . Credentials are required"))
    await expect(counted.get_by_role("slider", name="minute by minute")).to_be_visible()
    labels = await counted.locator(".times span").all_inner_texts()
    assert {label[3:5] for label in labels} <= {"00", "15", "30", "45"}
    assert await overflow(page) == 0
    assert await accessibility_problems(page) == []


@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("requests-list", 1280, "light"), ("requests-list-390", 390, "dark")]
)
async def test_requests_are_listed_live_filtered_and_grouped_by_error(
    open_page: OpenPage, rig: Rig, name: str, width: int, scheme: str
) -> None:
    rig.chat_endpoint(traffic={"blue": 50, "green": 50})
    assert {send(rig, stream=True) for _ in range(6)} == {200}
    page, watch = await open_page(rig.url, width=width, scheme=scheme)
    watch.expected = ["status of 400"]
    await page.goto("/ui#/requests")
    rows = page.get_by_role("region", name="Requests").locator("tbody tr")
    await expect(rows).to_have_count(6)
    assert {send(rig, model="none") for _ in range(3)} == {404}
    await expect(rows).to_have_count(9)  # live
    errors = page.get_by_role("region", name="Not answered")
    await expect(errors).to_contain_text("404 not found at no endpoint")
    assert await overflow(page) == 0
    assert await accessibility_problems(page) == []
    await screenshot(page, name, whole=width < 1280)
    await page.get_by_label("Result").select_option("failed")
    await expect(rows).to_have_count(0)  # a refusal is no failure of ours
    await page.get_by_label("Result").select_option("not_answered")
    await expect(rows).to_have_count(3)
    assert page.url.endswith("#/requests?status=not_answered")
    await page.get_by_role("button", name="Pause").click()
    send(rig, model="none")
    await wait_until_async(lambda: asyncio.to_thread(lambda: kept(rig) == 10))
    await page.get_by_label("Result").select_option("answered")
    await expect(rows).to_have_count(6)
    await expect(page.get_by_text("6 of 10 requests")).to_be_visible()
    await page.get_by_role("button", name="Go on").click()
    await page.reload()
    await expect(page.get_by_label("Result")).to_have_value("answered")
    await page.get_by_role("button", name="Clear").click()
    await expect(rows).to_have_count(10)
    await errors.get_by_role("button", name="Show 404 not_found").click()
    await expect(rows).to_have_count(4)
    await expect(page.get_by_label("Endpoint", exact=True)).to_have_value("-")
    await page.goto("/ui#/requests?status=nice&slower_than_s=long&endpoint=-&caler=me")
    await expect(rows).to_have_count(4)
    for words in ("status: 'nice' is neither", "slower_than_s: 'long' is no number", "There is no filter “caler”"):
        await expect(page.get_by_role("main")).to_contain_text(words)
    assert page.url.endswith("#/requests?endpoint=-")


async def test_a_request_that_a_failing_server_cannot_show_is_shown_later(open_page: OpenPage, rig: Rig) -> None:
    assert send(rig) == 200
    page, watch = await open_page(rig.url)
    watch.expected = ["status of 500"]
    (request,) = (await (await page.request.get("/api/requests")).json())["requests"]
    await page.route("**/api/me", lambda route: route.fulfill(status=500, json={}))
    await page.goto(f"/ui#/requests?id={request['id']}")
    await expect(page.get_by_role("alert")).to_contain_text("The server answered 500.")
    await page.unroute("**/api/me")
    await expect(page.locator(".found")).to_contain_text(request["id"])
    await expect(page.get_by_role("alert").filter(visible=True)).to_have_count(0)


async def test_requests_of_the_chosen_time_are_listed(open_page: OpenPage, rig: Rig) -> None:
    assert send(rig) == 200
    page, watch = await open_page(rig.url)
    watch.expected = ["status of 400"]
    await page.goto("/ui#/requests")
    rows = page.get_by_role("region", name="Requests").locator("tbody tr")
    await expect(rows).to_have_count(1)
    chosen = page.get_by_label("When")
    await expect(chosen).to_have_value("")
    await expect(chosen.locator("option")).to_have_text(
        ["any time", re.compile(r"^last 15 minutes: all since [\d:]+$")]
    )
    await chosen.select_option("900")
    assert page.url.endswith("#/requests?last_s=900")
    await expect(rows).to_have_count(1)
    await page.goto("/ui#/requests?last_s=0.001")
    await expect(page.get_by_text("No request passes these filters.")).to_be_visible()
    for length, words in (("90", "last 90\u00a0s"), ("1800.0", "last 30\u00a0min"), ("86400.0", "last 24 hours")):
        await page.goto(f"/ui#/requests?last_s={length}")
        await expect(rows).to_have_count(1)
        await expect(chosen.locator("option:checked")).to_have_text(words)
    await page.goto("/ui#/requests?last_s=1_000&status=answered")
    await expect(page.get_by_role("main")).to_contain_text("last_s: '1_000' is no number of seconds")
    await expect(chosen).to_have_value("")
    assert page.url.endswith("#/requests?status=answered")
