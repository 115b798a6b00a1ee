"""The caller's own name, permissions and remaining limits; for managers and viewers, every caller's use.

No answer contains a key, or an endpoint that the caller may not use. Errors have OpenAI's form.
"""

import asyncio
from collections.abc import Callable

from starlette.requests import Request as HTTPRequest
from starlette.routing import BaseRoute

from app.access.caller import ConfigViews
from app.access.guard import Access
from app.dialects.base import Reply
from app.dialects.bodies import dump
from app.errors import Unavailable
from app.server.api_operation import Api, Entry, OperationContext, openai_words
from app.server.audit_log import AuditLog
from app.server.callers.document import callers_document, me_document
from app.server.openapi import Operation
from app.telemetry.metrics import Telemetry

_NEVER_CACHED = {"cache-control": "no-store"}


class CallersApi:
    """The routes. `views` returns the configuration in force (None before the first)."""

    def __init__(
        self, views: Callable[[], ConfigViews | None], telemetry: Telemetry, access: Access, audit: AuditLog
    ) -> None:
        self._views, self._telemetry, self._access = views, telemetry, access
        self._api = Api("switchyard", telemetry, access, views, openai_words, audit)

    def operations(self) -> list[Operation]:
        """The operations for the OpenAPI document."""
        return [it.operation(self._api.dialect) for it in self._table()]

    def routes(self) -> list[BaseRoute]:
        """Every route of the API."""
        return [it.route(self._api) for it in self._table()]

    def _table(self) -> list[Entry]:
        return [
            Entry("GET", "/api/me", "me", self._me),
            Entry("GET", "/api/callers", "callers", self._callers),
        ]

    async def _me(self, request: HTTPRequest, context: OperationContext) -> Reply:
        if (views := self._views()) is None:
            raise Unavailable("The router has no configuration yet", retry_after=1)
        caller, visible = context.caller, views.of(context.caller)
        left = await asyncio.gather(*(self._access.left(caller, name) for name in visible.endpoints))
        document = me_document(
            caller,
            visible,
            dict(zip(visible.endpoints, left, strict=True)),
            roles=self._access.roles,
            limits_are_shared=self._access.limits_are_shared,
        )
        return Reply(dump(document), headers=_NEVER_CACHED)

    async def _callers(self, request: HTTPRequest, context: OperationContext) -> Reply:
        if self._views() is None:
            raise Unavailable("The router has no configuration yet", retry_after=1)
        self._access.roles.require_viewer(context.caller, "see what others use")
        use = self._telemetry.caller_use
        return Reply(dump(callers_document(use.since, use.items(), self._access.key_uses())), headers=_NEVER_CACHED)
