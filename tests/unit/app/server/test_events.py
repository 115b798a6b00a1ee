"""The stream of events as clients read it.

One request per second for all listeners; nothing is buffered for listeners that are slow or gone.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from app.errors import LimitExceeded, Unavailable
from app.experiments.contract.journal import JournalEntry
from app.server.events import LISTENERS_EACH, MAX_LISTENERS, MAX_WAITING, EventFeed, EventsApi, Listener
from app.sse import Decoder
from tests.support.experiments.fake_controller import FakeController
from tests.support.experiments.rig import Rig, refusal

START = JournalEntry(999.0, "controller_started", writer="w")
PLAN = {"endpoint": "embed", "generation": 1, "plan": "1-0", "weights": {"mini": 100}, "since": 1.0}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path)
    assert rig.controller is not None
    rig.controller.reader.journal += [
        START,
        JournalEntry(1000.0, "alarm", "green-float32", {"text": "errors"}, "w"),
        JournalEntry(1001.0, "plan", None, PLAN, "w"),
        JournalEntry(1002.0, "verdict", "green-float32", {"text": "ttft", "verdict": "better"}, "w"),
    ]
    return rig


def events(body: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The id, kind and data of each event."""
    for block in body.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            yield fields["id"], fields["event"], json.loads(fields["data"])


def test_a_stream_has_what_the_caller_may_see(rig: Rig) -> None:
    seen = {}
    for key in ("boss", "chat team", "embed team"):
        answer = rig.get("/api/events", key, since="999.5")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        seen[key] = [data["text"] for _, _, data in events(answer.text)]
    plan = "Plan 1, with a file: mini 100 %"
    assert seen == {"boss": ["errors", plan, "ttft"], "chat team": ["errors", "ttft"], "embed team": [plan]}


def test_a_client_that_comes_back_gets_the_rest_once(rig: Rig) -> None:
    first = [*events(rig.get("/api/events", since="0").text)]
    assert [kind for _, kind, _ in first] == ["controller", "alarm", "plan", "verdict"]
    for number, (id, _, _) in enumerate(first):
        headers = {"authorization": f"Bearer {rig.keys['boss'][0]}", "last-event-id": id}
        rest = rig.client.get("/api/events", headers=headers, params={"since": "0"})
        assert [*events(rest.text)] == first[number + 1 :]


def test_many_missed_events_come_in_pages(rig: Rig) -> None:
    assert rig.controller is not None
    rig.controller.reader.journal += [
        JournalEntry(2000.0 + number, "alarm", "green-float32", {"text": str(number)}, "w") for number in range(1234)
    ]
    sent = events(rig.get("/api/events", since="1999").text)
    assert [data["text"] for _, _, data in sent] == [str(number) for number in range(1234)]


def test_invalid_subscriptions_are_refused(rig: Rig) -> None:
    assert refusal(rig.get("/api/events", ""))[0] == 401
    assert refusal(rig.get("/api/events", since="yesterday"))[::2] == (400, "since")
    assert refusal(rig.get("/api/events", kind="alarm"))[::2] == (400, "kind")
    rig.controller = None
    status, message, _ = refusal(rig.get("/api/events"))
    assert (status, "add the application" in message) == (503, True)


async def _a_round() -> None:
    await asyncio.sleep(0)


class Connection:
    """One client of the ASGI application, which reads when the test says so."""

    def __init__(self, app: Any, key: str, query: bytes = b"") -> None:
        self.chunks: list[str] = []
        self.is_gone, self.can_send = asyncio.Event(), asyncio.Event()
        self.can_send.set()
        self.ended = False
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/events",
            "raw_path": b"/api/events",
            "query_string": query,
            "headers": [(b"authorization", f"Bearer {key}".encode())],
            "path_params": {},
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> Mapping[str, Any]:
        await self.is_gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        await self.can_send.wait()
        if message["type"] == "http.response.body":
            self.chunks.append(message["body"].decode())
            self.ended = not message.get("more_body", False)

    @property
    def texts(self) -> list[str]:
        return [data["text"] for _, _, data in events("".join(self.chunks))]

    async def until(self, text: str, *, comments: int = 0) -> None:
        """Waits until an event contains `text`, or until that many comments do."""
        async with asyncio.timeout(10):
            while not (text in self.texts if not comments else "".join(self.chunks).count(text) >= comments):
                await _a_round()


class EventStream:
    """The route on a feed whose rounds take no time."""

    def __init__(self, rig: Rig, **timing: float) -> None:
        self.rig = rig

        async def no_time(seconds: float) -> None:
            await asyncio.sleep(0)

        self.feed = EventFeed(rig.controller, sleep=no_time, clock=lambda: 1002.5)
        self.api = EventsApi(rig.services, feed=self.feed, **timing)
        (self.route,) = self.api.routes()

    def connect(self, key: str = "boss", query: bytes = b"") -> Connection:
        handle: Callable[..., Awaitable[None]] = self.route.app  # type: ignore[attr-defined]
        return Connection(handle, self.rig.keys[key][0], query)

    def happens(self, text: str) -> None:
        assert self.rig.controller is not None
        journal = self.rig.controller.reader.journal
        journal.append(JournalEntry(journal[-1].at + 1, "alarm", "green-float32", {"text": text}, "w"))


async def test_events_are_sent_as_they_happen(rig: Rig) -> None:
    live = EventStream(rig, stream_s=1e9)
    client = live.connect()
    await client.until("id: 1002.0", comments=1)  # the mark: the position at which it starts
    for text in ("first", "second"):
        live.happens(text)
        await client.until(text)
    assert client.texts == ["first", "second"]
    client.is_gone.set()
    await client.task
    assert rig.controller is not None
    calls = len(rig.controller.calls)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(rig.controller.calls) == calls, "no client is listening any more"


async def test_missed_events_come_first_and_none_comes_twice(rig: Rig) -> None:
    live = EventStream(rig, stream_s=1e9)
    client = live.connect(query=b"since=1001.5")
    live.happens("meanwhile")
    await client.until("meanwhile")
    live.happens("then")
    await client.until("then")
    assert client.texts == ["ttft", "meanwhile", "then"]
    client.is_gone.set()
    await client.task


async def test_a_client_with_a_position_gets_no_mark_of_the_journals_end(rig: Rig) -> None:
    assert rig.controller is not None
    rig.controller.reader.journal.append(JournalEntry(1002.5, "configuration", None, {}, "w"))  # no listener gets it
    live = EventStream(rig, stream_s=1e9)
    client = live.connect(query=b"since=1001.5")
    await client.until("ttft")
    live.happens("then")
    await client.until("then")
    frames = "".join(client.chunks).split("\n\n")
    assert [frame for frame in frames if frame.startswith("id: ") and "data: " not in frame] == []
    client.is_gone.set()
    await client.task


async def test_a_stream_without_visible_events_has_comments(rig: Rig) -> None:
    live = EventStream(rig, stream_s=1e9, heartbeat_s=0.01)
    client = live.connect("embed team")
    for number in range(3):
        await client.until(": nothing new", comments=number + 1)
        live.happens("for others")
    assert client.texts == []
    client.is_gone.set()
    await client.task


async def test_a_controller_that_is_away_is_a_comment_and_the_stream_goes_on(rig: Rig) -> None:
    assert rig.controller is not None
    rig.controller.absent = True
    live = EventStream(rig, stream_s=1e9, retry_s=0.0)
    new, back = live.connect(), live.connect(query=b"since=1001.5")
    for client in (new, back):
        await client.until("does not answer", comments=1)
    live.happens("at last")
    rig.controller.absent = False
    live.happens("later")
    for client in (new, back):
        await client.until("later")
    assert back.texts == ["ttft", "at last", "later"]
    for client in (new, back):
        client.is_gone.set()
        await client.task


async def test_a_client_that_does_not_read_is_let_go(rig: Rig) -> None:
    live = EventStream(rig, stream_s=1e9, send_s=0.05)
    client = live.connect()
    await client.until("id: 1002.0", comments=1)
    client.can_send.clear()
    live.happens("never read")
    await client.task
    assert not client.ended, "an unfinished response makes the server break the connection"
    assert client.texts == []


async def test_a_client_that_falls_behind_gets_the_buffered_events_and_ends(rig: Rig) -> None:
    live = EventStream(rig, stream_s=1e9)
    client = live.connect()
    await client.until("id: 1002.0", comments=1)
    client.can_send.clear()
    for number in range(2 * MAX_WAITING):
        live.happens(str(number))
    (listener,) = live.feed.listeners
    async with asyncio.timeout(10):
        while not listener.is_lagging:
            await _a_round()
    client.can_send.set()
    await client.task
    assert client.ended
    assert client.texts == [str(number) for number in range(len(client.texts))]
    assert MAX_WAITING <= len(client.texts) < 2 * MAX_WAITING


def test_the_stream_is_in_the_format_that_decoders_read(rig: Rig) -> None:
    decoder = Decoder()
    sent = [*decoder.feed(rig.get("/api/events", since="0").content)]
    assert [event.type for event in sent] == ["controller", "alarm", "plan", "verdict"]


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


def alarm(controller: FakeController, text: str) -> None:
    at = 1000.0 + len(controller.reader.journal)
    controller.reader.journal.append(JournalEntry(at, "alarm", "green-float32", {"text": text}, "w"))


def texts(listener: Listener) -> Iterator[str]:
    """The waiting items: events as their texts, '…' for a mark, '!' for a controller that is away."""
    while not listener.is_empty:
        item = listener.waiting.get_nowait()
        if item is None:
            yield "!"
        else:
            yield "…" if item.is_mark else item.data.decode().partition('"text":"')[2].partition('"')[0]


@pytest.fixture
def controller() -> FakeController:
    made = FakeController()
    made.reader.journal.append(JournalEntry(999.0, "controller_started", writer="w"))
    return made


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
        controller.reader.journal.append(JournalEntry(2000.0, "controller_started", writer="x"))
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
        controller.reader.journal.append(JournalEntry(1000.5, "alarm", "green-float32", {"text": "lost"}, "w"))
        await rounds.turn()
        controller.reader.journal[-1] = JournalEntry(1002.0, "alarm", "green-float32", {"text": "then"}, "x")
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


async def test_no_caller_takes_the_places_of_all(controller: FakeController) -> None:
    feed = feed_of(controller, Rounds())
    async with AsyncExitStack() as stack:
        for _ in range(LISTENERS_EACH):
            await stack.enter_async_context(feed.listening("alice"))
        with pytest.raises(LimitExceeded, match="8 times already") as raised:
            await stack.enter_async_context(feed.listening("alice"))
        assert raised.value.retry_after is not None
        await stack.enter_async_context(feed.listening("bob"))
    async with feed.listening("alice"):
        pass


async def test_without_a_controller_there_is_nothing_to_listen_to() -> None:
    with pytest.raises(Unavailable, match="add the application `experiments`"):
        async with EventFeed(None).listening():
            pass
