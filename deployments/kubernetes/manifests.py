"""Reads and renders manifests, and finds the RayService in them."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import yaml

from app.config.base import ConfigError

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


def is_helms(path: Path) -> bool:
    """Whether a file is the output of `helm template` or `helm get manifest`, which name each object's template."""
    return path.is_file() and any(
        line.startswith("# Source: ") for line in path.read_text(errors="replace").split("\n")
    )


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


def ray_service(manifests: list[Manifest]) -> Manifest:
    """The one RayService among them. Raises ConfigError."""
    services = [manifest for manifest in manifests if manifest.get("kind") == "RayService"]
    if len(services) != 1:
        raise ConfigError([f"expected one RayService, found {len(services)}"])
    return services[0]


def in_namespace(manifests: list[Manifest], namespace: str) -> list[Manifest]:
    """The objects, in that namespace if they name none: Helm leaves it to its command line."""
    return [
        {**manifest, "metadata": {"namespace": namespace, **manifest["metadata"]}}
        if manifest["kind"] != "Namespace"
        else manifest
        for manifest in manifests
    ]


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, ten times as fast, where PyYAML has it."""
