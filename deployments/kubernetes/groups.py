"""The resources that a RayCluster's groups of nodes offer to Ray."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deployments.kubernetes.demands import Bundle

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
    cpu_request, cpu_limit = (quantity(it["cpu"]) if "cpu" in it else None for it in (requests, limits))
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
    found = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)([a-zA-Z]*)", str(text))
    if found is None or (found[2] and found[2] not in _SUFFIXES):
        raise ValueError(f"{text!r} is not a quantity")
    return float(found[1]) * _SUFFIXES.get(found[2], 1)
