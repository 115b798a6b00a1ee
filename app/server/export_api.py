"""`GET /api/exposures`: the recorded exposures as a file, for managers and viewers. Hashes, times, sizes, outcomes; no
text, no name.
"""

from collections.abc import Callable

from starlette.requests import Request as HTTPRequest
from starlette.routing import BaseRoute

from app.access.caller import ConfigViews
from app.access.guard import Access
from app.dialects.schemas import Schema
from app.exchange.deadlines import while_connected
from app.experiments.contract.journal import EXPOSURE_FORMATS
from app.exposures.controller_client import Answer, ExportClient
from app.server.api_operation import Api, Entry, OperationContext, openai_words
from app.server.audit_log import AuditLog
from app.server.controller_answers import no_controller, refusal
from app.server.openapi import Operation
from app.telemetry.metrics import Telemetry


class ExportApi:
    """The route. `views` returns the configuration in force (None before the first)."""

    def __init__(
        self,
        views: Callable[[], ConfigViews | None],
        telemetry: Telemetry,
        access: Access,
        exports: ExportClient | None,
        audit: AuditLog,
    ) -> None:
        self._access, self._exports = access, exports
        self._api = Api("switchyard", telemetry, access, views, openai_words, audit)
        query: dict[str, Schema] = {
            "experiment": {"description": "Only the exposures of its last run"},
            "endpoint": {"description": "Only this endpoint's requests"},
            "since": {"description": "Unix seconds, or ISO 8601 (UTC)"},
            "until": {"description": "The same; not included"},
            "format": {"enum": list(EXPOSURE_FORMATS)},
        }
        self._entry = Entry("GET", "/api/exposures", "export_exposures", self._export, query, audited=True)

    def operations(self) -> list[Operation]:
        """The operation for the OpenAPI document."""
        return [self._entry.operation(self._api.dialect)]

    def routes(self) -> list[BaseRoute]:
        """The route of the API."""
        return [self._entry.route(self._api)]

    async def _export(self, request: HTTPRequest, context: OperationContext) -> None:
        self._access.roles.require_viewer(context.caller, "export what was recorded")
        if self._exports is None:
            raise no_controller()
        writer = context.writer
        async with self._exports.export(dict(request.query_params)) as found, while_connected(request.receive):
            if isinstance(found, Answer):
                raise refusal(found)
            context.change.after = dict(request.query_params)
            await writer.start_stream({}, found.media_type)
            context.record.first_byte = None  # it is no model's first token
            async for piece in found.pieces:
                await writer.send_chunk(piece)
            await writer.end_stream()
