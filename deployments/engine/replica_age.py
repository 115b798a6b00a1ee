"""Reports a replica's age to the router: a new one answers more slowly, since its caches are empty."""

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.internal_api import REPLICA_AGE_HEADER

_NAME = REPLICA_AGE_HEADER.encode()


class ReplicaAgeMiddleware:
    """Adds the seconds since its construction, when the engine is ready, to every HTTP response."""

    def __init__(self, app: ASGIApp, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._clock = app, clock
        self._ready_at = clock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_age(message: Message) -> None:
            if message["type"] == "http.response.start":
                age = (_NAME, b"%.1f" % (self._clock() - self._ready_at))
                message = {**message, "headers": [*message.get("headers", ()), age]}
            await send(message)

        await self._app(scope, receive, send_with_age)
