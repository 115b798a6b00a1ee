"""Checks memory, disk, and GPUs if the configuration needs some."""

import math
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deployments.doctor.finding import Finding, ok, problem, warning
from deployments.doctor.installation import Installation
from deployments.invocation import make
from deployments.kubernetes.demands import ACCELERATOR, Demand
from deployments.local.accelerator import is_cuda_build
from deployments.local.directories import home

GIB = 1024**3
ENGINE_BYTES = 3 * GIB
"""The memory that an engine process with a small model takes besides its KV cache: vLLM, torch, the replica."""

_TIMEOUT_S = 20.0
_SHM_BYTES = GIB
_DISK_BYTES = 5 * GIB
_KV_VARIABLE, _KV_GIB = "VLLM_CPU_KVCACHE_SPACE", 4


def memory(it: Installation, meminfo: Path = Path("/proc/meminfo")) -> Iterator[Finding]:
    """Checks that there is enough memory for the engines on this machine's CPUs. Not checked while the application
    runs.
    """
    engines = [app for app in it.applications if _llm_config(app) and not any(map(_gpus, it.demands_of(app)))]
    if not engines or it.run is not None:
        return
    need = sum(ENGINE_BYTES + _kv_bytes(app) for app in engines)
    free = _available(meminfo)
    text = f"{free / GIB:.1f} GiB are free; {len(engines)} engines on the CPU need about {need / GIB:.0f}"
    if free < need:
        fix = f"stop other programs, remove an application, or lower {_KV_VARIABLE}"
        yield problem("memory", text, fix)
    else:
        yield ok("memory", text)


def disk(it: Installation, path: Path = Path("/tmp")) -> Iterator[Finding]:
    """Checks for free space: Ray stops scheduling on a full disk, and keeps its logs there."""
    free = shutil.disk_usage(path).free
    if free < _DISK_BYTES:
        yield problem("disk", f"{free / GIB:.1f} GiB are free in {path}", "free some space: Ray keeps its logs there")
    else:
        yield ok("disk", f"{free / GIB:.0f} GiB are free in {path}")


def shared_memory(it: Installation, path: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """Checks shared memory: tensor parallelism passes tensors there, and a container has 64 MiB by default."""
    parallel = max((len(demand.bundles) for demand in it.demands), default=1)
    if parallel == 1 or not path.exists():
        return
    size = shutil.disk_usage(path).total
    if size < _SHM_BYTES:
        fix = "mount an emptyDir with `medium: Memory` there"
        text = f"{path} has {size / 1024**2:.0f} MiB; an engine of {parallel} workers needs more"
        yield problem("shared memory", text, fix)
    else:
        yield ok("shared memory", f"{path} has {size / GIB:.0f} GiB")


def build(it: Installation, is_cuda_build: Callable[[], bool] = is_cuda_build) -> Iterator[Finding]:
    """Checks that the installed vLLM is the build for this machine and for what the applications need.

    A cluster has nodes of both kinds, so there an application that needs GPUs says nothing about this node.
    """
    detected, reason = _detected(it)
    if is_cuda_build():
        engines = any(map(_llm_config, it.applications))
        if detected == "cpu" and engines and not it.on_cluster:
            yield problem("vllm", f"the CUDA build is installed, and {reason}", f"run: {make('setup ACCELERATOR=cpu')}")
        return
    names = dict.fromkeys(demand.application for demand in it.demands if _wants_gpu(demand))
    if names and not it.on_cluster:
        fix = f"run: {make('setup ACCELERATOR=gpu')}; or use `accelerator_config: {{kind: cpu}}`"
        yield problem("vllm", f"the CPU build is installed, and these need GPUs: {', '.join(names)}", fix)
    elif detected == "gpu" and it.environment.get("ACCELERATOR") != "cpu":
        here = f"run: {make('setup')} (if it is meant: export ACCELERATOR=cpu)"
        fix = "use the image for GPUs" if it.on_cluster else here
        yield problem("vllm", f"the CPU build is installed, and {reason}: they are not used", fix)


def compiler(it: Installation, include: Path | None = None) -> Iterator[Finding]:
    """Checks for what Triton, in vLLM's CUDA build, compiles with when an engine starts. Images bring it along."""
    if it.environment.get("CC") or not any(map(_gpus, it.demands)):
        return
    path = it.environment.get("PATH")
    found = any(shutil.which(name, path=path) for name in ("gcc", "clang"))
    if not found or not ((include or Path(sysconfig.get_path("include"))) / "Python.h").exists():
        fix = "install gcc and Python's headers (Debian, Ubuntu: build-essential, python3-dev)"
        yield problem("compiler", "engines on GPUs compile kernels when they start, and cannot here", fix)


def gpus(it: Installation) -> Iterator[Finding]:
    """Checks that there are as many GPUs as the largest application needs, and that the driver answers.

    On a cluster a replica may be spread over nodes: each has at least one of its parts.
    """
    one = _largest_part if it.on_cluster else _gpus
    wanted = math.ceil(max((one(demand) for demand in it.demands), default=0))
    if not wanted:
        return
    if (command := shutil.which("nvidia-smi", path=it.environment.get("PATH"))) is None:
        if it.on_cluster:
            yield warning("gpu", "this node has no nvidia-smi", "run the command in a pod of a GPU group, too")
        else:
            fix = "install the driver, or use `accelerator_config: {kind: cpu}`"
            yield problem("gpu", "nvidia-smi is not installed, and applications need GPUs", fix)
        return
    query = [command, "--query-gpu=name,driver_version,memory.total,memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield problem("gpu", f"nvidia-smi does not answer: {error}", "restart the driver, or drain the node")
        return
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        fix = "install the driver that the GPU needs; in a pod: the device plugin, and `nvidia.com/gpu` in limits"
        yield problem("gpu", f"nvidia-smi fails: {said[0] if said else done.returncode}", fix)
        return
    found = [line.split(", ") for line in done.stdout.strip().splitlines()]
    if len(found) < wanted:
        fix = "lower tensor_parallel_size, or use a larger machine"
        yield problem("gpu", f"this machine has {len(found)} of the {wanted} GPUs that an application needs", fix)
        return
    name, driver, total, used = found[0]
    if it.run is None and int(used) > int(total) // 10:
        fix = "stop the program that uses it: nvidia-smi names it"
        yield warning("gpu", f"{used} of {total} MiB of {name} are in use already", fix)
    yield ok("gpu", f"{len(found)} x {name}, driver {driver}")


def _detected(it: Installation) -> tuple[str, str]:
    """What `make setup` would install for here, cpu or gpu, and why."""
    command = [str(home() / "requirements/install"), "detect"]
    try:
        done = subprocess.run(
            command, env=dict(it.environment), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    kind, _, reason = done.stdout.strip().partition(" ")
    return kind, reason


def _wants_gpu(demand: Demand) -> bool:
    return _gpus(demand) > 0 or any(name.startswith(ACCELERATOR) for name in demand.resources)


def _available(meminfo: Path) -> int:
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    return int(lines["MemAvailable"].split()[0]) * 1024


def _llm_config(application: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(_mapping(application.get("args")).get("llm_config"))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _gpus(demand: Demand) -> float:
    """The GPUs of one replica, on all its nodes."""
    return sum(bundle.get("GPU", 0) for bundle in demand.bundles)


def _largest_part(demand: Demand) -> float:
    """The GPUs that one replica needs on one node."""
    return max((bundle.get("GPU", 0) for bundle in demand.bundles), default=0)


def _kv_bytes(application: Mapping[str, Any]) -> int:
    variables = _mapping(_mapping(_llm_config(application).get("runtime_env")).get("env_vars"))
    try:
        return int(float(variables.get(_KV_VARIABLE) or _KV_GIB) * GIB)
    except (TypeError, ValueError):
        return _KV_GIB * GIB
