"""The page Audit: who changed what, for managers and viewers."""

import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from playwright.async_api import Page, Route, expect

from app.exposures.audit import AuditRecord
from tests.router.console.conftest import Managed, OpenPage, sign_in
from tests.support.clients.browser import accessibility_problems, overflow, screenshot

HOSTILE = "<img src=x onerror=alert(1)>"


def put(managed: Managed, key: str, reason: str, endpoint: str = "chat") -> int:
    weights = {"blue": 80, "green": 20} if endpoint == "chat" else {"mini": 100}
    url = f"{managed.url}/api/endpoints/{endpoint}/traffic"
    headers = {"authorization": f"Bearer {key}", "if-match": "*"}
    return httpx.put(url, json={"weights": weights, "reason": reason}, headers=headers).status_code


async def opened(page: Page, key: str, address: str = "/ui#/audit") -> None:
    await page.goto(address)
    await sign_in(page, key)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
async def test_a_manager_reads_filters_and_exports_who_did_what(
    managed: Managed, open_page: OpenPage, tmp_path: Path, width: int, scheme: str
) -> None:
    keys = managed.guard()
    reason = HOSTILE if width == 390 else "its first week was quiet"
    assert put(managed, keys["boss"], reason) == 200
    assert put(managed, keys["chat team"], "no right") == 403
    assert put(managed, keys["boss"], "an index", "embed") == 200
    page, watch = await open_page(managed.url, width=width, scheme=scheme)
    watch.expected = ["status of 401"]
    await opened(page, keys["boss"])
    rows = page.get_by_role("region", name="Audit log").locator("tbody tr")
    await expect(rows).to_have_count(7)
    await expect(rows.nth(3)).to_contain_text("deploy")  # the file that requires keys
    for first in (4, 5, 6):  # those with which the controller began
        await expect(rows.nth(first)).to_contain_text("a deployed file")
    await expect(rows.filter(has_text=re.compile("deploy · (chat|embed)"))).to_have_count(2)
    await expect(rows.nth(0)).to_contain_text("put traffic · embed")  # the newest first
    for words in ("chat team", "put traffic", "PUT /api/endpoints/chat/traffic", "refused: 403", "127.0.0.1"):
        await expect(rows.nth(1)).to_contain_text(words)
    await expect(rows.nth(2)).to_contain_text(reason)
    await rows.nth(2).get_by_text("Before and after").click()
    await expect(rows.nth(2)).to_contain_text('"blue":80')
    assert await page.get_by_role("main").locator("img").count() == 0
    assert await overflow(page) <= 0
    assert await accessibility_problems(page) == []
    if width == 1280:
        await screenshot(page, "audit")
    await page.get_by_label("Who").select_option("boss")
    await expect(rows).to_have_count(2)
    await page.get_by_label("Endpoint").select_option("chat")
    await expect(rows).to_have_count(1)
    assert page.url.endswith("#/audit?caller=boss&endpoint=chat")
    async with page.expect_download() as saving:
        await page.get_by_role("button", name="Export").click()
    saved = await saving.value
    assert re.fullmatch(r"audit-\d{4}-\d\d-\d\d\.jsonl", saved.suggested_filename)
    await saved.save_as(tmp_path / "saved")
    records: list[dict[str, Any]] = [json.loads(line) for line in (tmp_path / "saved").read_text().splitlines()]
    assert [(record["caller"], record["endpoint"], record["reason"]) for record in records] == [
        ("boss", "chat", reason)
    ]
    await page.get_by_role("button", name="Clear").click()
    await expect(rows).to_have_count(7)


async def test_older_records_are_shown_on_demand(managed: Managed, open_page: OpenPage) -> None:
    for number in range(55):
        managed.put({"blue": number, "green": 100 - number}, f"step {number}")
    page, _ = await open_page(managed.url)
    await page.goto("/ui")
    await page.get_by_role("navigation").get_by_role("link", name="Audit").click()
    rows = page.get_by_role("region", name="Audit log").locator("tbody tr")
    await expect(rows).to_have_count(50)
    await page.get_by_role("button", name="Show 50 more").click()
    await expect(rows).to_have_count(58)
    await expect(page.get_by_role("button", name="Show 50 more")).to_have_count(0)


async def test_the_filters_offer_also_what_no_shown_record_has(managed: Managed, open_page: OpenPage) -> None:
    keys = managed.guard()
    assert put(managed, keys["embed team"], "no right", "embed") == 403
    for number in range(50):
        assert put(managed, keys["boss"], f"step {number}") == 200
    page, watch = await open_page(managed.url)
    watch.expected = ["status of 401"]
    await opened(page, keys["boss"])
    rows = page.get_by_role("region", name="Audit log").locator("tbody tr")
    await expect(rows).to_have_count(50)
    await expect(rows.filter(has_text="embed team")).to_have_count(0)
    assert await page.get_by_label("Who").locator("option").all_inner_texts() == [
        "everyone",
        "a deployed file",
        "boss",
        "embed team",
    ]
    assert await page.get_by_label("Endpoint").locator("option").all_inner_texts() == ["all", "chat", "embed"]
    await page.get_by_label("Who").select_option("a deployed file")
    await expect(rows.filter(has_text="a deployed file")).to_have_count(4)
    await page.get_by_label("Who").select_option("embed team")
    await expect(rows).to_have_count(1)

    async def as_of_an_older_controller(route: Route) -> None:
        document = {name: of for name, of in (await (await route.fetch()).json()).items() if name != "names"}
        await route.fulfill(json=document)

    await page.route("**/api/audit?*", as_of_an_older_controller)
    await page.get_by_role("button", name="Clear").click()
    await expect(rows).to_have_count(50)
    assert await page.get_by_label("Who").locator("option").all_inner_texts() == ["everyone", "boss"]
    await page.unroute_all(behavior="wait")


async def test_records_of_the_chosen_time_are_shown_and_exported(
    managed: Managed, open_page: OpenPage, tmp_path: Path
) -> None:
    records = [
        AuditRecord(
            id=str(number),
            at=time.time() - ago,
            action="put_traffic",
            outcome="accepted",
            status=200,
            reason=f"{ago} s ago",
        )
        for number, ago in enumerate((40 * 86400, 2 * 3600, 60))
    ]
    await managed.controller.ask("POST", "/audit", {}, msgspec.json.encode(records))
    page, _ = await open_page(managed.url)
    await page.goto("/ui#/audit?last_s=3600&action=put_traffic")
    rows = page.get_by_role("region", name="Audit log").locator("tbody tr")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("60 s ago")
    chosen = page.get_by_label("When")
    await expect(chosen).to_have_value("3600")
    await page.goto("/ui#/audit?last_s=10800&action=put_traffic")
    await expect(rows).to_have_count(2)
    await expect(chosen.locator("option:checked")).to_have_text("last 3\u00a0h")
    await page.goto("/ui#/audit?last_s=3600&action=put_traffic")
    await expect(rows).to_have_count(1)
    async with page.expect_download() as saving:
        await page.get_by_role("button", name="Export").click()
    await (await saving.value).save_as(tmp_path / "saved")
    assert [json.loads(line)["id"] for line in (tmp_path / "saved").read_text().splitlines()] == ["2"]
    for label, count in (("last 6 hours", 2), ("last 30 days", 2), ("any time", 3)):
        await chosen.select_option(label)
        await expect(rows).to_have_count(count)
    for query in ("last_s=soon", "last_s=-1", "last_s=60&since=2026-11-12"):
        refused = await page.request.get(f"/api/audit?{query}")
        assert (refused.status, (await refused.json())["error"]["param"]) == (400, "last_s")


async def test_a_wrong_filter_of_the_address_is_said_and_the_others_hold(managed: Managed, open_page: OpenPage) -> None:
    managed.put({"blue": 80, "green": 20}, "a step")
    page, watch = await open_page(managed.url)
    watch.expected = ["status of 400"]
    await page.goto("/ui#/audit?outcome=nice&caller=nobody&colour=red")
    main = page.get_by_role("main")
    await expect(main).to_contain_text("No record passes these filters.")
    await expect(main).to_contain_text("outcome: ")
    await expect(main).to_contain_text("There is no filter “colour”")
    await expect(page.get_by_label("Who")).to_have_value("nobody")
    assert page.url.endswith("#/audit?caller=nobody")
    await page.get_by_role("button", name="Clear").click()
    await expect(page.get_by_role("region", name="Audit log").locator("tbody tr")).to_have_count(4)
    await expect(main).not_to_contain_text("There is no filter")
