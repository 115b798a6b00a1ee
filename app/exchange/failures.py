"""Maps exceptions of every ASGI endpoint to responses and to the access log."""

import asyncio
import logging
from collections.abc import Callable

from app.dialects.base import Reply
from app.errors import InternalError, SwitchyardError
from app.exchange.deadlines import ClientDisconnected
from app.exchange.request import CLIENT_CLOSED_REQUEST
from app.exchange.response import ResponseWriter
from app.telemetry.logs import event, where

CLIENT_GONE = "client_gone"
"""The kind of a request whose client disconnected."""

_log = logging.getLogger("switchyard")


class StreamAborted(Exception):
    """The stream failed and its format has no error event: the connection must be broken off."""


class errors_rendered:
    """Sends the error that the block raises, in the form of `render`, unless the response has started."""

    __slots__ = ("_render", "_writer")

    def __init__(self, writer: ResponseWriter, render: Callable[[SwitchyardError], Reply]) -> None:
        self._writer, self._render = writer, render

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        record = self._writer.record
        match error:
            case StreamAborted():
                return True  # an unfinished response makes the server break the connection
            case ClientDisconnected():
                record.status, record.error = CLIENT_CLOSED_REQUEST, CLIENT_GONE
                return True
            case asyncio.CancelledError():  # how Serve reports that the client disconnected
                record.status, record.error = CLIENT_CLOSED_REQUEST, CLIENT_GONE
            case SwitchyardError():
                await self._writer.error(error, self._render(error))
                return True
            case Exception():  # last resort: a bug must neither hang nor leak
                crash = event("request_failed", request_id=record.request_id, traceback=where(error))
                _log.error("The router failed to serve a request", extra=crash)
                failure = InternalError("The router failed to serve the request")
                await self._writer.error(failure, self._render(failure))
                return True
        return False
