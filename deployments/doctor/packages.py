"""Compares installed packages with the lock: only its versions of Ray and vLLM are tested together."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from deployments.doctor.finding import Finding, ok, problem
from deployments.doctor.installation import Installation
from deployments.invocation import make
from deployments.local.accelerator import is_cuda_build
from deployments.local.directories import home

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)
_SHOWN = 5
_INPUTS = {"cpu": ("router.in", "cpu.in"), "gpu": ("router.in", "gpu.in")}
"""The inputs of each lock that serving needs. The locks also have weights, which images lack and another check finds,
and `cpu.lock` has the packages of the tests."""


def installed(name: str) -> Distribution | None:
    """The installed package of that name."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def versions(
    it: Installation, locks: Path | None = None, find: Callable[[str], Distribution | None] = installed
) -> Iterator[Finding]:
    """Compares installed packages with the lock of this installation: every version, and what serving needs.

    `locks`: the directory with the locks and their inputs. `find`: the installed package of a name.
    """
    folder = locks or home() / "requirements"
    kind = "gpu" if is_cuda_build(lambda name: find(name) is not None) else "cpu"
    lock = folder / f"{kind}.lock"
    if not lock.exists():
        return
    pinned = dict(_PIN.findall(lock.read_text()))
    if kind == "cpu":
        pinned |= dict(_PIN.findall((folder / _torch_lock(find)).read_text()))
    found = {name: package.version for name in pinned if (package := find(name)) is not None}
    different = {name: version for name, version in found.items() if version != pinned[name]}
    needed = _needed([folder / it for it in _INPUTS[kind]], find)
    missing = [name for name in pinned if name in needed and name not in found]
    fix = "rebuild the image" if it.on_cluster else f"run: {make('setup')}"
    for text in (_differences(pinned, different), _missing(missing)):
        if text:
            yield problem("packages", f"{text} ({lock.name})", fix)
    if not different and not missing:
        yield ok("packages", f"{len(found)} packages as in {lock.name}")


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
            pending += [it for it in required if it.marker is None or it.marker.evaluate({"extra": extra})]
    return {name for name, _ in seen}


def _differences(wanted: Mapping[str, str], different: Mapping[str, str]) -> str:
    shown = [f"{name} {found}, not {wanted[name]}" for name, found in list(different.items())[:_SHOWN]]
    return "other versions than in the lock: " + "; ".join(shown) + _more(len(different)) if shown else ""


def _missing(names: list[str]) -> str:
    return "not installed: " + ", ".join(names[:_SHOWN]) + _more(len(names)) if names else ""


def _more(count: int) -> str:
    return f"; and {count - _SHOWN} more" if count > _SHOWN else ""
