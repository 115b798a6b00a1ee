"""`GET /api/overview`: every endpoint that the caller may use, its deployments, and their last minute; and vLLM's
`GET /load`.

The overview is computed from this router's counters on demand, at most once a second for all callers with the same
view.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from starlette.requests import Request as HTTPRequest
from starlette.routing import BaseRoute

from app.access.caller import ConfigViews
from app.access.guard import Access
from app.aio import run_in_background
from app.config.schema import Config
from app.control_plane import Replicas
from app.dialects.base import Reply
from app.dialects.bodies import dump
from app.errors import NotFound, Unavailable
from app.exposures.controller_client import ControllerClient
from app.misspellings import question
from app.server.api_operation import Api, Entry, OperationContext, openai_words
from app.server.openapi import Operation
from app.server.overview.document import Present, endpoints_document
from app.server.replicas.running import RunningReplicas
from app.telemetry.metrics import Telemetry
from app.telemetry.recent import EVERY_S, Recent, Window, in_flight

CACHE_S = 1.0


class Health(NamedTuple):
    """The state of the router's deployments: open breakers, each endpoint's queue, and the stops."""

    open_breakers: Callable[[], Collection[str]]
    queued: Callable[[], Mapping[str, int]]
    stops: Callable[[], Mapping[str, Collection[str]]]


class OverviewApi:
    """The routes. `views` returns the configuration in force (None before the first). `clock`: monotonic seconds."""

    def __init__(
        self,
        views: Callable[[], ConfigViews | None],
        telemetry: Telemetry,
        access: Access,
        running: RunningReplicas,
        controller: ControllerClient | None,
        health: Health,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._views, self._telemetry, self._access = views, telemetry, access
        self._running, self._has_controller, self._health, self._clock = running, controller is not None, health, clock
        self._recent = Recent(telemetry, clock())
        self._answers: dict[tuple[frozenset[str], frozenset[str], bool], tuple[float, Config, bytes]] = {}
        self._counted: tuple[float, Window | None] = (float("-inf"), None)
        self._api = Api("switchyard", telemetry, access, views, openai_words)
        self._entries = [
            Entry("GET", "/api/overview", "overview", self._overview),
            Entry("GET", "/load", "load", self._load, {"model": {"type": "string"}}),
        ]

    def operations(self) -> list[Operation]:
        """The operations for the OpenAPI document."""
        return [entry.operation(self._api.dialect) for entry in self._entries]

    def routes(self) -> list[BaseRoute]:
        """The routes of the API."""
        return [entry.route(self._api) for entry in self._entries]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Reads the counters at intervals, so that the last minute is known."""

        async def sample() -> None:
            while True:
                await asyncio.sleep(EVERY_S)
                self._recent.sample(self._clock())

        async with run_in_background(sample()):
            yield

    async def _overview(self, request: HTTPRequest, context: OperationContext) -> Reply:
        seen, roles = self._seen(context), self._access.roles
        is_manager = roles.may_manage(context.caller)
        operated = frozenset(name for name in seen.endpoints if roles.may_operate(context.caller, name))
        key = (frozenset(seen.endpoints), operated, is_manager)
        at, config, answer = self._answers.get(key, (float("-inf"), None, b""))
        if config is not seen or self._clock() - at >= CACHE_S:
            replicas = await self._running.now()
            answer = dump(self._document(seen, operated, is_manager, replicas))
            now = self._clock()
            # Only fresh documents are kept: there may be as many views as keys.
            self._answers = {it: kept for it, kept in self._answers.items() if now - kept[0] < CACHE_S}
            self._answers[key] = (now, seen, answer)
        return Reply(answer)

    def _seen(self, context: OperationContext) -> Config:
        if (views := self._views()) is None:
            raise Unavailable("The router has no configuration yet", retry_after=1)
        return views.of(context.caller)

    async def _load(self, request: HTTPRequest, context: OperationContext) -> Reply:
        """vLLM's GET /load: the requests that deployments work on for this router, of `?model=` or of all endpoints."""
        seen = self._seen(context)
        name = request.query_params.get("model")
        if name is not None and name not in seen.endpoints:
            raise NotFound(f"There is no endpoint '{name}'{question(name, seen.endpoints)}", param="model")
        names = seen.endpoints if name is None else [name]
        working = in_flight(self._telemetry)
        return Reply(
            dump({"server_load": sum(count for (endpoint, *_), count in working.items() if endpoint in names)})
        )

    def _document(
        self, seen: Config, operated: Collection[str], is_manager: bool, replicas: Replicas | None
    ) -> dict[str, Any]:
        health, window = self._health, self._window()
        present = Present(in_flight(self._telemetry), health.queued(), health.open_breakers(), health.stops(), replicas)
        return {
            "at": time.time(),
            "window_s": round(window.seconds, 1),
            "routers": sum(replicas.routers.values()) if replicas is not None else None,
            "is_manager": is_manager,
            "why_not": self._why_not(is_manager or bool(operated)),
            "has_controller": self._has_controller,
            "endpoints": endpoints_document(seen, window, present, operated),
        }

    def _window(self) -> Window:
        """The last minute, computed once for all views."""
        now = self._clock()
        at, window = self._counted
        if window is None or now - at >= CACHE_S:
            window = self._recent.window(now)
            self._counted = (now, window)
        return window

    def _why_not(self, may_operate: bool) -> str | None:
        """The reason why the caller can change no traffic here; None if it can."""
        if not self._running.is_known:
            return "This router reads its traffic from its configuration file: change it there."
        return None if may_operate else "Managers and operators change traffic; your key only shows it."
