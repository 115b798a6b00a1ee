"""A client that disconnects ends its generation, streaming or not.

Serve handles a disconnect by cancelling the request's task. vLLM generates an unstreamed response in a separate task,
and the task that would end it on a disconnect is the one that Serve has just cancelled: the engine would continue. So
the cancellation is delayed for a moment, in which vLLM reads the disconnect itself.
"""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

GRACE_S = 0.1
"""The time that the application has to end by itself. A stream does not: the cancellation that follows ends it."""


class DisconnectMiddleware:
    """Lets the application read a disconnect before it is cancelled."""

    def __init__(self, app: ASGIApp, *, grace_s: float = GRACE_S) -> None:
        self._app = app
        self._grace_s = grace_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        task = asyncio.ensure_future(self._app(scope, receive, send))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task}, timeout=self._grace_s)
            task.cancel()
            raise
