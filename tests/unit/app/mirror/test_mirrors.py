"""The queues of copies, with a clock that the test moves and an upstream in memory.

The budget of copies: never exceeded within a minute, and used up when there is enough demand.

Units are drawn whole, in the configured share, and independently of the draw of arms.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.config.schema import Config, Timeouts, parse
from app.engine.answers import EventCheck
from app.engine.output import Usage
from app.errors import TimedOut, Unavailable
from app.exposures.exposure import Arrival
from app.exposures.log import ExposureLog, RequestEnd
from app.exposures.wire import Acknowledgement, Failure, Pair, Skip, decode_batch
from app.mirror.mirrors import MOST_WAITING, PERIOD_S, Charge, Mirrors, ServedRequest, TokenBudget, is_drawn
from app.mirror.original import Original
from app.routing.resilience import FAULTS_IN_A_ROW, OPEN_S
from app.routing.traffic import rendezvous
from app.upstream.client import ResponseStream, Upstream
from app.upstream.target import Target

CHOICES = [{"message": {"content": "hi"}, "finish_reason": "stop"}]
ANSWER = json.dumps({"choices": CHOICES, "usage": {"prompt_tokens": 4, "completion_tokens": 6}}).encode()
BODY = {"messages": [{"role": "user", "content": "hi"}]}
GREEN = Target("green", "http://green", "m", {})


class FakeUpstream(Upstream):
    """Answers what `answer` yields, at once or when `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: Callable[[], Any] = lambda: ANSWER
        self.go = asyncio.Event()
        self.go.set()
        self.calls = 0
        self.at_once = self.most_at_once = 0

    def stream(self, target: Target, path: str, body: Mapping[str, Any] | bytes, **_: Any) -> ResponseStream:
        return FakeStream(self)


class FakeStream(ResponseStream):
    """One chunk, or what the upstream raises."""

    def __init__(self, upstream: FakeUpstream) -> None:
        self._upstream = upstream
        self._chunks: list[bytes] = []

    async def begin(self, *, events: bool = True, check: EventCheck | None = None) -> None:
        upstream = self._upstream
        upstream.calls += 1
        upstream.at_once += 1
        upstream.most_at_once = max(upstream.most_at_once, upstream.at_once)
        await upstream.go.wait()
        answer = upstream.answer()
        if isinstance(answer, Exception):
            raise answer
        self._chunks = [answer]

    async def __anext__(self) -> bytes:
        if not self._chunks:
            raise StopAsyncIteration
        return self._chunks.pop()

    def close(self) -> None:
        self._upstream.at_once -= 1


class CountedOutcomes:
    """The outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.waiting = 0

    def mirrored(self, endpoint: str, deployment: str, outcome: str) -> None:
        assert (endpoint, deployment) == ("chat", "green")
        self.outcomes.append(outcome)

    def mirror_queued(self, endpoint: str, deployment: str, waiting: int) -> None:
        self.waiting = waiting


NO_LIMITS: Mapping[str, int] = {}


class Bench:
    """Mirrors of an endpoint `chat`, served by blue."""

    def __init__(self, limits: Mapping[str, int] = NO_LIMITS, **mirror: Any) -> None:
        self.now = 1000.0
        self.stopped = False
        self.upstream, self.counted = FakeUpstream(), CountedOutcomes()
        self.ledger = ExposureLog(lambda url: b"secret")
        self.mirrors = Mirrors(
            self.upstream,
            self.ledger,
            self.counted,
            is_blocked=lambda endpoint, deployment: self.stopped,
            clock=lambda: self.now,
            **limits,
        )
        self.config = self.configure(**mirror)

    def configure(self, **mirror: Any) -> Config:
        endpoint = {
            "tasks": ["chat"],
            "traffic": {"blue": 100},
            "mirror": {"deployment": "green", "percent": 100, **mirror},
        }
        deployments = {name: {"url": f"http://{name}", "model": "m"} for name in ("blue", "green")}
        self.config = parse({"endpoints": {"chat": endpoint}, "deployments": deployments})
        self.scope = self.ledger.configure(self.config)["chat"]
        return self.config

    def request(self, *, answer: bytes = ANSWER, user: str | None = "ann", **served: Any) -> None:
        """A request from its arrival to its end."""
        arrival = Arrival("r", user, "me", "blue", "sticky", "openai", "chat", False, 10, BODY, 0.0)
        exposure = self.ledger.start(self.scope, arrival)
        mirror = self.config.endpoints["chat"].mirror
        assert mirror is not None
        original = self.mirrors.draw("chat", mirror, exposure, 10)
        assert isinstance(original, Original)
        original.sent("/v1/chat/completions", BODY)
        exposure.sent("/v1/chat/completions", BODY)
        original.chunk(answer)
        exposure.answer(answer)
        exposure.served = "blue"
        self.ledger.finish(exposure, RequestEnd(200, 1.0))
        facts: dict[str, Any] = {
            "deployment": "blue",
            "complete": True,
            "bound": False,
            "target": GREEN,
            "timeouts": Timeouts(),
            "new_collector": lambda: None,
            "usage": Usage(4, 6),
        }
        self.mirrors.ended(original, ServedRequest(**(facts | served)))

    def pairs(self) -> list[Pair]:
        """The outcomes recorded since the last call."""
        self.ledger.seal()
        decoded: list[Pair] = []
        while (batch := self.ledger.backlog.next()) is not None:
            decoded += decode_batch(self.ledger.encoded(batch)).pairs
            self.ledger.backlog.acknowledge(Acknowledgement(batch.number, batch.number))
        return decoded

    @property
    def room(self) -> tuple[int, int]:
        """The bytes of requests and of answers that are held."""
        return self.mirrors.bodies.used, self.mirrors.answers.used


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_copies_wait_for_a_slot_in_their_order_and_leave_nothing_behind() -> None:
    bench = Bench(max_concurrent=2)
    async with bench.mirrors.running():
        bench.upstream.go.clear()
        for _ in range(7):
            bench.request()
        await settle()
        assert (bench.upstream.calls, bench.counted.waiting, bench.pairs()) == (2, 5, [])
        bench.upstream.go.set()
        await settle()
        assert (bench.upstream.calls, bench.upstream.most_at_once, bench.counted.waiting) == (7, 2, 0)
        assert [(pair.seq, pair.equal) for pair in bench.pairs()] == [(seq, 1) for seq in range(1, 8)]
        assert bench.counted.outcomes == ["compared"] * 7
    assert bench.room == (0, 0)


async def test_a_requests_content_is_kept_once_as_it_is_sent() -> None:
    bench = Bench(max_concurrent=1)
    async with bench.mirrors.running():
        bench.upstream.go.clear()
        bench.request()
        bench.request()
        (lane,) = bench.mirrors.lanes.values()
        copy, _ = lane.waiting[0]
        assert (copy.original.body, copy.original.exposure.arrival.body) == ({}, {})
        assert json.loads(copy.body) == {**BODY, "model": "m"}


async def test_above_64_waiting_copies_are_skipped() -> None:
    bench = Bench(max_concurrent=1)
    async with bench.mirrors.running():
        bench.upstream.go.clear()
        for _ in range(1 + MOST_WAITING + 2):
            bench.request()
        assert [pair.skipped for pair in bench.pairs()] == [Skip.QUEUE_FULL] * 2
    assert bench.room == (0, 0)
    assert bench.counted.outcomes.count("skipped_shutdown") == 1 + MOST_WAITING


@pytest.mark.parametrize("limit", ["body_bytes", "answer_bytes"])
async def test_memory_is_bounded(limit: str) -> None:
    bench = Bench({limit: 3 * len(ANSWER)}, max_concurrent=1)
    async with bench.mirrors.running():
        bench.upstream.go.clear()
        for _ in range(10):
            bench.request()
        assert max(bench.room) <= 3 * len(ANSWER) or limit == "body_bytes"
        assert {pair.skipped for pair in bench.pairs()} == {Skip.QUEUE_FULL}
    assert bench.room == (0, 0)


async def test_the_breaker_opens_after_faults_in_a_row_and_one_copy_tries_again() -> None:
    bench = Bench()
    async with bench.mirrors.running():
        bench.upstream.answer = lambda: TimedOut("no")
        for _ in range(FAULTS_IN_A_ROW):
            bench.request()
            await settle()
        assert [pair.error for pair in bench.pairs()] == [Failure.TIMEOUT] * FAULTS_IN_A_ROW
        bench.request()
        assert [pair.skipped for pair in bench.pairs()] == [Skip.BREAKER_OPEN]
        bench.now += OPEN_S
        bench.upstream.go.clear()
        bench.request()
        bench.request()
        await settle()
        assert [pair.skipped for pair in bench.pairs()] == [Skip.BREAKER_OPEN]  # while the trial runs
        bench.upstream.go.set()
        await settle()
        assert [pair.error for pair in bench.pairs()] == [Failure.TIMEOUT]
        bench.now += OPEN_S
        bench.request()
        assert [pair.skipped for pair in bench.pairs()] == [Skip.BREAKER_OPEN]  # the pause has doubled
        bench.now += OPEN_S
        bench.upstream.answer = lambda: ANSWER
        bench.request()
        await settle()
        bench.request()
        await settle()
        assert [(pair.error, pair.skipped) for pair in bench.pairs()] == [(Failure.NONE, Skip.NONE)] * 2


async def test_a_malformed_answer_is_a_fault_of_the_shadow() -> None:
    bench = Bench()
    async with bench.mirrors.running():
        bench.upstream.answer = lambda: b'{"choices": []'
        for _ in range(FAULTS_IN_A_ROW + 1):
            bench.request()
            await settle()
        expected = [(Failure.INCOMPLETE, Skip.NONE)] * FAULTS_IN_A_ROW + [(Failure.NONE, Skip.BREAKER_OPEN)]
        assert [(pair.error, pair.skipped) for pair in bench.pairs()] == expected


async def test_a_busy_or_refusing_shadow_opens_no_breaker() -> None:
    bench = Bench()
    async with bench.mirrors.running():
        bench.upstream.answer = lambda: Unavailable("busy", retry_after=1)
        for _ in range(2 * FAULTS_IN_A_ROW):
            bench.request()
            await settle()
        assert {(pair.error, pair.skipped) for pair in bench.pairs()} == {(Failure.UNAVAILABLE, Skip.NONE)}


async def test_a_stopped_shadow_gets_no_copy_not_even_one_that_waits() -> None:
    bench = Bench(max_concurrent=1)
    async with bench.mirrors.running():
        bench.upstream.go.clear()
        bench.request()
        bench.request()
        await settle()
        bench.stopped = True
        bench.request()
        bench.upstream.go.set()
        await settle()
        assert [pair.skipped for pair in bench.pairs()] == [Skip.STOPPED, Skip.NONE, Skip.STOPPED]
        assert bench.upstream.calls == 1
    assert bench.room == (0, 0)


async def test_the_budget_counts_estimates_first_and_then_what_was_used() -> None:
    bench = Bench(tokens_per_minute=35)
    async with bench.mirrors.running():
        bench.upstream.go.clear()
        for _ in range(4):
            bench.request()
        assert [pair.skipped for pair in bench.pairs()] == [Skip.BUDGET]
        bench.upstream.answer = lambda: Unavailable("busy", retry_after=1)  # which costs nothing
        bench.upstream.go.set()
        await settle()
        bench.pairs()
        bench.upstream.answer = lambda: ANSWER
        for _ in range(4):
            bench.request()
            await settle()
        assert [pair.skipped for pair in bench.pairs()] == [Skip.NONE] * 3 + [Skip.BUDGET]
        bench.now += 60
        bench.request()
        await settle()
        assert [pair.skipped for pair in bench.pairs()] == [Skip.NONE]


async def test_a_copy_that_waits_when_it_is_dropped_costs_no_budget() -> None:
    bench = Bench(tokens_per_minute=25, max_concurrent=1)
    async with bench.mirrors.running():
        bench.upstream.go.clear()
        bench.request()
        bench.request()
        await settle()
        bench.stopped = True
        bench.upstream.go.set()
        await settle()
        bench.stopped = False
        bench.request()
        await settle()
        assert [pair.skipped for pair in bench.pairs()] == [Skip.NONE, Skip.STOPPED, Skip.NONE]


@pytest.mark.parametrize(
    ("served", "skipped"),
    [
        ({"complete": False}, Skip.PRIMARY_FAILED),
        ({"deployment": ""}, Skip.PRIMARY_FAILED),
        ({"bound": True}, Skip.BOUND_TO_MODEL),
    ],
)
async def test_incomparable_requests_are_not_copied(served: dict[str, Any], skipped: Skip) -> None:
    bench = Bench()
    async with bench.mirrors.running():
        bench.request(**served)
        await settle()
        assert [pair.skipped for pair in bench.pairs()] == [skipped]
    assert (bench.upstream.calls, bench.room) == (0, (0, 0))


async def test_a_bug_while_a_copy_is_made_affects_no_request(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(max_concurrent=1)

    def broken() -> Any:
        raise AssertionError("a bug")

    async with bench.mirrors.running():
        bench.upstream.answer = broken
        bench.request()
        await settle()
        bench.request(new_collector=broken)
        bench.upstream.answer = lambda: ANSWER
        bench.request()
        await settle()
        assert [pair.equal for pair in bench.pairs()] == [1]
    assert [record.message for record in caplog.records] == ["A request could not be mirrored"] * 2
    assert bench.room == (0, 0)


async def test_a_mirror_sends_nothing_before_its_start_and_after_its_end() -> None:
    bench = Bench()
    bench.request()
    async with bench.mirrors.running():
        pass
    bench.request()
    assert [pair.skipped for pair in bench.pairs()] == [Skip.SHUTDOWN] * 2
    assert bench.upstream.calls == 0


LIMIT = 20_000


def test_a_minute_costs_its_budget_at_most() -> None:
    budget = TokenBudget()
    taken = [budget.take(1000, 3500, now) for now in (0.0, 1.0, 2.0, 3.0)]
    assert [copy is not None for copy in taken] == [True, True, True, False]
    assert budget.take(500, 3500, 3.0) is not None
    assert budget.take(1000, 3500, 59.9) is None
    assert budget.take(1000, 3500, 60.0) is not None
    assert budget.take(1, None, 60.0) is not None
    assert budget.take(3501, 3500, 500.0) is None


def test_the_real_cost_of_a_call_replaces_the_estimate() -> None:
    budget = TokenBudget()
    charge = budget.take(1000, 3000, 0.0)
    assert charge is not None
    budget.settle(charge, 0.0, 1.0)
    assert budget.take(3000, 3000, 1.0) is not None
    unknown = TokenBudget()
    kept = unknown.take(1000, 1500, 0.0)
    assert kept is not None
    unknown.settle(kept, None, 1.0)
    assert unknown.take(1000, 1500, 1.0) is None


def test_the_excess_of_a_call_longer_than_a_minute_counts_when_it_ends() -> None:
    budget = TokenBudget()
    charge = budget.take(1000, 3000, 0.0)
    assert charge is not None
    assert budget.take(1, 3000, 70.0) is not None
    budget.settle(charge, 3500.0, 70.0)
    assert budget.take(600, 3000, 71.0) is None
    assert budget.take(600, 3000, 130.5) is not None


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    talks=st.floats(0.2, 8.0),
    size=st.integers(20, 200),
    every=st.floats(0.05, 0.3),
    took=st.floats(0.0, 5.0),
    at_once=st.integers(1, 4),
)
def test_the_budget_is_kept_within_5_percent_however_wrong_estimates_are(
    seed: int, talks: float, size: int, every: float, took: float, at_once: int
) -> None:
    """`talks`: the shadow's tokens per token that the primary's answer leads one to expect."""
    random, budget, now = Random(seed), TokenBudget(), 0.0
    running: list[tuple[float, Charge, float]] = []
    spent: list[tuple[float, float]] = []
    while now < 10 * PERIOD_S:
        for ending in [span for span in running if span[0] <= now]:
            running.remove(ending)
            budget.settle(ending[1], ending[2], now)
        if len(running) < at_once:
            estimate = size * random.uniform(0.5, 1.5)
            if (charge := budget.take(estimate, LIMIT, now)) is not None:
                cost = estimate * talks * random.uniform(0.7, 1.3)
                running.append((now + took, charge, cost))
                spent.append((now, cost))
        now += every
    first_minute = [cost for at, cost in spent if at < PERIOD_S]
    assert sum(first_minute) <= 1.05 * LIMIT
    for begin in range(0, int(9 * PERIOD_S), 7):
        assert sum(cost for at, cost in spent if begin <= at < begin + PERIOD_S) <= 1.05 * LIMIT
    most = min(PERIOD_S / every, PERIOD_S / max(took, every) * at_once) * size * talks
    later = sum(cost for at, cost in spent if at >= PERIOD_S) / 9
    assert later >= 0.7 * min(LIMIT, most)


@pytest.mark.parametrize("tokens", [0.0, 1e9])
def test_a_single_odd_call_does_not_spoil_the_estimates(tokens: float) -> None:
    budget = TokenBudget()
    charge = budget.take(100, LIMIT, 0.0)
    assert charge is not None
    budget.settle(charge, tokens, 0.0)
    assert budget.take(LIMIT / 10, LIMIT, 100.0) is not None


def test_the_share_is_the_percentage() -> None:
    units = range(20_000)
    for percent in (0.5, 5.0, 50.0, 100.0):
        share = sum(is_drawn(unit, "chat", percent) for unit in units) / 20_000
        assert abs(share - percent / 100) <= 4.5 * (percent / 100 * (1 - percent / 100) / 20_000) ** 0.5


@given(st.integers(0, 2**64 - 1), st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_larger_share_keeps_the_units_of_a_smaller_one(unit: int, one: float, other: float) -> None:
    small, large = sorted((one, other))
    assert is_drawn(unit, "chat", large) or not is_drawn(unit, "chat", small)
    assert is_drawn(unit, "chat", 100)


def test_arms_and_endpoints_are_drawn_independently() -> None:
    units = [f"user {number}" for number in range(8000)]
    hashes = {unit: hash_of(unit) for unit in units}
    on_blue = [unit for unit in units if rendezvous(unit, {"blue": 50, "green": 50}) == "blue"]
    for share in (
        sum(is_drawn(hashes[unit], "chat", 50) for unit in on_blue) / len(on_blue),
        sum(is_drawn(digest, "chat", 50) == is_drawn(digest, "other", 50) for digest in hashes.values()) / len(units),
    ):
        assert abs(share - 0.5) < 0.04


def hash_of(unit: str) -> int:
    from app.exposures.identity import Hashes

    return Hashes(b"s" * 32).unit(unit)
