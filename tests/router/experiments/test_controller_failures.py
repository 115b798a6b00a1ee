"""The controller is away, dies, or cannot write: requests are not affected, and the report has the losses."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.router.experiments.conftest import LiveRig
from tests.support.processes.load import Lane, Outcome, ask_all, lanes, unexplained

CHATS = [lane for lane in lanes(tokens=50) if lane.name in ("openai", "anthropic")]


def traffic(count: int, first: int = 0) -> Iterator[Lane]:
    """That many requests of as many users."""
    for number in range(first, first + count):
        lane = CHATS[number % len(CHATS)]
        yield replace(lane, headers={**lane.headers, "x-user": f"user-{number}"})


async def sent(live: LiveRig, count: int, first: int = 0) -> list[Outcome]:
    """Sends requests, and asserts that all are answered in full."""
    outcomes = await ask_all(live.url, traffic(count, first))
    assert unexplained(outcomes) == []
    return outcomes


async def rows_in_batches(live: LiveRig, count: int) -> None:
    """Waits until the router has put that many rows into batches, which happens once a second."""
    async with asyncio.timeout(60), httpx.AsyncClient(base_url=live.url) as http:
        while True:
            families = text_string_to_metric_families((await http.get("/metrics")).text)
            samples = [sample for family in families for sample in family.samples]
            if sum(sample.value for sample in samples if sample.name == "switchyard_ledger_rows_total") == count:
                return
            await asyncio.sleep(0.1)


async def test_nothing_is_lost_while_the_controller_is_away(live: LiveRig) -> None:
    live.controller.absent = True
    await sent(live, 60)
    async with httpx.AsyncClient(base_url=live.url) as http:
        answer = await http.get("/api/experiments/first/report")
        assert (answer.status_code, "cannot be reached" in answer.text) == (503, True)
        assert (await http.get("/metrics")).status_code == 200
    live.controller.absent = False
    await sent(live, 10, first=60)
    report = await live.report_of(70)
    assert sum(report.requests.values()) == 70
    assert not any(report.rows_lost.values())
    assert report.alarms == []


async def test_a_controller_that_dies_loses_nothing(live: LiveRig) -> None:
    await sent(live, 40)
    await live.report_of(40)
    live.controller.replaced(killed=True)  # with nothing on disk
    await sent(live, 40, first=40)
    report = await live.report_of(80)
    assert sum(report.requests.values()) == 80
    live.controller.advance(61.0)  # now it is
    live.controller.replaced(killed=True)
    await sent(live, 20, first=80)
    report = await live.report_of(100)
    assert sum(report.requests.values()) == sum(report.units.values()) == 100
    assert not any(report.rows_lost.values())


async def test_a_controller_that_dies_again_and_again_under_traffic_counts_every_request_once(live: LiveRig) -> None:
    requests = asyncio.create_task(sent(live, 240))
    while not requests.done():
        await asyncio.sleep(0.1)
        live.controller.replaced(killed=True)
    await requests
    await sent(live, 10, first=240)
    report = await live.report_of(250)
    assert sum(report.requests.values()) == sum(report.units.values()) == 250


async def test_an_unwritable_directory_is_reported_and_loses_nothing(live: LiveRig, tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file where a directory should be")
    live.change(ledger={"url": "blocked"})
    live.controller.replaced(killed=True)
    await sent(live, 40)
    await live.report_of(40)
    live.controller.advance(61.0)
    report = await live.report(lambda report: any("directory has failed" in warning for warning in report.service))
    assert sum(report.requests.values()) == 40, "it still judges"
    await sent(live, 10, first=40)
    (tmp_path / "blocked").unlink()
    live.controller.advance(61.0)
    report = await live.report_of(50)
    assert [warning for warning in report.service if "directory" in warning] == []
    live.controller.replaced()
    report = await live.report_of(50)
    assert sum(report.requests.values()) == 50


async def test_rows_beyond_the_routers_memory_are_lost_and_reported(live: LiveRig) -> None:
    live.change(ledger={"buffer_bytes": 64 * 1024})
    live.controller.absent = True
    outcomes = await sent(live, 600)
    # A batch that is dropped after the controller has received it counts twice: as judged, and as lost.
    await rows_in_batches(live, len(outcomes))
    live.controller.absent = False
    report = await live.report(
        lambda report: sum(report.requests.values()) + sum(report.rows_lost.values()) >= len(outcomes)
    )
    lost = report.rows_lost
    assert sum(report.requests.values()) + sum(lost.values()) == len(outcomes)
    assert min(lost.values()) > 30, "more than a twentieth, of both arms"
    (alarm,) = report.alarms
    assert alarm.kind == "rows_lost"
    assert (report.decision, report.primary[0].verdict) == ("invalid", "invalid")
    async with httpx.AsyncClient(base_url=live.url) as http:
        metrics = (await http.get("/metrics")).text
    for name, rows in lost.items():
        assert f'switchyard_ledger_rows_lost_total{{deployment="{name}",endpoint="chat"}} {rows}.0' in metrics
