"""One request per second for all listeners; nothing is buffered for listeners that are slow or gone."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import pytest

from app.errors import Unavailable
from app.experiments.contract.journal import Entry
from app.server.events import MAX_LISTENERS, MAX_WAITING, EventFeed, Listener
from tests.support.experiments.fake_controller import FakeController


class Rounds:
    """A clock that a test advances: the feed sleeps until the next round."""

    def __init__(self) -> None:
        self._next = asyncio.Event()
        self.slept = 0

    async def sleep(self, seconds: float) -> None:
        self.slept += 1
        await self._next.wait()

    async def turn(self) -> None:
        """Ends the present sleep, and waits until the feed sleeps again."""
        before, woken = self.slept, self._next
        self._next = asyncio.Event()
        woken.set()
        await until(lambda: self.slept > before)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await _a_round()


async def _a_round() -> None:
    await asyncio.sleep(0)


def alarm(controller: FakeController, text: str) -> None:
    at = 1000.0 + len(controller.reader.journal)
    controller.reader.journal.append(Entry(at, "alarm", "green-float32", {"text": text}, "w"))


def texts(listener: Listener) -> Iterator[str]:
    """The waiting items: events as their texts, '…' for a mark, '!' for a controller that is away."""
    while not listener.is_empty:
        item = listener._waiting.get_nowait()
        if item is None:
            yield "!"
        else:
            yield "…" if item.is_mark else item.data.decode().partition('"text":"')[2].partition('"')[0]


@pytest.fixture
def controller() -> FakeController:
    found = FakeController()
    found.reader.journal.append(Entry(999.0, "controller_started", writer="w"))
    return found


async def started(feed: EventFeed, rounds: Rounds, stack: AsyncExitStack) -> Listener:
    listener = await stack.enter_async_context(feed.listening())
    await until(lambda: rounds.slept > 0)
    return listener


def feed_of(controller: FakeController, rounds: Rounds) -> EventFeed:
    sleep: Callable[[float], Awaitable[None]] = rounds.sleep
    return EventFeed(controller, sleep=sleep, clock=lambda: 1000.5)


async def test_one_request_serves_every_listener(controller: FakeController) -> None:
    rounds = Rounds()
    feed = feed_of(controller, rounds)
    async with AsyncExitStack() as stack:
        first = await started(feed, rounds, stack)
        second = await stack.enter_async_context(feed.listening())
        alarm(controller, "a")
        await rounds.turn()
        alarm(controller, "b")
        await rounds.turn()
        await rounds.turn()
        assert list(texts(first)) == ["…", "a", "b"]
        assert list(texts(second)) == ["…", "a", "b"]
        assert controller.calls == ["GET /journal"] * 4


async def test_the_controller_is_not_polled_without_listeners(controller: FakeController) -> None:
    rounds = Rounds()
    feed = feed_of(controller, rounds)
    async with AsyncExitStack() as stack:
        await started(feed, rounds, stack)
    calls = len(controller.calls)
    alarm(controller, "while there are no listeners")
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(controller.calls) == calls
    rounds.slept = 0
    async with AsyncExitStack() as stack:
        again = await started(feed, rounds, stack)
        assert list(texts(again)) == ["…"]


async def test_a_controller_that_goes_and_comes_back_has_lost_nothing(controller: FakeController) -> None:
    rounds = Rounds()
    feed = feed_of(controller, rounds)
    async with AsyncExitStack() as stack:
        listener = await started(feed, rounds, stack)
        alarm(controller, "before")
        await rounds.turn()
        controller.absent = True
        await rounds.turn()
        await rounds.turn()
        late = await stack.enter_async_context(feed.listening())
        alarm(controller, "meanwhile")
        controller.reader.journal.append(Entry(2000.0, "controller_started", writer="x"))
        controller.absent = False
        await rounds.turn()
        assert list(texts(listener)) == ["…", "before", "!", "meanwhile", "The controller of experiments started"]
        assert list(texts(late)) == ["!", "meanwhile", "The controller of experiments started"]


async def test_a_controller_that_has_lost_the_last_entry_repeats_nothing(controller: FakeController) -> None:
    rounds = Rounds()
    feed = feed_of(controller, rounds)
    async with AsyncExitStack() as stack:
        listener = await started(feed, rounds, stack)
        alarm(controller, "first")
        controller.reader.journal.append(Entry(1000.5, "alarm", "green-float32", {"text": "lost"}, "w"))
        await rounds.turn()
        controller.reader.journal[-1] = Entry(1002.0, "alarm", "green-float32", {"text": "then"}, "x")
        await rounds.turn()
        assert list(texts(listener)) == ["…", "first", "lost", "then"]


async def test_a_controller_that_is_away_at_first(controller: FakeController) -> None:
    rounds = Rounds()
    feed = feed_of(controller, rounds)
    controller.absent = True
    async with AsyncExitStack() as stack:
        listener = await started(feed, rounds, stack)
        alarm(controller, "since somebody listens")
        controller.absent = False
        await rounds.turn()
        assert list(texts(listener)) == ["!", "since somebody listens", "…"]


async def test_a_slow_listener_is_let_go_and_costs_the_others_nothing(controller: FakeController) -> None:
    rounds = Rounds()
    feed = feed_of(controller, rounds)
    async with AsyncExitStack() as stack:
        slow = await started(feed, rounds, stack)
        quick = await stack.enter_async_context(feed.listening())
        got: list[str] = []
        for number in range(MAX_WAITING + 10):
            alarm(controller, str(number))
            await rounds.turn()
            got += texts(quick)
        assert got == ["…", *(str(number) for number in range(MAX_WAITING + 10))]
        assert (slow.is_lagging, quick.is_lagging) == (True, False)
        assert len(list(texts(slow))) == MAX_WAITING


async def test_the_number_of_listeners_is_bounded(controller: FakeController) -> None:
    feed = feed_of(controller, Rounds())
    async with AsyncExitStack() as stack:
        for _ in range(MAX_LISTENERS):
            await stack.enter_async_context(feed.listening())
        with pytest.raises(Unavailable, match="64 clients listen") as raised:
            await stack.enter_async_context(feed.listening())
        assert raised.value.retry_after is not None
    async with feed.listening():
        pass


async def test_without_a_controller_there_is_nothing_to_listen_to() -> None:
    with pytest.raises(Unavailable, match="add the application `experiments`"):
        async with EventFeed(None).listening():
            pass
