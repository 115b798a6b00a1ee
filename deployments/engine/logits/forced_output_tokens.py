"""`forced_output_tokens`: the output's k-th token is the k-th of these.

Friendli's, to have given answers scored: vLLM's logprobs are the model's own. What comes after the last of them is
free, and an end-of-sequence token among them ends the output: `max_tokens` and `ignore_eos` are the caller's.
"""

from collections.abc import Sequence
from typing import Self

import torch

from app.internal_api import Xarg
from deployments.engine.logits.processor import SamplingRequest

KEY = Xarg.FORCED_OUTPUT_TOKENS


class ForcedOutputTokens:
    """Leaves one token. It comes last, and wins over what the others forbid."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    @classmethod
    def asked(cls, request: SamplingRequest) -> Self | None:
        ids = request.token_ids(KEY)
        if ids and request.is_structured:
            raise ValueError(f"{KEY} cannot be combined with a structured output: its grammar chooses the tokens")
        return cls(ids) if ids else None

    def __call__(self, scores: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        if len(output) < len(self._ids) and (token := self._ids[len(output)]) < len(scores):
            scores.fill_(-torch.inf)
            scores[token] = 0.0
