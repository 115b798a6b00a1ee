"""READ THIS FIRST. One request's journey, top to bottom:

    bytes in -> dialect.parse -> traffic.assign -> upstream -> dialect.render / stream -> bytes out

`handle` is the journey; everything else in this file is one of its steps. The promises kept here:

- an error before the first byte is a real HTTP status in the dialect's own form; after it, the stream ends with the
  dialect's error event, never in silence;
- a deployment that fails before the first byte is replaced once: by another of the endpoint, else by another of its own
  replicas, as long as retries make no more than a tenth of the load;
- the client going away ends the engine's work;
- every answer names the deployment that gave it, and the request's id.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from app.access.caller import VISITOR, visible
from app.config.schema import Config, Timeouts
from app.dialects.base import Call, Context, Dialect, Request, Route
from app.errors import BadRequest, InternalError, SwitchyardError, Unavailable
from app.exchange.deadlines import ClientGone, Receive, while_connected
from app.exchange.forward import _Abort, _Errand
from app.exchange.request import GONE, check_headers, check_length, headers_of, read_body, request_id
from app.exchange.response import Answer, Send
from app.exchange.state import Board
from app.telemetry.access_log import Record, where

TIMEOUT_HEADER = "x-request-timeout-s"
"""How long the client will wait for the whole answer, in seconds."""

_log = logging.getLogger("switchyard")

Candidates = Sequence[tuple[Dialect, Route]]
"""The dialects that share a method and path. The first that claims a request has it; the last takes what is left."""


async def handle(board: Board, candidates: Candidates, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
    """Serves one HTTP request (ASGI)."""
    headers = headers_of(scope)
    dialect, route = candidates[-1]
    record = Record(dialect.name, route.operation, request_id(headers))
    request = Request(
        method=scope["method"],
        path=scope["path"],
        params=scope.get("path_params", {}),
        query=_query(scope.get("query_string", b"")),
        headers=headers,
        id=record.request_id,
    )
    out = Answer(send, record)
    try:
        if (snapshot := board.snapshot) is None:
            raise Unavailable("The router has no configuration yet", retry_after=1)
        check_headers(scope, snapshot.config.max_header_bytes)
        dialect, route = _claimed(candidates, request, record)
        caller = VISITOR
        if not route.open:  # before the body: a stranger makes nobody read one
            caller = await board.access.caller(headers)
            request = replace(request, body=await read_body(receive, snapshot.config))
            dialect, route = _claimed(candidates, request, record)
        record.caller = caller.name
        if route.local:
            await out.reply(dialect.answer(route.operation, request, visible(caller, snapshot.config)))
            return
        record.endpoint = _addressed(route, request, snapshot.config)
        call = dialect.parse(route.operation, request, Context(snapshot.config, board.random))
        check_length(call.body, snapshot.config.max_messages)
        async with while_connected(receive):
            deadline = asyncio.get_running_loop().time() + _time_allowed(snapshot.config.timeouts, call, headers)
            await _Errand(board, snapshot, dialect, caller, call, out, deadline, len(request.body)).run(request)
    except _Abort:
        pass  # leaving the answer unfinished makes the server break the connection
    except ClientGone:
        record.status, record.error = GONE, "client_gone"
    except asyncio.CancelledError:  # how Serve tells that the client left
        record.status, record.error = GONE, "client_gone"
        raise
    except SwitchyardError as error:
        await out.error(error, dialect.render_error(error, route.operation, request))
    except Exception as error:  # noqa: BLE001  the last line of defence: a defect must not hang or leak
        _log.error("request %s failed in the router\n%s", record.request_id, where(error))
        failure = InternalError("The router failed to serve the request")
        await out.error(failure, dialect.render_error(failure, route.operation, request))
    finally:
        board.telemetry.finish(record)


def _claimed(candidates: Candidates, request: Request, record: Record) -> tuple[Dialect, Route]:
    dialect, route = next(((d, r) for d, r in candidates if d.claims(r, request)), candidates[-1])
    record.dialect, record.operation = dialect.name, route.operation
    return dialect, route


def _addressed(route: Route, request: Request, config: Config) -> str:
    """The endpoint that the path alone tells, so that a request counts for it whose body cannot be read; or nothing."""
    default = config.defaults.get(route.default) if route.default else None
    name = request.params.get("endpoint", default)
    return name if name in config.endpoints else ""


def _time_allowed(timeouts: Timeouts, call: Call, headers: Mapping[str, str]) -> float:
    """Seconds for the whole exchange: the configuration's, unless the client wants to wait less."""
    allowed = min(timeouts.total_s, call.timeout_s or timeouts.total_s)
    if (wish := headers.get(TIMEOUT_HEADER)) is None:
        return allowed
    try:
        seconds = float(wish)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise BadRequest(f"{TIMEOUT_HEADER}: must be a number of seconds above 0", param=TIMEOUT_HEADER)
    return min(allowed, seconds)


def _query(raw: bytes) -> dict[str, str]:
    return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True))
