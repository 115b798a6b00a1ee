"""The server in the replicas of every vLLM deployment. Importing it imports vLLM.

vLLM's own FastAPI application is mounted on each replica (`serve.ingress()`), so every native route is available,
behind the internal key.
"""

import asyncio
import os
from pathlib import Path

from fastapi import FastAPI
from ray import serve
from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.serve.llm.deployment import LLMServer

from app.internal_api import MODEL_PATH, PACKAGE_PREFIX
from app.internal_keys import Purpose, accepted
from app.telemetry.logs import log_to_stderr
from deployments.engine.adapters import prepare_modules
from deployments.engine.completions.route import add_completions
from deployments.engine.disconnect import DisconnectMiddleware
from deployments.engine.internal_key import InternalKeyMiddleware
from deployments.engine.load import LoadReport, held_by_serve
from deployments.engine.logits.vllm_adapter import BatchProcessor
from deployments.engine.model_info import add_model_card
from deployments.engine.replica_age import ReplicaAgeMiddleware
from deployments.engine.vllm_engine import Engine
from deployments.engine.watchdog import exit_when_engine_dies
from deployments.weights import cache as weights


@serve.ingress()
class EngineServer(LLMServer):  # type: ignore[misc]  # Ray ships no types
    """Ray's LLMServer behind the internal key."""

    _default_engine_cls = Engine

    async def _start_engine(self) -> None:
        log_to_stderr()
        prepare_modules(self._llm_config)
        await self.engine.start()  # not super(): Ray's also starts a 400 MB actor for usage reports
        self._load = LoadReport(held_by_serve)
        self._watchdog = asyncio.create_task(exit_when_engine_dies(self.engine._engine_client))

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The load, for the autoscaling policy. Serve finds this method by its name and calls it every few seconds."""
        return self._load.read()

    async def __serve_build_asgi_app__(self) -> FastAPI:
        app: FastAPI = await super().__serve_build_asgi_app__()
        BatchProcessor.vocabulary_size = app.state.engine_client.model_config.get_vocab_size()
        add_model_card(app, MODEL_PATH)
        add_completions(app)
        app.add_middleware(DisconnectMiddleware)
        app.add_middleware(ReplicaAgeMiddleware)
        app.add_middleware(InternalKeyMiddleware, keys=accepted(os.environ, Purpose.ENGINE))
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
