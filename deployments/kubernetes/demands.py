"""The resources that the applications of a Serve configuration need on Ray's nodes.

The resources that a RayCluster's groups of nodes offer to Ray.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

ACCELERATOR = "accelerator_type:"
"""Ray's resource for a GPU's type is this and the type, as in `accelerator_type:L4`."""

_STANDARD = frozenset({"CPU", "GPU", "memory", "object_store_memory"})

_AUTO_MAX_REPLICAS = 100
"""Serve's own for `num_replicas: auto`."""

Bundle = Mapping[str, float]
"""Ray resource to quantity: CPU, GPU, memory in bytes, and custom ones."""


@dataclass(frozen=True)
class Demand:
    """The resources that one deployment requests: each replica takes all its `bundles`, each of which fits on one node.

    `bundles`: one for each process of an engine; the first includes the replica itself.
    `num_cpus`: the part of the first that the replica's own process takes, as it is written.
    `labels`: those that a replica's nodes must have.
    `per_node`: the most replicas that one node may run; None: any number.
    """

    application: str
    deployment: str
    bundles: tuple[Bundle, ...]
    min_replicas: int
    max_replicas: int
    num_cpus: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    per_node: int | None = None

    @property
    def name(self) -> str:
        """The name for messages."""
        return f"{self.application}/{self.deployment}"

    @property
    def resources(self) -> frozenset[str]:
        """Every custom resource that it asks for, accelerator types included."""
        return frozenset(name for bundle in self.bundles for name in bundle) - _STANDARD

    @property
    def processes(self) -> int:
        """Processes of a replica that keep a core busy: its own, and one for each GPU beyond the first."""
        return 1 + sum(1 for bundle in self.bundles if bundle.get("GPU"))


def demands(document: Mapping[str, Any]) -> list[Demand]:
    """The demands of every deployment that a Serve configuration names or implies."""
    return [demand for application in document["applications"] for demand in _of_application(application)]


def _of_application(application: Mapping[str, Any]) -> Iterator[Demand]:
    llm = (application.get("args") or {}).get("llm_config")
    for deployment in application.get("deployments") or ([{"name": "Engine"}] if llm is not None else []):
        settings = {**((llm or {}).get("deployment_config") or {}), **deployment}
        options = settings.get("ray_actor_options") or {}
        own = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus", 0), **(options.get("resources") or {})}
        if "memory" in options:
            own["memory"] = options["memory"]
        bundles = _merged(_engine_bundles(llm), own) if llm is not None else [own]
        least, most = _replicas(settings)
        yield Demand(
            application=str(application["name"]),
            deployment=str(deployment["name"]),
            bundles=tuple({name: float(amount) for name, amount in bundle.items() if amount} for bundle in bundles),
            min_replicas=least,
            max_replicas=most,
            num_cpus=float(own["CPU"]),
            labels=options.get("label_selector") or {},
            per_node=settings.get("max_replicas_per_node"),
        )


def _engine_bundles(llm: Mapping[str, Any]) -> list[dict[str, float]]:
    """The bundles of an LLMConfig, as in Ray's `VLLMEngineConfig.placement_bundles`."""
    kwargs = llm.get("engine_kwargs") or {}
    devices = int(kwargs.get("tensor_parallel_size", 1)) * int(kwargs.get("pipeline_parallel_size", 1))
    group = llm.get("placement_group_config") or {}
    if group.get("bundle_per_worker") is not None:
        bundles = [dict(group["bundle_per_worker"]) for _ in range(devices)]
    elif group:
        bundles = [dict(bundle) for bundle in group.get("bundles") or []]
    else:
        on_cpu = (llm.get("accelerator_config") or {}).get("kind") == "cpu"
        bundles = [{"CPU": 1.0} if on_cpu else {"GPU": 1.0} for _ in range(devices)]
    if accelerator := llm.get("accelerator_type"):
        for bundle in bundles:
            bundle.setdefault(f"{ACCELERATOR}{accelerator}", 0.001)
    return bundles


def _merged(bundles: list[dict[str, float]], own: Bundle) -> list[dict[str, float]]:
    """The engine's bundles with the replica's own resources, which share the first one."""
    if not bundles:
        return [dict(own)]
    first = bundles[0]
    return [{name: first.get(name, 0) + own.get(name, 0) for name in {**first, **own}}, *bundles[1:]]


def _replicas(settings: Mapping[str, Any]) -> tuple[int, int]:
    number, scaling = settings.get("num_replicas"), settings.get("autoscaling_config")
    if number == "auto":
        scaling = {"max_replicas": _AUTO_MAX_REPLICAS, **(scaling or {})}
    if scaling:
        return int(scaling.get("min_replicas", 1)), int(scaling.get("max_replicas", 1))
    return int(number or 1), int(number or 1)


NODE_GROUP = "ray.io/node-group"
"""Ray's label for the name of a node's group; KubeRay sets it on every node."""

_GPUS = re.compile(r"gpu$|^amd\.com/gpu|^gpu\.")
_SUFFIXES = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass(frozen=True)
class Group:
    """A group of nodes. `offer`: the Ray resources of one pod. `most`: the maximum number of pods. `cpu_request`,
    `cpu_limit`: cores of the Ray container; None where the manifest sets none.
    """

    name: str
    offer: Bundle
    labels: Mapping[str, str]
    most: int
    cpu_request: float | None
    cpu_limit: float | None

    def has(self, bundle: Bundle) -> bool:
        """Whether one empty pod takes `bundle`."""
        return all(self.offer.get(name, 0) >= amount for name, amount in bundle.items())


def groups(cluster: Mapping[str, Any]) -> list[Group]:
    """The worker groups of a `rayClusterConfig`. Without autoscaling, a group never has more pods than `replicas`."""
    scales = bool(cluster.get("enableInTreeAutoscaling"))
    return [_group(spec, scales=scales) for spec in cluster.get("workerGroupSpecs") or []]


def most_nodes(cluster: Mapping[str, Any]) -> int:
    """The maximum number of pods of a `rayClusterConfig`, the head's included."""
    return 1 + sum(group.most for group in groups(cluster))


def _group(spec: Mapping[str, Any], *, scales: bool) -> Group:
    pod = (spec.get("template") or {}).get("spec") or {}
    resources = (pod.get("containers") or [{}])[0].get("resources") or {}
    requests, limits = (resources.get(kind) or {} for kind in ("requests", "limits"))
    cpu_request, cpu_limit = (
        quantity(resources["cpu"]) if "cpu" in resources else None for resources in (requests, limits)
    )
    return Group(
        name=str(spec["groupName"]),
        offer=_offer(spec, limits, cpu_limit or cpu_request or 0),
        labels={NODE_GROUP: str(spec["groupName"]), **(spec.get("labels") or {})},
        most=int(spec.get("maxReplicas", 0)) if scales else int(spec.get("replicas", 0)),
        cpu_request=cpu_request if cpu_request is not None else cpu_limit,
        cpu_limit=cpu_limit,
    )


def _offer(spec: Mapping[str, Any], limits: Mapping[str, Any], cpus: float) -> dict[str, float]:
    """The resources that KubeRay writes into `ray start`, and that the autoscaler reads: `resources`, rayStartParams,
    limits.
    """
    declared = {name: quantity(amount) for name, amount in (spec.get("resources") or {}).items()}
    parameters = spec.get("rayStartParams") or {}
    offer = {"CPU": float(parameters.get("num-cpus", math.ceil(cpus)))}
    if "num-gpus" in parameters:
        offer["GPU"] = float(parameters["num-gpus"])
    elif gpus := sum(quantity(amount) for name, amount in limits.items() if _GPUS.search(name)):
        offer["GPU"] = gpus
    if "memory" in limits:
        offer["memory"] = quantity(limits["memory"])
    return offer | declared


def quantity(text: object) -> float:
    """A Kubernetes quantity: `500m` is 0.5, `1Gi` 2**30. Raises ValueError."""
    match = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)([a-zA-Z]*)", str(text))
    if match is None or (match[2] and match[2] not in _SUFFIXES):
        raise ValueError(f"{text!r} is not a quantity")
    return float(match[1]) * _SUFFIXES.get(match[2], 1)
