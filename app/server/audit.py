"""`GET /api/audit`: the records of management calls, for managers and viewers.

Where records of the audit log are kept: by the controller of experiments, else by the router itself.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request as HTTPRequest

from app.config.schema import Config
from app.dialects.base import Reply
from app.dialects.schemas import Schema
from app.errors import BadRequest, Unavailable
from app.exposures.audit import OUTCOMES, AuditRecord
from app.exposures.controller_client import Answer, ControllerClient
from app.server.operations import (
    Api,
    ApiRoute,
    OperationContext,
    RoutedApi,
    Services,
    ask,
    openai_words,
    refusal,
    seconds_in,
)

if TYPE_CHECKING:
    from app.experiments.audit import AuditTrail


class AuditKeeping:
    """`config` returns the configuration in force, None before the first. `base`: the directory that a relative
    `ledger.url` is relative to. `clock`: Unix seconds."""

    def __init__(
        self,
        controller: ControllerClient | None,
        config: Callable[[], Config | None],
        base: Path,
        clock: Callable[[], float],
    ) -> None:
        self._controller, self._config, self._base, self._clock = controller, config, base, clock
        self._trail: tuple[str, AuditTrail] | None = None

    async def keep(self, records: list[AuditRecord]) -> None:
        """Makes the records durable. Raises Unavailable, and any error of the directory."""
        if self._controller is not None:
            await ask(self._controller, "POST", "/audit", body=msgspec.json.encode(records))
        else:
            await asyncio.to_thread(lambda: self._own().keep(records))

    async def answer(self, query: Mapping[str, str]) -> Answer:
        """The records that `query` asks for. Raises BadRequest, and Unavailable if they cannot be read."""
        if self._controller is not None:
            return await ask(self._controller, "GET", "/audit", query)
        answer = await asyncio.to_thread(self._read, query)
        if answer.status >= 400:
            raise refusal(answer)
        return answer

    def _read(self, query: Mapping[str, str]) -> Answer:
        # Imported here: a router without a controller needs pyarrow for nothing else.
        from app.experiments.audit import unreadable
        from app.experiments.storage.store import StoreError

        try:
            return self._own().answer(query)
        except StoreError as error:
            return unreadable(error)

    def _own(self) -> "AuditTrail":
        from app.experiments.audit import AuditTrail
        from app.experiments.storage.store import open_store

        if (config := self._config()) is None:
            raise Unavailable("The router has no configuration yet", retry_after=1)
        ledger = config.ledger
        if self._trail is None or self._trail[0] != ledger.url:
            trail = AuditTrail(lambda: open_store(ledger.url, self._base), self._days, self._clock)
            self._trail = ledger.url, trail
        return self._trail[1]

    def _days(self) -> int:
        config = self._config()
        return config.ledger.audit_days if config is not None else 1


class AuditApi(RoutedApi):
    """The route."""

    def __init__(self, services: Services, *, keeping: AuditKeeping, clock: Callable[[], float] = time.time) -> None:
        self._access, self._keeping, self._clock = services.access, keeping, clock
        self._api = Api("switchyard", services, openai_words)
        query: dict[str, Schema] = {
            "since": {"description": "Unix seconds, or ISO 8601 (UTC)"},
            "until": {"description": "The same; not included"},
            "last_s": {"type": "number", "minimum": 0, "description": "Those of the last seconds, in place of `since`"},
            "before": {"description": "Only records older than this id: the next page"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 10000},
            "action": {"description": "The operation's name, as in the access log"},
            "outcome": {"enum": list(OUTCOMES)},
            "caller": {"description": "A name, or - for a deployed file"},
            "endpoint": {},
            "experiment": {},
            "request_id": {},
            "address": {},
            "format": {"enum": ["json", "jsonl"]},
        }
        self._entry = ApiRoute("GET", "/api/audit", "audit", self._audit, query)

    def _table(self) -> Sequence[ApiRoute]:
        return [self._entry]

    async def _audit(self, request: HTTPRequest, context: OperationContext) -> Reply:
        self._access.roles.require_viewer(context.caller, "read the audit log")
        query = dict(request.query_params)
        if (last_s := seconds_in(query, "last_s")) is not None:
            if "since" in query:
                raise BadRequest("last_s: cannot be combined with `since`", param="last_s")
            query["since"] = str(max(0.0, self._clock() - last_s))
        query.pop("last_s", None)
        answer = await self._keeping.answer(query)
        return Reply(answer.body, answer.status, answer.media_type, {"cache-control": "no-store"})
