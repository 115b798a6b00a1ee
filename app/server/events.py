"""`GET /api/events`: the journal as server-sent events, as it is written.

A caller gets the events of endpoints that it may use. `Last-Event-ID` or `since` resumes. A stream ends after a while,
so that no client delays a stopping router, and clients resume with `Last-Event-ID`, as browsers do by themselves.

Follows the controller's journal while there are listeners, and passes new events to each of them.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from starlette.requests import Request as HTTPRequest

from app.access.caller import Caller
from app.aio import while_connected
from app.errors import LimitExceeded, SwitchyardError, Unavailable
from app.exchange.response import StreamAborted
from app.experiments.contract.journal import FeedEvent, Page, time_of
from app.exposures.controller_client import ControllerClient
from app.server.operations import Api, ApiRoute, OperationContext, RoutedApi, Services, ask, no_controller, openai_words
from app.sse import encode

EVERY_S = 1.0
PATIENCE_S = 5.0
"""The longest wait of a question for the controller."""

MAX_LISTENERS, LISTENERS_EACH = 64, 8
"""Of one router, and of one known caller: nobody takes the places of all."""
MAX_WAITING = 256
"""Events that wait for a slow listener; a slower one is disconnected, and may come back for the rest."""

_REMEMBERED = 1024
"""Ids of events that went out: a page after a time may have some of them again."""


@dataclass(frozen=True, slots=True)
class SentEvent:
    """One event as every listener gets it. `endpoint` as in `FeedEvent`. A mark only gives the end of the journal, for
    clients that have no event yet to resume from.
    """

    id: str
    endpoint: str | None
    data: bytes
    is_mark: bool = False


Item = SentEvent | None
"""None: the controller has stopped answering."""


class Listener:
    """The queue of one client. `caller`: its id, "" where callers are not known."""

    def __init__(self, caller: str = "") -> None:
        self.caller = caller
        self.waiting: asyncio.Queue[Item] = asyncio.Queue(MAX_WAITING)
        self.is_lagging = False
        """Whether the client was too slow: events after the queued ones are missing."""

    async def next(self) -> Item:
        """The next event; waits for it."""
        return await self.waiting.get()

    @property
    def is_empty(self) -> bool:
        """Whether the queue is empty."""
        return self.waiting.empty()

    def give(self, item: Item) -> None:
        """Queues `item`, unless the client is too slow."""
        if self.is_lagging or self.waiting.full():
            self.is_lagging = True
        else:
            self.waiting.put_nowait(item)


class EventFeed:
    """The feed of one router. One task polls, from the first listener to the last. `clock` is in Unix seconds."""

    def __init__(
        self,
        controller: ControllerClient | None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._controller, self._sleep, self._clock = controller, sleep, clock
        self.listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._sent: deque[str] = deque(maxlen=_REMEMBERED)
        self._latest = ""
        self._is_away = False
        self._started = asyncio.Event()

    @asynccontextmanager
    async def listening(self, caller: str = "") -> AsyncIterator[Listener]:
        """A listener that gets everything from now on.

        Raises Unavailable if there are too many, and LimitExceeded if the `caller`, an id, has too many of them.
        """
        if self._controller is None:
            raise no_controller()
        if len(self.listeners) >= MAX_LISTENERS:
            raise Unavailable(f"{MAX_LISTENERS} clients listen to the events of this router already", retry_after=30)
        if caller and sum(listener.caller == caller for listener in self.listeners) >= LISTENERS_EACH:
            raise LimitExceeded(
                f"You listen to the events of this router {LISTENERS_EACH} times already", retry_after=30
            )
        listener = Listener(caller)
        if self._is_away:
            listener.give(None)
        elif self._latest:
            listener.give(_mark(self._latest))
        self.listeners.add(listener)
        if self._task is None:
            self._task = asyncio.create_task(self._follow())
        try:
            yield listener
        finally:
            self.listeners.discard(listener)
            if not self.listeners and self._task is not None:
                self._task.cancel()
                self._task, self._latest, self._is_away = None, "", False
                self._started = asyncio.Event()

    async def started(self) -> None:
        """Waits until listeners get new events: earlier ones are for `after`."""
        await self._started.wait()

    async def after(self, query: Mapping[str, str]) -> Page:
        """A page of the journal. Raises what `ask` raises, and Unavailable if the controller takes too long."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await ask(self._controller, "GET", "/journal", query)
        except TimeoutError:
            raise Unavailable("The controller of experiments did not respond in time") from None
        try:
            return msgspec.json.decode(answer.body, type=Page)
        except msgspec.DecodeError:
            raise Unavailable("The controller of experiments is of another version") from None

    async def _follow(self) -> None:
        query: dict[str, str] = {}  # where the journal ends
        while True:
            asked_at = self._clock()
            try:
                page = await self.after(query)
            except SwitchyardError:
                self._lose()
                # Listeners get events from the time without a controller once it answers again.
                query = query or {"since": f"{asked_at:.6f}"}
                self._started.set()
                await self._sleep(EVERY_S)
                continue
            self._started.set()
            self._is_away = False
            self._hand_out(page)
            query = {"position": page.position} | ({"after": page.latest} if page.latest else {})
            if not page.more:
                await self._sleep(EVERY_S)

    def _lose(self) -> None:
        if not self._is_away:
            self._is_away = True
            self._give(None)

    def _hand_out(self, page: Page) -> None:
        begins = not self._latest
        for event in page.events:
            if event.id not in self._sent:
                self._sent.append(event.id)
                self._give(sent(event))
        self._latest = page.latest or self._latest
        if begins and self._latest:
            self._give(_mark(self._latest))

    def _give(self, item: Item) -> None:
        for listener in self.listeners:
            listener.give(item)


def sent(event: FeedEvent) -> SentEvent:
    """The event in the stream's format."""
    framed = encode(msgspec.json.encode(event.data), type=event.kind)
    return SentEvent(event.id, event.endpoint, b"id: %b\n%b" % (event.id.encode(), framed))


def _mark(id: str) -> SentEvent:
    return SentEvent(id, None, b"id: %b\n\n" % id.encode(), is_mark=True)


HEARTBEAT_S = 15.0
STREAM_S = 60.0
"""The length of a stream. A stopping router waits for it, and a withdrawn key is only noticed at the next one."""

RETRY_S = 5.0
"""The delay after a failure before the controller is asked for past events again."""

SEND_S = 10.0
"""The time for which a client with a full connection may read nothing."""

_BEGIN = b"retry: 1000\n: the journal's events\n\n"
_AWAY = b": the controller of experiments does not answer; the stream goes on when it does\n\n"
_HEARTBEAT = b": nothing new\n\n"


class EventsApi(RoutedApi):
    """The route."""

    def __init__(
        self,
        services: Services,
        *,
        feed: EventFeed,
        stream_s: float = STREAM_S,
        heartbeat_s: float = HEARTBEAT_S,
        retry_s: float = RETRY_S,
        send_s: float = SEND_S,
    ) -> None:
        self._services, self._feed = services, feed
        self._stream_s, self._heartbeat_s, self._retry_s, self._send_s = stream_s, heartbeat_s, retry_s, send_s
        self._api = Api("switchyard", services, openai_words, is_audited=False)
        self._entry = ApiRoute(
            "GET",
            "/api/events",
            "events",
            self._events,
            {"since": {"description": "Unix seconds, or an event's id: first what came after it"}},
            headers={"Last-Event-ID": "The id of the last event that was received: instead of `since`"},
        )

    def _table(self) -> Sequence[ApiRoute]:
        return [self._entry]

    async def _events(self, request: HTTPRequest, context: OperationContext) -> None:
        since = request.headers.get("last-event-id") or request.query_params.get("since")
        if since is not None:
            time_of(since, "since")
        writer = context.writer
        async with self._feed.listening(context.caller.id) as listener:
            with while_connected(request.receive):
                await writer.start_stream({})
                context.record.first_byte = None  # it is no model's first token
                async for data in self._stream(listener, since, context.caller):
                    try:
                        async with asyncio.timeout(self._send_s):
                            await writer.send_chunk(data)
                    except TimeoutError:
                        raise StreamAborted from None
                await writer.end_stream()

    async def _stream(self, listener: Listener, since: str | None, caller: Caller) -> AsyncIterator[bytes]:
        """The stream: first events after `since`, then new ones, and a comment when there are none."""
        now = asyncio.get_running_loop().time
        end, sent_at = now() + self._stream_s, now()
        yield _BEGIN
        seen: deque[str] = deque(maxlen=4 * MAX_WAITING)
        if since is not None:
            await self._feed.started()
            async for item in self._missed(since, end):
                if item is not None:
                    seen.append(item.id)
                if (data := self._data(item, caller)) is not None:
                    yield data
                    sent_at = now()
        while now() < end and not (listener.is_lagging and listener.is_empty):
            try:
                async with asyncio.timeout_at(min(end, sent_at + self._heartbeat_s)):
                    item = await listener.next()
            except TimeoutError:
                data = _HEARTBEAT
            else:
                is_known = item is not None and (item.id in seen or (item.is_mark and since is not None))
                data = None if is_known else self._data(item, caller)
            if data is not None:
                yield data
                sent_at = now()

    async def _missed(self, since: str, end: float) -> AsyncIterator[Item]:
        """Events of the journal after `since`; None whenever the controller does not answer, until `end`."""
        query = {"after": since}
        while True:
            try:
                page = await self._feed.after(query)
            except SwitchyardError:
                yield None
                if asyncio.get_running_loop().time() >= end:
                    return
                await asyncio.sleep(self._retry_s)
                continue
            for event in page.events:
                yield sent(event)
            if not page.more:
                return
            query = {"position": page.position, "after": page.latest}

    def _data(self, item: Item, caller: Caller) -> bytes | None:
        """The item as the caller gets it; None if it is not for them."""
        if item is None:
            return _AWAY
        if item.endpoint is None:
            return item.data
        views = self._services.views_or_none()
        return item.data if views is not None and item.endpoint in views.of(caller).endpoints else None
