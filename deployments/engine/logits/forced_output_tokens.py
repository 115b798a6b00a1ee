"""`forced_output_tokens`: the output's k-th token is the k-th of these.

Friendli's, to score given answers: vLLM's logprobs are the model's own. The tokens after the last of them are free, and
an end-of-sequence token among them ends the output: `max_tokens` and `ignore_eos` are up to the caller.
"""

from collections.abc import Sequence
from typing import Self

import torch

from app.internal_api import Xarg
from deployments.engine.logits.processor import SamplingRequest

KEY = Xarg.FORCED_OUTPUT_TOKENS


class ForcedOutputTokens:
    """Allows one token only. It is applied last and overrides what the others forbid."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    @classmethod
    def from_request(cls, request: SamplingRequest) -> Self | None:
        ids = request.token_ids(KEY)
        if ids and request.is_structured:
            raise ValueError(f"{KEY} cannot be combined with a structured output: its grammar chooses the tokens")
        return cls(ids) if ids else None

    def __call__(self, scores: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        if len(output) < len(self._ids) and (token := self._ids[len(output)]) < len(scores):
            scores.fill_(-torch.inf)
            scores[token] = 0.0
