"""One vLLM generation deployment: chat, completions, responses."""

from typing import Any

from ray import serve

from deployments.engine.application import EngineArgs, build_engine
from deployments.engine.logits.registry import logits_processors


def build(args: EngineArgs) -> serve.Application:
    """The application; Serve validates `args` against its annotation."""
    return build_engine(args, **engine_kwargs(args))


def engine_kwargs(args: EngineArgs) -> dict[str, Any]:
    """The arguments of every such engine, unless the YAML sets others."""
    given = args.llm_config.get("engine_kwargs") or {}
    return {"runner": "generate", "logits_processors": logits_processors(given), "enable_prompt_embeds": True}
