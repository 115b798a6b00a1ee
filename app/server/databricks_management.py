"""Databricks' management API, served from what this router knows and, where there is one, the control plane.

Reads need no control plane: they tell the configuration in force and the deployments' health. With one, they tell also
whether every router has the last configuration. The only write is an endpoint's traffic.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request as HTTPRequest
from starlette.routing import BaseRoute
from starlette.routing import Route as Path
from starlette.types import Receive, Scope, Send

from app.access.caller import VISITOR, Caller, must_use, visible
from app.access.guard import Access
from app.config.schema import Config
from app.control_plane import Applied, ControlPlane, Delivery, change_traffic, delivery_seen
from app.dialects.base import Reply
from app.dialects.databricks.errors import error_reply
from app.dialects.databricks.management.objects import REFUSED, View, detailed, find, listed, not_offered
from app.dialects.databricks.management.openapi import openapi
from app.dialects.databricks.management.traffic_update import Update, traffic_asked
from app.dialects.json_body import dump
from app.dialects.openapi_schemas import Body
from app.errors import InternalError, NotFound, SwitchyardError, Unavailable, UpstreamError
from app.exchange.deadlines import ClientGone
from app.exchange.request import GONE, check_headers, headers_of, read_body, request_id
from app.exchange.response import Answer
from app.server.openapi import Operation
from app.telemetry.access_log import Record, where
from app.telemetry.metrics import CONTENT_TYPE, Telemetry

Handler = Callable[[HTTPRequest, "Asked"], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asks, and what the log is told of it."""

    caller: Caller
    record: Record


_ROOT = "/api/2.0/serving-endpoints"
_OPEN = ("probe",)
_REFUSALS = ("not_offered", "unknown")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

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
        access: Access,
        control: ControlPlane | None,
    ) -> None:
        self._serving_or_none, self._healthy, self._telemetry, self._control = serving, healthy, telemetry, control
        self._access = access
        self.since_ms = 0

    def operations(self) -> list[Operation]:
        """What the API offers, for the OpenAPI document."""
        bodies = {"update_config": [Body(Update)]}
        offered = [(method, path, name) for method, path, name, _ in self._table() if name not in _REFUSALS]
        return [(method, path, "databricks", name, bodies.get(name, [])) for method, path, name in offered]

    def routes(self) -> list[BaseRoute]:
        """Every route of the API."""
        return [
            Path(
                path,
                _Operation(operation, handler, self._telemetry, self._access, self._serving_or_none),
                methods=[method],
            )
            for method, path, operation, handler in self._table()
        ]

    def _table(self) -> list[tuple[str, str, str, Handler]]:
        """Method, path, name and handler of each; the last one takes what is left below its prefix."""
        return [
            ("GET", "/.well-known/databricks-config", "probe", self._probe),
            ("GET", _ROOT, "list_endpoints", self._list),
            ("GET", f"{_ROOT}/{{name}}", "get_endpoint", self._get),
            ("GET", f"{_ROOT}/{{name}}/openapi", "get_openapi", self._openapi),
            ("GET", f"{_ROOT}/{{name}}/metrics", "export_metrics", self._metrics),
            ("PUT", f"{_ROOT}/{{name}}/config", "update_config", self._update_config),
            *((method, path, "not_offered", partial(self._refuse, why)) for (method, path), why in REFUSED.items()),
            *((method, "/api/2.0/{path:path}", "unknown", self._unknown) for method in _METHODS),
        ]

    async def _probe(self, request: HTTPRequest, asked: Asked) -> Reply:
        """The SDK asks it without credentials, whenever it is configured: an empty object tells it nothing new."""
        return Reply(b"{}")

    async def _list(self, request: HTTPRequest, asked: Asked) -> Reply:
        return Reply(dump(listed(await self._view(request, asked))))

    async def _get(self, request: HTTPRequest, asked: Asked) -> Reply:
        name, _ = self._asked(request, asked)
        return Reply(dump(detailed(name, await self._view(request, asked))))

    async def _openapi(self, request: HTTPRequest, asked: Asked) -> Reply:
        name, config = self._asked(request, asked)
        return Reply(dump(openapi(name, config.endpoints[name], str(request.base_url))))

    async def _metrics(self, request: HTTPRequest, asked: Asked) -> Reply:
        name, _ = self._asked(request, asked)
        return Reply(self._telemetry.expose([name]), media_type=CONTENT_TYPE)

    async def _update_config(self, request: HTTPRequest, asked: Asked) -> Reply:
        """Changes the traffic everywhere. The reply tells the endpoint as it is a moment later."""
        self._access.must_manage(asked.caller)
        name, config = self._asked(request, asked)
        if self._control is None:
            raise not_offered(_IN_THE_FILE)
        wanted = traffic_asked(name, await read_body(request.receive, config), config)
        seen = config.endpoints[name].traffic
        await change_traffic(self._control, name, seen=seen, wanted=wanted)
        who = asked.caller.name
        _log.info("request %s: '%s' moved '%s' from %s to %s", asked.record.request_id, who, name, seen, wanted)
        return Reply(dump(detailed(name, await self._view(request, asked))))

    async def _refuse(self, why: str, request: HTTPRequest, asked: Asked) -> Reply:
        if "name" in request.path_params:
            self._asked(request, asked)
        raise not_offered(why)

    async def _unknown(self, request: HTTPRequest, asked: Asked) -> Reply:
        raise NotFound(f"No API found for '{request.method} {request.url.path}'")

    def _asked(self, request: HTTPRequest, asked: Asked) -> tuple[str, Config]:
        """The endpoint in the path, and the configuration that has it. Raises NotFound, and Forbidden."""
        name, config = request.path_params["name"], self._serving()
        find(name, config)
        must_use(asked.caller, config, name)
        asked.record.endpoint = name
        return name, config

    def _serving(self) -> Config:
        if (config := self._serving_or_none()) is None:
            raise Unavailable("The router has no configuration yet", retry_after=1)
        return config

    async def _view(self, request: HTTPRequest, asked: Asked) -> View:
        before = self._serving()
        healthy, applied = await asyncio.gather(self._healthy(), self._applied())
        after = self._serving()
        seen, may_manage = visible(asked.caller, after), self._access.may_manage(asked.caller)
        view = partial(View, seen, healthy, url=str(request.base_url), may_manage=may_manage)
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


@dataclass(frozen=True, slots=True)
class _Operation:
    """One method and path as an ASGI application: the handler's reply, or its error in Databricks' words.

    It is logged and counted like any exchange.
    """

    name: str
    handler: Handler
    telemetry: Telemetry
    access: Access
    serving: Callable[[], Config | None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = HTTPRequest(scope, receive)
        record = Record("databricks", self.name, request_id(request.headers))
        out = Answer(send, record)
        try:
            if (config := self.serving()) is not None:
                check_headers(scope, config.max_header_bytes)
            # Before the first configuration nobody is known yet; all that can be said then is that there is none.
            guarded = config is not None and self.name not in _OPEN
            caller = await self.access.caller(headers_of(scope)) if guarded else VISITOR
            record.caller = caller.name
            await out.reply(await self.handler(request, Asked(caller, record)))
        except ClientGone:
            record.status, record.error = GONE, "client_gone"
        except asyncio.CancelledError:  # how Serve tells that the client left
            record.status, record.error = GONE, "client_gone"
            raise
        except SwitchyardError as error:
            await out.error(error, error_reply(error, request_id=record.request_id))
        except Exception as error:  # noqa: BLE001  the last line of defence: a defect must not hang or leak
            _log.error("request %s failed in the router\n%s", record.request_id, where(error))
            failure = InternalError("The router failed to serve the request")
            await out.error(failure, error_reply(failure, request_id=record.request_id))
        finally:
            self.telemetry.finish(record)
