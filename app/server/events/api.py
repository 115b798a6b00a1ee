"""`GET /api/events`: the journal as server-sent events, as it is written.

A caller gets the events of endpoints that it may use. `Last-Event-ID` or `since` resumes. A stream ends after a while,
so that no client delays a stopping router, and clients resume with `Last-Event-ID`, as browsers do by themselves.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from starlette.requests import Request as HTTPRequest
from starlette.routing import BaseRoute

from app.access.caller import Caller, ConfigViews
from app.access.guard import Access
from app.errors import SwitchyardError
from app.exchange.deadlines import while_connected
from app.exchange.failures import StreamAborted
from app.experiments.contract.journal import time_of
from app.server.api_operation import Api, Entry, OperationContext, openai_words
from app.server.events.feed import MAX_WAITING, EventFeed, Item, Listener, sent
from app.server.openapi import Operation
from app.telemetry.metrics import Telemetry

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


class EventsApi:
    """The route. `views` returns the configuration in force (None before the first)."""

    def __init__(
        self,
        views: Callable[[], ConfigViews | None],
        telemetry: Telemetry,
        access: Access,
        feed: EventFeed,
        *,
        stream_s: float = STREAM_S,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._views, self._feed = views, feed
        self._stream_s, self._heartbeat_s = stream_s, heartbeat_s
        self._api = Api("switchyard", telemetry, access, views, openai_words)
        self._entry = Entry(
            "GET",
            "/api/events",
            "events",
            self._events,
            {"since": {"description": "Unix seconds, or an event's id: first what came after it"}},
            headers={"Last-Event-ID": "The id of the last event that was received: instead of `since`"},
        )

    def operations(self) -> list[Operation]:
        """The operation for the OpenAPI document."""
        return [self._entry.operation(self._api.dialect)]

    def routes(self) -> list[BaseRoute]:
        """The route of the API."""
        return [self._entry.route(self._api)]

    async def _events(self, request: HTTPRequest, context: OperationContext) -> None:
        since = request.headers.get("last-event-id") or request.query_params.get("since")
        if since is not None:
            time_of(since, "since")
        writer = context.writer
        async with self._feed.listening() as listener, while_connected(request.receive):
            await writer.start_stream({})
            context.record.first_byte = None  # it is no model's first token
            async for data in self._stream(listener, since, context.caller):
                try:
                    async with asyncio.timeout(SEND_S):
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
                await asyncio.sleep(RETRY_S)
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
        views = self._views()
        return item.data if views is not None and item.endpoint in views.of(caller).endpoints else None
