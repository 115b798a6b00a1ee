"""Weights that pods cannot load: a model hub's ids, on nodes that never ask a hub."""

from collections.abc import Iterator, Mapping
from typing import Any

from app.config.adapters import adapters_of
from app.internal_api import PACKAGE_PREFIX
from deployments.invocation import make
from deployments.kubernetes.generated import MODELS

OFFLINE = "HF_HUB_OFFLINE"


def hub_problems(document: Mapping[str, Any], cluster: Mapping[str, Any]) -> Iterator[str]:
    """Models and adapters of a Serve configuration that come from a hub, if the groups of nodes are offline."""
    if not any(_environment(group).get(OFFLINE) == "1" for group in cluster.get("workerGroupSpecs") or []):
        return
    reason = f"comes from a model hub, and its pods have {OFFLINE}=1"
    for application in document["applications"]:
        config = (application.get("args") or {}).get("llm_config")
        if not isinstance(config, Mapping):
            continue
        loading = config.get("model_loading_config") or {}
        source = loading.get("model_source") or loading.get("model_id")  # as Ray does
        fix = f"which a Job fetches, and run `{make('k8s')}`"
        if _is_hub_id(source):
            yield f"{application['name']}: {source} {reason}; set model_source: {MODELS}/{source}, {fix}"
        for adapter in adapters_of(config):
            if _is_hub_id(adapter.path):
                where = f"{application['name']}: the adapter {adapter.name}: {adapter.path}"
                yield f"{where} {reason}; set its path to {MODELS}/{adapter.path}, {fix}"


def _is_hub_id(source: object) -> bool:
    """Whether it is neither a path, nor a packaged model, nor a URL."""
    return isinstance(source, str) and not source.startswith(("/", ".", PACKAGE_PREFIX)) and "://" not in source


def _environment(group: Mapping[str, Any]) -> Mapping[str, str]:
    container = ((group.get("template") or {}).get("spec") or {}).get("containers", [{}])[0]
    return {it["name"]: it["value"] for it in container.get("env") or [] if "value" in it}
