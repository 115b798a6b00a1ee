"""A router's own account of its requests: nothing is counted twice or lost while the controller is away."""

import asyncio
from collections.abc import Mapping

import pytest

from app.activity.board import Board, Wanted
from app.activity.report import PERIOD_S, decode
from app.activity.reporter import ActivityReporter
from app.activity.request_log import KEPT, MOST_CALLERS, RequestLog
from app.engine.usage import Usage
from app.telemetry.logs import Record
from app.telemetry.recent import BucketCounts, Counts
from tests.support.waiting import wait_until_async

NOW = 1_800_000_000.0


def finished(log: RequestLog, id: str = "r", caller_id: str = "key-1", **fields: object) -> None:
    record = Record("openai", "chat", id, endpoint="chat", deployment="blue", status=200)
    for name, value in fields.items():
        setattr(record, name, value)
    log.add(record, plan="0-abc", caller_id=caller_id, trace_id=0)


class Controller:
    """Takes reports into a board. While it is `away` it does not; `forgets`: it takes them, and the answer is lost."""

    def __init__(self) -> None:
        self.board, self.away, self.forgets, self.calls = Board(), False, False, 0

    async def deliver(self, report: bytes) -> None:
        self.calls += 1
        if self.away:
            raise ConnectionRefusedError
        self.board.take(decode(report), NOW)
        if self.forgets:
            raise ConnectionResetError


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


def test_times_are_since_the_arrival_and_a_step_that_was_not_reached_has_none() -> None:
    log = RequestLog()
    record = Record("openai", "chat", "r", status=503, error="unavailable")
    record.admitted = record.started + 0.5
    log.add(record, plan="", caller_id="", trace_id=0xABC)
    (found,) = log.after(0)[1]
    assert found.admitted_s == pytest.approx(0.5)
    assert (found.sent_s, found.first_byte_s, found.prompt_tokens) == (None, None, None)
    assert found.trace == f"{0xABC:032x}"
    assert found.duration_s >= 0


def test_requests_that_anyone_can_send_are_not_listed() -> None:
    log = RequestLog()
    for kind in ("unauthorized", "unauthorized_throttled"):
        finished(log, error=kind, status=401)
    assert log.after(0) == (0, [])


def test_of_many_requests_the_last_are_kept_and_all_are_counted() -> None:
    log = RequestLog()
    for number in range(KEPT + 50):
        finished(log, f"r{number}", usage=Usage(2, 3))
    first, kept = log.after(0)
    assert (first, len(kept), kept[0].id) == (50, KEPT, "r50")
    assert log.after(KEPT + 49)[0] == KEPT + 49
    assert log.after(KEPT + 50) == (KEPT + 50, [])
    (use,) = log.take_uses()
    assert (use.requests, use.failed, use.prompt_tokens, use.completion_tokens) == (350, 0, 700, 1050)
    assert log.take_uses() == []


def test_the_callers_of_tokens_are_bounded() -> None:
    log = RequestLog()
    for number in range(MOST_CALLERS + 5):
        finished(log, caller_id=f"token-{number}")
    assert len(log.take_uses()) == MOST_CALLERS


async def test_what_happens_while_the_controller_is_away_reaches_it_once() -> None:
    log, controller, clock = RequestLog(), Controller(), Clock()
    used: dict[str, float] = {}
    reporter = ActivityReporter(log, controller.deliver, lambda: used, every_s=0.005, clock=clock)
    total = 0.0

    def period(requests: int) -> None:
        nonlocal total
        total += requests
        clock.now += PERIOD_S
        first_token = BucketCounts((0.1, float("inf")), [total, 0])
        counts: Mapping[tuple[str, str], Counts] = {("chat", "blue"): Counts(requests=total, first_token=first_token)}
        reporter.sampled(counts)

    def seen(board: Board) -> tuple[int, float]:
        series = board.history("1h", clock.now + 120, None)["series"]
        requests = sum(rate * 60 for one in series for rate in one["requests_per_s"])
        return board.requests(Wanted())["kept"], round(requests)

    async with reporter.running():
        finished(log, "one")
        period(3)
        await wait_until_async(lambda: seen(controller.board) == (1, 3), lambda: seen(controller.board))
        controller.forgets = True
        finished(log, "two")
        period(4)
        await wait_until_async(lambda: seen(controller.board) == (2, 7), lambda: seen(controller.board))
        controller.forgets, controller.away = False, True
        finished(log, "three")
        period(5)
        used["key-1"] = NOW
        period(0)
        await wait_until_async(lambda: seen(reporter.board) == (3, 12), lambda: seen(reporter.board))
        assert seen(controller.board) == (2, 7)
        controller.away = False
        await wait_until_async(lambda: seen(controller.board) == (3, 12), lambda: seen(controller.board))
        assert controller.board.used == {"key-1": NOW}
    calls = controller.calls
    await asyncio.sleep(0.05)
    assert controller.calls == calls


async def test_an_idle_router_sends_nothing_and_a_lone_one_keeps_its_own_account() -> None:
    log, controller = RequestLog(), Controller()
    async with ActivityReporter(log, controller.deliver, dict, every_s=0.001).running():
        await asyncio.sleep(0.05)
    assert controller.calls == 0
    reporter = ActivityReporter(log, None, dict, every_s=0.001)
    async with reporter.running():
        finished(log, "one")
        await wait_until_async(lambda: reporter.board.requests(Wanted())["kept"] == 1)
