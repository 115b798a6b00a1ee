"""The router as an ASGI application, built from values.

A `Router` takes a configuration and its surroundings; whoever hosts its `app` (uvicorn, a Serve deployment, a test)
delivers later configurations through `reconfigure`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from random import Random

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Path
from starlette.types import ASGIApp, Receive, Scope, Send

from app.access.caller import must_use, names, visible
from app.access.guard import Access
from app.config.base import ConfigError
from app.config.schema import Config, parse
from app.control_plane import ControlPlane
from app.dialects.base import JSON, Request
from app.dialects.json_body import dump
from app.dialects.openai.dialect import OpenAI
from app.dialects.registry import DIALECTS
from app.errors import MethodNotAllowed, NotFound, SwitchyardError
from app.exchange.handler import Candidates, handle
from app.exchange.request import headers_of
from app.exchange.response import told_by_headers
from app.exchange.state import Board, Snapshot
from app.server.asgi import _AtOnce, _endpoints, _OneSlashOrNone
from app.server.databricks_management import Management
from app.server.openapi import Operation, document, operations
from app.telemetry import tgi_exposition as tgi_metrics
from app.telemetry.event_loop import pulse
from app.telemetry.metrics import CONTENT_TYPE, Telemetry
from app.upstream.client import Upstream
from app.upstream.target import Surroundings, targets

_PROBE_TIMEOUT_S = 2.0
_PROBE_CACHE_S = 1.0


class Router:
    """The running router: its application, and the way to give it a configuration.

    Until the first one it answers 503, since a Serve replica builds its application before its configuration comes.
    """

    def __init__(
        self, surroundings: Surroundings, *, random: Random | None = None, control: ControlPlane | None = None
    ) -> None:
        self._surroundings = surroundings
        self._upstream = Upstream()
        telemetry = Telemetry()
        self._access = Access(telemetry, loopback=surroundings.loopback, several_routers=surroundings.several_routers)
        self._board = Board(self._upstream, telemetry, self._access, random or Random())
        self._readiness: tuple[float, Mapping[str, bool]] = (float("-inf"), {})
        self._management = Management(self._serving, self._all_healthy, telemetry, self._access, control)
        endpoints = _endpoints(self._exchange)
        starlette = Starlette(
            routes=[
                *self._operations(),
                *self._management.routes(),
                *(Path(path, endpoint, methods=[method]) for (method, path), endpoint in endpoints.items()),
            ],
            exception_handlers={HTTPException: _unrouted, SwitchyardError: _refused},
            lifespan=self._lifespan,
        )
        starlette.router.redirect_slashes = False
        self.app: ASGIApp = _OneSlashOrNone(_AtOnce(endpoints, starlette))

    def reconfigure(self, config: object) -> None:
        """Serves by `config` (a Config, or plain data) from the next request on.

        Raises ConfigError on one that cannot be served; the one before stays in force.
        """
        reloads = self._board.telemetry.reloads
        try:
            wanted = config if isinstance(config, Config) else parse(config)
            snapshot = Snapshot(wanted, targets(wanted, self._surroundings))
            self._access.reconfigure(wanted)
            self._board.snapshot = snapshot
        except ConfigError:
            reloads.labels("refused").inc()
            raise
        self._management.since_ms = int(time.time() * 1000)
        reloads.labels("applied").inc()

    def _serving(self) -> Config | None:
        return self._board.snapshot.config if self._board.snapshot is not None else None

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with self._upstream, self._access.running(), pulse(self._board.telemetry):
            yield

    async def _exchange(self, candidates: Candidates, scope: Scope, receive: Receive, send: Send) -> None:
        await handle(self._board, candidates, scope, receive, send)

    def _operations(self) -> list[Path]:
        return [
            Path("/health", self._health, methods=["GET"]),
            Path("/ready", self._ready, methods=["GET"]),
            Path("/metrics", self._metrics, methods=["GET"]),
            Path("/openapi.json", self._openapi, methods=["GET"]),
            Path("/tgi/metrics", self._tgi_metrics, methods=["GET"]),
            Path("/tgi/{endpoint}/metrics", self._tgi_metrics, methods=["GET"]),
        ]

    async def _health(self, request: HTTPRequest) -> Response:
        """The router is alive."""
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: HTTPRequest) -> Response:
        """Every endpoint has a healthy deployment among those that get traffic."""
        snapshot = self._board.snapshot
        if snapshot is None:
            return JSONResponse({"status": "not configured"}, status_code=503)
        healthy = await self._all_healthy()
        endpoints = {
            name: any(healthy.get(deployment) for deployment, share in endpoint.traffic.items() if share > 0)
            for name, endpoint in snapshot.config.endpoints.items()
        }
        ready = all(endpoints.values())
        body = {"status": "ready" if ready else "not ready", "endpoints": endpoints, "deployments": healthy}
        return JSONResponse(body, status_code=200 if ready else 503)

    async def _all_healthy(self) -> Mapping[str, bool]:
        """Which deployments are healthy; asked at most once a second, however many probes come."""
        asked = list(self._board.snapshot.targets.values()) if self._board.snapshot is not None else []
        when, known = self._readiness
        if time.monotonic() - when < _PROBE_CACHE_S and all(target.name in known for target in asked):
            return known
        answers = await asyncio.gather(*(self._upstream.probe(target, _PROBE_TIMEOUT_S) for target in asked))
        known = {target.name: answer for target, answer in zip(asked, answers, strict=True)}
        self._readiness = (time.monotonic(), known)
        return known

    @cached_property
    def _described(self) -> bytes:
        """The OpenAPI document, made when somebody asks for it: it takes a moment."""
        own: list[Operation] = [
            (method, route.path, "switchyard", route.name.lstrip("_"), ())
            for route in self._operations()
            for method in sorted((route.methods or set()) - {"HEAD"})
        ]
        return dump(document([*operations(DIALECTS), *self._management.operations(), *own]))

    async def _openapi(self, request: HTTPRequest) -> Response:
        """What can be asked here: open, since it tells of the code alone, and names no endpoint."""
        return Response(self._described, media_type=JSON)

    async def _metrics(self, request: HTTPRequest) -> Response:
        """Those of all endpoints, or of the reader's where the configuration asks for credentials."""
        config = self._serving()
        reader = await self._access.reader(headers_of(request.scope))
        seen = None if config is None or reader.endpoints is None else names(visible(reader, config))
        return Response(self._board.telemetry.expose(seen), media_type=CONTENT_TYPE)

    async def _tgi_metrics(self, request: HTTPRequest) -> Response:
        """One endpoint's, under TGI's names; without a name the default's."""
        config = self._serving()
        reader = await self._access.reader(headers_of(request.scope))
        endpoint = request.path_params.get("endpoint") or (config.defaults.get("completions") if config else None)
        if config is None or endpoint not in config.endpoints:
            raise HTTPException(404)
        must_use(reader, config, endpoint)
        return Response(tgi_metrics.exposition(self._board.telemetry.of([endpoint])), media_type=CONTENT_TYPE)


async def _unrouted(request: HTTPRequest, raised: Exception) -> Response:
    """No such path or method: told in the dialect that most clients speak."""
    assert isinstance(raised, HTTPException)
    error: SwitchyardError = (
        MethodNotAllowed(f"{request.method} is not allowed on {request.url.path}")
        if raised.status_code == 405
        else NotFound(f"There is nothing at {request.method} {request.url.path}")
    )
    return _told(error, request, raised.headers or {})


async def _refused(request: HTTPRequest, raised: Exception) -> Response:
    """One of the router's own operations is not for who asks."""
    assert isinstance(raised, SwitchyardError)
    return _told(raised, request, told_by_headers(raised))


def _told(error: SwitchyardError, request: HTTPRequest, headers: Mapping[str, str]) -> Response:
    reply = OpenAI().render_error(error, "none", Request(request.method, request.url.path))
    return Response(reply.body, reply.status, {**reply.headers, **headers}, media_type=reply.media_type)
