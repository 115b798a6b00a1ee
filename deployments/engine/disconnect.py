"""A client that goes away ends its generation, streaming or not.

Serve answers a disconnect by cancelling the request's task. vLLM runs an answer that is not streamed in a task of
its own, and the one that would end it, on reading the disconnect, is the one that Serve has just cancelled: the
engine goes on for nobody. So the cancellation is held back for a moment, in which vLLM reads the disconnect itself.
"""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

GRACE_S = 0.1
"""How long the application may take to end by itself. A stream does not: it ends by the cancellation that follows."""


class DisconnectMiddleware:
    """Lets the application see a disconnect before it is cancelled for it."""

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
