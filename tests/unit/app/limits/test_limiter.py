"""Reservations: all limits or none, settled, released; and a store that does not answer."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.access.caller import Caller
from app.config.access import Limiting, Limits
from app.errors import DeadlinePassed, LimitExceeded, SwitchyardError, TooLarge, Unavailable
from app.limits.limiter import Limiter, LimitSubject, Reservation
from app.limits.sliding_window import Window
from app.limits.store import Store, StoreFailed

TEAM = Caller("team", "key-1")
TOKENS = 100


class Watch:
    """Records the calls."""

    def __init__(self) -> None:
        self.reported: list[str] = []
        self.shares: list[tuple[str, str, float]] = []

    def limit_used(self, endpoint: str, limit: str, share: float) -> None:
        self.shares.append((endpoint, limit, share))

    def limited(self, endpoint: str, limit: str) -> None:
        self.reported.append(f"{endpoint} {limit}")

    def store_failed(self) -> None:
        self.reported.append("store failed")


class Usage:
    """An answer that used `spent` tokens."""

    def __init__(self, spent: int | None = None) -> None:
        self.reservation: Reservation | None = None
        self._spent = spent

    def tokens_used(self, prompt: int) -> int:
        return prompt if self._spent is None else self._spent


class Desk:
    """A limiter with limits for everyone, in memory by default."""

    def __init__(self, store: Store | None = None, *, on_store_failure: str = "allow", **limits: Any) -> None:
        self.watch, self.store, self.now = Watch(), store or Store.in_memory(), 0.0
        limiting = Limiting.model_validate({"default": limits, "on_store_failure": on_store_failure})
        self.limiter = Limiter(limiting, self.store, self.watch, lambda: self.now)

    @asynccontextmanager
    async def running(
        self, subject: LimitSubject = TEAM, endpoint: str = "chat", answer: Usage | None = None
    ) -> AsyncIterator[Usage]:
        answer = answer or Usage()
        async with self.limiter.admit(subject, endpoint, lambda: TOKENS, answer):
            yield answer

    async def run(
        self, subject: LimitSubject = TEAM, endpoint: str = "chat", spent: int | None = None
    ) -> dict[str, str]:
        """The headers of a request that is served."""
        async with self.running(subject, endpoint, Usage(spent)) as answer:
            return dict(await answer.reservation.headers()) if answer.reservation else {}

    async def refused(self, **where: Any) -> LimitExceeded:
        with pytest.raises(LimitExceeded) as raised:
            await self.run(**where)
        return raised.value


@pytest.fixture(autouse=True)
async def _away_from_a_boundary() -> None:
    """Windows in memory begin with the clock's minutes: no test may straddle one."""
    if (rest := 60 - time.time() % 60) < 5:
        await asyncio.sleep(rest + 0.1)


async def test_without_limits_nothing_is_counted() -> None:
    desk = Desk()
    for _ in range(20):
        assert await desk.run() == {}


async def test_requests_per_minute_are_limited() -> None:
    desk = Desk(requests_per_minute=2)
    first, second = await desk.run(), await desk.run()
    assert (first["x-ratelimit-limit-requests"], first["x-ratelimit-remaining-requests"]) == ("2", "1")
    assert second["x-ratelimit-remaining-requests"] == "0"
    assert second["x-ratelimit-reset-requests"].endswith("s")
    error = await desk.refused()
    assert error.retry_after is not None
    assert 1 <= error.retry_after <= 120
    assert error.message == (
        "Limit reached for 'team' on 'chat': 2 requests per minute, of which 2 are used; "
        f"it frees in {error.retry_after:.0f} s"
    )
    assert desk.watch.reported == ["chat requests"]


async def test_every_caller_and_endpoint_has_its_own_count() -> None:
    desk = Desk(requests_per_minute=1)
    await desk.run()
    await desk.run(endpoint="embed")
    await desk.run(Caller("other", "key-2"))
    await desk.run(Caller("more", "key-3", limits=Limits(requests_per_minute=5)))
    await desk.refused()


async def test_tokens_are_estimated_and_then_settled() -> None:
    desk = Desk(tokens_per_minute=1000)
    assert (await desk.run(spent=900))["x-ratelimit-remaining-tokens"] == "900"
    assert (await desk.run(spent=0))["x-ratelimit-remaining-tokens"] == "0"
    assert (await desk.run(spent=50))["x-ratelimit-remaining-tokens"] == "0"
    error = await desk.refused()
    assert "1000 tokens per minute, of which 950 are used and this takes about 100; it frees in" in error.message


async def test_a_request_that_took_more_than_was_left_is_paid_for_by_the_next() -> None:
    desk = Desk(tokens_per_minute=1000)
    await desk.run(spent=5000)
    error = await desk.refused()
    assert error.retry_after is not None
    assert error.retry_after > 40


async def test_a_prompt_larger_than_the_limit_is_rejected_without_a_retry_time() -> None:
    desk = Desk(tokens_per_minute=99)
    with pytest.raises(
        TooLarge, match="about 100 tokens, which the limit of 99 tokens per minute for 'team'"
    ) as raised:
        await desk.run()
    assert raised.value.retry_after is None
    assert desk.watch.reported == ["chat tokens"]


async def test_a_concurrent_request_that_ends_frees_its_place() -> None:
    desk = Desk(concurrent_requests=2)
    async with desk.running(), desk.running():
        error = await desk.refused()
        assert error.retry_after == 1
        assert "2 concurrent requests; one frees as soon as another ends" in error.message
    async with desk.running(), desk.running():
        pass


@pytest.mark.parametrize("raised", [RuntimeError, asyncio.CancelledError, SwitchyardError])
async def test_a_request_frees_its_place_however_it_ends(raised: type[BaseException]) -> None:
    desk = Desk(concurrent_requests=1)
    for _ in range(3):
        with pytest.raises(raised):
            async with desk.running():
                raise raised("over")
    await desk.run()


async def test_a_failed_request_costs_no_tokens_but_an_abandoned_one_does() -> None:
    desk = Desk(tokens_per_minute=1000)
    with pytest.raises(SwitchyardError):
        async with desk.running():
            raise SwitchyardError("the deployment failed")
    assert (await desk.run(spent=0))["x-ratelimit-remaining-tokens"] == "900"
    with pytest.raises(asyncio.CancelledError):
        async with desk.running(answer=Usage(300)):
            raise asyncio.CancelledError
    assert (await desk.run(spent=0))["x-ratelimit-remaining-tokens"] == "600"
    with pytest.raises(DeadlinePassed):
        async with desk.running():
            raise DeadlinePassed("the client would wait no longer")
    assert (await desk.run())["x-ratelimit-remaining-tokens"] == "500"


async def test_a_rejected_request_counts_against_no_other_limit() -> None:
    desk = Desk(requests_per_minute=3, tokens_per_minute=1000, concurrent_requests=1)
    async with desk.running():
        for _ in range(5):
            error = await desk.refused()
            assert "requests per minute" not in error.message
    headers = await desk.run()
    assert (headers["x-ratelimit-remaining-requests"], headers["x-ratelimit-remaining-tokens"]) == ("1", "800")


async def test_every_exceeded_limit_is_reported() -> None:
    desk = Desk(requests_per_minute=1, tokens_per_minute=150, concurrent_requests=1)
    async with desk.running():
        error = await desk.refused()
    for part in ("1 requests per minute", "150 tokens per minute", "1 concurrent requests"):
        assert part in error.message
    assert error.retry_after is not None
    assert error.retry_after > 1


async def test_no_more_than_the_limit_pass_at_once() -> None:
    desk = Desk(requests_per_minute=10, concurrent_requests=6)
    outcomes = await asyncio.gather(*(_held(desk, asyncio.Event()) for _ in range(20)))
    assert outcomes.count("ran") == 6


async def _held(desk: Desk, hold: asyncio.Event) -> str:
    try:
        async with desk.running():
            asyncio.get_running_loop().call_later(0.05, hold.set)
            await hold.wait()
            return "ran"
    except LimitExceeded:
        return "refused"


class UnreliableStore(Store):
    """A store in memory that can be made to fail, or to hang."""

    fails = False
    calls = 0
    hang: Callable[[], Awaitable[object]] | None = None
    hang_in_window: Callable[[], Awaitable[object]] | None = None

    async def take(self, key: str, limit: int, cost: int) -> bool:
        self.calls += 1
        if self.hang is not None:
            await self.hang()
        if self.fails:
            raise StoreFailed("ConnectionError")
        return await super().take(key, limit, cost)

    async def add(self, key: str, amount: int) -> None:
        if self.fails:
            raise StoreFailed("ConnectionError")
        await super().add(key, amount)

    async def acquire(self, key: str, limit: int, holder: str) -> bool:
        got = await super().acquire(key, limit, holder)
        if self.hang is not None:  # counted, but not answered yet
            await self.hang()
        return got

    async def window(self, key: str) -> Window:
        if self.hang_in_window is not None:
            await self.hang_in_window()
        if self.fails:
            raise StoreFailed("ConnectionError")
        return await super().window(key)


async def test_while_the_store_is_down_requests_pass_by_default() -> None:
    store = UnreliableStore.in_memory()
    desk = Desk(store, requests_per_minute=1)
    await desk.run()
    store.fails = True
    assert await desk.run() == {}
    assert desk.watch.reported == ["store failed"]
    calls = store.calls
    assert await desk.run() == {}
    assert store.calls == calls, "a store that has just failed is not called for a moment"
    store.fails, desk.now = False, desk.now + 2
    await desk.refused()


async def test_requests_are_rejected_while_the_store_is_down_if_configured() -> None:
    store = UnreliableStore.in_memory()
    store.fails = True
    desk = Desk(store, on_store_failure="refuse", requests_per_minute=1, concurrent_requests=1)
    for _ in range(2):
        with pytest.raises(Unavailable, match="Rate limits are temporarily unavailable") as raised:
            await desk.run()
        assert raised.value.retry_after == 1
    store.fails, desk.now = False, desk.now + 2
    await desk.run()


async def test_a_store_failure_at_the_end_does_not_fail_the_request() -> None:
    store = UnreliableStore.in_memory()
    desk = Desk(store, tokens_per_minute=1000)
    async with desk.running(answer=Usage(500)):
        store.fails = True
    assert set(desk.watch.reported) == {"store failed"}


async def test_a_client_that_leaves_while_its_claims_are_made_holds_nothing() -> None:
    store = UnreliableStore.in_memory()
    desk = Desk(store, requests_per_minute=5, concurrent_requests=1)
    store.hang = asyncio.Event().wait
    waiting = asyncio.create_task(desk.run())
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    store.hang = None
    assert (await desk.run())["x-ratelimit-remaining-requests"] == "4"


async def test_an_answer_abandoned_while_its_headers_are_computed_is_settled() -> None:
    store = UnreliableStore.in_memory()
    desk = Desk(store, requests_per_minute=5, concurrent_requests=1)
    reported = asyncio.Event()
    store.hang_in_window = reported.wait

    async def answered_in_time() -> None:
        async with desk.running() as answer:
            assert answer.reservation is not None
            asyncio.get_running_loop().call_later(0.05, reported.set)
            await asyncio.wait_for(answer.reservation.headers(), 0.01)

    with pytest.raises(TimeoutError):
        await answered_in_time()
    await desk.run()


async def test_a_rejection_names_the_limit_even_if_the_store_fails_meanwhile() -> None:
    store = UnreliableStore.in_memory()
    desk = Desk(store, requests_per_minute=1)
    await desk.run()
    waiting = asyncio.create_task(desk.refused())
    reported = asyncio.Event()
    store.hang_in_window = reported.wait
    await asyncio.sleep(0.01)
    store.fails = True
    reported.set()
    error = await waiting
    assert error.message == "Limit reached for 'team' on 'chat': 1 requests per minute"
    assert error.retry_after == 1


async def test_how_much_of_a_limit_is_used_is_reported_with_each_request() -> None:
    desk = Desk(requests_per_minute=4, tokens_per_minute=1000)
    async with desk.running():
        pass
    async with desk.running():
        pass
    assert sorted(desk.watch.shares) == [
        ("chat", "requests", 0.25),
        ("chat", "requests", 0.5),
        ("chat", "tokens", 0.1),
        ("chat", "tokens", 0.2),
    ]


async def test_without_limits_nothing_is_reported() -> None:
    desk = Desk()
    async with desk.running():
        pass
    assert desk.watch.shares == []


async def test_invalid_requests_count_and_take_nothing_else() -> None:
    desk = Desk(requests_per_minute=2, tokens_per_minute=1000, concurrent_requests=1)
    await desk.limiter.check(TEAM, "chat", Usage())
    for _ in range(2):
        await desk.limiter.count_invalid(TEAM, "chat", Usage())
    with pytest.raises(LimitExceeded, match="2 requests per minute"):
        await desk.limiter.count_invalid(TEAM, "chat", Usage())
    with pytest.raises(LimitExceeded, match="2 requests per minute"):
        await desk.limiter.check(TEAM, "chat", Usage())
    await desk.refused()
    await desk.limiter.check(TEAM, "embed", Usage())
    assert [left.used for left in await desk.limiter.left(TEAM, "chat")] == [2, 0, 0]
    assert desk.watch.reported == ["chat requests"] * 3


async def test_a_request_that_is_looked_at_is_not_counted() -> None:
    desk = Desk(requests_per_minute=1)
    for _ in range(3):
        await desk.limiter.check(TEAM, "chat", Usage())
    await desk.run()


async def test_without_a_limit_on_requests_invalid_ones_are_not_counted() -> None:
    desk = Desk(tokens_per_minute=1)
    for _ in range(3):
        await desk.limiter.count_invalid(TEAM, "chat", Usage())
        await desk.limiter.check(TEAM, "chat", Usage())
