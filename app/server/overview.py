"""`GET /api/overview`: every endpoint that the caller may use, its deployments, and their last minute; and vLLM's
`GET /load`.

The overview is computed from this router's counters on demand, at most once a second for all callers with the same
view.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request as HTTPRequest

from app.aio import run_in_background
from app.config.schema import Config
from app.control_plane import Replicas, RunningReplicas
from app.dialects.base import Reply
from app.dialects.bodies import dump
from app.dialects.common.requests import model_names
from app.errors import NotFound
from app.misspellings import question
from app.server.colours import deployment_colours
from app.server.operations import Api, ApiRoute, OperationContext, RoutedApi, Services, openai_words
from app.server.overview_document import Present, endpoints_document
from app.telemetry.periods import Arm
from app.telemetry.recent import EVERY_S, Counts, Recent, RecentCounts, called, in_flight

CACHE_S = 1.0


class OverviewApi(RoutedApi):
    """The routes. `queued` returns the number of requests in each endpoint's queue, `stops` the stopped deployments of
    each, `waiting` for how many seconds requests have waited for each arm's answer, and `paused` streams for another
    engine; `dead`, which engines have died lately; `as_told`, replicas as they are now; and `lacking`, for how many
    seconds requests have waited for a replica of each application. `clock`: monotonic seconds."""

    def __init__(
        self,
        services: Services,
        *,
        running: RunningReplicas,
        queued: Callable[[], Mapping[str, int]],
        stops: Callable[[], Mapping[str, Collection[str]]],
        waiting: Callable[[], Mapping[Arm, Sequence[float]]] = dict,
        paused: Callable[[], Mapping[Arm, Sequence[float]]] = dict,
        dead: Callable[[], Collection[str]] = frozenset,
        as_told: Callable[[Replicas], Replicas] = lambda replicas: replicas,
        lacking: Callable[[], Mapping[str, Sequence[float]]] = dict,
        sampled: Callable[[Mapping[Arm, Counts]], None] = lambda counts: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services, self._running, self._clock = services, running, clock
        self._queued, self._stops, self._sampled = queued, stops, sampled
        self._waiting, self._paused, self._dead = waiting, paused, dead
        self._as_told, self._lacking = as_told, lacking
        self._recent = Recent(services.telemetry, clock())
        self._answers: dict[tuple[frozenset[str], frozenset[str], bool], tuple[float, Config, bytes]] = {}
        self._counted: tuple[float, RecentCounts | None] = (float("-inf"), None)
        self._api = Api("switchyard", services, openai_words, is_audited=False)
        self._entries = [
            ApiRoute("GET", "/api/overview", "overview", self._overview),
            ApiRoute("GET", "/load", "load", self._load, {"model": {"type": "string"}}),
        ]

    def _table(self) -> Sequence[ApiRoute]:
        return self._entries

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Reads the counters at intervals, so that the last minute is known."""

        async def sample() -> None:
            while True:
                # At the same moments on every router, so that their counts add up.
                await asyncio.sleep(EVERY_S - time.time() % EVERY_S)
                self._sampled(self._recent.sample(self._clock()))

        async with run_in_background(sample()):
            yield

    def so_far(self) -> Mapping[Arm, Counts]:
        """The counters as they are, in the way of the samples."""
        return self._recent.so_far()

    async def _overview(self, request: HTTPRequest, context: OperationContext) -> Reply:
        seen, roles = self._seen(context), self._services.access.roles
        is_manager = roles.may_manage(context.caller)
        operated = frozenset(roles.operated(context.caller, seen.endpoints))
        key = (frozenset(seen.endpoints), operated, is_manager)
        at, config, answer = self._answers.get(key, (float("-inf"), None, b""))
        if config is not seen or self._clock() - at >= CACHE_S:
            replicas = await self._running.latest()
            replicas = self._as_told(replicas) if replicas is not None else None
            answer = dump(self._document(seen, operated, is_manager, replicas))
            now = self._clock()
            # Only fresh documents are kept: there may be as many views as keys.
            self._answers = {caller: kept for caller, kept in self._answers.items() if now - kept[0] < CACHE_S}
            self._answers[key] = (now, seen, answer)
        return Reply(answer)

    def _seen(self, context: OperationContext) -> Config:
        return self._services.views().of(context.caller)

    async def _load(self, request: HTTPRequest, context: OperationContext) -> Reply:
        """vLLM's GET /load: the requests that deployments work on for this router, of `?model=` (an endpoint or a
        deployment) or of all endpoints."""
        seen = self._seen(context)
        name = request.query_params.get("model")
        if name is not None and name not in (known := model_names(seen)):
            raise NotFound(f"There is no endpoint or deployment '{name}'{question(name, known)}", param="model")
        working = in_flight(self._services.telemetry)
        counts = (
            count
            for (endpoint, deployment), count in working.items()
            if endpoint in seen.endpoints and name in (None, endpoint, deployment)
        )
        return Reply(dump({"server_load": sum(counts)}))

    def _document(
        self, seen: Config, operated: Collection[str], is_manager: bool, replicas: Replicas | None
    ) -> dict[str, Any]:
        services, window = self._services, self._window()
        present = Present(
            in_flight(services.telemetry),
            self._queued(),
            services.open_breakers(),
            self._stops(),
            replicas,
            services.recent_keys.seen_within(window.seconds),
            called(services.telemetry),
            self._waiting(),
            self._paused(),
            self._running.silent_s,
            self._dead(),
            self._lacking(),
        )
        return {
            "at": time.time(),
            "window_s": round(window.seconds, 1),
            "replicas_age_s": round(age, 1) if (age := self._running.age_s) is not None else None,
            "routers": sum(replicas.routers.values()) if replicas is not None else None,
            "is_manager": is_manager,
            "why_not": self._why_not(is_manager or bool(operated)),
            "has_controller": services.controller is not None,
            "endpoints": endpoints_document(
                seen, window, present, operated, deployment_colours(services.views().config)
            ),
        }

    def _window(self) -> RecentCounts:
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
