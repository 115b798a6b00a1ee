"""The error ladder of every ASGI endpoint: what an exception becomes on the wire and in the access log."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

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


@asynccontextmanager
async def errors_rendered(writer: ResponseWriter, render: Callable[[SwitchyardError], Reply]) -> AsyncIterator[None]:
    """Sends what the block raises, as `render` words it, unless the response has started."""
    record = writer.record
    try:
        yield
    except StreamAborted:
        pass  # an unfinished response makes the server break the connection
    except ClientDisconnected:
        record.status, record.error = CLIENT_CLOSED_REQUEST, CLIENT_GONE
    except asyncio.CancelledError:  # how Serve reports that the client disconnected
        record.status, record.error = CLIENT_CLOSED_REQUEST, CLIENT_GONE
        raise
    except SwitchyardError as error:
        await writer.error(error, render(error))
    except Exception as error:  # noqa: BLE001  last resort: a bug must neither hang nor leak
        crash = event("request_failed", request_id=record.request_id, traceback=where(error))
        _log.error("The router failed to serve a request", extra=crash)
        failure = InternalError("The router failed to serve the request")
        await writer.error(failure, render(failure))
