"""Databricks' management API, served from what this router knows and, where there is one, the control plane.

Reads need no control plane: they tell the configuration in force and the deployments' health. With one, they tell also
whether every router has the last configuration. The only write is an endpoint's traffic.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Route as Path

from app.config import Config
from app.control import Applied, ControlPlane, Delivery, change_traffic, delivery_seen
from app.dialects.base import Reply, dump
from app.dialects.databricks_errors import error_reply
from app.dialects.databricks_management import (
    REFUSED,
    View,
    detailed,
    find,
    listed,
    not_offered,
)
from app.dialects.databricks_openapi import openapi
from app.dialects.databricks_traffic import traffic_asked
from app.errors import InternalError, NotFound, SwitchyardError, TooLarge, Unavailable, UpstreamError
from app.telemetry import CONTENT_TYPE, REQUEST_ID_HEADER, Record, Telemetry, request_id

Handler = Callable[[HTTPRequest], Awaitable[Reply]]

_ROOT = "/api/2.0/serving-endpoints"
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_GONE = 499  # nginx's code for a client that left; it is logged, never sent

_IN_THE_FILE = (
    "Traffic cannot be changed over HTTP here: this router runs alone, on a file, and traffic is declared there"
)

_log = logging.getLogger("switchyard")


class Management:
    """The management routes.

    `serving` tells the configuration in force (None before the first), `healthy` which deployments are healthy;
    `since_ms` is when this router was given its configuration.
    """

    def __init__(
        self,
        serving: Callable[[], Config | None],
        healthy: Callable[[], Awaitable[Mapping[str, bool]]],
        telemetry: Telemetry,
        control: ControlPlane | None,
    ) -> None:
        self._serving_or_none, self._healthy, self._telemetry, self._control = serving, healthy, telemetry, control
        self.since_ms = 0

    def routes(self) -> list[BaseRoute]:
        """Every route of the API; the last one takes what is left below its prefix."""
        table: list[tuple[str, str, str, Handler]] = [
            ("GET", "/.well-known/databricks-config", "probe", self._probe),
            ("GET", _ROOT, "list_endpoints", self._list),
            ("GET", f"{_ROOT}/{{name}}", "get_endpoint", self._get),
            ("GET", f"{_ROOT}/{{name}}/openapi", "get_openapi", self._openapi),
            ("GET", f"{_ROOT}/{{name}}/metrics", "export_metrics", self._metrics),
            ("PUT", f"{_ROOT}/{{name}}/config", "update_config", self._update_config),
            *((method, path, "not_offered", partial(self._refuse, why)) for (method, path), why in REFUSED.items()),
            *((method, "/api/2.0/{path:path}", "unknown", self._unknown) for method in _METHODS),
        ]
        return [
            Path(path, partial(self._answer, operation, handler), methods=[method])
            for method, path, operation, handler in table
        ]

    async def _answer(self, operation: str, handler: Handler, request: HTTPRequest) -> Response:
        """What `handler` replies, or its error in Databricks' words; logged and counted like any exchange."""
        # What the record tells if there is never a reply.
        record = Record("databricks", operation, request_id(request.headers), status=_GONE, error="client_gone")
        config = self._serving_or_none()
        if config is not None and (name := request.path_params.get("name")) in config.endpoints:
            record.endpoint = name
        try:
            reply = await _guarded(handler, request, record)
        except ClientDisconnect:
            return Response(status_code=_GONE)
        finally:
            self._telemetry.finish(record)
        headers = {REQUEST_ID_HEADER: record.request_id, **reply.headers}
        return Response(reply.body, reply.status, headers, reply.media_type)

    def _serving(self) -> Config:
        if (config := self._serving_or_none()) is None:
            raise Unavailable("The router has no configuration yet", retry_after=1)
        return config

    async def _probe(self, request: HTTPRequest) -> Reply:
        """The SDK asks it without credentials, whenever it is configured: an empty object tells it nothing new."""
        return Reply(b"{}")

    async def _list(self, request: HTTPRequest) -> Reply:
        return Reply(dump(listed(await self._view(request))))

    async def _get(self, request: HTTPRequest) -> Reply:
        name = request.path_params["name"]
        find(name, self._serving())
        return Reply(dump(detailed(name, await self._view(request))))

    async def _openapi(self, request: HTTPRequest) -> Reply:
        name = request.path_params["name"]
        return Reply(dump(openapi(name, find(name, self._serving()), str(request.base_url))))

    async def _metrics(self, request: HTTPRequest) -> Reply:
        name = request.path_params["name"]
        find(name, self._serving())
        return Reply(self._telemetry.expose(name), media_type=CONTENT_TYPE)

    async def _update_config(self, request: HTTPRequest) -> Reply:
        """Changes the traffic everywhere. The reply tells the endpoint as it is a moment later."""
        name, config = request.path_params["name"], self._serving()
        seen = find(name, config).traffic
        if self._control is None:
            raise not_offered(_IN_THE_FILE)
        wanted = traffic_asked(name, await _body(request, config.max_body_bytes), config)
        await change_traffic(self._control, name, seen=seen, wanted=wanted)
        _log.info("traffic of endpoint '%s' is to be %s; it was %s", name, wanted, seen)
        return Reply(dump(detailed(name, await self._view(request))))

    async def _refuse(self, why: str, request: HTTPRequest) -> Reply:
        if (name := request.path_params.get("name")) is not None:
            find(name, self._serving())
        raise not_offered(why)

    async def _unknown(self, request: HTTPRequest) -> Reply:
        raise NotFound(f"No API found for '{request.method} {request.url.path}'")

    async def _view(self, request: HTTPRequest) -> View:
        before = self._serving()
        healthy, applied = await asyncio.gather(self._healthy(), self._applied())
        after = self._serving()
        view = partial(View, after, healthy, url=str(request.base_url))
        if self._control is None:
            return view(since_ms=self.since_ms)
        if applied is None:
            return view(since_ms=self.since_ms, delivery=Delivery.UNSETTLED)
        delivery = delivery_seen(applied, before, after)
        return view(since_ms=applied.since_ms, delivery=delivery, pending=applied.parsed())

    async def _applied(self) -> Applied | None:
        """None without a control plane, and where it does not answer: a read does not fail for that."""
        if self._control is None:
            return None
        try:
            return await self._control.applied()
        except UpstreamError as error:
            _log.warning("the control plane cannot be read: %s", error.message)
            return None


async def _guarded(handler: Handler, request: HTTPRequest, record: Record) -> Reply:
    """The handler's reply, or that of its error."""
    error: SwitchyardError | None = None
    try:
        reply = await handler(request)
    except SwitchyardError as raised:
        error = raised
    except ClientDisconnect:
        raise
    except Exception:  # noqa: BLE001  the last line of defence: a defect must not hang or leak
        _log.exception("request %s failed in the router", record.request_id)
        error = InternalError("The router failed to serve the request")
    if error is not None:
        reply = error_reply(error, request_id=record.request_id)
        if error.retry_after is not None:
            reply = replace(reply, headers={"retry-after": str(max(1, round(error.retry_after)))})
    record.status, record.error = reply.status, error.kind if error is not None else ""
    return reply


async def _body(request: HTTPRequest, limit: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise TooLarge(f"The body is larger than {limit} bytes")
    return bytes(body)
