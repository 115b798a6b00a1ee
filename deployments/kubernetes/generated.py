"""The parts of a cluster's manifests that follow from what it serves, as patches for kustomize.

They are made from the `serve_config.yaml` of an overlay, and are next to it:

- `generated.yaml`: the RayService's `serveConfigV2`; the Ray resources that groups of nodes declare, without which the
  autoscaler does not know that a node it could add has them; and, in a ConfigMap, HAProxy's settings for as many nodes
  as the groups may have.
- `generated-job.yaml`: what the Job fetches, and the Job's name with a hash of it: what a Job does cannot be changed.

KubeRay starts a second cluster for nearly every change of a RayCluster, but not for a larger `maxReplicas`, nor for a
group at the end of the list (`changes`). So the settings that depend on the number of nodes are in a ConfigMap, and
groups keep their order.

The environment of every Ray node of a cluster.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import yaml

from app.config.loading import load, read_yaml
from app.internal_api import AWAIT_WEIGHTS_VARIABLE, LEDGER_VARIABLE, MODELS_VARIABLE
from deployments import draining, haproxy
from deployments.haproxy import cluster_settings
from deployments.kubernetes.demands import ACCELERATOR, Demand, demands, most_nodes
from deployments.kubernetes.manifests import KUSTOMIZATION, Manifest, ray_service, read, without
from deployments.weights.sources import adapter_sources, model_sources, source_on

SERVED, GENERATED, GENERATED_JOB = "serve_config.yaml", "generated.yaml", "generated-job.yaml"
"""The file's name in an overlay's directory."""

MODELS = "/models"
"""The path of the weights' volume in a cluster's pods."""

JOB = "switchyard-weights"
"""The Job's name, without the hash."""

SIZE = "switchyard-size"
"""The ConfigMap with the settings that depend on the number of nodes."""

_HEADER = f"# Generated from {SERVED} by `make k8s`; change that file instead.\n"


def group_of(resource: str) -> str:
    """The group of nodes that declares a Ray resource: `gpu-l4` accelerator_type:L4, any other the one of its name."""
    if resource.startswith(ACCELERATOR):
        return f"gpu-{resource.removeprefix(ACCELERATOR).lower()}"
    return resource


def generate(overlay: Path) -> dict[str, str]:
    """The contents of an overlay's generated files, by their names. Raises ConfigError with every problem of its
    configuration.
    """
    load(overlay / SERVED)
    document: Any = read_yaml(overlay / SERVED)
    own = _own(overlay)
    objects = [_ray_service(document, own, _order(overlay, own)), _size(own)]
    return {
        GENERATED: _HEADER + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=10_000),
        GENERATED_JOB: _HEADER + yaml.dump(_job(document, own), Dumper=_Dumper, sort_keys=False, width=10_000),
    }


def is_current(overlay: Path) -> bool:
    """Whether the generated files are up to date with the overlay's serve_config.yaml. Raises as `generate`."""
    files = {name: overlay / name for name in (GENERATED, GENERATED_JOB)}
    return all(file.is_file() for file in files.values()) and generate(overlay) == {
        name: file.read_text() for name, file in files.items()
    }


def _own(overlay: Path) -> list[Manifest]:
    """The overlay's objects without the generated parts; none where there are no manifests yet."""
    return without(overlay, GENERATED, GENERATED_JOB) if (overlay / KUSTOMIZATION).is_file() else []


def _cluster(objects: list[Manifest]) -> Mapping[str, Any]:
    """The `rayClusterConfig`; empty without objects."""
    cluster: Mapping[str, Any] = ray_service(objects)["spec"]["rayClusterConfig"] if objects else {}
    return cluster


def _names(cluster: Mapping[str, Any]) -> list[str]:
    return [str(group["groupName"]) for group in cluster.get("workerGroupSpecs") or []]


def _order(overlay: Path, own: list[Manifest]) -> list[str]:
    """The groups as the overlay lists them until now, new ones last. kustomize puts a patch's groups first."""
    present = _names(_cluster(own))
    if not own or not all((overlay / name).is_file() for name in (GENERATED, GENERATED_JOB)):
        return present
    before = [name for name in _names(_cluster(read(overlay))) if name in present]
    return [*before, *(name for name in present if name not in before)]


def _ray_service(document: Mapping[str, Any], own: list[Manifest], order: list[str]) -> dict[str, Any]:
    plain = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120)
    declared = _declared(demands(document))
    groups = [
        {"groupName": name, **({"resources": declared[name]} if name in declared else {})}
        for name in dict.fromkeys([*order, *declared])
    ]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "switchyard"},
        "spec": {"serveConfigV2": plain, "rayClusterConfig": {"workerGroupSpecs": groups}},
    }


def _size(own: list[Manifest]) -> dict[str, Any]:
    """HAProxy's settings for the largest number of nodes, without Ray's own defaults."""
    nodes = most_nodes(_cluster(own)) if own else 1
    ours, rays = cluster_settings(nodes), cluster_settings(1)
    data = {name: value for name, value in ours.items() if value != rays[name]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": SIZE}, "data": data}


def _declared(demands: list[Demand]) -> dict[str, dict[str, str]]:
    """The custom resources of each group. Any amount will do: bundles ask for a thousandth."""
    groups: dict[str, dict[str, str]] = {}
    for resource in sorted({name for demand in demands for name in demand.resources}):
        groups.setdefault(group_of(resource), {})[resource] = "1"
    return groups


def _job(document: Mapping[str, Any], own: list[Manifest]) -> list[dict[str, Any]]:
    """The sources as the container's arguments, and the name with a hash of all that the Job is."""
    sources = list(dict.fromkeys(_sources(document)))
    spec: Any = next((it["spec"] for it in own if it["kind"] == "Job" and it["metadata"]["name"] == JOB), {})
    content = json.dumps([spec, sources], sort_keys=True).encode()
    return [
        {"op": "replace", "path": "/metadata/name", "value": f"{JOB}-{hashlib.sha256(content).hexdigest()[:8]}"},
        {"op": "add", "path": "/spec/template/spec/containers/0/args", "value": sources},
    ]


def _sources(document: Mapping[str, Any]) -> Iterator[str]:
    """Of every model and adapter that comes from the volume."""
    applications = document["applications"]
    for named in (*model_sources(applications), *adapter_sources(applications)):
        if (source := source_on(PurePath(MODELS), named)) is not None:
            yield source


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
    AWAIT_WEIGHTS_VARIABLE: "1",
    LEDGER_VARIABLE: "/var/lib/switchyard",
}
"""Before Ray starts, the same on all nodes; the secrets and `DRAIN` come on top."""
