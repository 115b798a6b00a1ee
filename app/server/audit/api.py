"""`GET /api/audit`: the records of management calls, for managers and viewers."""

from collections.abc import Callable

from starlette.requests import Request as HTTPRequest
from starlette.routing import BaseRoute

from app.access.caller import ConfigViews
from app.access.guard import Access
from app.dialects.base import Reply
from app.dialects.schemas import Schema
from app.exposures.audit import OUTCOMES
from app.server.api_operation import Api, Entry, OperationContext, openai_words
from app.server.audit.keeping import AuditKeeping
from app.server.audit_log import AuditLog
from app.server.openapi import Operation
from app.telemetry.metrics import Telemetry


class AuditApi:
    """The route. `views` returns the configuration in force (None before the first)."""

    def __init__(
        self,
        views: Callable[[], ConfigViews | None],
        telemetry: Telemetry,
        access: Access,
        keeping: AuditKeeping,
        audit: AuditLog,
    ) -> None:
        self._access, self._keeping = access, keeping
        self._api = Api("switchyard", telemetry, access, views, openai_words, audit)
        query: dict[str, Schema] = {
            "since": {"description": "Unix seconds, or ISO 8601 (UTC)"},
            "until": {"description": "The same; not included"},
            "before": {"description": "Only records older than this id: the next page"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 10000},
            "action": {"description": "The operation's name, as in the access log"},
            "outcome": {"enum": list(OUTCOMES)},
            "caller": {},
            "endpoint": {},
            "experiment": {},
            "request_id": {},
            "address": {},
            "format": {"enum": ["json", "jsonl"]},
        }
        self._entry = Entry("GET", "/api/audit", "audit", self._audit, query)

    def operations(self) -> list[Operation]:
        """The operation for the OpenAPI document."""
        return [self._entry.operation(self._api.dialect)]

    def routes(self) -> list[BaseRoute]:
        """The route of the API."""
        return [self._entry.route(self._api)]

    async def _audit(self, request: HTTPRequest, context: OperationContext) -> Reply:
        self._access.roles.require_viewer(context.caller, "read the audit log")
        answer = await self._keeping.answer(dict(request.query_params))
        return Reply(answer.body, answer.status, answer.media_type, {"cache-control": "no-store"})
