"""The resources that the applications of a Serve configuration need on Ray's nodes."""

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
    `labels`: those that a replica's nodes must have.
    `per_node`: the most replicas that one node may run; None: any number.
    """

    application: str
    deployment: str
    bundles: tuple[Bundle, ...]
    min_replicas: int
    max_replicas: int
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
