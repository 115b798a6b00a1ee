"""HTTP/1.0 clients get whole responses: their protocol has no chunked transfer coding (RFC 9112, 7)."""

from collections.abc import Awaitable, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HTTP10:
    """Collects what would be streamed to an HTTP/1.0 client, and sends it with its length."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        is_old = scope["type"] == "http" and scope["http_version"] == "1.0"
        return self._app(scope, receive, _Whole(send).send if is_old else send)


class _Whole:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: MutableMapping[str, Any] = {}
        self._parts: list[bytes] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._parts.append(message.get("body", b""))
        if message.get("more_body", False):
            return
        body = b"".join(self._parts)
        headers = [pair for pair in self._start["headers"] if pair[0].lower() != b"content-length"]
        await self._send({**self._start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await self._send({"type": "http.response.body", "body": body})
