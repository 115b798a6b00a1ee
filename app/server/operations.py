"""Operations of a management API as ASGI applications, logged and counted like every exchange.

Questions to the controller of experiments; its refusals as errors of this server.
"""

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from starlette.requests import Request as HTTPRequest
from starlette.routing import BaseRoute
from starlette.routing import Route as Path
from starlette.types import Receive, Scope, Send

from app.access.caller import UNAUTHENTICATED, Caller, ConfigViews
from app.access.guard import Access
from app.config.schema import Config
from app.control_plane import ControlPlane
from app.dialects.base import JSON, Reply, Request
from app.dialects.bodies import dump
from app.dialects.openai.dialect import OpenAI
from app.dialects.schemas import Body, Schema
from app.errors import (
    BadRequest,
    ClientError,
    Conflict,
    Forbidden,
    MethodNotAllowed,
    NotFound,
    PreconditionFailed,
    SwitchyardError,
    Unavailable,
    UnsupportedMediaType,
    UpstreamError,
)
from app.exchange.request import check_headers, headers_of, read_body, request_id
from app.exchange.response import ErrorRenderer, ResponseWriter
from app.exchange.snapshot import LiveRouting
from app.exposures.controller_client import Answer, ControllerClient
from app.exposures.log import ExposureLog
from app.limits.bodies import Room
from app.long_json import check_size
from app.routing.traffic import RecentKeys
from app.server.audit_log import AuditedChange, AuditLog
from app.server.openapi import Operation
from app.telemetry.logs import Record
from app.telemetry.metrics import Telemetry

_REFUSALS: Mapping[int, type[ClientError]] = {400: BadRequest, 404: NotFound, 405: MethodNotAllowed, 409: Conflict}


class ControllerAway(UpstreamError):
    """The controller does not answer. `answered_at`: its last answer, in Unix seconds; None: none since this router
    started."""

    kind = "unavailable"

    def __init__(self, cause: UpstreamError, answered_at: float | None) -> None:
        super().__init__(cause.message, retry_after=cause.retry_after)
        self.status, self.answered_at = cause.status, answered_at


class WatchedController:
    """A `ControllerClient` that knows when the controller answered last. `clock`: Unix seconds."""

    def __init__(self, controller: ControllerClient, clock: Callable[[], float]) -> None:
        self._controller, self._clock = controller, clock
        self._answered_at: float | None = None

    async def send(self, batch: bytes) -> bytes:
        """Like the controller's `send`, with the same errors."""
        acknowledgement = await self._controller.send(batch)
        self._answered_at = self._clock()
        return acknowledgement

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        """Like the controller's `ask`; raises ControllerAway if it does not answer."""
        try:
            answer = await self._controller.ask(method, path, query, body)
        except UpstreamError as error:
            raise ControllerAway(error, self._answered_at) from error
        self._answered_at = self._clock()
        return answer


async def ask(
    controller: ControllerClient | None,
    method: str,
    path: str,
    query: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Answer:
    """The controller's answer, unless it is a refusal.

    Raises the ClientError that it refuses with (PreconditionFailed with the present state, which is the answer), and
    Unavailable if there is no controller or if it does not answer.
    """
    if controller is None:
        raise no_controller()
    answer = await controller.ask(method, path, query or {}, body)
    if answer.status < 400:
        return answer
    raise refusal(answer)


PATIENCE_S = 2.0
"""Seconds that a reader waits for what an answer can do without."""


async def ask_in_time(
    controller: ControllerClient | None,
    method: str,
    path: str,
    query: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Any:
    """The content of the controller's answer; None if it does not answer soon, or if there is none."""
    if controller is None:
        return None
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer = await ask(controller, method, path, query, body)
    except (SwitchyardError, TimeoutError):
        return None
    return msgspec.json.decode(answer.body)


def no_controller() -> Unavailable:
    """The error of a router without a controller."""
    return Unavailable("No controller of experiments runs beside this router: add the application `experiments`")


def refusal(answer: Answer) -> SwitchyardError:
    """The error that an answer of at least 400 is: PreconditionFailed with the present state, which is the answer."""
    if answer.status == PreconditionFailed.status:
        return PreconditionFailed("This was meant for another state", current=json.loads(answer.body))
    message, param = _message(answer)
    if (error := _REFUSALS.get(answer.status)) is not None:
        return error(message, param=param)
    return Unavailable(message)


def _message(answer: Answer) -> tuple[str, str | None]:
    try:
        content = json.loads(answer.body)
        return content["message"], content["param"]
    except (ValueError, KeyError, TypeError):
        return f"The controller of experiments failed with status {answer.status}; see its log", None


@dataclass(frozen=True, slots=True)
class OperationContext:
    """The caller, the record for the access log, and the writer of the response, for streams."""

    caller: Caller
    record: Record
    writer: ResponseWriter
    change: AuditedChange
    room: Room


Handler = Callable[[HTTPRequest, OperationContext], Awaitable[Reply | None]]
"""The reply; None if the handler has written the whole response."""
ErrorWords = Callable[[SwitchyardError, HTTPRequest, str], Reply]
"""An error as the API words it, given the request and its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What several APIs of a router work with.

    `views_or_none` returns the configuration in force, None before the first. `control` and `controller` are None where
    there is none. `live_routing` returns the state that decides on an endpoint's requests here apart from the weights,
    and `open_breakers` the deployments whose circuit breaker is open.
    """

    views_or_none: Callable[[], ConfigViews | None]
    telemetry: Telemetry
    access: Access
    audit: AuditLog
    control: ControlPlane | None
    controller: ControllerClient | None
    ledger: ExposureLog
    recent_keys: RecentKeys
    live_routing: Callable[[str], LiveRouting]
    open_breakers: Callable[[], Collection[str]]

    def views(self) -> ConfigViews:
        """The configuration in force. Raises Unavailable before the first."""
        if (views := self.views_or_none()) is None:
            raise Unavailable("The router has no configuration yet", retry_after=1)
        return views


@dataclass(frozen=True, slots=True)
class Api:
    """The part that operations of one API share. Refused calls of an API that `is_audited` are in the audit log."""

    dialect: str
    services: Services
    error_words: ErrorWords
    is_audited: bool = True


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One method and path: the handler's reply, or its error in the API's format. `open` needs no credentials. An
    `audited` one leaves a record in the audit log, unless it is a dry run, and so does a caller without the right to
    any. Invalid calls of a `counted` one count
    against the caller's limits."""

    api: Api
    name: str
    handler: Handler
    open: bool = False
    audited: bool = False
    counted: bool = False

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._answer(None, scope, receive, send)

    def refuse(self, error: SwitchyardError, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._answer(error, scope, receive, send)

    async def _answer(self, refusal: SwitchyardError | None, scope: Scope, receive: Receive, send: Send) -> None:
        api, services = self.api, self.api.services
        telemetry, access, audit = services.telemetry, services.access, services.audit
        request = HTTPRequest(scope, receive)
        record = Record(api.dialect, self.name, request_id(request.headers))
        writer, change = ResponseWriter(send, record), AuditedChange()
        room: Room | None = None
        try:
            async with ErrorRenderer(writer, lambda error: api.error_words(error, request, record.request_id)):
                if refusal is not None:
                    raise refusal
                if (views := services.views_or_none()) is not None:
                    check_headers(scope, views.config.max_header_bytes)
                # Before the first configuration there are no callers, and every answer is an error that states this.
                guarded = views is not None and not self.open
                peer = scope.get("client")
                caller = await access.caller(headers_of(scope), peer) if guarded else UNAUTHENTICATED
                record.caller = caller.name
                room = Room(access.bodies, views.config.max_bodies_bytes if views is not None else 0)
                if views is not None and views.config.access.knows_callers:
                    room.holder = caller.id
                try:
                    reply = await self.handler(request, OperationContext(caller, record, writer, change, room))
                except ClientError:
                    if self.counted and guarded:
                        await access.count_invalid(caller, "", writer)
                    raise
                if reply is not None:
                    if self.audited and not change.is_dry:
                        audit.add(request, record, change, reply.status, "")
                        await audit.durable()
                    await writer.send(reply)
        finally:
            if room is not None:
                room.give_back()
            telemetry.finish(record)
            # Who may not read what it asked for may be looking for more.
            is_recorded = (self.audited and not change.is_dry) or (
                record.status == Forbidden.status and refusal is None
            )
            if is_recorded and api.is_audited and not change.recorded:
                error = refusal.code if refusal is not None and refusal.code else record.error
                audit.add(request, record, change, record.status, error)


class ApiRoute(NamedTuple):
    """One route of an API. `query` are the parameters that it reads: every other one is refused. `headers` are its own
    headers, with their descriptions. Calls of an `audited` one are in the audit log. Invalid calls of a `counted` one
    count against the caller's limits."""

    method: str
    path: str
    name: str
    handler: Handler
    query: Mapping[str, Schema] = {}
    bodies: Sequence[Body] = ()
    status: int = 200
    headers: Mapping[str, str] = {}
    audited: bool = False
    counted: bool = False

    def operation(self, dialect: str) -> Operation:
        """The operation for the OpenAPI document."""
        return Operation(
            self.method, self.path, dialect, self.name, self.bodies, False, self.query, self.status, self.headers
        )

    def route(self, api: Api) -> BaseRoute:
        """The route."""
        handler = partial(_with_known_query, self)
        operation = ApiOperation(api, self.name, handler, audited=self.audited, counted=self.counted)
        return Path(self.path, operation, methods=[self.method])


class RoutedApi(ABC):
    """An API whose routes stand in a table."""

    _api: Api

    @abstractmethod
    def _table(self) -> Sequence[ApiRoute]: ...

    def operations(self) -> list[Operation]:
        """The operations for the OpenAPI document."""
        return [route.operation(self._api.dialect) for route in self._table()]

    def routes(self) -> list[BaseRoute]:
        """Every route of the API."""
        return [route.route(self._api) for route in self._table()]


def openai_words(error: SwitchyardError, request: HTTPRequest, request_id: str) -> Reply:
    """An error in OpenAI's form, with the time of the controller's last answer if that does not answer now."""
    reply = OpenAI().render_error(error, "none", Request(request.method, request.url.path))
    if isinstance(error, ControllerAway):
        return replace(reply, body=dump({**json.loads(reply.body), "answered_at": error.answered_at}))
    return reply


_MOST_BYTES = 1024 * 1024
_MOST_VALUES = 50_000
"""Of the body of an operation: it changes a plan, or holds some scores. See `long_json.weight`."""


async def read_json(
    request: HTTPRequest, context: OperationContext, config: Config, most_values: int = _MOST_VALUES
) -> bytes:
    """The whole body of a call that changes something, which is cheap to parse. Raises UnsupportedMediaType, TooLarge
    for more than `most_values`, and what `read_body` raises.

    A page may send text and forms to other servers without asking; JSON it may not (Fetch, 4.8: CORS-preflight).
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON:
        raise UnsupportedMediaType(
            f"content-type: must be {JSON}, not '{media_type}'" if media_type else f"content-type: must be {JSON}",
            param="content-type",
        )
    limit = min(config.max_body_bytes, _MOST_BYTES)
    body = await read_body(request.receive, request.headers, config.timeouts, limit, context.room)
    check_size(body, most_values)
    return body


async def _with_known_query(entry: ApiRoute, request: HTTPRequest, context: OperationContext) -> Reply | None:
    check_query(request, entry.query)
    return await entry.handler(request, context)


_SECONDS = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
"""A number as JavaScript reads it, too: Python alone reads 1_000."""


def seconds_in(query: Mapping[str, str], name: str) -> float | None:
    """The number of seconds that a query has under `name`. Raises BadRequest."""
    if (text := query.get(name)) is None:
        return None
    value = float(text) if _SECONDS.fullmatch(text) else float("inf")
    if value == float("inf"):
        raise BadRequest(f"{name}: '{text}' is no number of seconds", param=name)
    return value


def check_query(request: HTTPRequest, known: Collection[str]) -> None:
    """Raises BadRequest for a parameter of the query that is not `known`: it would have no effect."""
    if unknown := [name for name in request.query_params if name not in known]:
        listed = f"known: {', '.join(known)}" if known else "there are none"
        raise BadRequest(f"{unknown[0]}: unknown parameter; {listed}", param=unknown[0])
