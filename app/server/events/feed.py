"""Follows the controller's journal while there are listeners, and passes new events to each of them."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from app.errors import SwitchyardError, Unavailable
from app.experiments.contract.journal import Event, Page
from app.exposures.controller_client import ControllerClient
from app.server.controller_answers import ask, no_controller
from app.sse import encode

EVERY_S = 1.0
PATIENCE_S = 5.0
"""The longest wait of a question for the controller."""

MAX_LISTENERS = 64
MAX_WAITING = 256
"""Events that wait for a slow listener; a slower one is disconnected, and may come back for the rest."""

_REMEMBERED = 1024
"""Ids of events that went out: a page after a time may have some of them again."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One event as every listener gets it. `endpoint` as in `Event`. A mark only gives the end of the journal, for
    clients that have no event yet to resume from.
    """

    id: str
    endpoint: str | None
    data: bytes
    is_mark: bool = False


Item = Sent | None
"""None: the controller has stopped answering."""


class Listener:
    """The queue of one client."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[Item] = asyncio.Queue(MAX_WAITING)
        self.is_lagging = False
        """Whether the client was too slow: events after the queued ones are missing."""

    async def next(self) -> Item:
        """The next event; waits for it."""
        return await self._waiting.get()

    @property
    def is_empty(self) -> bool:
        """Whether the queue is empty."""
        return self._waiting.empty()

    def give(self, item: Item) -> None:
        """Queues `item`, unless the client is too slow."""
        if self.is_lagging or self._waiting.full():
            self.is_lagging = True
        else:
            self._waiting.put_nowait(item)


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
        self._listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._sent: deque[str] = deque(maxlen=_REMEMBERED)
        self._latest = ""
        self._is_away = False
        self._started = asyncio.Event()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Listener]:
        """A listener that gets everything from now on. Raises Unavailable if there are too many."""
        if self._controller is None:
            raise no_controller()
        if len(self._listeners) >= MAX_LISTENERS:
            raise Unavailable(f"{MAX_LISTENERS} clients listen to the events of this router already", retry_after=30)
        listener = Listener()
        if self._is_away:
            listener.give(None)
        elif self._latest:
            listener.give(_mark(self._latest))
        self._listeners.add(listener)
        if self._task is None:
            self._task = asyncio.create_task(self._follow())
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._task is not None:
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
        for listener in self._listeners:
            listener.give(item)


def sent(event: Event) -> Sent:
    """The event in the stream's format."""
    framed = encode(msgspec.json.encode(event.data), type=event.kind)
    return Sent(event.id, event.endpoint, b"id: %b\n%b" % (event.id.encode(), framed))


def _mark(id: str) -> Sent:
    return Sent(id, None, b"id: %b\n\n" % id.encode(), is_mark=True)
