"""One vLLM generation deployment: chat, completions, responses."""

from ray import serve

from deployments.engine import EngineArgs, build_engine
from deployments.logits.registration import logits_processors


def build(args: EngineArgs) -> serve.Application:
    """The application; Serve validates `args` against its annotation."""
    given = args.llm_config.get("engine_kwargs") or {}
    return build_engine(args, runner="generate", logits_processors=logits_processors(given))
