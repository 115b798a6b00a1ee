"""An engine's application: its arguments, the defaults, how Serve builds it.

An application named in `serve_config.yaml` is one `LLMConfig`. This module is imported where Serve builds it, and
imports neither vLLM nor torch; `deployments.engine.replica` is what runs in the replicas.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from ray import serve

from app.internal_api import MAX_BEAMS, MAX_STOP_STRINGS, PACKAGE_PREFIX
from deployments.draining import GRACE_S
from deployments.engine import ray_llm
from deployments.engine.adapters import adapter_kwargs

DEPLOYMENT = "Engine"
"""The deployment's name in Serve, the same in every application: `deployments:` in the YAML overrides it."""

SERVER = "deployments.engine.replica.EngineServer"
"""The class of the deployment, as Serve imports it in a replica."""

PACKAGED_WEIGHTS = "deployments.engine.replica.PackagedWeights"
"""Ray's callback for models from `package:`."""

ENGINE_KWARGS: Mapping[str, Any] = {
    "generation_config": "vllm",  # defaults come from the dialect, never from the model's repository
    "max_logprobs": 2 * (MAX_BEAMS + 1),  # a beam search asks for twice its width
    # No URL of a client: the engine would fetch it, also from networks that only the engine reaches. An empty list
    # allows all domains, so this names one that cannot exist (RFC 6761). `data:` URLs need no domain.
    "allowed_media_domains": ["none.invalid"],
}

ENVIRONMENT: Mapping[str, str] = {
    "VLLM_MAX_STOP_STRINGS": str(MAX_STOP_STRINGS),
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",  # a domain that is allowed must not lead to one that is not
}

EAGER_ON_CPUS: Mapping[str, str] = {"TORCH_COMPILE_DISABLE": "1"}
"""With `enforce_eager`, too, vLLM compiles functions of its sampler when the first answer needs them. On CPUs all
answers wait for this, up to 18 s, and on a machine without a C++ compiler, like our image, it ends the engine."""


class EngineArgs(BaseModel):
    """`args` of an engine's application: `{llm_config: {...}}`, with the fields of Ray's LLMConfig."""

    model_config = ConfigDict(extra="forbid")

    llm_config: dict[str, Any]


def build_engine(args: EngineArgs, **engine_kwargs: Any) -> serve.Application:
    """The application for `args`. The YAML takes precedence over `engine_kwargs`, and both over the defaults.

    Raises ValueError for fields and arguments that Ray or vLLM do not have.
    """
    return ray_llm.build(engine_config(args, **engine_kwargs), SERVER, DEPLOYMENT)


def engine_config(args: EngineArgs, **engine_kwargs: Any) -> Any:
    """Its LLMConfig; the arguments and errors as of `build_engine`."""
    kwargs = {**ENGINE_KWARGS, **engine_kwargs, **adapter_kwargs(args.llm_config)}
    return ray_llm.llm_config(_with_defaults(args.llm_config, kwargs))


def _with_defaults(given: Mapping[str, Any], engine_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    runtime_env = given.get("runtime_env") or {}
    config = {
        "log_engine_metrics": False,  # vLLM's own /metrics instead of Ray's agent
        **given,
        "deployment_config": {"graceful_shutdown_timeout_s": GRACE_S, **(given.get("deployment_config") or {})},
        "engine_kwargs": {**engine_kwargs, **(given.get("engine_kwargs") or {})},
        "runtime_env": {**runtime_env, "env_vars": {**_environment(given), **(runtime_env.get("env_vars") or {})}},
    }
    source = (given.get("model_loading_config") or {}).get("model_source")
    if isinstance(source, str) and source.startswith(PACKAGE_PREFIX):
        config["callback_config"] = {"callback_class": PACKAGED_WEIGHTS}
    return config


def _environment(given: Mapping[str, Any]) -> Mapping[str, str]:
    on_cpus = (given.get("accelerator_config") or {}).get("kind") == "cpu"
    is_eager = bool((given.get("engine_kwargs") or {}).get("enforce_eager"))
    return {**ENVIRONMENT, **(EAGER_ON_CPUS if on_cpus and is_eager else {})}
