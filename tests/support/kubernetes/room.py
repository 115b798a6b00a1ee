"""The policy for the maximum size of groups of nodes."""

from collections.abc import Iterator

import yaml

from deployments.haproxy import cluster_settings
from deployments.kubernetes.capacity import homes, pods
from deployments.kubernetes.demands import demands, groups, most_nodes
from deployments.kubernetes.environment import SIZE
from deployments.kubernetes.manifests import Manifest, ray_service
from tests.support.kubernetes.overlays import ray_pods


def room_to_drain(manifests: list[Manifest]) -> Iterator[str]:
    """A group with all the replicas that it may have, one of whose pods drains, can still start another pod: KubeRay
    counts the one that drains. And HAProxy's settings are for as many nodes.
    """
    spec = ray_service(manifests)["spec"]
    cluster = spec["rayClusterConfig"]
    for group, housed in homes(demands(yaml.safe_load(spec["serveConfigV2"])), groups(cluster)):
        if group.most <= (needed := pods(housed, group)):
            yield f"{group.name}: {needed} of {group.most} pods may be in use: none takes the place of one that drains"
    rays, settings = cluster_settings(1), cluster_settings(most_nodes(cluster))
    given = next(
        manifest["data"]
        for manifest in manifests
        if manifest["kind"] == "ConfigMap" and manifest["metadata"]["name"] == SIZE
    )
    for name, value in settings.items():
        if (found := given.get(name, rays[name])) != value:
            yield f"{SIZE}: {name} is {found}, not {value} as for {most_nodes(cluster)} nodes"
    for pod in ray_pods(manifests):
        if {"configMapRef": {"name": SIZE, "optional": True}} not in pod.main.get("envFrom", []):
            yield f"{pod.where}: does not read {SIZE}"
        if settings.keys() & pod.environment.keys():
            yield f"{pod.where}: a larger cluster would be another one, by its environment"
