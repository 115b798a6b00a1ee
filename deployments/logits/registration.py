"""Which engines load the processors."""

from collections.abc import Mapping
from typing import Any

PROCESSORS = ("deployments.logits.batch:RawScores", "deployments.logits.batch:Sampling")
"""Imported by name in the engine's own process."""

SPECULATIVE = ("speculative_config", "spec_method", "spec_model", "spec_tokens")
"""vLLM's arguments that ask for speculative decoding."""


def logits_processors(engine_kwargs: Mapping[str, Any]) -> list[str]:
    """vLLM's argument of this name for a generation engine with these arguments.

    vLLM has custom processors or speculative decoding, not both, and refuses to start: who asks for the latter gets
    it. On a GPU vLLM takes its V1 model runner because of custom processors; `logits_processors: []` in the
    arguments, which wins, gives both back to an engine whose callers need none of this.
    """
    return [] if any(engine_kwargs.get(name) for name in SPECULATIVE) else list(PROCESSORS)
