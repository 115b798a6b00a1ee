"""`typical_p`: locally typical sampling (Meister et al.), transformers' own.

It keeps the tokens whose surprise is nearest to the expected one, up to this probability mass, and so may drop the
likeliest. TGI applies it after top_k and top_p; vLLM applies those after every processor, so here it comes before them.
"""

from collections.abc import Sequence
from typing import Self

import torch
from transformers import TypicalLogitsWarper

from app.internal_api import Xarg
from deployments.engine.logits.processor import SamplingRequest

KEY = Xarg.TYPICAL_P


class TypicalP:
    """Drops atypical tokens; at least one stays."""

    def __init__(self, mass: float) -> None:
        self._warp = TypicalLogitsWarper(mass)

    @classmethod
    def from_request(cls, request: SamplingRequest) -> Self | None:
        mass = request.number(KEY)
        if mass is not None and not 0 < mass <= 1:
            raise ValueError(f"{KEY} must be above 0 and at most 1, got {mass:g}")
        return cls(mass) if mass is not None and mass < 1 and not request.is_greedy else None

    def __call__(self, scores: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        scores.copy_(self._warp(None, scores[None])[0])
