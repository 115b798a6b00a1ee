"""`GET /api/overview`: every endpoint that the caller may use, its deployments, and their last minute; and vLLM's
`GET /load`.

The overview is computed from this router's counters on demand, at most once a second for all callers with the same
view.

The overview as a document: pure functions of the configuration and of the counts.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from starlette.requests import Request as HTTPRequest
from starlette.routing import BaseRoute

from app.aio import run_in_background
from app.config.experiments import is_active
from app.config.schema import Config, Endpoint
from app.control_plane import Replicas
from app.dialects.base import Reply
from app.dialects.bodies import dump
from app.dialects.common.requests import model_names
from app.errors import NotFound
from app.exposures.plans import plan_of
from app.misspellings import question
from app.server.openapi import Operation
from app.server.operations import Api, ApiRoute, OperationContext, Services, openai_words
from app.server.replicas import RunningReplicas
from app.telemetry.recent import EVERY_S, Arm, BucketCounts, Counts, Recent, RecentCounts, in_flight


class Present(NamedTuple):
    """The present state. `stops`: the stopped deployments of each endpoint. `replicas`: None if unknown."""

    in_flight: Mapping[Arm, int]
    queued: Mapping[str, int]
    open_breakers: Collection[str]
    stops: Mapping[str, Collection[str]]
    replicas: Replicas | None


def endpoints_document(
    config: Config, window: RecentCounts, present: Present, operated: Collection[str]
) -> list[dict[str, Any]]:
    """Every endpoint of `config`, which is what the caller may see. `operated`: those that it may operate."""
    return [
        {**_endpoint(name, endpoint, config, window, present), "may_operate": name in operated}
        for name, endpoint in config.endpoints.items()
    ]


def _endpoint(name: str, endpoint: Endpoint, config: Config, window: RecentCounts, present: Present) -> dict[str, Any]:
    shadow = [endpoint.mirror.deployment] if endpoint.mirror is not None else []
    arms = [
        deployment
        for deployment in dict.fromkeys([*endpoint.traffic, *(endpoint.fallback or ()), *shadow])
        if deployment in config.deployments
    ]
    counted = {arm: window.counts.get((name, arm), Counts()) for arm in arms}
    drawn = sum(counts.drawn for counts in counted.values())
    experiments = [
        experiment
        for experiment, section in config.experiments.items()
        if section.endpoint == name and is_active(section)
    ]
    unanswered = window.counts.get((name, ""), Counts())
    return {
        "endpoint": name,
        "tasks": list(endpoint.tasks),
        "sticky": endpoint.sticky.model_dump(exclude_none=True) if endpoint.sticky is not None else None,
        "plan": plan_of(name, endpoint).id,
        "generation": endpoint.plan.generation,
        "experiment": experiments[0] if experiments else None,
        "requests_per_s": _rate(sum(counts.requests for counts in counted.values()) + unanswered.requests, window),
        "refused": int(unanswered.refused),
        "queued": present.queued.get(name, 0),
        "deployments": [
            {
                **_deployment(counted[arm], drawn, window),
                "deployment": arm,
                "model": config.deployments[arm].model,
                "role": _role(arm, endpoint),
                "weight": endpoint.traffic.get(arm, 0),
                "in_flight": present.in_flight.get((name, arm), 0),
                "breaker": "open" if arm in present.open_breakers else "closed",
                "stopped": arm in present.stops.get(name, ()),
                "replicas": _replicas(arm, config, present.replicas),
            }
            for arm in arms
        ],
    }


def _role(name: str, endpoint: Endpoint) -> str:
    if name in endpoint.traffic:
        return "traffic"
    return "fallback" if name in (endpoint.fallback or ()) else "mirror"


def _deployment(counts: Counts, drawn: float, window: RecentCounts) -> dict[str, Any]:
    return {
        "share": round(counts.drawn / drawn, 4) if drawn > 0 else None,
        "diverted": int(counts.diverted),
        "requests": int(counts.requests),
        "requests_per_s": _rate(counts.requests, window),
        "errors": int(counts.errors),
        "refused": int(counts.refused),
        "first_token_s": _quantiles(counts.first_token),
        "inter_token_s": _quantiles(counts.inter_token),
        "output_tokens_per_s": _rate(counts.output_tokens, window),
    }


def _rate(count: float, window: RecentCounts) -> float | None:
    return round(count / window.seconds, 3) if window.seconds > 0 else None


def _quantiles(counts: BucketCounts) -> dict[str, float] | None:
    median, high = counts.quantile(0.5), counts.quantile(0.95)
    return None if median is None or high is None else {"p50": round(median, 4), "p95": round(high, 4)}


def _replicas(name: str, config: Config, replicas: Replicas | None) -> dict[str, int] | None:
    """The states of a deployment's replicas; None if it is served elsewhere, or if they are unknown."""
    app = config.deployments[name].app
    return dict(replicas.applications.get(app, {})) if replicas is not None and app is not None else None


CACHE_S = 1.0


class OverviewApi:
    """The routes. `queued` returns the number of requests in each endpoint's queue, `stops` the stopped deployments of
    each. `clock`: monotonic seconds."""

    def __init__(
        self,
        services: Services,
        *,
        running: RunningReplicas,
        queued: Callable[[], Mapping[str, int]],
        stops: Callable[[], Mapping[str, Collection[str]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services, self._running, self._clock = services, running, clock
        self._queued, self._stops = queued, stops
        self._recent = Recent(services.telemetry, clock())
        self._answers: dict[tuple[frozenset[str], frozenset[str], bool], tuple[float, Config, bytes]] = {}
        self._counted: tuple[float, RecentCounts | None] = (float("-inf"), None)
        self._api = Api("switchyard", services, openai_words, is_audited=False)
        self._entries = [
            ApiRoute("GET", "/api/overview", "overview", self._overview),
            ApiRoute("GET", "/load", "load", self._load, {"model": {"type": "string"}}),
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
        seen, roles = self._seen(context), self._services.access.roles
        is_manager = roles.may_manage(context.caller)
        operated = frozenset(name for name in seen.endpoints if roles.may_operate(context.caller, name))
        key = (frozenset(seen.endpoints), operated, is_manager)
        at, config, answer = self._answers.get(key, (float("-inf"), None, b""))
        if config is not seen or self._clock() - at >= CACHE_S:
            replicas = await self._running.now()
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
            in_flight(services.telemetry), self._queued(), services.open_breakers(), self._stops(), replicas
        )
        return {
            "at": time.time(),
            "window_s": round(window.seconds, 1),
            "routers": sum(replicas.routers.values()) if replicas is not None else None,
            "is_manager": is_manager,
            "why_not": self._why_not(is_manager or bool(operated)),
            "has_controller": services.controller is not None,
            "endpoints": endpoints_document(seen, window, present, operated),
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
