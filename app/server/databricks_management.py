"""Databricks' management API, served from this router's state and, if there is one, the control plane.

Reads need no control plane: they return the configuration in force and the deployments' health. With one, they also
report whether every router has the last configuration. The only write is to an endpoint's traffic.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from starlette.requests import Request as HTTPRequest
from starlette.routing import BaseRoute, compile_path
from starlette.routing import Route as Path

from app.config.schema import Config
from app.control_plane import (
    IN_THE_FILE,
    Delivery,
    applied_or_none,
    change_traffic,
    delivery_seen,
)
from app.dialects.base import Reply
from app.dialects.bodies import dump
from app.dialects.databricks.errors import error_reply
from app.dialects.databricks.management import (
    NOT_OFFERED_CALLS,
    Update,
    View,
    endpoint_detail,
    endpoint_list,
    find_endpoint,
    not_offered,
    openapi,
    requested_traffic,
)
from app.dialects.schemas import Body
from app.errors import MethodNotAllowed, SwitchyardError, UnsupportedRoute, taken
from app.server.openapi import Operation
from app.server.operations import Api, ApiOperation, Handler, OperationContext, Services, check_query, read_json
from app.server.traffic import authorship, last_generation
from app.telemetry.logs import event
from app.telemetry.metrics import CONTENT_TYPE

_ROOT = "/api/2.0/serving-endpoints"
_OPEN = ("probe",)
_NOT_DOCUMENTED = ("not_offered", "unknown")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


_log = logging.getLogger("switchyard")


class Management:
    """The management routes. `healthy` returns each deployment's health."""

    def __init__(self, services: Services, *, healthy: Callable[[], Awaitable[Mapping[str, bool]]]) -> None:
        self._services, self._healthy = services, healthy
        self._api = Api("databricks", services, _error_words)
        self._paths = [(method, compile_path(path)[0]) for method, path, name, _ in self._table() if name != "unknown"]
        self._since_ms = 0
        self._created_ms: Mapping[str, int] = {}

    def configured(self, config: Config, now_ms: int) -> None:
        """Notes when this router received `config` (Unix time): without a control plane that is an endpoint's age."""
        self._since_ms = now_ms
        self._created_ms = {name: self._created_ms.get(name, now_ms) for name in config.endpoints}

    def operations(self) -> list[Operation]:
        """The operations for the OpenAPI document."""
        bodies = {"update_config": [Body(Update)]}
        offered = [(method, path, name) for method, path, name, _ in self._table() if name not in _NOT_DOCUMENTED]
        return [
            Operation(method, path, "databricks", name, bodies.get(name, []), name in _OPEN)
            for method, path, name in offered
        ]

    def routes(self) -> list[BaseRoute]:
        """Every route of the API."""
        return [
            Path(
                path, ApiOperation(self._api, operation, handler, operation in _OPEN, method != "GET"), methods=[method]
            )
            for method, path, operation, handler in self._table()
        ]

    def _table(self) -> list[tuple[str, str, str, Handler]]:
        """Method, path, name and handler of each; the last ones match every other path below `/api/2.0`."""
        return [
            ("GET", "/.well-known/databricks-config", "probe", self._probe),
            ("GET", _ROOT, "list_endpoints", self._list),
            ("GET", f"{_ROOT}/{{name}}", "get_endpoint", self._get),
            ("GET", f"{_ROOT}/{{name}}/openapi", "get_openapi", self._openapi),
            ("GET", f"{_ROOT}/{{name}}/metrics", "export_metrics", self._metrics),
            ("PUT", f"{_ROOT}/{{name}}/config", "update_config", self._update_config),
            *(
                (method, path, "not_offered", partial(self._not_offered, reason))
                for (method, path), reason in NOT_OFFERED_CALLS.items()
            ),
            *((method, "/api/2.0/{path:path}", "unknown", self._unknown) for method in _METHODS),
        ]

    async def _probe(self, request: HTTPRequest, context: OperationContext) -> Reply:
        """The SDK's probe without credentials when it is configured; an empty object changes nothing for it."""
        return Reply(b"{}")

    async def _list(self, request: HTTPRequest, context: OperationContext) -> Reply:
        return Reply(dump(endpoint_list(await self._view(request, context))))

    async def _get(self, request: HTTPRequest, context: OperationContext) -> Reply:
        name, _ = self._endpoint(request, context)
        return Reply(dump(endpoint_detail(name, await self._view(request, context))))

    async def _openapi(self, request: HTTPRequest, context: OperationContext) -> Reply:
        name, config = self._endpoint(request, context)
        return Reply(dump(openapi(name, config.endpoints[name], str(request.base_url))))

    async def _metrics(self, request: HTTPRequest, context: OperationContext) -> Reply:
        name, _ = self._endpoint(request, context)
        return Reply(self._services.telemetry.expose([name]), media_type=CONTENT_TYPE)

    async def _update_config(self, request: HTTPRequest, context: OperationContext) -> Reply:
        """Changes the traffic on every router. The reply has the endpoint's state a moment later."""
        name, config = self._endpoint(request, context)
        self._services.access.roles.require_operator(context.caller, name, f"change the traffic of '{name}'")
        if self._services.control is None:
            raise not_offered(IN_THE_FILE)
        check_query(request, ())
        body = await read_json(request, context, config)
        requested = requested_traffic(name, body, config)
        self._services.views().require_deployments(context.caller, requested)
        seen = config.endpoints[name].traffic
        author = authorship(context.caller.name, await last_generation(self._services.controller, name))
        await change_traffic(self._services.control, name, seen=seen, wanted=requested, author=author)
        before, after = dict(seen), dict(requested)
        context.change.before, context.change.after = {"weights": before}, {"weights": after}
        id, caller = context.record.request_id, context.caller.name
        change = event("traffic_changed", request_id=id, caller=caller, endpoint=name, before=before, after=after)
        _log.info("Traffic changed", extra=change)
        return Reply(dump(endpoint_detail(name, await self._view(request, context))))

    async def _not_offered(self, reason: str, request: HTTPRequest, context: OperationContext) -> Reply:
        if "name" in request.path_params:
            self._endpoint(request, context)
        raise not_offered(reason)

    async def _unknown(self, request: HTTPRequest, context: OperationContext) -> Reply:
        if allowed := [method for method, pattern in self._paths if pattern.match(request.url.path)]:
            allowed = sorted(set(allowed))
            raise MethodNotAllowed(taken(request.url.path, allowed, request.method), allowed=allowed)
        raise UnsupportedRoute(f"'{request.method} {request.url.path}' of Databricks' API", f"`{_ROOT}`")

    def _endpoint(self, request: HTTPRequest, context: OperationContext) -> tuple[str, Config]:
        """The endpoint in the path, and the configuration that has it. Raises NotFound, and Forbidden."""
        name, views = request.path_params["name"], self._services.views()
        find_endpoint(name, views.config, views.of(context.caller).endpoints)
        views.require_access(context.caller, name)
        context.record.manage(name)
        return name, views.config

    async def _view(self, request: HTTPRequest, context: OperationContext) -> View:
        before = self._services.views().config
        healthy, applied = await asyncio.gather(self._healthy(), applied_or_none(self._services.control))
        views = self._services.views()
        seen, name = views.of(context.caller), request.path_params.get("name", "")
        may_manage = self._services.access.roles.may_operate(context.caller, name)
        view = partial(View, seen, healthy, url=str(request.base_url), may_manage=may_manage)
        if applied is None:
            delivery = Delivery.SETTLED if self._services.control is None else Delivery.UNSETTLED
            return view(since_ms=self._since_ms, created_ms=self._created_ms, delivery=delivery)
        self._created_ms = {**self._created_ms, **applied.created_ms}
        delivery = delivery_seen(applied, before, views.config)
        pending = applied.parsed()
        return view(since_ms=applied.since_ms, created_ms=applied.created_ms, delivery=delivery, pending=pending)


def _error_words(error: SwitchyardError, request: HTTPRequest, request_id: str) -> Reply:
    return error_reply(error, request_id=request_id)
