"""`GET /api/endpoints/{endpoint}/mirror`: the report on an endpoint's shadow, for callers of the endpoint."""

from collections.abc import Callable

from starlette.requests import Request as HTTPRequest
from starlette.routing import BaseRoute

from app.access.caller import ConfigViews
from app.access.guard import Access
from app.dialects.base import Reply
from app.errors import NotFound, Unavailable
from app.exposures.controller_client import ControllerClient
from app.misspellings import question
from app.server.api_operation import Api, Entry, OperationContext, openai_words
from app.server.controller_answers import ask
from app.server.openapi import Operation
from app.telemetry.metrics import Telemetry

PATH = "/api/endpoints/{endpoint}/mirror"


class MirrorApi:
    """The route. `views` returns the configuration in force (None before the first)."""

    def __init__(
        self,
        views: Callable[[], ConfigViews | None],
        telemetry: Telemetry,
        access: Access,
        controller: ControllerClient | None,
    ) -> None:
        self._views, self._controller = views, controller
        self._api = Api("switchyard", telemetry, access, views, openai_words)
        query = {"format": {"enum": ["json", "markdown", "text"]}}
        self._entry = Entry("GET", PATH, "mirror", self._mirror, query)

    def operations(self) -> list[Operation]:
        """The operation for the OpenAPI document."""
        return [self._entry.operation(self._api.dialect)]

    def routes(self) -> list[BaseRoute]:
        """The route of the API."""
        return [self._entry.route(self._api)]

    async def _mirror(self, request: HTTPRequest, context: OperationContext) -> Reply:
        name, views = request.path_params["endpoint"], self._views()
        if views is None:
            raise Unavailable("The router has no configuration yet", retry_after=1)
        views.require_access(context.caller, name)
        if name not in views.config.endpoints:
            meant = question(name, views.of(context.caller).endpoints)
            raise NotFound(f"No endpoint '{name}'{meant}", param="endpoint")
        context.record.manage(name)
        answer = await ask(self._controller, "GET", f"/endpoints/{name}/mirror", dict(request.query_params))
        return Reply(answer.body, answer.status, answer.media_type)
