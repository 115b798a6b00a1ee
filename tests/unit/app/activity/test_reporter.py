"""A router's own account of its requests: nothing is counted twice or lost while the controller is away."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random

import pytest
from msgspec.json import encode as encode_json

from app.activity.board import Board
from app.activity.outages import Outages, OutageWatch
from app.activity.report import PERIOD_S, ActivityReport, Taken, decode
from app.activity.reporter import ActivityReporter, Standing
from app.activity.request_list import Wanted
from app.activity.request_log import KEPT, MOST_CALLERS, MOST_RUNNING, RequestLog
from app.engine.output import Usage
from app.experiments.activity import ActivityKeeper
from app.experiments.storage.store import LocalStore
from app.telemetry.logs import Lack, Record, Sent
from app.telemetry.recent import BucketCounts, Counts
from tests.support.waiting import wait_until_async

NOW = 1_800_000_000.0


def finished(log: RequestLog, id: str = "r", caller_id: str = "key-1", **fields: object) -> None:
    record = Record("openai", "chat", id, endpoint="chat", deployment="blue", status=200)
    for name, value in fields.items():
        setattr(record, name, value)
    log.add(record, plan="0-abc", caller_id=caller_id, trace_id=0)


class Controller:
    """The controller's side, with its file in `directory`. While it is `away` it takes nothing; `forgets`: it takes
    reports, and the answers are lost."""

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self._directory, self._clock = directory, clock
        self.away, self.forgets, self.calls = False, False, 0
        self.kill()

    def kill(self) -> None:
        """Another one takes its place, and has what was written."""
        self.keeper = ActivityKeeper(lambda: LocalStore(self._directory), self._clock)

    @property
    def board(self) -> Board:
        return self.keeper.board

    async def deliver(self, report: bytes) -> bytes:
        self.calls += 1
        if self.away:
            raise ConnectionRefusedError
        answer = self.keeper.take(report)
        if self.forgets:
            raise ConnectionResetError
        return answer.body


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


def test_times_are_since_the_arrival_and_a_step_that_was_not_reached_has_none() -> None:
    log = RequestLog()
    record = Record("openai", "chat", "r", status=503, error="unavailable")
    record.admitted = record.started + 0.5
    log.add(record, plan="", caller_id="", trace_id=0xABC)
    (listed,) = log.after(0)[1]
    assert listed.admitted_s == pytest.approx(0.5)
    assert (listed.sent_s, listed.first_byte_s, listed.prompt_tokens) == (None, None, None)
    assert listed.trace == f"{0xABC:032x}"
    assert listed.duration_s >= 0


def test_requests_at_a_deployment_have_waited_since_their_arrival_whoever_had_them_before() -> None:
    log, now = RequestLog(), time.perf_counter()
    queued, asked, answered = (
        Record("openai", "chat", name, endpoint="chat", deployment="blue", started=now - 50) for name in "abc"
    )
    for record in (queued, asked, answered):
        log.begin(record, Sent, {}, caller_id="", trace_id=0)
    asked.sent = now - 1  # the second that it was sent to
    answered.sent, answered.first_byte = now - 40, now - 39
    assert log.waiting() == {("chat", "blue"): [pytest.approx(50, abs=5)]}
    log.add(asked, plan="", caller_id="", trace_id=0)
    assert log.waiting() == {}


def test_a_stream_that_waits_for_another_engine_tells_for_how_long_so_far() -> None:
    log = RequestLog()
    record = Record("openai", "chat", "r", endpoint="chat", deployment="blue", attempts=1)
    record.started, record.sent = record.started - 60, record.started - 60
    log.begin(record, Sent, {}, caller_id="", trace_id=0)
    assert (log.running()[0].paused_s, log.paused()) == (None, {})
    record.engine_lost("its connection ended", "r0", 40.0)
    (listed,) = log.running()
    assert listed.paused_s == listed.pause_s == pytest.approx(40, abs=5)
    ((at, length),) = listed.pauses
    assert at == pytest.approx(20, abs=5)
    assert length == listed.paused_s
    assert log.paused() == {("chat", "blue"): [pytest.approx(40, abs=5)]}
    record.wait_ended("r1")
    assert (log.running()[0].paused_s, log.paused()) == (None, {})


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


async def test_what_happens_while_the_controller_is_away_reaches_it_once(tmp_path: Path) -> None:
    clock = Clock()
    log, controller = RequestLog(), Controller(tmp_path, clock)
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
        return board.requests(Wanted(), NOW)["kept"], round(requests)

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


async def test_an_idle_router_says_that_it_serves_and_since_when_another_one_has() -> None:
    sent: list[ActivityReport] = []
    refusals = [1, 2, 3]

    async def deliver(report: bytes) -> bytes:
        sent.append(decode(report))
        return encode_json(Taken("keeper", 0.0))

    async def standing() -> Standing:
        if refusals:
            refusals.pop()
            raise TimeoutError
        return Standing(serves=True, elder_since=NOW - 100)

    reporter = ActivityReporter(RequestLog(), deliver, dict, standing=standing, every_s=0.001, clock=Clock())
    async with reporter.running():
        await wait_until_async(lambda: bool(sent) and sent[-1].served_s is not None)
    assert [report.served_s for report in sent[:3]] == [None] * 3
    assert sent[-1].served_s == pytest.approx(100, abs=5)
    assert not sent[-1].periods

    async def alone() -> Standing:
        return Standing(serves=True, elder_since=math.inf)

    sent.clear()
    async with ActivityReporter(RequestLog(), deliver, dict, standing=alone, every_s=0.001).running():
        await wait_until_async(lambda: bool(sent))
    assert sent[0].served_s == pytest.approx(0, abs=5)


async def test_a_router_serves_from_when_it_gets_requests_until_it_is_told_to_stop() -> None:
    sent: list[ActivityReport] = []
    looks, stops = 0, asyncio.Event()

    async def deliver(report: bytes) -> bytes:
        sent.append(decode(report))
        return encode_json(Taken("keeper", 0.0))

    async def standing() -> Standing:
        nonlocal looks
        looks += 1
        return Standing(serves=looks > 5, elder_since=NOW - 100 if looks < 3 else math.inf)

    reporter = ActivityReporter(
        RequestLog(), deliver, dict, standing=standing, is_stopped=stops.is_set, every_s=0.1, clock=Clock()
    )
    async with reporter.running():
        await wait_until_async(lambda: bool(sent) and sent[-1].served_s is not None)
        assert [report.served_s for report in sent[:-1]] == [None] * 5
        assert sent[-1].served_s == pytest.approx(0.15, abs=0.1)
        stops.set()
        await wait_until_async(lambda: sent[-1].served_s is None)


async def test_a_controller_that_is_still_to_come_is_missed_by_requests_alone(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    async def deliver(report: bytes) -> bytes:
        nonlocal calls
        calls += 1
        raise ConnectionRefusedError

    log = RequestLog()
    async with ActivityReporter(log, deliver, dict, every_s=0.001).running():
        await wait_until_async(lambda: calls == 1)
        await asyncio.sleep(0.05)
        assert (calls, caplog.records) == (1, [])
        finished(log)
        await wait_until_async(lambda: calls == 2)  # at once, whatever the pause is
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_lone_router_keeps_its_own_account() -> None:
    log = RequestLog()
    reporter = ActivityReporter(log, None, dict, every_s=0.001)
    async with reporter.running():
        finished(log, "one")
        await wait_until_async(lambda: reporter.board.requests(Wanted(), NOW)["kept"] == 1)


async def test_a_request_that_cannot_be_reported_does_not_hold_up_the_others(tmp_path: Path) -> None:
    log, controller = RequestLog(), Controller(tmp_path, Clock())
    finished(log, "poison", max_tokens=2**64)
    async with ActivityReporter(log, controller.deliver, dict, every_s=0.01).running():
        await asyncio.sleep(0.05)
        finished(log, "good")
        await wait_until_async(lambda: controller.board.requests(Wanted(), NOW)["kept"] > 0)
    assert [request["id"] for request in controller.board.requests(Wanted(), NOW)["requests"]] == ["good"]


@pytest.mark.parametrize("seed", range(20))
async def test_no_count_is_lost_or_counted_twice_however_the_controller_ends(tmp_path: Path, seed: int) -> None:
    random, clock = Random(seed), Clock()
    log, controller = RequestLog(), Controller(tmp_path, clock)
    reporter = ActivityReporter(log, controller.deliver, dict, every_s=0.002, clock=clock)
    total = 0.0

    def counted() -> float:
        series = controller.board.history("1h", clock.now + 120, None)["series"]
        return float(round(sum(rate * 60 for one in series for rate in one["requests_per_s"])))

    async with reporter.running():
        for _ in range(25):
            clock.now += PERIOD_S
            total += random.randint(1, 9)
            reporter.sampled({("chat", "blue"): Counts(requests=total)})
            event = random.choice(("save", "tick", "tick", "kill", "kill at once", "away", "forget", "back", "nothing"))
            if event == "kill at once":
                controller.kill()
            await asyncio.sleep(0.01)
            if event == "save":
                controller.keeper.save()
            if event == "tick":
                controller.keeper.save_if_due()
            if event == "kill":
                controller.kill()
            controller.away = event == "away" or (controller.away and event != "back")
            controller.forgets = event == "forget" or (controller.forgets and event != "back")
        controller.away = controller.forgets = False
        await wait_until_async(lambda: counted() == total, counted)


async def test_a_running_request_is_reported_until_it_ends(tmp_path: Path) -> None:
    log, controller = RequestLog(), Controller(tmp_path, Clock())
    reporter = ActivityReporter(log, controller.deliver, dict, every_s=0.002, clock=Clock())
    record = Record("openai", "chat", "r", endpoint="chat")

    def seen(board: Board) -> list[tuple[bool, str, str]]:
        requests = board.requests(Wanted(), NOW)["requests"]
        return [(one["running"], one["deployment"], one["plan"]) for one in requests]

    async def shows(*wanted: tuple[bool, str, str]) -> None:
        for board in (controller.board, reporter.board):
            await wait_until_async(partial(lambda board: seen(board) == list(wanted), board))

    async with reporter.running():
        log.begin(record, Sent, {"chat": "0-abc"}, caller_id="key-1", trace_id=0)
        await shows((True, "", "0-abc"))
        record.deployment = "blue"
        await shows((True, "blue", "0-abc"))
        log.add(record, plan="0-abc", caller_id="key-1", trace_id=0)
        await shows((False, "blue", "0-abc"))


def test_a_router_lists_what_runs_also_at_the_end_of_a_period() -> None:
    log = RequestLog()
    reporter = ActivityReporter(log, None, dict, clock=Clock())
    log.begin(Record("openai", "chat", "r", endpoint="chat"), Sent, {}, caller_id="", trace_id=0)
    reporter.sampled({("chat", "blue"): Counts(requests=1)})
    assert reporter.board.requests(Wanted(), NOW)["running"] == 1


def test_of_many_running_requests_those_that_have_run_longest_are_reported() -> None:
    log = RequestLog()
    records = [Record("openai", "chat", f"r{number}") for number in range(MOST_RUNNING + 5)]
    for record in records:
        log.begin(record, Sent, {}, caller_id="", trace_id=0)
    assert [one.id for one in log.running()] == [record.request_id for record in records[:MOST_RUNNING]]
    for record in records[:7]:
        record.error = "unauthorized"
        log.add(record, plan="", caller_id="", trace_id=0)
    assert [one.id for one in log.running()] == [record.request_id for record in records[7:]]


async def test_a_router_says_when_no_replica_ran_to_the_second() -> None:
    clock = Clock()
    sent: list[ActivityReport] = []

    async def deliver(report: bytes) -> bytes:
        sent.append(decode(report))
        return encode_json(Taken("keeper", 0.0))

    runs: dict[tuple[str, str], bool] = {}
    reporter = ActivityReporter(RequestLog(), deliver, dict, has_replica=lambda: runs, clock=clock, every_s=0.001)

    def look(seconds: float, **known: bool) -> None:
        runs.clear()
        runs.update({("chat", deployment): is_up for deployment, is_up in known.items()})
        clock.now = NOW + seconds
        reporter.look()
        if seconds % PERIOD_S == 0:
            reporter.sampled({})

    look(0, blue=True, red=False)  # red's first replica is still to come
    look(4, blue=False, red=False, green=True)
    look(10, blue=False, red=False, green=True)
    look(20, blue=False, red=True, green=True)
    look(27, blue=True, red=True, green=True)
    for seconds in (30, 40, 50):
        look(seconds, blue=True, red=True, green=False)
    look(55)  # nobody expects any of them to run
    look(60)
    (blue, green) = reporter.board.history("15m", clock.now + PERIOD_S, None)["series"]
    assert (blue["deployment"], blue["outages"], sum(blue["down_s"])) == (
        "blue",
        [{"from": NOW + 4, "to": NOW + 27}],
        23,
    )
    assert green["outages"] == [{"from": NOW + 30, "to": NOW + 50}]
    async with reporter.running():
        await wait_until_async(lambda: any(report.periods for report in sent))
    periods = [
        (one.at - NOW, [(arm.deployment, arm.down) for arm in one.arms]) for report in sent for one in report.periods
    ]
    assert periods == [
        (0, [("blue", (4.0, PERIOD_S))]),
        (10, [("blue", (0.0, PERIOD_S))]),
        (20, [("blue", (0.0, 7.0))]),
        (30, [("blue", (0.0, 0.0)), ("green", (0.0, PERIOD_S))]),
        (40, [("green", (0.0, PERIOD_S))]),
    ]


def test_an_outage_has_the_moment_of_the_change_and_not_of_the_look() -> None:
    clock, runs = Clock(), dict[tuple[str, str], bool]()
    known: dict[str, Mapping[tuple[str, str], bool] | None] = {"": runs}
    reporter = ActivityReporter(RequestLog(), None, dict, has_replica=lambda: known[""], clock=clock)
    runs["chat", "blue"] = True
    reporter.look()
    for changed_s, looked_s, is_up in ((1.0, 3.0, False), (7.0, 8.0, True)):
        for seconds in (changed_s, changed_s + 0.5):
            clock.now = NOW + seconds
            reporter.changed()
        known[""], clock.now = None, NOW + changed_s + 0.7
        reporter.look()  # nobody knows yet
        known[""], runs["chat", "blue"], clock.now = runs, is_up, NOW + looked_s
        reporter.look()
    clock.now = NOW + PERIOD_S
    reporter.sampled({})
    (blue,) = reporter.board.history("15m", clock.now + PERIOD_S, None)["series"]
    assert blue["outages"] == [{"from": NOW + 1, "to": NOW + 7}]


def test_the_wait_for_a_replica_is_told_from_the_arrival_on() -> None:
    log = RequestLog()
    record = Record("openai", "chat", "r", endpoint="chat", deployment="blue")
    log.begin(record, Sent, {}, caller_id="", trace_id=0)
    assert log.running()[0].lacked is None
    record.lacks(lack := Lack(record.started + 1.5))
    (waits,) = log.running()
    assert waits.lacked is not None
    assert list(waits.lacked) == pytest.approx([1.5, waits.duration_s])
    lack.until = record.started + 9.5
    assert list(log.running()[0].lacked or ()) == pytest.approx([1.5, 9.5])


def test_an_outage_goes_on_while_nobody_knows() -> None:
    """The control plane, too, is silent on a machine that has fallen silent."""
    watch, blue, outages = OutageWatch(), ("chat", "blue"), Outages()
    seen = {0: True, 2: False, 8: None, 12: None, 27: False, 29: None, 41: True, 43: None, 48: True}
    for seconds in range(60):
        if seconds in seen:
            runs = seen[seconds]
            watch.note({blue: runs} if runs is not None else None, NOW + seconds)
        if seconds % PERIOD_S == PERIOD_S - 1:
            for arm, part in watch.period(began := NOW + seconds + 1 - PERIOD_S).items():
                outages.note(arm, began, part)
    assert outages.within(blue, NOW, NOW + 60) == [(NOW + 2, NOW + 41)]


def test_an_outage_that_ends_and_begins_again_in_a_period_is_one_part_of_it() -> None:
    watch, blue = OutageWatch(), ("chat", "blue")
    for seconds, runs in ((0, True), (2, False), (4, True), (6, False), (9, True)):
        watch.note({blue: runs}, NOW + seconds)
    assert watch.period(NOW) == {blue: (2.0, 9.0)}
    assert watch.period(NOW + PERIOD_S) == {blue: (0.0, 0.0)}
    assert watch.period(NOW + 2 * PERIOD_S) == {}
