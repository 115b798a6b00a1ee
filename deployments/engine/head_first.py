"""Whole answers whose head comes before the engine works.

vLLM says nothing of a whole answer before its end. If the engine dies of the request, the connection ends without an
answer: the ingress would take that for a replica that is gone, and send the request to the next one; and the router
would not know which engine has died. So a router asks for the head at once (`HEAD_FIRST_HEADER`), as streams have it.
"""

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.internal_api import HEAD_FIRST_HEADER

_ASKED = HEAD_FIRST_HEADER.encode()
_FAILED = JSONResponse({"error": {"message": "The replica failed", "type": "InternalServerError", "code": 500}}, 500)


class HeadFirstMiddleware:
    """Sends the head once the request is here, to routers that ask for this."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or HEAD_FIRST_HEADER not in Headers(scope=scope):
            await self._app(scope, receive, send)
            return
        answer = _Answer(receive, send)
        try:
            await self._app(scope, answer.receive, answer.send)
        except Exception:
            if answer.is_awaited:  # without an answer, the engine would count as dead
                await _FAILED(scope, receive, answer.send)
            raise


class _Answer:
    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._has_begun = self._is_under_way = False
        self._first_line = b""

    @property
    def is_awaited(self) -> bool:
        """Whether the head has been sent, and nothing else."""
        return self._has_begun and not self._is_under_way

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False) and not self._has_begun:
            self._has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": [(_ASKED, b"1")]})
        return message

    async def send(self, message: Message) -> None:
        if not self._has_begun:  # it is answered without its body
            await self._send(message)
        elif message["type"] == "http.response.start":
            media_type = Headers(raw=message["headers"]).get("content-type", "")
            self._first_line = f"{message['status']} {media_type}\n".encode("latin-1")
        else:
            self._is_under_way = True
            line, self._first_line = self._first_line, b""
            await self._send({**message, "body": line + message.get("body", b"")})
