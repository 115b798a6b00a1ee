"""The router as an ASGI application, built from values.

A `Router` takes its environment; the host of its `app` (uvicorn, a Serve deployment, a test) delivers configurations
through `reconfigure`.

Memory settings: the frequency of garbage collection, and the return of buffers to the system.
"""

import asyncio
import ctypes
import gc
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from functools import cached_property, partial
from random import Random, getrandbits

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.routing import Route as Path
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from app.access.caller import ConfigViews, credentials
from app.access.guard import DEFAULT_TIMING, Access, AccessTiming
from app.access.issued import IssuedKeys
from app.activity.reporter import ActivityReporter, Standing
from app.config.base import ConfigError
from app.control_plane import ControlPlane, Replicas, RunningReplicas
from app.dialects.base import JSON, Dialect, Request
from app.dialects.bodies import dump
from app.dialects.openai.dialect import OpenAI
from app.dialects.registry import DIALECTS
from app.dialects.unserved import no_websockets, refusal
from app.errors import ClientError, SwitchyardError, Unavailable
from app.exchange.cache_salts import CacheSalts
from app.exchange.handler import handle
from app.exchange.request import headers_of, request_id
from app.exchange.response import error_headers
from app.exchange.snapshot import Preparation, PreparedConfig, Snapshot, SnapshotBuilder
from app.exchange.state import DeploymentHealth, RouterState
from app.exposures.controller_client import ControllerClient, ExportClient, RecordingClient
from app.exposures.identity import unit_secret
from app.exposures.log import ExposureLog
from app.exposures.uploader import EVERY_S, ControllerSync, Sender
from app.exposures.wire import Replaced, TrafficBlock
from app.internal_api import APP_PREFIX, NO_ROUTE_HEADER
from app.limits.bodies import CloseUnread
from app.mirror.mirrors import Mirrors
from app.pages import pages as api_page
from app.pages import pages as console
from app.pages import pages as index
from app.pages.pages import Console
from app.request_recordings.recorder import Recorder
from app.request_recordings.uploader import FILE_S, RecordingSender
from app.routing.conversations import PinnedConversations
from app.routing.resilience import Breakers
from app.server.activity import ActivityApi
from app.server.asgi import (
    HTTP10,
    BrowserGuard,
    ExactPathRouter,
    LiveCORS,
    NoSniffing,
    StripTrailingSlash,
    UnknownRoutes,
    route_apps,
)
from app.server.audit import AuditApi, AuditKeeping
from app.server.audit_log import AuditedChange, AuditLog
from app.server.callers import CallersApi
from app.server.databricks_management import Management
from app.server.events import EventFeed, EventsApi
from app.server.experiments_api import ExperimentsApi, ExportApi, MirrorApi
from app.server.fleet import DEFAULT_TIMING as FLEET_TIMING
from app.server.fleet import ClusterMetrics, FleetSource, FleetTiming, KnownFleet, elder_since, is_starting
from app.server.keys_api import KeysApi
from app.server.metrics import MetricsApi, present_state
from app.server.models import ModelsApi
from app.server.openapi import Operation, document, operations, with_names
from app.server.openapi_examples import names_in
from app.server.operations import Services, WatchedController, ask
from app.server.overview import OverviewApi
from app.server.replicas import Readiness, UnservedDemand, has_replica
from app.server.replicas import document as readiness_document
from app.server.traffic import DELIVERY_PATIENCE_S, TrafficApi
from app.telemetry.logs import Record, event
from app.telemetry.metrics import Telemetry, monitor_event_loop
from app.telemetry.periods import Arm
from app.telemetry.recent import Counts
from app.telemetry.tracing import ActiveTracing
from app.upstream.balancer import Balancer
from app.upstream.client import Upstream
from app.upstream.target import RuntimeEnvironment

_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE = 1024 * 1024


def return_large_buffers() -> None:
    """Makes the C library return buffers of a mebibyte and more to the system as soon as they are free.

    By itself glibc learns from the first of them to keep such memory (mallopt(3), M_MMAP_THRESHOLD): after some answers
    of tens of megabytes a router would hold as many. Other C libraries have no such call.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)


def collect_seldom() -> None:
    """Makes Python look for unreachable cycles of objects less often: a request leaves hardly any, and at 700 objects
    (the default) each search found nothing while it took 4 % of a request's time."""
    gc.set_threshold(10_000, 20, 20)


_SWITCH_S = 0.0005


def share_the_interpreter() -> None:
    """Makes a thread that reads a long body or answer let the event loop run after half a millisecond.

    It may keep the interpreter's lock for five by default, and the event loop needs the lock anew for each connection
    that has something to read: the streams of one round would wait one after another.
    """
    sys.setswitchinterval(_SWITCH_S)


_log = logging.getLogger("switchyard")


class Router:
    """The router: its ASGI application `app`, and `reconfigure`.

    Until the first configuration it answers 503: a Serve replica builds its application before it is configured.
    """

    def __init__(
        self,
        environment: RuntimeEnvironment,
        *,
        random: Random | None = None,
        control: ControlPlane | None = None,
        fleet: FleetSource | None = None,
        replica: str = "",
        is_stopped: Callable[[], bool] = lambda: False,
        balancer: Balancer | None = None,
        controller: ControllerClient | None = None,
        recordings: RecordingClient | None = None,
        exports: ExportClient | None = None,
        access_timing: AccessTiming = DEFAULT_TIMING,
        send_every_s: float = EVERY_S,
        recording_file_s: float = FILE_S,
        fleet_timing: FleetTiming = FLEET_TIMING,
        delivery_patience_s: float = DELIVERY_PATIENCE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`controller` stores and judges the exposures of experiments, which are sent to it every `send_every_s`
        seconds; without one, nothing is recorded. One that is an async context manager is entered while the router
        runs. `recordings` stores recordings of requests, in files of `recording_file_s` seconds. `exports` returns the
        recorded exposures. `fleet` lists the processes with metrics, of which this one is `replica`; `is_stopped`:
        it is told to stop. A change of traffic waits `delivery_patience_s` seconds for the delivery of the one before.
        `balancer` knows the applications' replicas; without one, requests for them go through the ingress. `clock`:
        Unix seconds, for records.
        """
        self._controller, self._preparation = controller, Preparation(environment)
        self._one_after_another = asyncio.Lock()
        self._has_refused = False
        controller = WatchedController(controller, clock) if controller is not None else None
        balancer = balancer or Balancer()
        self._upstream = Upstream(balancer)
        telemetry = Telemetry()
        self._access = Access(
            telemetry,
            loopback=environment.loopback,
            several_routers=environment.several_routers,
            behind_ingress=environment.behind_ingress,
            timing=access_timing,
            read_issued=partial(_issued_keys, controller) if controller is not None else None,
        )
        self._deployments = DeploymentHealth(self._upstream, telemetry, Breakers(time.monotonic))
        ledger = ExposureLog(
            partial(unit_secret, environment.unit_secret, environment.internal_key, environment.ledger_base),
            enabled=controller is not None,
            clock=clock,
        )
        pins = PinnedConversations(telemetry.pin_missed)
        # This router tells of a change with its next batch, and the others hear of it with theirs.
        self._snapshots = SnapshotBuilder(ledger, pins, clock, settle_s=3 * send_every_s)
        sync = ControllerSync(
            pins, lambda: self._snapshots.is_watched, self.stop, self._follow, self._catch_up, telemetry.pinned
        )
        self._sender = (
            Sender(ledger, controller.send, telemetry, every_s=send_every_s, sync=sync)
            if controller is not None
            else None
        )
        self._tracing = ActiveTracing(telemetry)
        mirrors = Mirrors(Upstream(balancer), ledger, telemetry, is_blocked=self._snapshots.is_blocked)
        self._recorder = recorder = Recorder(ledger.unit, partial(getrandbits, 64), enabled=recordings is not None)
        self._recordings = (
            RecordingSender(recorder, recordings.record, telemetry, every_s=send_every_s, file_s=recording_file_s)
            if recordings is not None
            else None
        )
        self.state = RouterState(
            upstream=self._upstream,
            telemetry=telemetry,
            access=self._access,
            health=self._deployments,
            random=random or Random(),
            ledger=ledger,
            pins=pins,
            mirrors=mirrors,
            tracing=self._tracing,
            salts=CacheSalts(environment.internal_key),
            recorder=recorder,
            balancer=balancer,
        )
        deliver = partial(_report, controller) if controller is not None else None
        self._activity = ActivityReporter(
            self.state.requests,
            deliver,
            self._access.last_uses,
            unauthorized=self._access.unauthorized,
            unknown_routes=lambda: self._unknown_routes.groups,
            has_replica=self._has_replica,
            standing=partial(_standing, fleet, replica) if fleet is not None else None,
            is_stopped=is_stopped,
            counters=lambda: self._overview.so_far(),
            every_s=2 * send_every_s,
            clock=clock,
        )
        if self._sender is not None:
            self.state.exchange_pins, pins.on_pin = self._sender.exchange, self._sender.wake
        self._running = running = self.state.running = RunningReplicas(control)
        self._readiness = Readiness(self._upstream.probe, running)
        keeping = AuditKeeping(controller, self.state.config, environment.ledger_base, clock)
        self._audit = AuditLog(keeping.keep, clock)
        self._demand = UnservedDemand(self.state.unserved, self._views, control)
        services = Services(
            views_or_none=self._views,
            telemetry=telemetry,
            access=self._access,
            audit=self._audit,
            control=control,
            controller=controller,
            ledger=ledger,
            recent_keys=self.state.recent_keys,
            live_routing=self._snapshots.live_routing,
            open_breakers=self._deployments.open,
        )
        self._management = Management(services, healthy=self._all_healthy)
        self._overview = OverviewApi(
            services,
            running=running,
            queued=self._queued,
            stops=self._stops_in_force,
            waiting=self.state.requests.waiting,
            paused=self.state.requests.paused,
            dead=self.state.dead,
            as_told=self._as_told,
            lacking=balancer.waits,
            sampled=self._sampled,
        )
        self._known = known = KnownFleet(fleet, timing=fleet_timing) if fleet is not None else None
        balancer.changed = self._replicas_changed
        self._apis = (
            self._management,
            ExperimentsApi(services),
            EventsApi(services, feed=EventFeed(controller)),
            TrafficApi(services, patience_s=delivery_patience_s),
            MirrorApi(services),
            self._overview,
            ExportApi(services, exports=exports),
            AuditApi(services, keeping=keeping, clock=clock),
            CallersApi(services, use=self.state.requests.caller_use),
            KeysApi(services),
            ActivityApi(services, own=self._activity.board),
            ModelsApi(services, fleet=known, dead=self.state.dead),
        )
        self._metrics = MetricsApi(
            services,
            own=self.metrics,
            snapshot=lambda: self.state.snapshot,
            cluster=ClusterMetrics(controller, known),
            fleet=known,
        )
        self._documents: dict[frozenset[tuple[str, str]], bytes] = {}
        """The OpenAPI document by the names in its examples."""
        endpoints = route_apps(partial(handle, self.state))
        self._paths: list[BaseRoute] = [
            *self._operations(),
            Path("/docs/{file}", api_page.api_file, methods=["GET"]),
            Path("/ui/static/{file:path}", console.file, methods=["GET"]),
            *(route for api in self._apis for route in api.routes()),
            *(Path(path, endpoint, methods=[method]) for (method, path), endpoint in endpoints.items()),
        ]
        paths = [route.path for route in self._paths if isinstance(route, Path)]
        self._unknown_routes = UnknownRoutes(paths, telemetry.unknown_route)
        starlette = Starlette(
            routes=self._paths,
            exception_handlers={HTTPException: self._not_found, SwitchyardError: _operation_error},
            lifespan=self._lifespan,
        )
        starlette.router.redirect_slashes = False
        starlette.router.default = _no_route
        exact = ExactPathRouter(endpoints, NoSniffing(starlette))
        guarded = BrowserGuard(exact, self.state.config, self._paths, _refused)
        self.app: ASGIApp = CloseUnread(LiveCORS(HTTP10(StripTrailingSlash(guarded)), self.state.config))

    def reconfigure(self, config: object) -> None:
        """Serves with `config` (a Config, or plain data) from the next request on.

        Raises ConfigError on an invalid one; the previous one then stays in force. A large one takes a while, in which
        no request is served: see `apply`.
        """
        with self._counted():
            self._switch(self._preparation.prepare(config))

    async def apply(self, config: object) -> None:
        """Like `reconfigure`, but requests continue: a thread prepares everything, and the event loop switches to it.

        Configurations come into force in the order of the calls.
        """
        with self._counted():
            async with self._one_after_another:
                self._switch(await asyncio.to_thread(self._preparation.prepare, config))

    def _switch(self, incoming: PreparedConfig) -> None:
        config = incoming.config
        tracing = self._tracing.check(config.tracing)
        self._access.reconfigure(config)
        self._recorder.configure(config)
        self._tracing.configure(tracing)
        self.state.recent_keys.configure(config.endpoints)
        self.state.telemetry.show(config.endpoints)
        self._deployments.configured(incoming.targets)
        self._serve(self._snapshots.configured(config, incoming.targets, incoming.plans))
        self._management.configured(config, int(time.time() * 1000))

    @contextmanager
    def _counted(self) -> Iterator[None]:
        telemetry = self.state.telemetry
        try:
            yield
        except ConfigError:
            self._has_refused = True
            telemetry.configured("refused")
            raise
        self._has_refused = False
        telemetry.configured("applied")

    def metrics(self, endpoints: Collection[str] | None) -> bytes:
        """This router's own metrics in Prometheus' text format: all of them, or those of some endpoints."""
        counted = self.state.telemetry.expose(endpoints)
        if self.state.snapshot is None:
            return counted
        return counted + present_state(self.state.snapshot, self.state.queues, endpoints)

    def stop(self, stops: Sequence[TrafficBlock]) -> None:
        """Applies these stops of the controller from the next request on."""
        if (snapshot := self._snapshots.stopped(stops)) is not None:
            self._serve(snapshot)

    def _follow(self, replaced: Sequence[Replaced]) -> None:
        """Lets running conversations follow these weights from the next request on."""
        if (snapshot := self._snapshots.replaced(replaced)) is not None:
            self._serve(snapshot)

    def _catch_up(self) -> None:
        """Lets conversations that began under a plan that is not here yet keep their deployment."""
        if (snapshot := self._snapshots.behind()) is not None:
            self._serve(snapshot)

    def _serve(self, snapshot: Snapshot) -> None:
        before, self.state.snapshot = self._stops_in_force(), snapshot
        if snapshot.stops != before:
            self.state.telemetry.stops_applied(snapshot.stops)
            _log.warning("The stopped deployments have changed", extra=event("stops_changed", stops=snapshot.stops))

    def _views(self) -> ConfigViews | None:
        return self.state.snapshot.views if self.state.snapshot is not None else None

    def _stops_in_force(self) -> Mapping[str, Mapping[str, str]]:
        return self.state.snapshot.stops if self.state.snapshot is not None else {}

    def _sampled(self, counts: Mapping[Arm, Counts]) -> None:
        """Runs every few seconds."""
        self._activity.sampled(counts)
        if self.state.snapshot is not None:
            self._deployments.check_open(self.state.snapshot)

    def _has_replica(self) -> Mapping[Arm, bool] | None:
        config, replicas, waits = self.state.config(), self._running.known, self.state.balancer.waits()
        if config is None or replicas is None or self._running.is_outdated:
            return None
        return has_replica(self._as_told(replicas), config, self.state.dead(), waits.keys())

    def _as_told(self, replicas: Replicas) -> Replicas:
        """What the control plane has listed, as far as the balancer does not know better."""
        return replicas.as_told(self.state.balancer.listed(), self.state.balancer.gone)

    def _replicas_changed(self) -> None:
        self._activity.changed()
        self._running.outdated()
        if self._known is not None:
            self._known.outdated()

    def _replicas_seen(self, replicas: Replicas) -> None:
        self.state.vacancies.seen(replicas)
        self._activity.look()

    def _queued(self) -> Mapping[str, int]:
        return {name: queue.waiting for name, queue in self.state.queues.items()}

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        collect_seldom()
        return_large_buffers()
        share_the_interpreter()
        controller = self._controller if isinstance(self._controller, AbstractAsyncContextManager) else nullcontext()
        sending = self._sender.running() if self._sender is not None else nullcontext()
        recording = self._recordings.running() if self._recordings is not None else nullcontext()
        async with (
            self._upstream,
            controller,
            sending,
            self.state.mirrors.running(),
            recording,
            self._access.running(),
            self._audit.running(),
            self._overview.running(),
            self._activity.running(),
            self._demand.running(),
            self._running.watched(self._replicas_seen),
            self.state.balancer.running(self._upstream.is_healthy),
            self._tracing.running(),
            monitor_event_loop(self.state.telemetry),
        ):
            yield
            await self._deployments.close()

    def _operations(self) -> list[Path]:
        pages = Console(self._access)
        return [
            Path("/", self._index, methods=["GET"]),
            Path("/health", self._health, methods=["GET"]),
            Path("/ready", self._ready, methods=["GET"]),
            *self._metrics.routes(),
            Path("/openapi.json", self._openapi, methods=["GET"]),
            Path("/docs", api_page.api_page, methods=["GET"], name="docs"),
            Path("/ui", pages.page, methods=["GET"], name="console"),
            Path("/ui/sign-in", pages.sign_in, methods=["GET"], name="console_sign_in"),
        ]

    async def _index(self, request: HTTPRequest) -> Response:
        """Leads a browser to the console, and names the routes to other clients once there is a configuration."""
        if index.asks_for_page(request):
            return index.index()
        if self.state.snapshot is None:  # a load balancer that probes this path waits
            raise Unavailable("The router has no configuration yet", retry_after=1)
        return index.routes()

    async def _health(self, request: HTTPRequest) -> Response:
        """Answers 200: the router is alive."""
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: HTTPRequest) -> Response:
        """Answers 200 if every endpoint has a healthy deployment among those that get traffic."""
        snapshot = self.state.snapshot
        if snapshot is None:
            return JSONResponse({"status": "not configured"}, status_code=503)
        config, healthy = snapshot.config, await self._all_healthy()
        asleep = self._readiness.asleep(config)
        ready, body = readiness_document(config, healthy, asleep, list(self._deployments.open()))
        if self._has_refused:  # the latest configuration: an earlier one is in force
            body = {**body, "configuration": "refused"}
        return JSONResponse(body, status_code=200 if ready else 503)

    async def _all_healthy(self) -> Mapping[str, bool]:
        """The health of every deployment, at most a second old."""
        snapshot = self.state.snapshot
        return await self._readiness.check(snapshot.config, snapshot.targets) if snapshot is not None else {}

    async def _not_found(self, request: HTTPRequest, raised: Exception) -> Response:
        """The error for an unknown path or method, in the form of the dialect whose clients call it."""
        assert isinstance(raised, HTTPException)
        unserved = _unserved(request, request.method)
        dialect, error = refusal(unserved, self._methods(unserved.path) if raised.status_code == 405 else ())
        is_change = request.method not in _READS and not (request.method == "OPTIONS" and _PREFLIGHT in request.headers)
        if raised.status_code == 405 and is_change and unserved.path.startswith("/api/"):
            record = Record("switchyard", "unknown", unserved.id)
            with suppress(ClientError):  # whoever it is, it gets the same answer
                record.caller = (await self._access.caller(unserved.headers, request.scope.get("client"))).name
            self._audit.add(request, record, AuditedChange(), 405, error.kind)
        headers = error_headers(error)
        if unserved.path.startswith(APP_PREFIX):  # of an application that is being deployed, or deleted
            headers[NO_ROUTE_HEADER] = "1"
        else:
            self._unknown_routes.count(unserved, error)
        return _worded(dialect, error, unserved, headers)

    def _methods(self, path: str) -> Sequence[str]:
        """The methods that the path is served with."""
        found = [route for route in self._paths if isinstance(route, Path) and route.path_regex.match(path)]
        return sorted({method for route in found for method in route.methods or ()})

    @cached_property
    def _document(self) -> Mapping[str, object]:
        """The OpenAPI document, built on first use: it takes a moment."""
        own: list[Operation] = [
            Operation(method, route.path, "switchyard", route.name.lstrip("_"), open=True)
            for route in self._operations()
            for method in sorted((route.methods or set()) - {"HEAD"})
        ]
        apis = [operation for api in self._apis for operation in api.operations()]
        return document([*operations(DIALECTS), *apis, *own])

    async def _openapi(self, request: HTTPRequest) -> Response:
        """The OpenAPI document. It is open, and names what the caller may use in its examples alone."""
        names = await self._example_names(request)
        key = frozenset(names.items())
        if key not in self._documents:
            if len(self._documents) >= _MOST_DOCUMENTS:
                self._documents.clear()
            self._documents[key] = dump(with_names(self._document, names))
        return Response(self._documents[key], media_type=JSON, headers={"cache-control": "no-store"})

    async def _example_names(self, request: HTTPRequest) -> Mapping[str, str]:
        """Names for the examples that the caller may use: none without the credentials that are required."""
        if (views := self._views()) is None:
            return {}
        headers, settings = headers_of(request.scope), views.config.access
        if settings.requires_credentials and not credentials(headers):
            return {}
        try:
            caller = await self._access.caller(headers, request.scope.get("client"))
        except SwitchyardError:
            return {}
        return names_in(views.of(caller))


async def _issued_keys(controller: WatchedController, revision: str) -> IssuedKeys:
    """The keys that the controller keeps. Raises what `ask` raises."""
    answer = await ask(controller, "GET", "/keys", {"after": revision} if revision else {})
    return msgspec.json.decode(answer.body, type=IssuedKeys)


async def _report(controller: WatchedController, report: bytes) -> bytes:
    """Hands a report of this router's activity to the controller. Raises what `ask` raises."""
    answer = await ask(controller, "POST", "/activity", body=report)
    return bytes(answer.body)


async def _standing(fleet: FleetSource, replica: str) -> Standing:
    """How this router stands among the others. Raises UpstreamError."""
    listed = await fleet.fleet()
    return Standing(not is_starting(listed, replica), elder_since(listed, replica))


_MOST_DOCUMENTS = 16
"""OpenAPI documents that are kept: each takes half a megabyte, and a moment to encode."""
_READS = frozenset({"GET", "HEAD"})
_PREFLIGHT = "access-control-request-method"
"""The header of a browser's own question whether a page may make a call (Fetch, CORS-preflight request)."""


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    """The end of paths without a route. A WebSocket's handshake fails with the error, or, where the server cannot
    answer it, the connection is closed with its text.
    """
    if scope["type"] != "websocket":
        raise HTTPException(404)
    socket = WebSocket(scope, receive, send)
    if "websocket.http.response" in scope.get("extensions", {}):
        unserved = _unserved(socket, "GET")
        dialect, _ = refusal(unserved)
        await socket.send_denial_response(_worded(dialect, no_websockets(), unserved))
    else:
        await socket.accept()
        await socket.close(1008, no_websockets().message)


def _unserved(connection: HTTPConnection, method: str) -> Request:
    """A request that no route serves, without its body."""
    headers = headers_of(connection.scope)
    return Request(
        method, connection.scope["path"], query=connection.query_params, headers=headers, id=request_id(headers)
    )


async def _operation_error(request: HTTPRequest, raised: Exception) -> Response:
    """An error of the router's own operations."""
    assert isinstance(raised, SwitchyardError)
    return _error_response(raised, request, error_headers(raised))


async def _refused(error: SwitchyardError, scope: Scope, receive: Receive, send: Send) -> None:
    """The refusal of a request for a page, or for no route at all."""
    await NoSniffing(_error_response(error, HTTPRequest(scope), {}))(scope, receive, send)


def _error_response(error: SwitchyardError, request: HTTPRequest, headers: Mapping[str, str]) -> Response:
    return _worded(OpenAI(), error, Request(request.method, request.url.path), headers)


def _worded(
    dialect: Dialect, error: SwitchyardError, request: Request, headers: Mapping[str, str] | None = None
) -> Response:
    reply = dialect.render_error(error, "none", request)
    return Response(reply.body, reply.status, {**reply.headers, **(headers or {})}, media_type=reply.media_type)
