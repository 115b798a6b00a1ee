"""The pages Experiments and Experiment: the verdict in words first, then the evidence for it."""

import asyncio
import time
from typing import Any

import httpx
import msgspec
import pytest
from playwright.async_api import Page, Route, expect

from app.errors import Conflict
from app.experiments.contract.journal import JournalEntry
from app.experiments.contract.report import ArmDistribution, AutomationStatus, Cause, Decision, Effect
from tests.router.conftest import Rig
from tests.router.console.conftest import CHAT, Managed, OpenPage
from tests.router.console.test_playground import HeldStream
from tests.support.clients.browser import HIDEABLE, PATIENCE_MS, accessibility_problems, overflow, screenshot
from tests.support.experiments.compared_router import LOOKS, SHOWN, Compared
from tests.support.experiments.reports import INVALID, NOW, START
from tests.support.experiments.rig import BLUE, GREEN
from tests.support.waiting import wait_until_async

HOSTILE = "<img src=x onerror=document.title='broken'>"
EXPERIMENT = "/ui#/experiments/green-float32"


async def opened(open_page: OpenPage, compared: Compared, path: str = EXPERIMENT, **size: Any) -> Page:
    page, _ = await open_page(compared.url, **size)
    await page.goto(path)
    return page


async def test_the_list_has_each_experiment_with_its_verdict_in_words(compared: Compared, open_page: OpenPage) -> None:
    page = await opened(open_page, compared, "/ui#/experiments", height=480)
    line = page.get_by_role("row").filter(has_text="green-float32")
    await expect(line).to_contain_text("Ship it")
    await expect(line).to_contain_text("smollm2-green is better than smollm2-blue.")
    await expect(line).to_contain_text(
        "\N{MINUS SIGN}7.7 %, between \N{MINUS SIGN}13.4 % and \N{MINUS SIGN}1.7 %; lower is better; "
        "±5 % or less does not matter"
    )
    await expect(line).to_contain_text("2,402")
    await expect(line).to_contain_text("no alarm")
    await expect(line).to_contain_text("50 % on treatments, next 100 %")
    await expect(page.get_by_role("row").filter(has_text="int8-weights")).to_contain_text("no ramp")
    await expect(page.get_by_role("row").filter(has_text="draft")).to_contain_text("no evidence, draft.")
    await expect(page.get_by_text("4 experiments, 3 running.")).to_be_visible()
    assert await accessibility_problems(page) == []
    await screenshot(page, "console-experiments")


async def test_parts_of_the_page_that_do_not_update_say_so(compared: Compared, open_page: OpenPage) -> None:
    page, watch = await open_page(compared.url)
    watch.expected = ["Failed to load resource"]
    await page.route("**/api/events*", lambda route: route.abort())
    await page.route("**/traffic/history", lambda route: route.fulfill(status=500, json={}))
    await page.goto("/ui#/experiments/green-float32")
    main = page.get_by_role("main")
    await expect(main).to_contain_text("The events cannot be shown. The server cannot be reached.")
    await expect(main).to_contain_text("your rights, cannot be shown. The server answered 500.", timeout=30_000)
    await page.unroute("**/api/events*")
    await page.unroute("**/traffic/history")
    await expect(main).not_to_contain_text("cannot be shown", timeout=30_000)
    assert await accessibility_problems(page) == []


async def test_bars_show_the_intervals_on_an_axis_around_zero(compared: Compared, open_page: OpenPage) -> None:
    page = await opened(open_page, compared, "/ui#/experiments")
    await expect(page.locator(".sequence")).to_have_count(3)
    places = await page.evaluate("""() => [...document.querySelector(".track").children].map((it) => {
        const track = it.parentElement.getBoundingClientRect(), own = it.getBoundingClientRect();
        const part = (at) => (at - track.left) / track.width;
        return [it.className.split(" ")[0], part(own.left), part(own.right)];
    })""")
    bars = {name: (left, right) for name, left, right in places}
    # The axis reaches from -20 % to 20 %, the round number above the widest bound.
    assert bars["sequence"] == pytest.approx((0.5 - 0.134 / 0.4, 0.5 - 0.0166 / 0.4), abs=0.01)
    assert bars["minimal"] == pytest.approx((0.5 - 0.05 / 0.4, 0.5 + 0.05 / 0.4), abs=0.01)
    assert bars["zero"][0] == pytest.approx(0.5, abs=0.01)


async def test_the_page_starts_with_the_verdict_and_the_next_step(compared: Compared, open_page: OpenPage) -> None:
    page = await opened(open_page, compared)
    await expect(page.locator(".verdict")).to_have_text(SHOWN.headline)
    await expect(page.get_by_text(SHOWN.next)).to_be_visible()
    await expect(page.get_by_text("Treatments have 50 % of the traffic; the next step is 100 %.")).to_be_visible()
    await expect(page.get_by_text("96 looks from")).to_contain_text("The traffic changed 3 times (dashed lines).")
    metric = page.get_by_role("region", name="Metrics").get_by_role("row").filter(has_text="thumbs")
    await expect(metric).to_contain_text("no difference that matters")
    await expect(metric).to_contain_text("71.2 %")
    guardrail = page.get_by_role("region", name="Guardrails").get_by_role("row").filter(has_text="error")
    await expect(guardrail).to_contain_text("2.9 times control's rate")
    await expect(page.get_by_text("counts the units with the event, each unit once")).to_be_visible()
    counted = page.locator(".counted").get_by_role("listitem")
    events = ["error", "slow", "empty", "unfinished", "stalled"]
    shown = page.get_by_role("region", name="Guardrails").get_by_role("rowheader")
    assert await counted.locator("b").all_inner_texts() == await shown.all_inner_texts()
    assert set(await shown.all_inner_texts()) <= set(events)
    await expect(counted.filter(has_text="stalled")).to_have_text("stalled counts streams, without priority.")
    await expect(page.get_by_text("As configured: the unit counts match the weights.")).to_be_visible()
    await expect(page.locator(".events li").first).to_contain_text("Plan 3")
    assert await accessibility_problems(page) == []
    await page.evaluate("document.fonts.ready")
    await screenshot(page, "console-experiment")


async def test_the_traffic_of_a_ramp_is_drawn_as_shares_with_their_names(
    compared: Compared, open_page: OpenPage
) -> None:
    """A bar that fills looks like progress, and the treatment's share is none."""
    page = await opened(open_page, compared)
    bar = page.locator(".ramp .split")
    await expect(bar.locator("> span")).to_have_text("Traffic")
    await expect(bar.locator(".part")).to_have_text([f"{BLUE} 50 %", f"{GREEN} 50 %"])
    await page.goto("/ui#/experiments/long-context")
    await expect(page.get_by_text("Treatments have 5 % of the traffic; the next step is 25 %.")).to_be_visible()
    await expect(bar.locator(".part")).to_have_text(["qwen-32k 95 %", ""])


async def test_a_deployment_has_one_colour_on_every_page(compared: Compared, open_page: OpenPage) -> None:
    compared.config["endpoints"]["assistant"]["traffic"] = {GREEN: 1, BLUE: 99}
    compared.router.reconfigure(compared.config)
    page = await opened(open_page, compared, "/ui#/traffic")

    async def colours() -> set[tuple[str, str]]:
        found: list[tuple[str, str]] = await page.evaluate("""() => [...document.querySelectorAll("th .swatch")].map(
            (swatch) => [swatch.nextSibling.textContent, swatch.className])""")
        return {(name, colour) for name, colour in found}

    await expect(page.get_by_role("region", name="documents", exact=True)).to_be_visible()
    on_traffic = await colours()
    names = {name for name, _ in on_traffic}
    assert len(names) == len(on_traffic) == 6
    for name in ("green-float32", "int8-weights", "long-context"):
        await page.goto(f"/ui#/experiments/{name}")
        await expect(page.get_by_role("heading", level=1)).to_have_text(name)
        await expect(page.get_by_role("table", name="Units by plan")).to_be_visible()
        assert len(arms := await colours()) == 2
        assert arms <= on_traffic


async def test_what_stands_beside_a_running_experiment_adds_up_and_is_the_apis(
    managed: Managed, open_page: OpenPage
) -> None:
    """Each request that is drawn counts, runs, or has ended and waits for an earlier one: the sentences say so."""
    chat = {name: value for name, value in managed.config["endpoints"]["chat"].items() if name != "sticky"}
    managed.deliver(endpoints={**managed.config["endpoints"], "chat": chat}, experiments={"colours": RUNNING})
    page, _ = await open_page(managed.url)
    held = HeldStream("Hel", "lo")
    usual = managed.blue.answer
    path = "/api/experiments/colours/report"

    async def report() -> dict[str, Any]:
        answer = await page.request.get(path)
        reported: dict[str, Any] = await answer.json() if answer.ok else {"requests": {}, "running": {}, "units": {}}
        return reported

    async def has(ended: int, running: int, waiting: int) -> bool:
        reported = await report()
        counts = sum(reported["requests"].values()), sum(reported["running"].values()), reported.get("waiting", 0)
        return counts == (ended, running, waiting)

    await asyncio.to_thread(managed.chat, 3, stream=True)
    await wait_until_async(lambda: has(3, 0, 0), report)
    managed.blue.answer = managed.green.answer = held
    body = {**CHAT, "stream": True}
    first = asyncio.create_task(page.request.post("/v1/chat/completions", data=body, timeout=PATIENCE_MS))
    await wait_until_async(lambda: has(3, 1, 0), report)
    managed.blue.answer = managed.green.answer = usual
    await asyncio.to_thread(managed.chat, 5, stream=True)
    await wait_until_async(lambda: has(3, 1, 5), report)
    shown = await report()
    assert sum(shown["units"].values()) == 3 + 1 + 5
    await page.goto("/ui#/experiments/colours")
    said = "3 of them counted (1 more has not ended, 5 wait for an earlier one)"
    assert said in shown["details"][-1]
    await expect(page.get_by_text(said)).to_be_visible()
    units = [
        f"{count} requests on {arm}" if arm == "blue" else f"{count} on {arm}" for arm, count in shown["units"].items()
    ]
    await expect(page.get_by_text(said)).to_contain_text(", ".join(units))
    split = page.get_by_text("3 requests counted since")
    await expect(split).to_contain_text("; 1 more has not ended and 5 wait for an earlier one. Forced by clients")
    await page.goto("/ui#/experiments")
    line = page.get_by_role("row").filter(has_text="colours")
    await expect(line.get_by_role("cell").nth(2)).to_have_text(str(sum(shown["units"].values())))
    held.go.set()
    await first
    await wait_until_async(lambda: has(9, 0, 0), report)
    await page.goto("/ui#/experiments/colours")
    await expect(page.get_by_text("9 requests counted since")).not_to_contain_text("earlier")


RUNNING = {
    "endpoint": "chat",
    "control": "blue",
    "treatments": ["green"],
    "state": "running",
    "primary": [{"metric": "ttft", "minimal_effect": 0.1}],
}


async def test_a_line_marks_since_when_the_verdict_holds(compared: Compared, open_page: OpenPage) -> None:
    page = await opened(open_page, compared)
    latched = page.locator(".plot .latched")
    await expect(latched).to_have_text("better")
    (primary,) = SHOWN.primary
    first = START + (NOW - START) / LOOKS
    assert primary.since is not None
    place = float((await latched.evaluate("(it) => it.style.left")).removesuffix("%"))
    assert place == pytest.approx(100 * (primary.since - first) / (NOW - first), abs=0.5)
    caption = page.locator("figcaption").first
    await expect(caption).to_contain_text("The verdict “better” has held since 13 Nov 2025, 01:17:39 (solid line).")
    await page.get_by_label("Metric", exact=True).select_option(label=f"First token, p95, {GREEN}")
    await expect(latched).to_be_hidden()
    await expect(caption).not_to_contain_text("has held since")


async def test_the_chart_draws_the_history(compared: Compared, open_page: OpenPage) -> None:
    page = await opened(open_page, compared)
    await expect(page.locator(".plot canvas")).to_be_visible()
    inked = await page.evaluate("""() => {
        const canvas = document.querySelector(".plot canvas");
        const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        let count = 0;
        for (let at = 3; at < pixels.length; at += 4) count += pixels[at] > 0;
        return count / (pixels.length / 4);
    }""")
    assert inked > 0.15, "the bands fill a good part of it"
    await page.locator(".u-over").hover()
    await expect(page.locator(".readout")).to_contain_text("between")
    chart = page.get_by_role("slider", name="The effect over time")
    await page.get_by_role("heading", level=1).hover()
    await chart.focus()
    said = []
    for key in ("Home", "ArrowLeft", "ArrowRight", "End", "ArrowRight", "ArrowLeft"):
        await page.keyboard.press(key)
        said.append(await chart.get_attribute("aria-valuetext"))
        await expect(page.locator(".readout")).to_have_text(said[-1] or "nothing")
    assert said[0] == said[1] != said[2], "there is none before the first look"
    assert said[3] == said[4] != said[5]
    assert await chart.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    await page.keyboard.press("Escape")
    await expect(page.locator(".readout")).to_be_empty()
    assert await accessibility_problems(page) == []
    await page.get_by_label("Metric", exact=True).select_option(label=f"thumbs, {GREEN}")
    await expect(page.get_by_text("higher is better").first).to_be_visible()


async def test_the_chart_draws_in_a_browser_whose_language_no_library_knows(
    compared: Compared, open_page: OpenPage
) -> None:
    page, _ = await open_page(compared.url)
    await page.add_init_script("Object.defineProperty(Navigator.prototype, 'language', { get: () => 'en-US@posix' })")
    await page.goto(EXPERIMENT)
    await expect(page.locator(".plot canvas")).to_be_visible()


async def test_distributions_are_drawn_and_described_in_words(compared: Compared, open_page: OpenPage) -> None:
    page = await opened(open_page, compared)
    section = page.get_by_role("region", name="Distributions")
    await expect(section.get_by_role("heading", level=3)).to_have_text(
        ["First token", "Between tokens", "Duration", "Output tokens"]
    )
    first = section.locator("figure").first
    await expect(first.locator(".line")).to_have_text(
        [
            f"{BLUE}: the median of 19,424 requests is 312 ms, their 95th percentile 1.37 s.",
            f"{GREEN}: the median of 12,446 requests is 288 ms, their 95th percentile 1.27 s.",
        ]
    )
    # The p50 and p95 of both arms lie on the same heights, and what is faster lies to the left.
    dots = await first.locator("circle").evaluate_all(
        "(all) => all.map((it) => [it.cx.baseVal.value, it.cy.baseVal.value])"
    )
    (blue_half, blue_most), (green_half, green_most) = dots[:2], dots[2:]
    assert blue_half[1] == green_half[1] > blue_most[1] == green_most[1]
    assert green_half[0] < blue_half[0] < green_most[0] < blue_most[0]
    # Lognormal curves with one spread are one curve, moved by the logarithm of the medians' ratio.
    assert blue_half[0] - green_half[0] == pytest.approx(blue_most[0] - green_most[0], abs=0.5)
    points = await first.locator("polyline").evaluate_all("(all) => all.map((it) => it.points.length)")
    assert points == [23, 23]


async def test_an_arm_with_few_requests_has_no_curve(compared: Compared, open_page: OpenPage) -> None:
    silent = ArmDistribution(arm=GREEN, requests=0, values=[])
    (first, *_) = SHOWN.distributions
    unseen = msgspec.structs.replace(first, metric="itl", arms=[silent])
    zeros = msgspec.structs.replace(
        first, metric="output_tokens", arms=[ArmDistribution(arm=BLUE, requests=30, values=[0.0] * 23)]
    )
    few = msgspec.structs.replace(first.arms[1], requests=19)
    some = msgspec.structs.replace(first, arms=[first.arms[0], few])
    compared.report(msgspec.structs.replace(SHOWN, distributions=[some, unseen, zeros]))
    page = await opened(open_page, compared)
    figures = page.get_by_role("region", name="Distributions").locator("figure")
    await expect(figures).to_have_count(3)
    await expect(figures.nth(0).locator("polyline")).to_have_count(1)
    await expect(figures.nth(0)).to_contain_text(f"{GREEN}: 19 requests so far, too few for a curve.")
    await expect(figures.nth(1)).to_contain_text(f"{GREEN}: no request has it yet, only streamed ones do.")
    await expect(figures.nth(1).locator("svg")).to_have_count(0)
    await expect(figures.nth(2)).to_contain_text("their 95th percentile 0.")


async def test_a_withheld_verdict_is_shown_with_its_doubt_and_without_its_word(
    compared: Compared, open_page: OpenPage
) -> None:
    (first,) = SHOWN.primary
    assert (first.verdict, first.since is None) == ("better", False)
    doubted = msgspec.structs.replace(
        first,
        verdict="undecided",
        withheld="better",
        doubt="Requests without a value could explain ttft.",
        measured_on="the requests that have a value",
    )
    compared.report(msgspec.structs.replace(SHOWN, primary=[doubted], decision="keep_going"))
    page = await opened(open_page, compared)
    row = page.get_by_role("table", name="Metrics").get_by_role("row").nth(1)
    await expect(row).to_contain_text("undecided")
    await expect(row).to_contain_text("Requests without a value could explain ttft.")
    await expect(row).to_contain_text("of the requests that have a value: ")
    await expect(row).not_to_contain_text("since")
    await expect(page.locator("figcaption").first).to_contain_text("looks from")
    await expect(page.locator("figcaption").first).not_to_contain_text("has held since")
    await expect(page.locator(".plot .latched")).to_be_hidden()


async def test_too_few_units_are_not_shown_as_an_alarm(compared: Compared, open_page: OpenPage) -> None:
    (first,) = SHOWN.primary
    early = msgspec.structs.replace(
        first, verdict="too_early", effect=Effect(), reason="1 unit on x so far", since=None
    )
    compared.report(msgspec.structs.replace(SHOWN, primary=[early], decision="keep_going"))
    page = await opened(open_page, compared)
    metric = page.get_by_role("region", name="Metrics").get_by_role("row").nth(1)
    await expect(metric.locator(".mark-wait")).to_contain_text("too few units so far")
    await page.goto("/ui#/experiments")
    line = page.get_by_role("row").filter(has_text="green-float32")
    await expect(line.get_by_text("too few units so far")).to_be_visible()


async def test_a_guardrail_that_counts_no_request_is_not_called_quiet(compared: Compared, open_page: OpenPage) -> None:
    counted, empty = (
        msgspec.structs.replace(SHOWN.guardrails[0], event=event, of_requests={BLUE: number, GREEN: 0})
        for event, number in (("error", 9), ("empty", 0))
    )
    compared.report(msgspec.structs.replace(SHOWN, guardrails=[counted, empty]))
    page = await opened(open_page, compared)
    rows = page.get_by_role("region", name="Guardrails").get_by_role("row")
    await expect(rows.filter(has_text="error").locator(".mark-good")).to_have_text("✓quiet")
    await expect(rows.filter(has_text="empty").locator(".mark-wait")).to_contain_text("no request that it counts")
    await expect(rows.filter(has_text="empty").locator(".mark-good")).to_have_count(0)


async def test_alarms_are_shown_in_words(compared: Compared, open_page: OpenPage) -> None:
    compared.report(INVALID)
    page = await opened(open_page, compared)
    await expect(page.locator(".verdict")).to_have_text(INVALID.headline)
    await expect(page.get_by_text("Not to be trusted")).to_be_visible()
    await expect(page.get_by_text("The units contradict the weights 50 / 50.")).to_be_visible()
    await expect(page.get_by_text("smollm2-green lost 4,790 rows")).to_be_visible()
    await expect(page.get_by_role("region", name="Guardrails").locator("td .mark-bad")).to_be_visible()
    assert await accessibility_problems(page) == []
    await page.goto("/ui#/experiments")
    await expect(page.get_by_text("2 alarms: rows lost and sample ratio").first).to_be_visible()
    line = page.get_by_role("row").filter(has_text="green-float32")
    await expect(line.locator(".effect-line .mark-bad")).to_contain_text("invalid")


@pytest.mark.parametrize(
    ("label", "action"),
    [("Advance", "advance"), ("Pause", "pause"), ("Roll back", "rollback"), ("Promote", "promote"), ("Stop", "stop")],
)
async def test_a_decision_shows_its_dry_run_and_needs_a_reason(
    compared: Compared, open_page: OpenPage, label: str, action: str
) -> None:
    page = await opened(open_page, compared)
    await page.get_by_role("button", name=label, exact=True).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_text("rises from 50 % to 100 %")).to_be_visible()
    await expect(dialog.get_by_text("of all keys get another deployment")).to_be_visible()
    await dialog.get_by_role("button", name=label).click()
    assert compared.controller.decisions == [], "a reason is needed"
    await dialog.get_by_label("Why?").fill("I looked at it")
    if action == "advance":
        assert await accessibility_problems(page) == []
        await screenshot(page, "console-decision", whole=False)
    await dialog.get_by_role("button", name=label).click()
    await expect(page.get_by_role("main").get_by_text(f"{label}: done.")).to_be_visible()
    (made,) = compared.controller.decisions
    assert (made["action"], made["reason"], made["revision"]) == (action, "I looked at it", 7)
    assert made.get("treatment") == (GREEN if action == "promote" else None)


async def test_who_may_not_decide_sees_no_button_from_the_first_paint_on(
    compared: Compared, open_page: OpenPage
) -> None:
    page, _ = await open_page(compared.url)

    async def of_a_viewer(route: Route) -> None:
        answer = await route.fetch()
        await route.fulfill(response=answer, json={**await answer.json(), "manages": False, "operates": []})

    async def never(_: Route) -> None:
        """What the page reads after its first paint does not arrive."""

    await page.route("**/api/me", of_a_viewer)
    await page.route("**/traffic/history", never)
    await page.route("**/api/overview", never)
    await page.goto(EXPERIMENT)
    await expect(page.get_by_text("Only managers and the operators of")).to_be_visible()
    for label in ("Pause", "Roll back", "Promote", "Stop"):
        await expect(page.get_by_role("button", name=label)).to_have_count(0)


async def test_each_of_several_treatments_can_be_promoted(compared: Compared, open_page: OpenPage) -> None:
    compared.report(msgspec.structs.replace(SHOWN, treatments=[GREEN, "smollm2-red"]))
    page = await opened(open_page, compared)
    await page.get_by_role("button", name="Promote smollm2-red").click()
    await expect(page.get_by_role("dialog")).to_contain_text("smollm2-red gets all the traffic that the holdout leaves")
    await page.get_by_role("dialog").get_by_label("Why?").fill("it is better")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("main").get_by_text("Promote: done.")).to_be_visible()
    assert [decision.get("treatment") for decision in compared.controller.decisions] == ["smollm2-red"]


@pytest.mark.parametrize(
    ("decision", "says"),
    [
        ("do_not_ship", "is worse, or exceeds a guardrail"),
        ("keep_going", "is not known to be better"),
        ("invalid", "cannot be judged"),
    ],
)
async def test_to_promote_what_is_not_to_ship_its_name_must_be_typed(
    compared: Compared, open_page: OpenPage, decision: Decision, says: str
) -> None:
    compared.report(msgspec.structs.replace(SHOWN, decision=decision, decisions={GREEN: decision}))
    page = await opened(open_page, compared)
    await page.get_by_role("button", name="Promote").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text(f"{GREEN} {says}")
    await dialog.get_by_label("Why?").fill("I want it")
    await dialog.get_by_label(f"Type {GREEN} to confirm").fill(BLUE)
    await dialog.get_by_role("button", name="Promote").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("This is not the name")
    assert compared.controller.decisions == []
    assert await accessibility_problems(page) == []
    await dialog.get_by_label(f"Type {GREEN} to confirm").fill(GREEN)
    await dialog.get_by_role("button", name="Promote").click()
    await expect(page.get_by_role("main").get_by_text("Promote: done.")).to_be_visible()
    assert [decision["treatment"] for decision in compared.controller.decisions] == [GREEN]


@pytest.mark.parametrize(("cause", "is_primary"), [("alarm", False), ("worse", False), ("decision", True)])
async def test_resume_is_not_the_usual_next_step_of_a_run_that_failed(
    compared: Compared, open_page: OpenPage, cause: Cause, is_primary: bool
) -> None:
    compared.act(state="paused", cause=cause, text="It was paused.")
    page = await opened(open_page, compared)
    resume = page.get_by_role("button", name="Resume")
    await expect(resume).to_be_visible()
    assert (await resume.get_attribute("class") == "primary") is is_primary


async def test_a_paused_experiment_is_resumed(compared: Compared, open_page: OpenPage) -> None:
    compared.act(state="paused", text="Somebody looked at it.", by="boss")
    page = await opened(open_page, compared)
    await expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    await page.get_by_role("button", name="Resume").click()
    await page.get_by_role("dialog").get_by_label("Why?").fill("it is fine")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("main").get_by_text("Resume: done.")).to_be_visible()
    assert [decision["action"] for decision in compared.controller.decisions] == ["resume"]


@pytest.mark.parametrize(
    ("state", "cause", "icon"),
    [("paused", "alarm", "✕"), ("paused", "", "!"), ("stopped", "harm", "✕"), ("stopped", "", "•")],
)
async def test_the_traffic_page_says_what_has_become_of_an_experiment(
    compared: Compared, open_page: OpenPage, state: str, cause: str, icon: str
) -> None:
    """It compares nothing then, and may have moved the traffic. A pause waits for somebody, a stop does not."""
    page = await opened(open_page, compared, "/ui#/traffic")
    experiment = page.locator("section.endpoint p").filter(has_text="green-float32")
    await expect(experiment).to_contain_text("compares these deployments")
    compared.act(state=state, cause=cause, text="Somebody looked at it.")
    await expect(experiment).to_have_text(f"{icon}The experiment green-float32 is {state}: Somebody looked at it.")


async def test_a_stopped_experiment_has_no_buttons(compared: Compared, open_page: OpenPage) -> None:
    compared.act(state="stopped")
    page = await opened(open_page, compared)
    await expect(page.get_by_text("It has stopped: to test further, declare another experiment")).to_be_visible()
    await expect(page.get_by_role("main").locator("button:not(.term)")).to_have_count(0)


async def test_a_decision_on_an_outdated_state_is_refused(compared: Compared, open_page: OpenPage) -> None:
    page, watch = await open_page(compared.url)
    watch.expected.append("412")
    await page.goto(EXPERIMENT)
    await page.get_by_role("button", name="Advance").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Why?").fill("it is better")
    compared.act(revision=8, state="paused", share=1)
    await dialog.get_by_role("button", name="Advance").click()
    await expect(dialog.get_by_role("alert")).to_contain_text(
        "The experiment has changed since you opened this. It is paused now, with 1 % on treatments."
    )
    assert compared.controller.decisions == []


async def test_a_refused_dry_run_is_shown_before_the_decision(compared: Compared, open_page: OpenPage) -> None:
    compared.controller.reader.refusal = Conflict("The ramp is at its end")
    page, watch = await open_page(compared.url)
    watch.expected.append("409")
    await page.goto(EXPERIMENT)
    await page.get_by_role("button", name="Advance").click()
    await expect(page.get_by_role("dialog").get_by_text("The ramp is at its end")).to_be_visible()


async def test_a_draft_says_how_to_start_it(compared: Compared, open_page: OpenPage) -> None:
    page = await opened(open_page, compared, "/ui#/experiments/next")
    await expect(page.get_by_text("There is no evidence yet")).to_be_visible()
    await expect(page.get_by_text("It is a draft: it records and compares nothing.")).to_be_visible()
    await expect(page.locator("pre")).to_have_text("experiments:\n  next:\n    state: running")
    await expect(page.get_by_role("main").locator("button:not(.term)")).to_have_count(0)
    assert await accessibility_problems(page) == []


async def test_an_experiment_paused_in_the_file_is_started_in_the_file(compared: Compared, open_page: OpenPage) -> None:
    compared.report(msgspec.structs.replace(SHOWN, state="paused"))
    compared.act(state="paused", cause="file")
    page = await opened(open_page, compared)
    await expect(page.get_by_text("Its configuration pauses it.")).to_be_visible()
    await expect(page.get_by_role("button", name="Roll back")).to_be_visible()
    await expect(page.get_by_role("button", name="Resume")).to_have_count(0)


async def test_a_pause_by_an_alarm_is_not_the_files(compared: Compared, open_page: OpenPage) -> None:
    compared.report(msgspec.structs.replace(SHOWN, state="paused"))
    compared.act(state="paused", cause="alarm")
    page = await opened(open_page, compared)
    await expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert await page.get_by_text("Its configuration pauses it.").count() == 0


async def test_a_hidden_page_has_no_stream_of_events(compared: Compared, open_page: OpenPage) -> None:
    page, _ = await open_page(compared.url)
    await page.add_init_script(HIDEABLE)
    await page.goto(EXPERIMENT)
    await expect(page.locator(".events li")).to_have_count(3)
    async with page.expect_event("requestfailed", lambda request: "/api/events" in request.url):
        await page.evaluate("hide(true)")
    async with page.expect_request("**/api/events") as again:
        await page.evaluate("hide(false)")
    assert "last-event-id" in (await again.value).headers


async def test_an_unknown_experiment_is_reported(compared: Compared, open_page: OpenPage) -> None:
    page, watch = await open_page(compared.url)
    watch.expected.append("404")
    await page.goto(f"/ui#/experiments/{HOSTILE.replace('/', '')}")
    await expect(page.get_by_text("No experiment '<img")).to_be_visible()
    assert await page.locator("main img").count() == 0
    assert await page.title() != "broken"


async def test_an_empty_list_explains_what_an_experiment_is(rig: Rig, open_page: OpenPage) -> None:
    page, _ = await open_page(rig.url)
    await page.goto("/ui#/experiments")
    await expect(page.get_by_text("No experiment is declared.")).to_be_visible()


async def test_without_the_controller_the_page_says_how_old_its_data_is(
    compared: Compared, open_page: OpenPage
) -> None:
    page, watch = await open_page(compared.url)
    watch.expected.append("503")
    await page.goto("/ui#/experiments")
    await expect(page.get_by_role("link", name="green-float32")).to_be_visible()
    compared.controller.absent = True
    await expect(page.get_by_text("The controller of experiments cannot be reached")).to_be_visible()
    await expect(page.get_by_text("The data on this page is from")).to_be_visible()
    await expect(page.get_by_role("link", name="green-float32")).to_be_visible()
    await page.get_by_role("link", name="green-float32").click()
    await expect(page.get_by_text("There is nothing to show until it answers.")).to_be_visible()
    compared.controller.absent = False
    await expect(page.locator(".verdict")).to_have_text(SHOWN.headline)


async def test_a_page_opened_without_the_controller_says_when_it_last_answered(
    compared: Compared, open_page: OpenPage
) -> None:
    page, watch = await open_page(compared.url)
    watch.expected.append("503")
    async with httpx.AsyncClient(base_url=compared.url) as client:
        await client.get("/api/experiments")
        compared.controller.absent = True
        refused = (await client.get("/api/experiments")).json()
    at = refused["answered_at"]
    assert time.time() - 300 < at <= time.time()
    assert refused["error"]["message"] == "The controller of experiments cannot be reached"
    clock = time.strftime("%H:%M:%S", time.gmtime(at))
    for path in ("/ui#/experiments", EXPERIMENT):
        await page.goto(path)
        await expect(page.get_by_text(f"It last answered at {clock}.")).to_be_visible()
        await expect(page.get_by_text("There is nothing to show until it answers.")).to_be_visible()
    compared.controller.absent = False
    await expect(page.locator(".verdict")).to_have_text(SHOWN.headline)


async def test_a_controller_that_never_answered_is_reported_as_such(compared: Compared, open_page: OpenPage) -> None:
    compared.controller.absent = True
    page, watch = await open_page(compared.url)
    watch.expected.append("503")
    await page.goto("/ui#/experiments")
    await expect(page.get_by_text("It has not answered since this router started.")).to_be_visible()


async def test_pages_that_need_no_controller_work_without_it(compared: Compared, open_page: OpenPage) -> None:
    compared.controller.absent = True
    page, watch = await open_page(compared.url)
    watch.expected.append("503")  # the page Traffic asks whether an experiment is paused
    await page.goto("/ui#/playground")
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()
    await page.goto("/ui#/keys")
    await expect(page.get_by_role("article", name="chat")).to_contain_text("No limits.")
    await page.goto("/ui#/traffic")
    await expect(page.get_by_role("region", name="chat", exact=True)).to_contain_text(
        "No request has ended in the last minute."
    )


async def test_hostile_texts_stay_text(compared: Compared, open_page: OpenPage) -> None:
    compared.report(msgspec.structs.replace(SHOWN, headline=HOSTILE, next=HOSTILE, warnings=[HOSTILE]))
    plan = {"endpoint": "chat", "generation": 9, "weights": {HOSTILE: 100}, "reason": HOSTILE}
    compared.reader.journal.append(JournalEntry(NOW, "plan", None, {**plan, "plan": "9-5e6f7a8b", "since": NOW}))
    page = await opened(open_page, compared)
    await expect(page.locator(".verdict")).to_have_text(HOSTILE)
    await expect(page.locator(".events li").first).to_contain_text(HOSTILE)
    assert await page.locator("main img").count() == 0
    assert await page.title() == "green-float32 · Switchyard"


async def test_the_form_checks_a_new_experiment_and_shows_its_yaml(compared: Compared, open_page: OpenPage) -> None:
    page = await opened(open_page, compared, "/ui#/experiments", height=580)
    await page.get_by_role("link", name="Declare an experiment").click()
    await expect(page.get_by_text("'chat' already has the experiment 'green-float32'")).to_be_visible()
    await page.get_by_label("Endpoint").select_option("assistant")
    await page.get_by_label("Name").fill("green-everywhere")
    await page.get_by_label("If it is worse").select_option("rollback")
    await expect(page.get_by_text("Valid. Merge this into the router's configuration:")).to_be_visible()
    yaml = page.locator("pre")
    await expect(yaml).to_contain_text("experiments:\n  green-everywhere:\n    endpoint: assistant\n")
    await expect(yaml).to_contain_text("on_worse: rollback")
    await expect(yaml).to_contain_text("steps: [1, 5, 25, 50]")
    assert await accessibility_problems(page) == []
    await screenshot(page, "console-declare")
    await page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")  # as over plain http
    await page.get_by_role("button", name="Copy").click()
    await expect(page.get_by_role("button", name="Selected: press Ctrl+C")).to_be_visible()
    assert await page.evaluate("getSelection().toString()") == (await yaml.inner_text()).strip()
    await page.get_by_label("Steps, percent").fill("50, 5")
    await expect(page.get_by_text("`steps` must rise")).to_be_visible()
    await page.get_by_label("Name").fill("no spaces!")
    await expect(page.locator(".result li")).to_have_count(1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_phone_shows_everything_without_horizontal_scrolling(
    compared: Compared, open_page: OpenPage, scheme: str
) -> None:
    page = await opened(open_page, compared, width=360, scheme=scheme)
    await expect(page.locator(".plot canvas")).to_be_visible()
    await expect(page.locator(".events li").first).to_be_visible()
    assert await overflow(page) <= 0
    assert await accessibility_problems(page) == []
    if scheme == "dark":
        await screenshot(page, "console-experiment-360", whole=False)
    await page.goto("/ui#/experiments")
    await expect(page.get_by_role("link", name="green-float32")).to_be_visible()
    assert await overflow(page) <= 0
    await page.goto("/ui#/experiments?new")
    await expect(page.get_by_label("Name")).to_be_visible()
    assert await overflow(page) <= 0


async def test_bars_and_curves_are_visible_in_forced_colours(compared: Compared, open_page: OpenPage) -> None:
    page, _ = await open_page(compared.url)
    await page.emulate_media(forced_colors="active")
    await page.goto("/ui#/experiments")
    await expect(page.locator(".sequence")).to_have_count(3)
    bar = page.locator(".sequence").first
    own, back = await bar.evaluate(
        "(it) => [getComputedStyle(it).backgroundColor, getComputedStyle(document.body).backgroundColor]"
    )
    assert own != back
    await page.goto(EXPERIMENT)
    await expect(page.locator(".plot canvas")).to_be_visible()
    stroke, text = await page.locator("polyline").first.evaluate(
        "(it) => [getComputedStyle(it).stroke, getComputedStyle(document.body).color]"
    )
    assert stroke == text, "the curves have the system's colour, and differ by their dashes"
    assert await accessibility_problems(page) == []


async def test_the_last_decision_is_attributed(compared: Compared, open_page: OpenPage) -> None:
    compared.controller.acting = AutomationStatus(
        state="running", revision=9, step=1, share=5, next_share=25, waits_for=["20 more units"], by="boss"
    )
    page = await opened(open_page, compared)
    await expect(page.get_by_text("Last decision by boss.")).to_be_visible()


async def test_a_wide_effect_is_on_the_axis_and_latency_falls_by_at_most_all(
    compared: Compared, open_page: OpenPage
) -> None:
    (first,) = SHOWN.primary
    wide = msgspec.structs.replace(first, effect=Effect(estimate=3.1, lower=0.2, upper=5.9), verdict="worse")
    compared.report(msgspec.structs.replace(SHOWN, primary=[wide]))
    page = await opened(open_page, compared)
    row = page.get_by_role("region", name="Metrics").get_by_role("row").nth(1)
    track, dot = row.locator(".track"), row.locator(".track .estimate")
    await expect(dot).to_be_visible()
    left, width, at = [
        await element.evaluate(f"(it) => it.getBoundingClientRect().{side}")
        for element, side in ((track, "left"), (track, "width"), (dot, "x"))
    ]
    assert (at + 1.5 - left) / width == pytest.approx((3.1 + 1) / (4 + 1), abs=0.02)
    await expect(page.get_by_text("96 looks from")).to_contain_text("is now +310 %")
