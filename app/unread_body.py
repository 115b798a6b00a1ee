"""Closes the connections of requests that were answered before their bodies had arrived.

A server that keeps such a connection reads the rest of the body first, however slowly that comes: whoever announces a
gigabyte and sends a byte now and then would keep the connection, and its slot in the ingress, for good. A server that
closes it at once resets the connection of a client that is still sending, which may then not see the answer. So the
answer announces the end of the connection, and the rest of the body may arrive within `LINGER_S`.
"""

from collections.abc import Awaitable
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.aio import within

LINGER_S = 5.0
"""Seconds after an answer in which the rest of the request's body is read and dropped."""

MOST_LINGERING = 100
"""Requests that linger at a time, in one application. Serve counts each as ongoing; further ones end at once."""


class CloseUnread:
    """Answers a request whose body has not been read with `connection: close`, and ends it soon."""

    def __init__(self, app: ASGIApp, *, linger_s: float = LINGER_S) -> None:
        self._app, self._linger_s = app, linger_s
        self._lingering = 0

    # A coroutine function: from this uvicorn recognises the version of ASGI.
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _announces_body(scope):
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(receive, send)
        await self._app(scope, exchange.receive, exchange.send)
        if exchange.is_held:
            await self._linger(exchange)
            await send({"type": "http.response.body"})

    async def _linger(self, exchange: "_Exchange") -> None:
        if self._lingering >= MOST_LINGERING:
            return
        self._lingering += 1
        try:
            with suppress(TimeoutError):
                async with within(self._linger_s):
                    while not exchange.is_read:
                        await exchange.receive()
        finally:
            self._lingering -= 1


class _Exchange:
    """A request with a body. While that is not read, the answer's end is held back: the server would close."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.is_read = self.is_held = False

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):  # the body's end, or the client's
            self.is_read = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        if self.is_read:  # nearly always
            return self._send(message)
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        elif not message.get("more_body", False):
            self.is_held = True
            message = {**message, "more_body": True}
        return self._send(message)


def _announces_body(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
        return True
    # Of two lengths the server may have taken the other one.
    return b"content-length" in headers and any(
        name == b"content-length" and length != b"0" for name, length in scope["headers"]
    )
