"""One vLLM generation deployment: chat, completions, responses."""

from typing import Any, Literal

from pydantic import Field
from ray import serve

from deployments.engine.application import EngineArgs, build_engine
from deployments.engine.logits.registry import logits_processors


class GenerationArgs(EngineArgs):
    """`args` of an application that generates: `{llm_config: {...}}`, and what a replica that is stopped does."""

    drain: Literal["hand_over", "finish"] = Field(
        default="hand_over",
        description="What a stopped replica does with its streams: `hand_over` to another replica, or `finish`.",
    )
    hand_over_after_s: float = Field(
        default=30.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that answers have to end by themselves, before the streams are handed over.",
    )


def build(args: GenerationArgs) -> serve.Application:
    """The application; Serve validates `args` against its annotation."""
    after_s = args.hand_over_after_s if args.drain == "hand_over" else None
    return build_engine(args, engine_kwargs(args), hand_over_after_s=after_s)


def engine_kwargs(args: EngineArgs) -> dict[str, Any]:
    """The arguments of every such engine, unless the YAML sets others."""
    given = args.llm_config.get("engine_kwargs") or {}
    return {"runner": "generate", "logits_processors": logits_processors(given), "enable_prompt_embeds": True}
