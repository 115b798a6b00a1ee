"""What routers have done that end without a word: each listed request is counted once, and what ran is lost."""

import json
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.activity.board import Board
from app.activity.outages import NEXT_REPORT_S
from app.activity.report import (
    PERIOD_S,
    ActivityReport,
    ArmCounts,
    CallerCounts,
    ListedRequest,
    PeriodCounts,
    RunningCount,
    decode_taken,
    encode,
)
from app.activity.reporter import ActivityReporter
from app.activity.request_list import LATE_S, Wanted
from app.activity.request_log import RequestLog
from app.activity.routers import SILENT_S
from app.engine.output import Usage
from app.errors import ROUTER_LOST
from app.experiments.activity import REPORTS_S, ActivityKeeper
from app.telemetry.logs import Record, Sent
from app.telemetry.recent import Counts
from tests.support.experiments.failing_store import Disk
from tests.support.waiting import wait_until_async

NOW = 1_800_000_000.0


def request(id: str, at: float = NOW, **fields: Any) -> ListedRequest:
    return ListedRequest(id, at, "openai", "chat", 200, 1.0, "chat", "blue", "ann", "key-1", **fields)


def counts_of(requests: int, at: float) -> PeriodCounts:
    arms = [ArmCounts("chat", "blue", requests)] if requests else []
    return PeriodCounts(at, [], arms, [CallerCounts("key-1", requests)] if requests else [])


@dataclass
class Router:
    """A router that reports to a controller, as far as its counts and its list go."""

    name: str
    ended: list[ListedRequest] = field(default_factory=list)
    running: list[ListedRequest] = field(default_factory=list)
    periods: list[PeriodCounts] = field(default_factory=list)
    new: int = 0
    known: int = 0
    keeper: str = ""

    def end(self, now: float) -> None:
        self.ended.append(request(f"{self.name}{len(self.ended)}", now - 1))
        self.new += 1

    def begin(self, now: float) -> None:
        self.running.append(request(f"{self.name}-{len(self.running)}", now, running=True))

    def period_ends(self, now: float) -> None:
        self.periods.append(counts_of(self.new, now - PERIOD_S))
        self.new = 0

    def report(self, keeper: ActivityKeeper, now: float, *, is_last: bool = False) -> None:
        report = ActivityReport(
            self.name,
            self.known,
            self.ended[self.known :],
            self.periods if self.keeper else [],
            self.running,
            self.keeper,
            so_far=counts_of(self.new, now - now % PERIOD_S),
            running_counts=[RunningCount("chat", "blue", "key-1", len(self.running))] if self.running else [],
            is_last=is_last,
        )
        taken = decode_taken(keeper.take(encode(report)).body)
        self.known = len(self.ended)
        if taken.keeper != self.keeper:
            self.keeper = taken.keeper
            self.report(keeper, now)


class World:
    """Routers and a controller on a disk."""

    def __init__(self) -> None:
        self.disk, self.now = Disk(), NOW
        self.routers = {name: Router(name) for name in "ab"}
        self.dead: set[str] = set()
        self.restart()

    def restart(self) -> None:
        self.keeper = ActivityKeeper(lambda: self.disk, lambda: self.now)

    def passes(self, seconds: float) -> None:
        """The time, with a report of each router every two seconds."""
        for _ in range(round(seconds / NEXT_REPORT_S)):
            self.now += NEXT_REPORT_S
            self.disk.now = self.now
            for name, router in self.routers.items():
                if self.now % PERIOD_S == 0:
                    router.period_ends(self.now)
                if name not in self.dead:
                    router.report(self.keeper, self.now)
            self.keeper.save_if_due()

    @property
    def listed(self) -> Counter[str]:
        document = json.loads(self.keeper.requests(b"{}").body)
        return Counter("running" if one["running"] else one["outcome"] for one in document["requests"])

    @property
    def counted(self) -> Counter[str]:
        """In the longest history, and as the caller's use, which agree."""
        (series,) = json.loads(self.keeper.history({"range": "24h"}, b"null").body)["series"] or [None]
        ((today,),) = json.loads(self.keeper.uses({"days": "1"}).body)["uses"].values() or [[Counter[str]()]]
        if series is None:
            return Counter()
        requests = round(sum(rate * 600 for rate in series["requests_per_s"][:-1]))
        errors = sum(series["errors"])
        assert (today["requests"], today["failed"]) == (requests, errors)
        return +Counter({"answered": requests - errors, "errors": errors})


def settled(world: World) -> tuple[Counter[str], Counter[str]]:
    """What is listed, and what is counted, once all is known that ever will be."""
    world.passes(SILENT_S + PERIOD_S + NEXT_REPORT_S)
    listed = world.listed
    world.now += 1200
    return listed, world.counted


@pytest.mark.parametrize("ended", [0, 1, 5])
@pytest.mark.parametrize("seconds", [2, 8, 10, 14, 30])
def test_of_a_router_that_is_killed_what_was_listed_is_counted_and_what_ran_has_failed(
    ended: int, seconds: float
) -> None:
    world = World()
    world.passes(4)
    for _ in range(4):
        world.routers["a"].begin(world.now)
    world.passes(seconds)
    for _ in range(ended):
        world.routers["a"].end(world.now)
    world.passes(2)
    world.dead.add("a")
    listed, counted = settled(world)
    assert listed == counted == +Counter(answered=ended, errors=4)
    (group,) = json.loads(world.keeper.requests(b'{"error": "router_lost"}').body)["groups"]
    assert (group["count"], group["outcome"], group["is_whole"]) == (4, "errors", True)
    assert group["message"].startswith("Its router ended before it.")


STEPS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from(("end", "end", "begin", "finish", "report", "wait", "kill", "back", "stop", "restart")),
    ),
    max_size=30,
)


@given(STEPS)
def test_every_listed_request_is_counted_once_whatever_becomes_of_its_router(steps: list[tuple[str, str]]) -> None:
    world, restarts = World(), 0
    world.passes(2)
    for name, step in steps:
        router = world.routers[name]
        match step:
            case "end":
                router.end(world.now)
            case "begin":
                router.begin(world.now)
            case "finish" if router.running:
                router.running.pop()
                router.end(world.now)
            case "wait":
                world.passes(SILENT_S + NEXT_REPORT_S)
            case "kill":
                world.dead.add(name)
            case "back":  # it was there all the time, and could not be heard
                world.dead.discard(name)
            case "restart":
                world.passes(REPORTS_S)
                world.restart()
                restarts += 1
                world.passes(2)
            case _:
                world.passes(2)
    listed, counted = settled(world)
    listed.pop("running", None)
    if restarts:  # a list is told what was new alone, while counts wait for a file
        assert counted.total() >= listed.total()
    else:
        assert counted == listed


def test_a_router_that_ends_by_itself_has_lost_nothing() -> None:
    world = World()
    world.passes(4)
    world.routers["a"].end(world.now)
    world.routers["a"].report(world.keeper, world.now, is_last=True)
    world.dead.add("a")
    world.passes(SILENT_S + PERIOD_S)
    assert json.loads(world.keeper.history({"range": "1h"}, b"null").body)["lost_routers"] == []
    assert settled(world) == (Counter(answered=1), Counter(answered=1))


def test_a_controller_that_is_killed_with_a_router_knows_what_ran_there() -> None:
    world = World()
    world.routers["a"].begin(world.now)
    world.routers["a"].end(world.now)
    world.passes(REPORTS_S + 4)
    world.dead.update("ab")
    world.restart()
    assert world.listed == Counter(answered=1, running=1)
    assert settled(world) == (Counter(answered=1, errors=1), Counter(answered=1, errors=1))
    world.restart()
    assert world.counted == Counter(answered=1, errors=1)


def test_a_history_tells_when_a_router_ended_whose_last_requests_nobody_has_counted() -> None:
    board = Board()
    for second in range(0, 41, 2):
        for name in "ab" if second <= 20 else "a":
            report = ActivityReport(name, 0, [], [], served_s=float(second), so_far=counts_of(0, NOW))
            board.take(report, NOW + second)
    board.settle(NOW + 40)
    told = [{"from": NOW + 20, "to": NOW + 20 + NEXT_REPORT_S}]
    assert board.history("15m", NOW + 60, None)["lost_routers"] == told
    again = Board()
    again.load(board.dump(), NOW + 60)
    assert again.history("15m", NOW + 60, None)["lost_routers"] == told


def test_a_history_tells_how_many_requests_were_lost_with_a_router_that_is_not_heard_again() -> None:
    board, running = Board(), [RunningCount("chat", "blue", "", 3), RunningCount("chat", "green", "", 1)]
    report = ActivityReport("a", 0, [], [], served_s=9.0, so_far=counts_of(0, NOW), running_counts=running)
    board.take(report, NOW)
    board.settle(NOW + 10)
    assert board.history("15m", NOW + 10, None)["lost_requests"] == []
    board.settle(NOW + 20)
    told = [{"at": NOW, "endpoint": "chat", "requests": 4}]
    assert board.history("15m", NOW + 40, {"chat"})["lost_requests"] == told
    assert board.history("15m", NOW + 40, {"embed"})["lost_requests"] == []
    again = Board()
    again.load(board.dump(), NOW + 40)
    assert again.history("15m", NOW + 40, None)["lost_requests"] == told
    board.take(report, NOW + 60)
    assert board.history("15m", NOW + 60, None)["lost_requests"] == [], "it was only silent"


def test_what_no_router_has_counted_lies_in_a_gap_that_is_told_once() -> None:
    board = Board()
    board.take(ActivityReport("a", 0, [], [], served_s=9.0, so_far=counts_of(0, NOW)), NOW)
    board.take(ActivityReport("b", 0, [], [], served_s=1.0, so_far=counts_of(0, NOW)), NOW + 20)
    board.settle(NOW + 20)
    history = board.history("15m", NOW + 22, None)
    assert (history["no_router"], history["lost_routers"]) == ([{"from": NOW, "to": NOW + 19}], [])


def test_a_request_says_from_when_its_router_is_not_heard() -> None:
    board = Board()
    board.take(ActivityReport("a", 0, [], [], [request("r", running=True)]), NOW)

    def seen(seconds: float) -> list[tuple[bool, float | None, str]]:
        board.settle(NOW + seconds)
        rows = board.requests(Wanted(), NOW + seconds)["requests"]
        return [(one["running"], one["silent_s"], one["error"]) for one in rows]

    assert seen(LATE_S - 1) == [(True, None, "")]
    assert seen(LATE_S) == [(True, LATE_S, "")]
    assert seen(SILENT_S) == [(False, None, ROUTER_LOST)]
    board.take(ActivityReport("a", 0, [], [], [request("r", running=True)]), NOW + SILENT_S + 1)
    assert seen(SILENT_S + 2) == [(True, None, "")], "it was there all the time"


def test_what_was_taken_back_leaves_no_reasons() -> None:
    board = Board()
    so_far = replace(counts_of(0, NOW), unauthorized={"no key": 3}, unknown_routes={"/v2": 1})
    board.take(ActivityReport("a", 0, [], [], so_far=so_far), NOW)
    board.settle(NOW + SILENT_S)
    page = board.requests(Wanted(), NOW + SILENT_S)
    assert page["unauthorized"]["reasons"] == [{"reason": "no key", "requests": 3}]
    board.take(ActivityReport("a", 0, [], [], so_far=so_far), NOW + SILENT_S)
    page = board.requests(Wanted(), NOW + SILENT_S)
    assert (page["unauthorized"]["reasons"], page["unknown_routes"]["reasons"]) == ([], [])


async def test_a_reporter_tells_its_counts_so_far_with_the_requests_of_the_same_moment(tmp_path: Path) -> None:
    disk, log, counters = Disk(), RequestLog(), {("chat", "blue"): Counts()}
    keeper = ActivityKeeper(lambda: disk, lambda: NOW + 1)
    reports: list[bytes] = []

    async def deliver(report: bytes) -> bytes:
        reports.append(report)
        return keeper.take(report).body

    reporter = ActivityReporter(log, deliver, dict, counters=lambda: counters, every_s=0.002, clock=lambda: NOW + 1)
    waits = Record("openai", "chat", "w", caller="ann", endpoint="chat", deployment="blue", prompt_estimate=9)
    ends = Record("openai", "chat", "e", caller="ann", endpoint="chat", deployment="blue", status=200)
    ends.usage = Usage(3, 4)
    async with reporter.running():
        log.begin(waits, partial(Sent, 5), {}, caller_id="key-1", trace_id=0)
        log.add(ends, plan="", caller_id="key-1", trace_id=0)
        counters["chat", "blue"] = Counts(requests=1, output_tokens=4)
        await wait_until_async(lambda: bool(keeper.board.live()) and keeper.board.requests(Wanted(), NOW)["kept"] == 2)
    assert b"is_last" in reports[-1]
    assert b"is_last" not in reports[-2]
    keeper.board.settle(NOW + 1)
    (series,) = keeper.board.history("15m", NOW + 60, None)["series"]
    assert (round(10 * sum(series["requests_per_s"])), sum(series["errors"])) == (2, 1)
    assert round(10 * sum(series["output_tokens_per_s"])) == 9
    ((use,),) = keeper.board.uses(1, NOW + 60).values()
    assert use == {"requests": 2, "failed": 1, "prompt_tokens": 12, "completion_tokens": 9}
