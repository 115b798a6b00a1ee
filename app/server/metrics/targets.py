"""The targets of a Prometheus server, as its HTTP service discovery reads them.

The format: https://prometheus.io/docs/prometheus/latest/http_sd/. Everything is scraped at the address at which the
list was read: a scraper needs to reach the ingress alone, and has the rights of its key there.
"""

from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from app.config.schema import Config
from app.internal_api import EXPERIMENTS, ROUTER
from app.server.metrics.fleet import Fleet, Replica

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
            for listed in {*endpoint.traffic, *(endpoint.fallback or ())}:
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
        found = [target(CLUSTER_PATH, Component.CLUSTER)]
        for it in sorted(fleet.replicas):
            if self.replica(it):
                labels = {"application": it.application, "node": it.node, "replica": it.id, **self._names(it)}
                found.append(target(REPLICA_PATH + it.id, self._component(it.application), **labels))
        if self.proxies():
            found += [target(PROXY_PATH + node, Component.PROXY, node=node) for node in sorted(fleet.proxies)]
        return found

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
        behind = {name for it in deployments for name in self._endpoints[it]}
        labels = {"deployment": ",".join(sorted(deployments))}
        return {**labels, "endpoint": ",".join(sorted(behind))} if 0 < len(behind) <= MAX_ENDPOINTS else labels
