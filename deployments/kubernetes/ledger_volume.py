"""Warns of a ledger on a node's own disk: the controller of experiments starts without its evidence on another node."""

import posixpath
from collections.abc import Mapping
from typing import Any

import yaml

from app.config.experiments import is_active
from app.config.loading import load_document
from app.config.schema import Config
from app.internal_api import LEDGER_VARIABLE

_NODE_LOCAL = ("emptyDir", "hostPath", "ephemeral")
"""Kinds of volumes that stay with the pod or the node."""


def warnings(service: Mapping[str, Any]) -> list[str]:
    """At most one sentence about a RayService without `capacity.problems`."""
    config = load_document(yaml.safe_load(service["spec"].get("serveConfigV2") or ""))
    url = config.ledger.url
    if "://" in url or not _is_recorded(config):
        return []
    groups = service["spec"]["rayClusterConfig"].get("workerGroupSpecs") or []
    pods = [(it.get("template") or {}).get("spec") or {} for it in groups]
    paths = [_path_in(pod, url) for pod in pods]
    if any(_is_kept(pod, path) for pod, path in zip(pods, paths, strict=True)):
        return []
    return [
        f"serveConfigV2: ledger.url: '{url}' is on a node's own disk, and experiments lose their evidence when their "
        f"controller moves to another node; set a bucket, or mount a persistent volume at {paths[0] if paths else url}"
    ]


def _is_recorded(config: Config) -> bool:
    return any(is_active(it) for it in config.experiments.values()) or any(
        it.ledger == "always" or it.mirror is not None or it.record is not None for it in config.endpoints.values()
    )


def _path_in(pod: Mapping[str, Any], url: str) -> str:
    """The path of a ledger in the pod's first container, which is Ray's."""
    container = _container(pod)
    environment = {it["name"]: it.get("value") for it in container.get("env") or []}
    return posixpath.join(environment.get(LEDGER_VARIABLE) or container.get("workingDir") or "/", url)


def _is_kept(pod: Mapping[str, Any], path: str) -> bool:
    """Whether the path is on a volume that other nodes can mount."""
    mounts = [it for it in _container(pod).get("volumeMounts") or [] if _is_below(path, it["mountPath"])]
    if not mounts:
        return False
    nearest = max(mounts, key=lambda it: len(it["mountPath"]))["name"]
    volume: Mapping[str, Any] = next((it for it in pod.get("volumes") or [] if it["name"] == nearest), {})
    return not any(kind in volume for kind in _NODE_LOCAL)


def _is_below(path: str, directory: str) -> bool:
    return posixpath.normpath(path).startswith(posixpath.join(posixpath.normpath(directory), ""))


def _container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (pod.get("containers") or [{}])[0]
    return found
