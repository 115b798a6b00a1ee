"""One vLLM generation deployment: chat, completions, responses."""

from ray import serve

from deployments.engine.application import EngineArgs, build_engine
from deployments.engine.logits.registry import logits_processors


def build(args: EngineArgs) -> serve.Application:
    """The application; Serve validates `args` against its annotation."""
    given = args.llm_config.get("engine_kwargs") or {}
    return build_engine(args, runner="generate", logits_processors=logits_processors(given), enable_prompt_embeds=True)
