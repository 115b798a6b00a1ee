"""The routes below /metrics: metrics of this router, and of everything in the cluster.

GET /metrics                    this router and the cluster: for one machine
GET /metrics/targets            the targets of a Prometheus server, for its HTTP service discovery
GET /metrics/cluster            the cluster's own metrics, the same from every router
GET /metrics/replicas/{id}      one replica of any application
GET /metrics/proxies/{node}     the proxy of one node

- The targets of a Prometheus server, as its HTTP service discovery reads them.
- Metrics of this router's present state, read when it is scraped: requests cost nothing here.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.access.caller import behind, names
from app.config.schema import Config
from app.errors import BadRequest, Unavailable
from app.exchange.request import headers_of
from app.exchange.snapshot import Snapshot
from app.internal_api import EXPERIMENTS, ROUTER
from app.routing.admission import AdmissionQueue
from app.server.fleet import ClusterMetrics, Fleet, KnownFleet, Replica, not_running
from app.server.operations import Services
from app.telemetry import tgi_exposition
from app.telemetry.metrics import CONTENT_TYPE

# The format: https://prometheus.io/docs/prometheus/latest/http_sd/. Everything is scraped at the address at which the
# list was read: a scraper needs to reach the ingress alone, and has the rights of its key there.

METRICS_PATH = "/metrics"
TARGETS_PATH = "/metrics/targets"
CLUSTER_PATH = "/metrics/cluster"
REPLICA_PATH = "/metrics/replicas/"
PROXY_PATH = "/metrics/proxies/"

MAX_ENDPOINTS = 10
"""A deployment behind more endpoints has no label `endpoint`."""


class Component(StrEnum):
    """The kind of a target, in its label `component`."""

    ROUTER = "router"
    ENGINE = "engine"
    EXPERIMENTS = "experiments"
    OTHER = "other"
    PROXY = "proxy"
    CLUSTER = "cluster"


class VisibleTargets:
    """The targets that a reader may scrape. `config` is the part of the configuration that it sees. With
    `is_restricted` that is not all of it: it reads the engines behind its endpoints, and the routers' series of these.
    """

    def __init__(self, config: Config, *, is_restricted: bool) -> None:
        self._is_restricted = is_restricted
        self._deployments: defaultdict[str, list[str]] = defaultdict(list)
        """The deployments by application."""
        for name, deployment in config.deployments.items():
            if deployment.app is not None:
                self._deployments[deployment.app].append(name)
        self._endpoints: defaultdict[str, list[str]] = defaultdict(list)
        """The endpoints by deployment."""
        for name, endpoint in config.endpoints.items():
            for listed in behind(endpoint):
                self._endpoints[listed].append(name)

    def replica(self, replica: Replica) -> bool:
        """Whether the reader sees the replica."""
        seen = (Component.ROUTER, Component.ENGINE)
        return not self._is_restricted or self._component(replica.application) in seen

    def proxies(self) -> bool:
        """Whether the reader sees the proxies."""
        return not self._is_restricted

    def targets(self, host: str, fleet: Fleet | None) -> list[dict[str, Any]]:
        """The reader's targets at `host`. `fleet`: None if this router is alone."""

        def target(path: str, component: Component, **labels: str) -> dict[str, Any]:
            return {"targets": [host], "labels": {"__metrics_path__": path, "component": component, **labels}}

        if fleet is None:
            return [target(METRICS_PATH, Component.ROUTER)]
        targets = [target(CLUSTER_PATH, Component.CLUSTER)]
        for replica in sorted(fleet.replicas):
            if replica.can_answer and self.replica(replica):
                labels = {
                    "application": replica.application,
                    "node": replica.node,
                    "replica": replica.id,
                    **self._names(replica),
                }
                targets.append(target(REPLICA_PATH + replica.id, self._component(replica.application), **labels))
        if self.proxies():
            targets += [target(PROXY_PATH + node, Component.PROXY, node=node) for node in sorted(fleet.proxies)]
        return targets

    def _component(self, application: str) -> Component:
        if application == ROUTER:
            return Component.ROUTER
        if application == EXPERIMENTS:
            return Component.EXPERIMENTS
        return Component.ENGINE if application in self._deployments else Component.OTHER

    def _names(self, replica: Replica) -> Mapping[str, str]:
        """An engine's deployment and endpoints in the configuration. A router's series have these labels already."""
        if self._component(replica.application) is not Component.ENGINE:
            return {}
        deployments = self._deployments[replica.application]
        behind = {name for deployment in deployments for name in self._endpoints[deployment]}
        labels = {"deployment": ",".join(sorted(deployments))}
        return {**labels, "endpoint": ",".join(sorted(behind))} if 0 < len(behind) <= MAX_ENDPOINTS else labels


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
        services: Services,
        *,
        own: Callable[[Collection[str] | None], bytes],
        snapshot: Callable[[], Snapshot | None],
        cluster: ClusterMetrics,
        fleet: KnownFleet | None,
    ) -> None:
        self._own, self._snapshot, self._telemetry, self._access = own, snapshot, services.telemetry, services.access
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
        replica = next((replica for replica in replicas if replica.id == id and replica.can_answer), None)
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
        return _text(tgi_exposition.exposition(self._telemetry.metrics_for([endpoint])))

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


PLAN_INFO = "switchyard_plan_info"

GAUGES: Mapping[str, str] = {
    PLAN_INFO: "1 for the plan that this router serves",
    "switchyard_traffic_share": "The percentage of an endpoint's traffic that the plan gives a deployment",
    "switchyard_admission_slots": "The most requests of an endpoint that this router forwards at a time",
    "switchyard_admission_running": "Requests that hold one of these slots",
    "switchyard_admission_waiting": "Requests that wait for one of these slots",
}
"""Every gauge and its help."""

_Sample = tuple[str, dict[str, str], float]


def present_state(
    snapshot: Snapshot, queues: Mapping[str, AdmissionQueue], endpoints: Collection[str] | None = None
) -> bytes:
    """The gauges in Prometheus' text format, of all endpoints or of some. `queues` by endpoint."""
    return generate_latest(_Gauges(list(_samples(snapshot, queues, endpoints))))


def _samples(
    snapshot: Snapshot, queues: Mapping[str, AdmissionQueue], endpoints: Collection[str] | None
) -> Iterator[_Sample]:
    for name, endpoint in snapshot.config.endpoints.items():
        if endpoints is not None and name not in endpoints:
            continue
        yield PLAN_INFO, {"endpoint": name, "plan": snapshot.plans[name]}, 1.0
        for deployment, share in endpoint.traffic.items():
            yield "switchyard_traffic_share", {"endpoint": name, "deployment": deployment}, float(share)
        if endpoint.admission is not None:
            queue, of = queues.get(name), {"endpoint": name}
            yield "switchyard_admission_slots", of, float(endpoint.admission.max_concurrent)
            yield "switchyard_admission_running", of, float(queue.running if queue is not None else 0)
            yield "switchyard_admission_waiting", of, float(queue.waiting if queue is not None else 0)


class _Gauges(Collector):
    def __init__(self, samples: list[_Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        for name, help in GAUGES.items():
            family = Metric(name, help, "gauge")
            for metric, labels, value in self._samples:
                if metric == name:
                    family.add_sample(metric, labels, value)
            if family.samples:
                yield family
