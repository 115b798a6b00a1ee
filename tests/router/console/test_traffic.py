"""The page Traffic: its contents, and changes of the split with a dry run, a reason and a rollback."""

import asyncio
import math
import re
import time
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from playwright.async_api import Locator, Page, Route, expect

from app.activity.board import SETTLED_S
from app.activity.report import PERIOD_S, ActivityReport, ArmCounts, PeriodCounts
from app.control_plane import RUNNING_EVERY_S, Replicas
from app.errors import Unavailable
from app.server.colours import deployment_colours
from app.server.overview_document import endpoints_document
from app.telemetry.recent import Counts
from tests.router.conftest import Rig
from tests.router.console.conftest import CHAT, Managed, OpenPage, sign_in
from tests.support.clients.browser import accessibility_problems, overflow, screenshot
from tests.support.engine.fake_engine import USAGE, Answer, chunk, frame, refuse, stream
from tests.support.overviews import World, worlds
from tests.support.waiting import wait_until_async

HOSTILE = "<img src=x onerror=document.title='broken'>"


async def opened(open_page: OpenPage, managed: Managed, **size: Any) -> Page:
    """The page, once it shows an endpoint."""
    page, _ = await open_page(managed.url, **size)
    await page.goto("/ui#/traffic")
    await expect(page.get_by_role("heading", level=2, name="chat")).to_be_visible()
    return page


def chat(page: Page) -> Locator:
    """The section of the endpoint `chat`."""
    return page.get_by_role("region", name="chat", exact=True)


def row(page: Page, deployment: str) -> Locator:
    return chat(page).get_by_role("row").filter(has=page.get_by_role("rowheader", name=deployment))


async def test_the_split_and_the_times_are_shown(managed: Managed, open_page: OpenPage) -> None:
    managed.put({"blue": 80, "green": 20}, "more for green")
    managed.put({"blue": 60, "green": 40}, "green holds")
    managed.chat(60, stream=True)
    page = await opened(open_page, managed)
    await expect(chat(page).get_by_text("All 60 requests were answered.")).to_be_visible()
    await expect(chat(page)).not_to_contain_text("No request has ended")  # the charts have them some seconds later
    await expect(row(page, "blue").get_by_role("cell").nth(0)).to_have_text("60 %")
    await expect(row(page, "blue").get_by_role("cell").nth(1)).to_have_text("56.7 %")
    await expect(row(page, "green").get_by_role("cell").nth(5)).to_contain_text("ms")
    await expect(page.get_by_text("Counted by this router")).to_be_visible()
    assert await accessibility_problems(page) == []
    await screenshot(page, "console-traffic")


def streamed(before_s: float, after_s: float = 0.0) -> Answer:
    """A stream whose first token comes after some seconds, and whose end after some more."""
    usage = frame({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": USAGE})
    return lambda body: stream(
        [before_s, chunk("Hel"), after_s, chunk("lo", finish_reason="stop"), usage, "data: [DONE]\n\n"]
    )


async def test_times_are_the_same_on_both_pages_and_none_is_above_the_longest(
    managed: Managed, open_page: OpenPage
) -> None:
    """The bucket of a histogram that has these times ends at half a second."""
    managed.put({"blue": 100, "green": 0}, "one deployment")
    managed.blue.answer = streamed(0.26)
    managed.chat(2, stream=True)
    page = await opened(open_page, managed)
    median, _, longest = (await row(page, "blue").get_by_role("cell").nth(5).inner_text()).rpartition(" / ")
    await page.goto("/ui#/requests")
    rows = page.get_by_role("region", name="Requests").locator("tbody tr")
    await expect(rows).to_have_count(2)
    first_bytes = [await rows.nth(index).get_by_role("cell").nth(4).inner_text() for index in (0, 1)]
    assert sorted(first_bytes) == [median, longest]


async def test_a_share_after_a_change_is_compared_with_the_plan_that_drew_it(
    managed: Managed, open_page: OpenPage
) -> None:
    managed.put({"blue": 100, "green": 0}, "one deployment")
    managed.blue.answer = streamed(0.0, 1.0)
    running = [asyncio.create_task(asyncio.to_thread(managed.chat, 1, stream=True)) for _ in range(8)]
    await wait_until_async(lambda: len(managed.blue.requests) == 8)
    managed.put({"blue": 10, "green": 90}, "more for green")
    await asyncio.gather(*running)
    page = await opened(open_page, managed)
    await expect(chat(page)).to_contain_text(
        "blue got 100 % of the 8 requests that the split decided; 10 % is configured: "
        "all were drawn by the former split (blue 100 %, green 0 %): each is counted at its end."
    )
    await expect(chat(page)).not_to_contain_text("active")


@settings(max_examples=60, derandomize=True, database=None, phases=[Phase.generate])
@given(st.data())
def many_worlds(found: list[World], data: st.DataObject) -> None:
    found.append(data.draw(worlds()))


FIGURES = """() => JSON.parse(JSON.stringify([...document.querySelectorAll("section.endpoint")].map((section) => ({
    name: section.querySelector("h2").textContent,
    figures: [...section.querySelectorAll(".figure b")].map((one) => one.innerText),
    lead: section.querySelector(".lead .mark").className,
    said: [...section.querySelectorAll(".lead, .findings li")].map((one) => one.innerText),
    rows: [...section.querySelectorAll("tbody tr")].map((row) => ({
        name: [...row.querySelector("th div").childNodes].find((one) => one.nodeType === Node.TEXT_NODE).data,
        ...Object.fromEntries([...row.querySelectorAll("td")].map((one) => [one.dataset.label, one.innerText])),
    })),
}))).replaceAll("\\u00a0", " "))"""


def amount(text: str) -> int:
    """The first number of a cell."""
    (first, *_) = re.findall(r"[\d,]+", text)
    return int(first.replace(",", ""))


async def test_each_figure_equals_its_definition_in_every_world(managed: Managed, open_page: OpenPage) -> None:
    all_worlds: list[World] = []
    many_worlds(all_worlds)
    expected: dict[str, tuple[World, str]] = {}
    documents = []
    for number, world in enumerate(all_worlds):
        for document in endpoints_document(
            world.config, world.window, world.present, [], deployment_colours(world.config)
        ):
            name = f"{document['endpoint']}-{number}"
            expected[name] = world, document["endpoint"]
            documents.append({**document, "endpoint": name})
    page, _ = await open_page(managed.url)

    async def made_up(route: Route) -> None:
        await route.fulfill(json={**await (await route.fetch()).json(), "endpoints": documents})

    await page.route("**/api/overview", made_up)
    await page.goto("/ui#/traffic")
    await expect(page.locator("section.endpoint")).to_have_count(len(documents))
    shown = await page.evaluate(FIGURES)
    assert len(shown) == len(expected) >= 60
    for section in shown:
        world, name = expected[section["name"]]
        counted = {arm: counts for (of, arm), counts in world.window.counts.items() if of == name}
        requests, drawn = sum(one.requests for one in counted.values()), 0.0
        for row in section["rows"]:
            counts = counted.get("" if row["name"] == "no deployment" else row["name"], Counts())
            assert amount(row["Requests"]) == counts.requests, section
            assert amount(row["Failed"]) == sum(counts.failures.values()), section
            assert amount(row["Refused"]) == sum(counts.refusals.values()), section
            drawn += counts.drawn if row["name"] != "no deployment" else 0
        assert amount(section["figures"][0]) == requests == sum(amount(row["Requests"]) for row in section["rows"])
        shares = [row["Observed"].split("\n")[0] for row in section["rows"] if "%" in row["Observed"]]
        assert bool(shares) == (drawn > 0)
        for row in section["rows"]:
            if "%" in row["Observed"]:
                share = float(row["Observed"].split()[0])
                assert share == pytest.approx(100 * counted.get(row["name"], Counts()).drawn / drawn, abs=0.06)
        deviation = [
            re.fullmatch(r"\W*(\w+) got ([\d.]+ %) of .* (\d+ %) is configured.*", one) for one in section["said"]
        ]
        for difference in filter(None, deviation):
            (farthest,) = [row for row in section["rows"] if row["name"] == difference[1]]
            assert (difference[2], difference[3]) == (farthest["Observed"].split("\n")[0], farthest["Configured"])
        traffic = world.config.endpoints[name].traffic
        far = [abs(counted.get(arm, Counts()).drawn / drawn - weight / 100) for arm, weight in traffic.items() if drawn]
        worst = max(far, default=0) if len(traffic) > 1 else 0
        assert any(deviation) == (worst > 0.005 and drawn > 2) or abs(worst - 0.005) < 0.0001
        failed = sum(amount(row["Failed"]) for row in section["rows"])
        assert failed == 0 or (
            "mark-bad" in section["lead"] and any(f"{failed:,} of" in one for one in section["said"])
        )
        if "mark-good" in section["lead"]:
            assert requests > 0
            assert all(amount(row["Failed"]) == amount(row["Refused"]) == 0 for row in section["rows"])
    assert await accessibility_problems(page) == []


async def test_what_fails_is_named_above_all_endpoints_and_a_wide_table_is_never_cut(
    managed: Managed, open_page: OpenPage
) -> None:
    page, _ = await open_page(managed.url, width=768)
    all_worlds: list[World] = []
    many_worlds(all_worlds)
    documents = [
        {**document, "endpoint": f"endpoint-{index}-{number}"}
        for number, world in enumerate(all_worlds)
        for index, document in enumerate(
            endpoints_document(world.config, world.window, world.present, [], deployment_colours(world.config))
        )
    ]

    async def made_up(route: Route) -> None:
        await route.fulfill(json={**await (await route.fetch()).json(), "endpoints": documents})

    await page.route("**/api/overview", made_up)
    await page.goto("/ui#/traffic")
    failing = [one["endpoint"] for one in documents if any(said["severity"] == "bad" for said in one["findings"])]
    line = page.locator(".failing")
    await expect(line).to_contain_text(f"{len(failing)} of {len(documents)} endpoints have a problem: ")
    assert await line.get_by_role("button").all_inner_texts() == failing[:8]
    cut = """() => [...document.querySelectorAll(".endpoint .scroll, .endpoint td, .endpoint th")].filter(
        (one) => one.scrollWidth > one.clientWidth + 1 && !one.closest("thead")).map((one) => one.textContent)"""
    assert await page.evaluate(cut) == []
    search = page.get_by_role("searchbox", name="Endpoint")
    await search.fill(failing[-1].upper())
    await expect(page.locator("section.endpoint")).to_have_count(1)
    await line.get_by_role("button", name=failing[0], exact=True).click()
    await expect(search).to_have_value("")
    await expect(page.get_by_role("heading", name=failing[0], exact=True)).to_be_focused()
    assert await accessibility_problems(page) == []


async def test_an_endpoint_without_a_replica_is_down(managed: Managed, open_page: OpenPage) -> None:
    app = {name: {"app": name, "model": f"{name}-model"} for name in ("blue", "green")}
    managed.deliver(deployments={**managed.config["deployments"], **app})
    managed.control.running = Replicas({"blue": {"RUNNING": 1}, "green": {"RUNNING": 1}}, {"RUNNING": 1})
    await asyncio.sleep(RUNNING_EVERY_S + 2 * PERIOD_S)  # a period in which they run: a first start is no outage
    managed.control.running = Replicas({"blue": {"STARTING": 1}}, {"RUNNING": 1})
    page = await opened(open_page, managed)
    lead = chat(page).locator(".lead .mark-bad")
    await expect(lead).to_have_text("✕chat is down: no replica runs (1 starting).")
    await expect(chat(page).locator(".findings")).to_have_text("…No request has ended in the last minute.")
    await expect(
        page.get_by_text(re.compile(r"Ray Serve listed the replicas (just now|\d+\u00a0s ago);"))
    ).to_be_visible()
    # Without any request, the charts have the outage soon.
    shaded = chat(page).locator(".shaded")
    await expect(shaded).to_have_text(
        [
            re.compile(rf"^Shaded: no replica of {name} ran since [\d:]+ .* so far\), or some seconds more\.$")
            for name in ("blue", "green")
        ]
    )
    managed.control.running = Replicas({"blue": {"RUNNING": 1}, "green": {"STARTING": 1}}, {"RUNNING": 1})
    ended = re.compile(r"o replica of blue ran ([\d:]+\u2013[\d:]+) \((\d+)\u00a0s\), or some seconds more\.")
    await expect(chat(page).locator(".findings")).to_contain_text(ended, timeout=30_000)
    await expect(shaded.first).to_have_text(ended)


async def test_a_replica_that_has_died_does_not_run_though_serve_lists_it(
    managed: Managed, open_page: OpenPage
) -> None:
    app = {name: {"app": name, "model": f"{name}-model"} for name in ("blue", "green")}
    managed.deliver(deployments={**managed.config["deployments"], **app})
    managed.control.running = Replicas(
        {"blue": {"RUNNING": 1}, "green": {"RUNNING": 3}}, {"RUNNING": 1}, ids={"blue": ["b"], "green": ["1", "2", "3"]}
    )
    page = await opened(open_page, managed)
    blue, green = (row(page, name).get_by_role("cell").last for name in ("blue", "green"))
    await expect(blue).to_have_text("✓1 replica runs")
    for deployment, engine in (("blue", "b"), ("green", "2"), ("green", "gone")):
        managed.router.state.fuse.died(deployment, engine, b"", had_tokens=True)
    await expect(blue).to_have_text("✕1 replica does not serve")
    await expect(green).to_have_text("✓2 replicas run✕1 replica does not serve")
    await expect(chat(page).locator(".lead")).to_have_text("✕blue is out of service: no replica runs (1 dead).")


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(at))


async def test_charts_show_an_outage_and_are_read_by_keyboard(managed: Managed, open_page: OpenPage) -> None:
    now = time.time()
    first = now // 60 * 60 - 600
    periods = []
    for number in range(54):  # nine minutes, in whose fourth blue has no replica
        is_down = 18 <= number < 24
        blue = ArmCounts("chat", "blue", 0 if is_down else 10, down=(0.0, PERIOD_S) if is_down else (0.0, 0.0))
        green = ArmCounts("chat", "green", 5, errors=5 if is_down else 0)
        periods.append(PeriodCounts(first + number * PERIOD_S, [], [blue, green], []))
    managed.controller.activity.board.take(ActivityReport("router", 0, [], periods), now)
    page, _ = await open_page(managed.url)
    history = await api_history(page, "1h")

    async def as_at_first(route: Route) -> None:  # the next minute's has other points
        await route.fulfill(json=history)

    await page.route("**/api/history*", as_at_first)
    await page.goto("/ui#/traffic")
    when = f"{clock(first + 180)}\u2013{clock(first + 240)} (60\u00a0s), or some seconds more"
    await expect(chat(page).locator(".shaded")).to_have_text(f"Shaded: no replica of blue ran {when}.")
    await expect(chat(page).locator(".lead")).to_have_text(f"!No replica of blue ran {when}.")
    rates = chat(page).get_by_role("slider", name="Requests per second since")
    await expect(rates.locator(".band")).to_have_count(1)
    failed = chat(page).get_by_role("slider", name="Failed requests since")
    await expect(failed.locator(".band")).to_have_count(1)
    await failed.focus()
    await page.keyboard.press("ArrowUp")
    await expect(rates).to_be_focused()
    assert await rates.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    reading = chat(page).get_by_role("figure").first.locator(".reading")
    at = history["at"]
    begin, end = f"{clock(at[0])}\u2013{clock(at[1])}", f"{clock(at[-1])}\u2013{clock(history['until'])}"
    words = {"End": end, "ArrowRight": end, "Home": begin, "ArrowLeft": begin}
    for key, said in words.items():
        await page.keyboard.press(key)
        await expect(reading).to_have_text(re.compile(f"^{said}: "))
        await expect(rates).to_have_attribute("aria-valuetext", re.compile(f"^{said}: "))
    there = at.index(first + 180)
    for _ in range(there):
        await page.keyboard.press("ArrowRight")
    outage = f"{clock(first + 180)}\u2013{clock(first + 240)}: 0.5/s; no replica of blue ran"
    await expect(reading).to_have_text(outage)
    cursor, chart = await reading.locator(".cursor").bounding_box(), await rates.bounding_box()
    assert cursor is not None
    assert chart is not None
    middle = chart["x"] + chart["width"] * (there + 0.5) / len(at)
    assert (cursor["x"], cursor["y"] + cursor["height"]) == pytest.approx((middle, chart["y"] + chart["height"]), abs=2)
    async with page.expect_response("**/api/overview"):
        pass
    await page.wait_for_timeout(200)  # the page has been drawn again
    await expect(rates).to_have_attribute("aria-valuetext", outage)
    await page.keyboard.press("Escape")
    await expect(reading).to_have_text("")
    await expect(rates).to_be_focused()
    await page.keyboard.press("ArrowRight")
    await expect(reading).to_have_text(re.compile(f"^{clock(first + 240)}\u2013{clock(first + 300)}: 1.5/s$"))
    await page.keyboard.press("Tab")
    await expect(reading).to_have_text("")
    await expect(chat(page).get_by_role("region", name="Deployments of chat")).to_be_focused()  # charts are one stop
    assert await accessibility_problems(page) == []


async def test_charts_show_when_no_router_answered(managed: Managed, open_page: OpenPage) -> None:
    """Those of an endpoint without a request, too."""
    now, board = time.time(), managed.controller.activity.board
    board.take(ActivityReport("killed", 0, [], [], served_s=60.0), now - 300)
    board.take(ActivityReport("its successor", 0, [], [], served_s=291.0), now)
    page = await opened(open_page, managed)
    when = f"{clock(now - 300)}\u2013{clock(now - 291)} (9\u00a0s), or some seconds less; requests of that time"
    when += " are counted nowhere."
    for endpoint in (chat(page), page.get_by_role("region", name="embed", exact=True)):
        await expect(endpoint.locator(".shaded")).to_have_text(f"Shaded: no router answered {when}")
        await expect(endpoint.locator(".mark-warn").first).to_have_text(f"!No router answered {when}")
        rates = endpoint.get_by_role("slider", name="Requests per second since")
        await expect(rates.locator(".band")).to_have_count(1)
        await rates.press("Home")
        await expect(rates).to_have_attribute("aria-valuetext", re.compile("no value$"))  # before the first router
        await rates.press("End")
        await expect(rates).to_have_attribute("aria-valuetext", re.compile("0/s$"))
    assert await accessibility_problems(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_an_outage_of_a_minute_is_seen_in_a_week(managed: Managed, open_page: OpenPage, scheme: str) -> None:
    """Also by whoever tells no colours: it has a mark on its top."""
    begin = time.time() // PERIOD_S * PERIOD_S - 3 * 86400
    periods = [
        PeriodCounts(begin + number * PERIOD_S, [], [ArmCounts("chat", "blue", down=(0.0, PERIOD_S))], [])
        for number in range(6)
    ]
    managed.controller.activity.board.take(ActivityReport("router", 0, [], periods), time.time())
    page, _ = await open_page(managed.url, scheme=scheme)
    await page.goto("/ui#/traffic")
    await page.get_by_label("Charts of the last").select_option("7 days")
    rates = chat(page).get_by_role("slider", name="Requests per second since")
    band, cap = [await rates.locator(part).bounding_box() for part in (".band", ".cap")]
    assert band is not None
    assert cap is not None
    assert band["width"] == cap["width"] == pytest.approx(3.0, abs=1.0)
    assert cap["height"] < band["height"] / 8
    await expect(chat(page).locator(".shaded")).to_contain_text("(60\u00a0s)")
    assert await accessibility_problems(page) == []


async def test_refused_and_unanswered_requests_are_counted(managed: Managed, open_page: OpenPage) -> None:
    managed.chat(4)
    managed.deliver(access={"limits": {"default": {"requests_per_minute": 1}}})
    managed.chat(3)
    page = await opened(open_page, managed)
    await expect(chat(page).locator(".lead")).to_contain_text("2 of 7 requests were refused: 2 over a limit.")
    nowhere = row(page, "no deployment")
    await expect(nowhere.get_by_role("cell").nth(2)).to_have_text("2")
    await expect(nowhere.get_by_role("cell").nth(4)).to_contain_text("2100 %")
    await expect(chat(page).locator(".figures")).to_contain_text("7 requests")


async def test_requests_that_reach_no_endpoint_are_counted_and_shown(managed: Managed, open_page: OpenPage) -> None:
    page, _ = await open_page(managed.url)
    await page.goto("/ui#/traffic")
    main = page.get_by_role("main")
    await expect(page.get_by_role("region", name="chat", exact=True)).to_be_visible()
    await expect(main).not_to_contain_text("reached no endpoint")
    for model in ("none", "nobody"):
        answer = await page.request.post("/v1/chat/completions", data={**CHAT, "model": model})
        assert answer.status == 404
    managed.chat(1)
    await expect(main).to_contain_text(
        re.compile(r"2 requests in the last 15 minutes reached no endpoint, the last at ")
    )
    await main.get_by_role("link", name="Show them").click()
    await expect(page.get_by_role("region", name="Requests").locator("tbody tr")).to_have_count(2)
    await expect(page.get_by_label("Endpoint", exact=True)).to_have_value("-")


async def test_without_requests_it_says_so(managed: Managed, open_page: OpenPage) -> None:
    page = await opened(open_page, managed)
    await expect(chat(page).get_by_text("No request has ended in the last minute.")).to_be_visible()
    await expect(row(page, "blue").get_by_role("cell").nth(1)).to_contain_text("no value")


async def test_errors_are_reported_first_and_in_words(managed: Managed, open_page: OpenPage) -> None:
    managed.blue.answer = managed.green.answer = refuse(500, "broken")
    managed.chat(3)
    page = await opened(open_page, managed)
    await expect(chat(page).locator(".lead")).to_contain_text(
        "3 of 3 requests failed: green: 3 got an error or half an answer."
    )


async def test_causes_are_told_apart_and_lead_to_their_messages(managed: Managed, open_page: OpenPage) -> None:
    endpoints = managed.config["endpoints"]
    admission = {"max_concurrent": 1, "max_queued": 0, "max_wait_s": 1}
    full = {**endpoints["chat"], "admission": admission, "traffic": {"blue": 100}}
    managed.deliver(endpoints={**endpoints, "chat": full})
    managed.blue.answer = streamed(0.0, 2.0)
    running = asyncio.create_task(asyncio.to_thread(managed.chat, 1, stream=True))
    await wait_until_async(lambda: len(managed.blue.requests) == 1)
    await asyncio.to_thread(managed.chat, 2)
    await running
    blocking = {**full, "content_filter": {"patterns": ["hi"]}, "admission": {**admission, "max_concurrent": 8}}
    managed.deliver(endpoints={**endpoints, "chat": blocking})
    await asyncio.to_thread(managed.chat, 1)
    page = await opened(open_page, managed)
    lead = chat(page).locator(".lead")
    await expect(lead).to_contain_text("2 of 4 requests failed: none was asked: 2 at capacity.")
    await expect(chat(page).locator(".findings")).to_contain_text(
        "1 of 4 requests was refused: 1 blocked by the content filter."
    )
    managed.deliver(endpoints={**endpoints, "chat": {**full, "admission": {**admission, "max_concurrent": 8}}})
    for status, words in ((401, "no such key"), (500, "broken")):
        managed.blue.answer = refuse(status, words)
        await asyncio.to_thread(managed.chat, 1)
    await expect(lead).to_contain_text("blue: 2 got an error or half an answer")
    await lead.get_by_role("link", name="Why?").click()
    groups = page.get_by_role("region", name="Not answered").get_by_role("listitem")
    await expect(groups.filter(has_text="503 at capacity at chat")).to_contain_text("(1 running, 0 queued)")
    failed = groups.filter(has_text="502 deployment failed at chat")
    once = "1 \N{MULTIPLICATION SIGN}"
    await expect(failed).to_contain_text(f"{once} The deployment failed while serving the request")
    await expect(failed).to_contain_text(f"{once} Deployment 'blue' rejected the router's credentials")
    await expect(page.get_by_label("Result")).to_have_value("failed")
    assert await accessibility_problems(page) == []


async def test_requests_diverted_from_a_failing_deployment_are_marked(managed: Managed, open_page: OpenPage) -> None:
    managed.blue.answer = refuse(500, "broken")
    managed.chat(10)
    page = await opened(open_page, managed)
    await expect(row(page, "green").get_by_role("cell").nth(1)).to_contain_text(re.compile(r"[1-9]\d* diverted here"))
    await expect(row(page, "blue").get_by_role("cell").nth(1)).not_to_contain_text("diverted")


async def test_breakers_stops_queues_and_replica_states_are_shown(managed: Managed, open_page: OpenPage) -> None:
    page, _ = await open_page(managed.url)

    async def troubled(route: Route) -> None:
        overview = await (await route.fetch()).json()
        (chat, *_) = overview["endpoints"]
        blue, green = chat["deployments"]
        chat["queued"] = 4
        blue |= {"breaker": "open", "in_flight": 7, "replicas": {"RUNNING": 2, "STARTING": 1, "STOPPING": 1}}
        green |= {"stopped": True, "in_flight": 1, "replicas": {"PENDING_MIGRATION": 1}}
        await route.fulfill(json=overview)

    await page.route("**/api/overview", troubled)
    await page.goto("/ui#/traffic")
    await expect(chat(page).locator(".figures")).to_contain_text("4 queued for admission")
    await expect(row(page, "blue").get_by_role("cell").nth(8)).to_have_text("7")
    state = row(page, "blue").get_by_role("cell").last
    await expect(state.locator(".mark-bad")).to_contain_text(["breaker open", "2 replicas do not serve"])
    await expect(state.locator(".mark-wait")).to_contain_text(["1 starting", "1 stopping"])
    state = row(page, "green").get_by_role("cell").last
    await expect(state.locator(".mark-bad")).to_contain_text(["stopped", "0 replicas run"])
    await expect(state.locator(".mark-wait")).to_contain_text("1 pending migration")
    assert await overflow(page) <= 0
    assert await accessibility_problems(page) == []


async def test_a_slider_takes_from_the_others_and_a_change_needs_a_reason(
    managed: Managed, open_page: OpenPage
) -> None:
    managed.chat(60, stream=True)
    page = await opened(open_page, managed)
    await chat(page).get_by_role("button", name="Change the split").click()
    await page.get_by_role("slider", name="green").fill("25")
    await expect(page.get_by_role("slider", name="blue")).to_have_value("75")
    await expect(page.get_by_text("Sum: 100 %")).to_be_visible()
    moves = page.get_by_role("region", name="Change the split of chat")
    await expect(moves.get_by_text("rises from 10 % to 25 %")).to_be_visible()
    await expect(moves.get_by_text("of all keys get another deployment")).to_be_visible()
    await expect(moves.get_by_text("Of the 60 keys that this router saw recently")).to_be_visible()
    change = moves.get_by_role("button", name="Change the split")
    await expect(change).to_be_disabled()
    assert managed.weights() == {"blue": 90, "green": 10}
    await screenshot(page, "console-change")
    await page.get_by_label("Why?").fill("green is faster")
    await change.click()
    await expect(page.get_by_role("main").get_by_text("The split of chat is changed.")).to_be_visible()
    assert managed.weights() == {"blue": 75, "green": 25}
    plan = managed.control.config["endpoints"]["chat"]["plan"]
    assert (plan["reason"], plan.get("expires")) == ("green is faster", None)
    await expect(row(page, "green").get_by_role("cell").nth(0)).to_have_text("25 %")


async def test_the_editor_keeps_its_focus_during_redraws(managed: Managed, open_page: OpenPage) -> None:
    page = await opened(open_page, managed)
    await chat(page).get_by_role("button", name="Change the split").click()
    slider = page.get_by_role("slider", name="green")
    await slider.focus()
    for _ in range(5):
        await page.keyboard.press("ArrowRight")
    async with page.expect_response("**/api/overview"):
        pass
    await page.evaluate("new Promise((resolve) => requestAnimationFrame(resolve))")
    await expect(slider).to_be_focused()
    await page.keyboard.press("ArrowRight")
    await expect(slider).to_have_value("16")
    await expect(page.get_by_role("slider", name="blue")).to_have_value("84")


async def test_a_plan_made_by_someone_else_meanwhile_is_shown(managed: Managed, open_page: OpenPage) -> None:
    page, _ = await open_page(managed.url)
    await page.goto("/ui#/traffic")
    await chat(page).get_by_role("button", name="Change the split").click()
    await expect(page.get_by_role("slider", name="green")).to_have_value("10")
    managed.put({"blue": 80, "green": 20}, "before anything is edited")
    await expect(page.get_by_role("slider", name="green")).to_have_value("20")
    await page.get_by_role("slider", name="green").fill("25")
    await expect(page.get_by_text("rises from 20 % to 25 %")).to_be_visible()
    await page.get_by_label("Why?").fill("mine")
    managed.put({"blue": 30, "green": 70}, "somebody else's")
    await expect(page.get_by_text("The plan was changed while you were editing.")).to_be_visible()
    editor = page.get_by_role("region", name="Change the split of chat")
    await expect(editor.get_by_role("button", name="Change the split")).to_be_disabled()
    await expect(page.get_by_text("(somebody else's): blue 30 %, green 70 %.")).to_be_visible()
    assert managed.weights() == {"blue": 30, "green": 70}
    await page.get_by_role("button", name="Start over from it").click()
    await expect(page.get_by_role("slider", name="green")).to_have_value("70")


async def test_the_plan_of_a_file_that_came_meanwhile_has_its_number_in_the_history(
    managed: Managed, open_page: OpenPage
) -> None:
    managed.put({"blue": 50, "green": 50}, "the first change")
    page, _ = await open_page(managed.url)
    await page.goto("/ui#/traffic")
    await chat(page).get_by_role("button", name="Change the split").click()
    await page.get_by_role("slider", name="green").fill("25")
    await expect(page.get_by_text("falls from 50 % to 25 %")).to_be_visible()
    endpoints = managed.config["endpoints"]
    managed.deliver(endpoints={**endpoints, "chat": {**endpoints["chat"], "traffic": {"blue": 70, "green": 30}}})
    editor = page.get_by_role("region", name="Change the split of chat")
    await expect(editor).to_contain_text("The current plan is generation 2, from a file: blue 70 %, green 30 %.")
    history = await (await page.request.get("/api/endpoints/chat/traffic/history")).json()
    assert [plan["generation"] for plan in history["plans"]] == [2, 1, 0]


async def test_the_rollback_button_ends_in_a_plan(managed: Managed, open_page: OpenPage) -> None:
    managed.put({"blue": 80, "green": 20}, "first step")
    managed.put({"blue": 20, "green": 80}, "a mistake")
    page = await opened(open_page, managed)
    await chat(page).get_by_role("button", name="Plans and rollback").click()
    await expect(page.get_by_text("Changed: blue 80 → 20 %, green 20 → 80 %")).to_be_visible()
    await page.get_by_role("button", name="Roll back to this: generation 1").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_text("rises from 20 % to 80 %")).to_be_visible()
    await dialog.get_by_role("button", name="Roll back").click()
    assert managed.weights() == {"blue": 20, "green": 80}, "a reason is needed"
    await dialog.get_by_label("Why?").fill("it was slower")
    await dialog.get_by_role("button", name="Roll back").click()
    await expect(page.get_by_role("main").get_by_text("chat is back at the weights of generation 1.")).to_be_visible()
    assert managed.weights() == {"blue": 80, "green": 20}
    assert managed.control.config["endpoints"]["chat"]["plan"]["reason"] == "it was slower"


async def test_a_key_is_explained(managed: Managed, open_page: OpenPage) -> None:
    page = await opened(open_page, managed)
    await chat(page).get_by_role("button", name="Explain a key").click()
    await page.get_by_label("A user").fill(HOSTILE)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("main").get_by_text("has the highest score for this key")).to_be_visible()
    assert await page.title() == "Traffic · Switchyard"


async def test_the_split_is_changed_by_keyboard_alone(managed: Managed, open_page: OpenPage) -> None:
    page = await opened(open_page, managed)
    await chat(page).get_by_role("button", name="Change the split").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("slider", name="blue")).to_be_focused()
    for _ in range(4):
        await page.keyboard.press("ArrowLeft")
    await expect(page.get_by_text("rises from 10 % to 14 %")).to_be_visible()
    await page.get_by_label("Why?").focus()
    await page.keyboard.type("by keyboard")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("main").get_by_text("The split of chat is changed.")).to_be_visible()
    assert managed.weights() == {"blue": 86, "green": 14}


async def test_callers_who_are_no_managers_get_no_buttons_to_change_traffic(
    managed: Managed, open_page: OpenPage
) -> None:
    keys = managed.guard()
    page, watch = await open_page(managed.url)
    watch.expected.append("401")
    await page.goto("/ui#/traffic")
    await sign_in(page, keys["chat team"])
    await expect(page.get_by_text("Managers and operators change traffic; your key only shows it.")).to_be_visible()
    await expect(page.get_by_role("heading", level=2)).to_have_text(["chat"])
    await expect(page.get_by_role("button", name="Change the split")).to_have_count(0)
    await chat(page).get_by_role("button", name="Plans and rollback").click()
    await expect(page.get_by_text("in force")).to_be_visible()
    await expect(page.get_by_role("button", name="Roll back")).to_have_count(0)


async def test_an_operator_gets_the_buttons_of_its_endpoints(managed: Managed, open_page: OpenPage) -> None:
    keys = managed.guard()
    managed.deliver(access={**managed.config["access"], "operators": {"chat": ["chat and embed"]}})
    page, watch = await open_page(managed.url)
    watch.expected.append("401")
    await page.goto("/ui#/traffic")
    await sign_in(page, keys["chat and embed"])
    await expect(chat(page).get_by_role("button", name="Change the split")).to_be_visible()
    await expect(page.get_by_role("button", name="Change the split")).to_have_count(1)
    embed = page.get_by_role("region", name="embed")
    await expect(embed.get_by_text("Only managers and its operators change its traffic.")).to_be_visible()


async def test_a_router_that_reads_a_file_says_so(rig: Rig, open_page: OpenPage) -> None:
    page, _ = await open_page(rig.url)
    await page.goto("/ui#/traffic")
    await expect(page.get_by_text("This router reads its traffic from its configuration file")).to_be_visible()


async def test_hostile_texts_stay_text(managed: Managed, open_page: OpenPage) -> None:
    deployments = managed.config["deployments"]
    managed.deliver(deployments={**deployments, "blue": {**deployments["blue"], "model": HOSTILE}})
    managed.put({"blue": 50, "green": 50}, HOSTILE)
    page = await opened(open_page, managed)
    await expect(row(page, "blue")).to_contain_text(HOSTILE)
    await chat(page).get_by_role("button", name="Plans and rollback").click()
    await expect(page.get_by_text(HOSTILE).last).to_be_visible()
    assert await page.locator("main img").count() == 0
    assert await page.title() == "Traffic · Switchyard"


async def test_without_the_server_the_page_keeps_its_last_data(managed: Managed, open_page: OpenPage) -> None:
    page, watch = await open_page(managed.url)
    watch.expected.append("Failed to load resource")
    await page.goto("/ui#/traffic")
    await expect(page.get_by_role("heading", level=2, name="chat")).to_be_visible()
    await page.route("**/api/overview", lambda route: route.abort())
    await expect(page.get_by_text("The server cannot be reached")).to_be_visible()
    await expect(page.get_by_text("The data on this page is from")).to_be_visible()
    await expect(page.get_by_role("heading", level=2, name="chat")).to_be_visible()
    await page.unroute("**/api/overview")
    await expect(page.get_by_text("The data on this page is from")).to_have_count(0)


async def test_the_copies_of_a_mirror_are_shown(managed: Managed, open_page: OpenPage) -> None:
    endpoints = managed.config["endpoints"]
    mirror = {"deployment": "green", "percent": 100}
    chat_endpoint = {**endpoints["chat"], "traffic": {"blue": 100}, "mirror": mirror}
    managed.deliver(endpoints={**endpoints, "chat": chat_endpoint})
    managed.chat(3)
    page = await opened(open_page, managed)
    line = chat(page).get_by_text("% to green")
    await expect(line).to_have_text(re.compile(r"^•Mirror: 100\s% to green: 3 copies since [\d:]+\.$"))
    await expect(row(page, "green")).to_contain_text("gets copies, which no figure here counts")
    await expect(row(page, "green").get_by_role("cell").last).to_have_text("•only copies of late")
    await expect(row(page, "blue")).not_to_contain_text("copies")
    assert await accessibility_problems(page) == []
    managed.green.answer = refuse(500, "broken")
    managed.chat(1)
    await expect(line).to_have_text(re.compile(r"4 copies since [\d:]+; 1 failed: 1 \w+"), timeout=30_000)


async def test_charts_that_do_not_update_say_so(managed: Managed, open_page: OpenPage) -> None:
    page, watch = await open_page(managed.url)
    watch.expected.append("Failed to load resource")
    await page.goto("/ui#/traffic")
    await expect(chat(page).get_by_text("No request has ended in the charts' time.")).to_be_visible()
    main = page.get_by_role("main")
    await page.route("**/api/history*", lambda route: route.abort())
    old = re.compile(r"The charts are as of [\d:]+\. The server cannot be reached\. This page asks again by itself\.")
    await expect(main).to_contain_text(old)
    await expect(main).not_to_contain_text("The data on this page is from")
    await page.unroute("**/api/history*")
    await expect(main).not_to_contain_text("The charts are as of")
    await page.route("**/api/requests?*", lambda route: route.fulfill(status=500, json={}))
    await expect(main).to_contain_text(
        re.compile(r"The requests that reached no endpoint are as of [\d:]+\. The server answered 500\.")
    )
    assert await accessibility_problems(page) == []


async def test_without_the_controller_plans_are_unknown_and_traffic_can_be_changed(
    managed: Managed, open_page: OpenPage
) -> None:
    managed.controller.absent = True
    page, watch = await open_page(managed.url)
    watch.expected.append("503")
    await page.goto("/ui#/traffic")
    await chat(page).get_by_role("button", name="Plans and rollback").click()
    await expect(
        page.get_by_role("main").get_by_text("The controller of experiments cannot be reached")
    ).to_be_visible()
    await chat(page).get_by_role("button", name="Change the split").click()
    await page.get_by_role("slider", name="green").fill("30")
    await page.get_by_label("Why?").fill("it is away")
    await (
        page.get_by_role("region", name="Change the split of chat")
        .get_by_role("button", name="Change the split")
        .click()
    )
    await expect(page.get_by_role("main").get_by_text("The split of chat is changed.")).to_be_visible()
    assert managed.weights() == {"blue": 70, "green": 30}


async def test_an_unavailable_control_plane_is_reported_and_nothing_changes(
    managed: Managed, open_page: OpenPage
) -> None:
    page, watch = await open_page(managed.url)
    watch.expected.append("503")
    await page.goto("/ui#/traffic")
    await chat(page).get_by_role("button", name="Change the split").click()
    await expect(page.get_by_role("slider", name="green")).to_be_visible()
    managed.control.failure = Unavailable("The Serve controller is not available")
    await page.get_by_role("slider", name="green").fill("30")
    region = page.get_by_role("region", name="Change the split of chat")
    await expect(region.get_by_role("alert")).to_have_text("The Serve controller is not available")
    await expect(region.get_by_role("button", name="Change the split")).to_be_disabled()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_phone_shows_everything_without_horizontal_scrolling(
    managed: Managed, open_page: OpenPage, scheme: str
) -> None:
    managed.put({"blue": 60, "green": 40}, "half-way")
    managed.chat(20, stream=True)
    page = await opened(open_page, managed, width=360, scheme=scheme)
    await chat(page).get_by_role("button", name="Change the split").click()
    await expect(page.get_by_role("slider", name="green")).to_be_visible()
    assert await overflow(page) <= 0
    assert await accessibility_problems(page) == []
    await chat(page).get_by_role("button", name="Plans and rollback").click()
    await expect(page.get_by_text("in force")).to_be_visible()
    assert await overflow(page) <= 0
    if scheme == "light":
        await page.evaluate("scrollTo(0, 0)")
        await screenshot(page, "console-traffic-360", whole=False)


async def api_history(page: Page, range: str) -> dict[str, Any]:
    history: dict[str, Any] = await (await page.request.get(f"/api/history?range={range}")).json()
    assert history["at"][-1] < history["until"] <= history["at"][-1] + history["step_s"]
    return history


async def test_a_server_at_a_url_is_in_service_once_it_has_answered(managed: Managed, open_page: OpenPage) -> None:
    managed.put({"blue": 100, "green": 0}, "one alone")
    page = await opened(open_page, managed)
    for name in ("blue", "green"):
        await expect(row(page, name).get_by_role("cell").last).to_have_text("…not called yetby this router")
    managed.chat(1)
    await expect(row(page, "blue").get_by_role("cell").last).to_have_text("✓in service")
    await expect(row(page, "green").get_by_role("cell").last).to_have_text("…not called yetby this router")
    managed.green.answer = refuse(500, "broken")
    await page.request.post("/v1/chat/completions", data={**CHAT, "model": "green"})
    await expect(row(page, "green").get_by_role("cell").last).to_have_text("✕answers nothing")


async def test_the_charts_time_is_in_the_address_and_stays_while_pages_change(
    managed: Managed, open_page: OpenPage
) -> None:
    page = await opened(open_page, managed)
    await page.get_by_label("Charts of the last").select_option("24 hours")
    await page.get_by_role("link", name="Models").click()
    await page.get_by_role("link", name="Traffic").click()
    await expect(page.get_by_label("Charts of the last")).to_have_value("24h")
    await page.get_by_label("Charts of the last").select_option("7 days")
    assert page.url.endswith("#/traffic?range=7d")
    await page.reload()
    await expect(page.get_by_label("Charts of the last")).to_have_value("7d")


@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("console-history", 1280, "light"), ("console-history-390", 390, "dark")]
)
async def test_the_chosen_time_is_drawn_for_each_endpoint(
    open_page: OpenPage, managed: Managed, name: str, width: int, scheme: str
) -> None:
    managed.deliver(console={"grafana_url": "https://grafana.example.com/d/router"})
    now = time.time()
    bounds = [0.05, 0.1, 0.5, math.inf]
    outage = range(9000, 8100, -10)
    periods = [
        PeriodCounts(
            (now - ago) // PERIOD_S * PERIOD_S,
            bounds,
            [
                ArmCounts(
                    "chat",
                    "blue",
                    40,
                    errors=6 if ago == 1800 else 0,
                    lost=2 if ago == 1800 else 0,
                    output_tokens=900,
                    first_token={0: 30, 1: 8},
                ),
                *[ArmCounts("chat", "green", 4 + ago // 900, output_tokens=80, first_token={1: 3, 2: 1})]
                * (ago not in outage),
            ],
            [],
        )
        for ago in range(6 * 3600, 600, -60)
    ]
    managed.controller.activity.board.take(ActivityReport("router", 0, [], periods), now)
    without = [ArmCounts("chat", "green", down=(0.0, PERIOD_S))]
    seen = [PeriodCounts((now - ago) // PERIOD_S * PERIOD_S, [], without, []) for ago in outage]
    managed.controller.activity.board.take(ActivityReport("another router", 0, [], seen), now)
    page, _ = await open_page(managed.url, width=width, scheme=scheme)
    await page.goto("/ui#/traffic")
    chat = page.get_by_role("region", name="chat", exact=True)
    await expect(chat.get_by_role("slider", name="Failed requests since")).to_have_attribute(
        "aria-label", re.compile(": 6$")
    )
    until = (now - SETTLED_S) // PERIOD_S * PERIOD_S
    said = page.get_by_text(re.compile(r"until (\d+ \w+, )?[\d:]+, counted by all routers"))
    await expect(said).to_be_visible()
    assert await said.inner_text() >= f"until {clock(until)}"
    times = chat.get_by_role("figure").first.locator(".times span")
    await expect(times.last).to_have_text(re.compile(r"^\d\d:\d\d$|\n"))
    minutes = [label[3:5] for label in await times.all_inner_texts()]
    assert 3 <= len(minutes) <= 4
    assert set(minutes) <= {"00", "15", "30", "45"}
    await page.get_by_label("Charts of the last").select_option("6 hours")
    await expect(chat).to_contain_text("First token p95, green")
    await expect(chat.locator(".lead, .findings").filter(has_text="green ran")).to_have_count(0)  # that is over
    await expect(chat.get_by_role("slider", name=re.compile("Requests per second since .*, at most "))).to_be_visible()
    await expect(chat.get_by_role("figure")).to_have_count(6)
    await expect(chat.locator(".shaded")).to_have_text(
        re.compile(r"^Shaded: no replica of green ran (\d+ \w+, )?[\d:]+\u2013(\d+ \w+, )?[\d:]+ \(15\u00a0min\)\.$")
    )
    deaths = chat.get_by_role("figure").filter(has_text="Streams whose engine died")
    await expect(deaths).to_contain_text("2 in all")
    heights = await deaths.locator(".column").evaluate_all("bars => bars.map((bar) => bar.getAttribute('height'))")
    (at,) = [place for place, height in enumerate(heights) if height != "0"]
    picture = deaths.get_by_role("slider")
    width_px = ((await picture.bounding_box()) or {"width": 0.0})["width"]
    await picture.hover(position={"x": width_px * (at + 0.5) / len(heights), "y": 5})
    when = (await api_history(page, "6h"))["at"][at]
    await expect(deaths.locator(".reading")).to_have_text(f"{clock(when)}\u2013{clock(when + 180)}: 2")
    await page.get_by_role("heading").first.hover()
    await expect(deaths.locator(".reading")).to_have_text("")
    await picture.hover(position={"x": 60, "y": 5})
    await page.wait_for_timeout(5000)  # the page has been drawn again
    await expect(deaths.locator(".reading")).not_to_have_text("", timeout=1000)
    link = page.get_by_role("link", name="Grafana")
    await expect(link).to_have_attribute("href", "https://grafana.example.com/d/router")
    assert await overflow(page) == 0
    assert await accessibility_problems(page) == []
    await screenshot(page, name, whole=width < 1280)
    await page.get_by_label("Charts of the last").select_option("15 minutes")
    await expect(chat.get_by_role("slider", name="Failed requests since")).to_have_attribute(
        "aria-label", re.compile(": 0$")
    )
    values = chat.get_by_role("figure").filter(has_text="Failed").locator(".values span")
    await expect(values).to_have_text(["", "0"])  # an axis without a height
