"""The sources of the weights of a Serve configuration's applications."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from app.config.adapters import adapters_of
from app.internal_api import PACKAGE_PREFIX

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""The form of a hub's ids."""


def is_hub_id(source: object) -> bool:
    """Whether it is neither a path, nor a packaged model, nor a URL."""
    return isinstance(source, str) and not source.startswith(("/", ".", PACKAGE_PREFIX)) and "://" not in source


def model_sources(applications: list[Mapping[str, Any]]) -> Iterator[str]:
    """The `model_source` of each application that has one, as it is written. Contract: `ray.serve.llm.LLMConfig`."""
    for application in applications:
        config = (application.get("args") or {}).get("llm_config") or {}
        source = (config.get("model_loading_config") or {}).get("model_source")
        if isinstance(source, str) and source:
            yield source


def adapter_sources(applications: list[Mapping[str, Any]]) -> Iterator[str]:
    """The sources of their LoRA adapters: directories, or a model hub's ids."""
    for application in applications:
        config = (application.get("args") or {}).get("llm_config")
        if isinstance(config, Mapping):
            yield from (adapter.path for adapter in adapters_of(config))


def source_on(volume: PurePath, model_source: str) -> str | None:
    """The source of a model's `model_source`, or of an adapter's path, in the Serve configuration; None if the volume
    does not have it.
    """
    if model_source.startswith(PACKAGE_PREFIX):
        return model_source
    path = PurePath(os.path.normpath(model_source))
    return f"hf:{path.relative_to(volume)}" if path.is_relative_to(volume) and path != volume else None


def is_pinned(source: str) -> bool:
    """Whether the source is the same at any time: a package's, which the lock pins, or with a revision."""
    return source.startswith(PACKAGE_PREFIX) or "@" in source
