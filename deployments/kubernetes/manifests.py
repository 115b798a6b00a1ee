"""Reads and renders manifests, and finds the RayService in them."""

import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from app.config.base import ConfigError
from app.config.loading import read_yaml

KUSTOMIZATION = "kustomization.yaml"

Manifest = dict[str, Any]
"""One Kubernetes object."""


def is_cluster(path: Path) -> bool:
    """Whether `path` is a kustomize directory, or a file with a RayService."""
    if path.is_dir():
        return (path / KUSTOMIZATION).is_file()
    return path.is_file() and "kind: RayService" in path.read_text(errors="replace")


def read(path: Path) -> list[Manifest]:
    """The objects of a kustomize directory, as `kubectl kustomize` renders it, or of a rendered file.

    Raises ConfigError if they cannot be read.
    """
    text = render(path) if path.is_dir() else path.read_text()
    try:
        return [document for document in yaml.load_all(text, Loader=_LOADER) if document]
    except yaml.YAMLError as error:
        raise ConfigError([f"{path}: not YAML: {error}"]) from None


def render(directory: Path, path: str | None = None) -> str:
    """The output of `kubectl kustomize` for `directory`. Raises ConfigError with its message. `path`: the directories
    to search for kubectl, in PATH's form. Default: PATH, and the directory of the running Python.
    """
    places = path or os.pathsep.join([os.environ.get("PATH", ""), sysconfig.get_path("scripts")])
    kubectl = shutil.which("kubectl", path=places)
    if kubectl is None:
        fix = f"render it elsewhere with `kubectl kustomize {directory}`, and check that file"
        raise ConfigError([f"{directory}: kubectl is not installed; {fix}"])
    done = subprocess.run([kubectl, "kustomize", str(directory)], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise ConfigError([f"{directory}: {done.stderr.strip()[-500:]}"])
    return done.stdout


def without(overlay: Path, *names: str) -> list[Manifest]:
    """An overlay's objects without its files `names`, which may not exist yet. Raises ConfigError.

    Renders a copy of
    the overlay and of all that it refers to.
    """
    directories = sorted(_reached(overlay.resolve()))
    top = Path(os.path.commonpath(directories))
    with tempfile.TemporaryDirectory() as temporary:
        for directory in directories:
            shutil.copytree(directory, Path(temporary, directory.relative_to(top)), dirs_exist_ok=True)
        copy = Path(temporary, overlay.resolve().relative_to(top))
        document: Any = read_yaml(copy / KUSTOMIZATION)
        for field in ("patches", "resources"):
            document[field] = [
                entry
                for entry in document.get(field) or []
                if not {entry if isinstance(entry, str) else "", _path(entry)} & {*names}
            ]
        (copy / KUSTOMIZATION).write_text(yaml.safe_dump(document))
        return read(copy)


def _reached(directory: Path) -> Iterator[Path]:
    """The directory, and the local ones that its kustomization names."""
    yield directory
    document: Any = read_yaml(directory / KUSTOMIZATION)
    for field in ("resources", "components"):
        for entry in document.get(field) or []:
            if (directory / entry).is_dir():
                yield from _reached((directory / entry).resolve())


def _path(patch: object) -> object:
    return patch.get("path") if isinstance(patch, dict) else None


def ray_service(manifests: list[Manifest]) -> Manifest:
    """The one RayService among them. Raises ConfigError."""
    services = [manifest for manifest in manifests if manifest.get("kind") == "RayService"]
    if len(services) != 1:
        raise ConfigError([f"expected one RayService, found {len(services)}"])
    return services[0]


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, ten times as fast, where PyYAML has it."""
