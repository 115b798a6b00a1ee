"""The engines that load the processors, and the keys that these support."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

from app.internal_api import Xarg

PROCESSORS: Mapping[str, Sequence[str]] = {
    "deployments.engine.logits.vllm_adapter:RawScores": (
        Xarg.WATERMARK,
        Xarg.NO_REPEAT_NGRAM,
        Xarg.BAD_WORD_TOKENS,
        Xarg.FORCED_OUTPUT_TOKENS,
    ),
    "deployments.engine.logits.vllm_adapter:Sampling": (
        Xarg.TEMPERATURE,
        Xarg.TYPICAL_P,
        Xarg.XTC_THRESHOLD,
        Xarg.XTC_PROBABILITY,
    ),
}
"""Imported by name in the engine's own process; the keys of `vllm_xargs` that each supports."""

SPECULATIVE = ("speculative_config", "spec_method", "spec_model", "spec_tokens")
"""vLLM's arguments that enable speculative decoding."""


def logits_processors(engine_kwargs: Mapping[str, Any]) -> list[str]:
    """vLLM's argument of this name for a generation engine with these arguments.

    vLLM does not start with both custom processors and speculative decoding: with the latter there are no processors.
    On a GPU, custom processors make vLLM use its V1 model runner; `logits_processors: []` in the arguments, which
    takes precedence, avoids both for an engine whose callers need no processors.
    """
    return [] if any(engine_kwargs.get(name) for name in SPECULATIVE) else list(PROCESSORS)


def supported_xargs(loaded: Container[object]) -> list[str]:
    """The keys of `vllm_xargs` that an engine with these `logits_processors` supports."""
    return [key for name, keys in PROCESSORS.items() if name in loaded for key in keys]
