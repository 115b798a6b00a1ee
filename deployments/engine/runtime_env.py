"""Ray's runtime environment of engines' replicas."""

from collections.abc import Mapping
from typing import Any

from app.internal_api import MAX_STOP_STRINGS
from deployments.engine.fork import py_executable

ENVIRONMENT: Mapping[str, str] = {
    "VLLM_MAX_STOP_STRINGS": str(MAX_STOP_STRINGS),
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",  # a domain that is allowed must not lead to one that is not
}

EAGER_ON_CPUS: Mapping[str, str] = {"TORCH_COMPILE_DISABLE": "1"}
"""With `enforce_eager`, too, vLLM compiles functions of its sampler when the first answer needs them. On CPUs all
answers wait for this, up to 18 s, and on a machine without a C++ compiler, like our image, it ends the engine."""

OWN_PYTHON = frozenset({"py_executable", "pip", "uv", "conda", "container", "image_uri"})
"""Fields of a runtime environment that choose a Python."""


def runtime_env(llm_config: Mapping[str, Any], fork: bool | None) -> dict[str, Any]:
    """Of the replicas of an LLMConfig, before Ray reads it. `fork`: see `EngineArgs`."""
    given = llm_config.get("runtime_env") or {}
    on_cpus = (llm_config.get("accelerator_config") or {}).get("kind") == "cpu"
    is_eager = bool((llm_config.get("engine_kwargs") or {}).get("enforce_eager"))
    is_forked = (on_cpus if fork is None else fork) and not given.keys() & OWN_PYTHON
    return {
        **({"py_executable": py_executable()} if is_forked else {}),
        **given,
        "env_vars": {
            **ENVIRONMENT,
            **(EAGER_ON_CPUS if on_cpus and is_eager else {}),
            **(given.get("env_vars") or {}),
        },
    }
