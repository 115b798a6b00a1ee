"""An engine's application: its arguments, the defaults, how Serve builds it.

An application named in `serve_config.yaml` is one `LLMConfig`. This module is imported where Serve builds it, and
imports neither vLLM nor torch; `deployments.engine.replica` is what runs in the replicas.

Builds an engine's application as Ray Serve LLM does, without importing torch or vLLM.
"""

import copy
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from pydantic import BaseModel, ConfigDict, Field
from ray import serve

from app.config.reference import packages
from app.internal_api import MAX_BEAMS, PACKAGE_PREFIX
from deployments.draining import GRACE_S
from deployments.engine.adapters import adapter_kwargs
from deployments.engine.runtime_env import runtime_env

# Serve builds every application in a separate process, which ends with the build. There Ray's `build_llm_deployment`
# imports vLLM, which takes seven CPU-seconds, and which the head does not have, for the names of its arguments. This
# module has those from `app/config/packages.json`, and names the deployment's class instead of importing it. Nothing
# else differs but for the number of replicas (see `deployment_options`); `tests/unit` compares both.

_OPTIONAL = ("torch", "transformers")
"""Optional packages that Ray imports with its LLMConfig. Only replicas use them."""


def build(config: Any, server: str, name: str, **options: Any) -> serve.Application:
    """The application of an LLMConfig: one deployment `name` of the class `server` (`module.Class`).

    Replicas import the class, and make it of the config and the `options`. What Serve may set for the deployment is in
    `config.deployment_config`.
    """
    return serve.deployment(**{**deployment_options(config), "name": name})(server).bind(llm_config=config, **options)


def llm_config(given: Mapping[str, Any]) -> Any:
    """Ray's LLMConfig for `given`.

    Raises ValueError: pydantic's for wrong fields, and for an argument that the installed vLLM does not have.
    """
    with _without(_OPTIONAL):
        from ray.llm._internal.serve.core.configs.llm_config import LLMConfig

    config = LLMConfig.model_validate(given)
    known = engine_arguments()
    for name in config.engine_kwargs:
        if name not in known:
            raise ValueError(f"Unknown engine argument: {name}")
    return config


def engine_arguments() -> frozenset[str]:
    """The names of vLLM's arguments. Where Serve builds applications, vLLM need not be installed."""
    return frozenset(packages()["$defs"]["EngineArguments"]["properties"])


def deployment_options(config: Any) -> dict[str, Any]:
    """Serve's options for an LLMConfig: its `deployment_config`, where replicas are placed, and their environment.

    Ray's own are `LLMServer.get_deployment_options` and the defaults of `build_llm_deployment`.
    """
    from ray.llm._internal.common.dict_utils import maybe_apply_llm_deployment_config_defaults
    from ray.llm._internal.serve import constants
    from ray.llm._internal.serve.core.configs.accelerators import CPUAccelerator, GPUAccelerator, TPUAccelerator

    options = copy.deepcopy(config.deployment_config)
    if options.keys() & {"placement_group_bundles", "placement_group_strategy"}:
        raise ValueError("The placement of replicas belongs in placement_group_config, not in deployment_config")
    kind = config.accelerator_config.kind
    accelerator = TPUAccelerator(config.accelerator_config) if kind == "tpu" else None
    accelerator = accelerator or (CPUAccelerator() if kind == "cpu" else GPUAccelerator())
    actor = options.setdefault("ray_actor_options", {})
    if not accelerator.requires_deferred_placement_group:
        group = _placement_group(config)
        bundles = (
            _bundles(config, group)
            if group
            else accelerator.default_bundles(num_devices=_devices(config), accelerator_type_str=config.accelerator_type)
        )
        options["placement_group_bundles"] = _with_replica(bundles, actor)
        options["placement_group_strategy"] = group.get("strategy", "PACK")
    hook = {"worker_process_setup_hook": "ray.llm._internal.serve._worker_process_setup_hook"}
    actor["runtime_env"] = {
        **(ray.get_runtime_context().runtime_env if ray.is_initialized() else {}),
        **(hook if constants.ENABLE_WORKER_PROCESS_SETUP_HOOK else {}),
        **actor.get("runtime_env", {}),
        **(config.runtime_env or {}),
    }
    defaults: dict[str, Any] = {
        "max_ongoing_requests": constants.DEFAULT_MAX_ONGOING_REQUESTS,
        "health_check_period_s": constants.DEFAULT_HEALTH_CHECK_PERIOD_S,
        "health_check_timeout_s": constants.DEFAULT_HEALTH_CHECK_TIMEOUT_S,
    }
    # Ray sets a target in any case; Serve then takes no `num_replicas` from the file: one replica would run.
    if "autoscaling_config" in options:
        target = constants.DEFAULT_MAX_TARGET_ONGOING_REQUESTS
        defaults["autoscaling_config"] = {"target_ongoing_requests": target}
    merged: dict[str, Any] = maybe_apply_llm_deployment_config_defaults(defaults, options)
    return merged


def _placement_group(config: Any) -> dict[str, Any]:
    from ray.llm._internal.common.placement import PlacementGroupConfig

    given = config.placement_group_config
    group: dict[str, Any] = {} if given is None else PlacementGroupConfig(**given).model_dump(exclude_unset=True)
    return group


def _devices(config: Any) -> int:
    kwargs = config.engine_kwargs
    return int(kwargs.get("tensor_parallel_size", 1) * kwargs.get("pipeline_parallel_size", 1))


def _bundles(config: Any, group: Mapping[str, Any]) -> list[dict[str, float]]:
    each = group.get("bundle_per_worker")
    bundles = (
        [dict(each) for _ in range(_devices(config))]
        if each is not None
        else [dict(bundle) for bundle in group["bundles"]]
    )
    if config.accelerator_type:
        for bundle in bundles:
            bundle.setdefault(f"accelerator_type:{config.accelerator_type}", 0.001)
    return bundles


def _with_replica(bundles: list[dict[str, float]], actor: Mapping[str, Any]) -> list[dict[str, float]]:
    """The replica's own process shares the first bundle."""
    own = {"CPU": actor.get("num_cpus", 1), "GPU": actor.get("num_gpus", 0), **actor.get("resources", {})}
    if "memory" in actor:
        own["memory"] = actor["memory"]
    first, *others = bundles or [{}]
    return [{name: first.get(name, 0) + own.get(name, 0) for name in {**first, **own}}, *others]


@contextmanager
def _without(modules: Sequence[str]) -> Iterator[None]:
    """Hides these modules from imports inside the block, unless they are already imported."""
    absent = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None marks a module as absent
    logging.disable(logging.WARNING)  # Ray's, about missing modules
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for name in absent:
            del sys.modules[name]


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


class EngineArgs(BaseModel):
    """`args` of an engine's application: `{llm_config: {...}}`, with the fields of Ray's LLMConfig."""

    model_config = ConfigDict(extra="forbid")

    llm_config: dict[str, Any]
    fork: bool | None = Field(
        default=None,
        description="Whether replicas start as copies of a process of their node that has imported torch and vLLM. "
        "Not set: on CPUs alone.",
    )


def build_engine(args: EngineArgs, engine_kwargs: Mapping[str, Any], **options: Any) -> serve.Application:
    """The application of an `engine_config`, with these options of the server."""
    given = args.llm_config.get("engine_kwargs") or {}
    # Only the YAML's: our own default is for replaced embeddings.
    options["takes_embeddings"] = bool(given.get("enable_prompt_embeds"))
    return build(engine_config(args, **engine_kwargs), SERVER, DEPLOYMENT, **options)


def engine_config(args: EngineArgs, **engine_kwargs: Any) -> Any:
    """The LLMConfig for `args`. The YAML takes precedence over `engine_kwargs`, and both over the defaults.

    Raises ValueError for fields and arguments that Ray or vLLM do not have.
    """
    kwargs = {**ENGINE_KWARGS, **engine_kwargs, **adapter_kwargs(args.llm_config)}
    return llm_config(
        {**_with_defaults(args.llm_config, kwargs), "runtime_env": runtime_env(args.llm_config, args.fork)}
    )


def _with_defaults(given: Mapping[str, Any], engine_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    config = {
        "log_engine_metrics": False,  # vLLM's own /metrics instead of Ray's agent
        **given,
        "deployment_config": {"graceful_shutdown_timeout_s": GRACE_S, **(given.get("deployment_config") or {})},
        "engine_kwargs": {**engine_kwargs, **(given.get("engine_kwargs") or {})},
    }
    source = (given.get("model_loading_config") or {}).get("model_source")
    if isinstance(source, str) and source.startswith(PACKAGE_PREFIX):
        config["callback_config"] = {"callback_class": PACKAGED_WEIGHTS}
    return config
