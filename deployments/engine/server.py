"""The base of every vLLM deployment: arguments, defaults, server class.

An application named in `serve_config.yaml` is one `LLMConfig`. vLLM's own FastAPI application is
mounted on each replica (`serve.ingress()`), so every native route is there, behind the internal key.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.serve.llm import LLMConfig, build_llm_deployment
from ray.serve.llm.deployment import LLMServer

from app.internal_api import INTERNAL_KEY_VARIABLE, MAX_BEAMS, MAX_STOP_STRINGS, MODEL_PATH, PACKAGE_PREFIX
from app.telemetry.logs import log_to_stderr
from deployments.draining import GRACE_S
from deployments.engine.adapters import adapter_kwargs, prepare_modules
from deployments.engine.disconnect import DisconnectMiddleware
from deployments.engine.internal_key import InternalKeyMiddleware
from deployments.engine.load import LoadReport, held_by_serve
from deployments.engine.model_info import add_model_card
from deployments.engine.replica_age import ReplicaAgeMiddleware
from deployments.engine.watchdog import exit_when_engine_dies
from deployments.weights import cache as weights

DEPLOYMENT = "Engine"
"""The deployment's name in Serve, the same in every application: `deployments:` in the YAML overrides it."""

ENGINE_KWARGS: Mapping[str, Any] = {
    "generation_config": "vllm",  # defaults come from the dialect, never from the model's repository
    "max_logprobs": 2 * (MAX_BEAMS + 1),  # a beam search asks for twice its width
}

ENVIRONMENT: Mapping[str, str] = {"VLLM_MAX_STOP_STRINGS": str(MAX_STOP_STRINGS)}


class EngineArgs(BaseModel):
    """`args` of an engine's application: `{llm_config: {...}}`, with the fields of Ray's LLMConfig."""

    model_config = ConfigDict(extra="forbid")

    llm_config: dict[str, Any]


class EngineServer(LLMServer):  # type: ignore[misc]  # Ray ships no types
    """Ray's LLMServer behind the internal key."""

    async def _start_engine(self) -> None:
        log_to_stderr()
        prepare_modules(self._llm_config)
        await self.engine.start()  # not super(): Ray's also starts a 400 MB actor for usage reports
        self._load = LoadReport(held_by_serve)
        self._watchdog = asyncio.create_task(exit_when_engine_dies(self.engine._engine_client))

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """For the autoscaling policy. Serve finds it by its name and calls it every few seconds."""
        return self._load.read()

    async def __serve_build_asgi_app__(self) -> FastAPI:
        # Imported here: they import vLLM, which building the application does not need.
        from deployments.engine.completions.route import add_completions
        from deployments.engine.logits.vllm_adapter import BatchProcessor

        app: FastAPI = await super().__serve_build_asgi_app__()
        BatchProcessor.vocabulary_size = app.state.engine_client.model_config.get_vocab_size()
        add_model_card(app, MODEL_PATH)
        add_completions(app)
        app.add_middleware(DisconnectMiddleware)
        app.add_middleware(ReplicaAgeMiddleware)
        app.add_middleware(InternalKeyMiddleware, key=os.environ.get(INTERNAL_KEY_VARIABLE))
        return app


class PackagedWeights(CallbackBase):  # type: ignore[misc]
    """Prepares `package:` weights in the replica, before its engine looks for the model."""

    async def on_before_node_init(self) -> None:
        loading = self.llm_config.model_loading_config
        name = loading.model_source.removeprefix(PACKAGE_PREFIX)
        path = await asyncio.to_thread(weights.prepare, name, models_directory())
        loading.model_source = str(path)
        self.llm_config.get_engine_config().hf_model_id = str(path)
        self.ctx.run_init_node = False  # the model is local: no download task on other nodes


def models_directory() -> Path:
    """The directory of prepared weights on this node."""
    return weights.default_cache()


def build_engine(args: EngineArgs, **engine_kwargs: Any) -> serve.Application:
    """The application for `args`. The YAML takes precedence over `engine_kwargs`, and both over the defaults."""
    config = engine_config(args, **engine_kwargs)
    return build_llm_deployment(
        config,
        deployment_cls=serve.ingress()(EngineServer),
        override_serve_options={"name": DEPLOYMENT},
    )


def engine_config(args: EngineArgs, **engine_kwargs: Any) -> LLMConfig:
    """The engine's whole configuration; the arguments as for `build_engine`."""
    kwargs = {**ENGINE_KWARGS, **engine_kwargs, **adapter_kwargs(args.llm_config)}
    return LLMConfig.model_validate(_with_defaults(args.llm_config, kwargs))


def _with_defaults(given: Mapping[str, Any], engine_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    runtime_env = given.get("runtime_env") or {}
    config = {
        "log_engine_metrics": False,  # vLLM's own /metrics instead of Ray's agent
        **given,
        "deployment_config": {"graceful_shutdown_timeout_s": GRACE_S, **(given.get("deployment_config") or {})},
        "engine_kwargs": {**engine_kwargs, **(given.get("engine_kwargs") or {})},
        "runtime_env": {**runtime_env, "env_vars": {**ENVIRONMENT, **(runtime_env.get("env_vars") or {})}},
    }
    source = (given.get("model_loading_config") or {}).get("model_source")
    if isinstance(source, str) and source.startswith(PACKAGE_PREFIX):
        config["callback_config"] = {"callback_class": f"{__name__}.{PackagedWeights.__name__}"}
    return config
