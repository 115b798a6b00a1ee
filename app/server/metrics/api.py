"""The routes below /metrics: metrics of this router, and of everything in the cluster.

GET /metrics                    this router and the cluster: for one machine
GET /metrics/targets            the targets of a Prometheus server, for its HTTP service discovery
GET /metrics/cluster            the cluster's own metrics, the same from every router
GET /metrics/replicas/{id}      one replica of any application
GET /metrics/proxies/{node}     the proxy of one node
"""

import asyncio
import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.access.caller import names
from app.access.guard import Access
from app.config.schema import Config
from app.errors import BadRequest, Unavailable
from app.exchange.request import headers_of
from app.exchange.snapshot import Snapshot
from app.internal_api import ROUTER
from app.server.metrics.cluster import ClusterMetrics
from app.server.metrics.fleet import KnownFleet, not_running
from app.server.metrics.targets import (
    CLUSTER_PATH,
    METRICS_PATH,
    PROXY_PATH,
    REPLICA_PATH,
    TARGETS_PATH,
    VisibleTargets,
)
from app.telemetry import tgi_exposition
from app.telemetry.metrics import CONTENT_TYPE, Telemetry

_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")

_DRAINING = """\
# HELP switchyard_draining 1 while the replica is being stopped and finishes its requests
# TYPE switchyard_draining gauge
switchyard_draining {}.0
"""


class _View(NamedTuple):
    """The configuration, the part that a reader sees, and the endpoints and deployments in that (None: all)."""

    whole: Config
    config: Config
    visible: Collection[str] | None

    @property
    def visible_targets(self) -> VisibleTargets:
        return VisibleTargets(self.config, is_restricted=self.visible is not None)


class MetricsApi:
    """The routes. `own` returns this router's metrics, of some endpoints or all. `snapshot` returns the snapshot in
    force (None before the first configuration). `fleet`: None if this router is alone."""

    def __init__(
        self,
        own: Callable[[Collection[str] | None], bytes],
        snapshot: Callable[[], Snapshot | None],
        telemetry: Telemetry,
        access: Access,
        cluster: ClusterMetrics,
        fleet: KnownFleet | None,
    ) -> None:
        self._own, self._snapshot, self._telemetry, self._access = own, snapshot, telemetry, access
        self._cluster, self._fleet = cluster, fleet

    def routes(self) -> list[Route]:
        """The routes. Credentials are needed if the configuration restricts metrics."""
        return [
            Route(METRICS_PATH, self._metrics, methods=["GET"], name="metrics"),
            Route(TARGETS_PATH, self._targets, methods=["GET"], name="metrics_targets"),
            Route(CLUSTER_PATH, self._of_cluster, methods=["GET"], name="metrics_cluster"),
            Route(REPLICA_PATH + "{replica}", self._of_replica, methods=["GET"], name="metrics_replica"),
            Route(PROXY_PATH + "{node}", self._of_proxy, methods=["GET"], name="metrics_proxy"),
            Route("/tgi/metrics", self._tgi, methods=["GET"], name="tgi_metrics"),
            Route("/tgi/{endpoint}/metrics", self._tgi, methods=["GET"], name="tgi_metrics"),
        ]

    async def _metrics(self, request: Request) -> Response:
        view = await self._view(request)
        # In a thread: with very many endpoints it takes seconds.
        own = await asyncio.to_thread(self._own, view.visible if view is not None else None)
        return _text(own + await self._cluster.expose(view.whole, view.visible) if view is not None else own)

    async def _targets(self, request: Request) -> Response:
        view = _required(await self._view(request))
        fleet = await self._fleet.now() if self._fleet is not None else None
        return JSONResponse(view.visible_targets.targets(_host(request), fleet))

    async def _of_cluster(self, request: Request) -> Response:
        view = _required(await self._view(request))
        return _text(await self._cluster.expose(view.whole, view.visible))

    async def _of_replica(self, request: Request) -> Response:
        view, id = _required(await self._view(request)), request.path_params["replica"]
        replicas = (await self._fleet.now()).replicas if self._fleet is not None else ()
        replica = next((it for it in replicas if it.id == id), None)
        if self._fleet is None or replica is None or not view.visible_targets.replica(replica):
            raise not_running("replica")
        visible = view.visible if replica.application == ROUTER else None
        metrics = await self._fleet.replica_metrics(id, visible)
        return _text(metrics + _DRAINING.format(int(replica.is_draining)).encode())

    async def _of_proxy(self, request: Request) -> Response:
        view, node = _required(await self._view(request)), request.path_params["node"]
        proxies = (await self._fleet.now()).proxies if self._fleet is not None else ()
        if self._fleet is None or node not in proxies or not view.visible_targets.proxies():
            raise not_running("proxy")
        return _text(await self._fleet.proxy_metrics(node))

    async def _tgi(self, request: Request) -> Response:
        """One endpoint's metrics under TGI's names; without a name, the default endpoint's."""
        snapshot = self._snapshot()
        reader = await self._access.reader(headers_of(request.scope), request.scope.get("client"))
        views = snapshot.views if snapshot is not None else None
        endpoint = request.path_params.get("endpoint") or (views.config.defaults.get("completions") if views else None)
        if views is None or endpoint not in views.config.endpoints:
            raise HTTPException(404)
        views.require_access(reader, endpoint)
        return _text(tgi_exposition.exposition(self._telemetry.of([endpoint])))

    async def _view(self, request: Request) -> _View | None:
        """The caller's view; None before the first configuration. Raises Unauthorized."""
        reader = await self._access.reader(headers_of(request.scope), request.scope.get("client"))
        if (snapshot := self._snapshot()) is None:
            return None
        if reader.endpoints is None:
            return _View(snapshot.config, snapshot.config, None)
        seen = snapshot.views.of(reader)
        return _View(snapshot.config, seen, names(seen))


def _required(view: _View | None) -> _View:
    if view is None:
        raise Unavailable("The router has no configuration yet", retry_after=1)
    return view


def _host(request: Request) -> str:
    """The address at which the caller reached this server. Raises BadRequest if `Host` is not an address."""
    host = request.headers.get("host")
    if host is None:  # HTTP/1.0
        address, port = request.scope.get("server") or ("", None)
        host = f"{address}:{port}" if port else address
    if _HOST.fullmatch(host) is None:
        raise BadRequest("Host: must be a host name or an IP address, with or without a port", param="Host")
    return host


def _text(content: bytes) -> Response:
    return Response(content, media_type=CONTENT_TYPE)
