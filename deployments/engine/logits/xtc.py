"""`xtc_threshold` and `xtc_probability`: exclude top choices.

Friendli's semantics: with this probability, at each token, every choice whose probability is the threshold or more is
dropped except the least likely of them. A single such choice stays.
"""

import random
from collections.abc import Sequence
from typing import Self

import torch

from app.internal_api import Xarg
from deployments.engine.logits.processor import SamplingRequest


class Xtc:
    """Draws by seed and position, so that a repeated step and every worker of an engine draw the same."""

    def __init__(self, threshold: float, probability: float, seed: int) -> None:
        self._threshold = threshold
        self._probability = probability
        self._seed = seed

    @classmethod
    def from_request(cls, request: SamplingRequest) -> Self | None:
        threshold, probability = (_fraction(request, key) for key in (Xarg.XTC_THRESHOLD, Xarg.XTC_PROBABILITY))
        if not threshold or not probability or request.is_greedy:
            return None
        # Otherwise torch's: vLLM seeds it equally in all workers of an engine, which must agree on every token.
        seed = int(torch.randint(2**62, ())) if request.seed is None else request.seed
        return cls(threshold, probability, seed)

    def __call__(self, scores: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        if random.Random(f"{self._seed}:{len(output)}").random() >= self._probability:
            return
        probabilities = scores.softmax(-1)
        excluded = probabilities >= self._threshold
        excluded[probabilities.masked_fill(~excluded, torch.inf).argmin()] = False
        scores.masked_fill_(excluded, -torch.inf)


def _fraction(request: SamplingRequest, key: str) -> float:
    value = request.number(key) or 0.0
    if not 0 <= value <= 1:
        raise ValueError(f"{key} must be between 0 and 1, got {value:g}")
    return value
