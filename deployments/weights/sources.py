"""The sources of the weights of a Serve configuration's applications."""

import re
from collections.abc import Iterator, Mapping
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
