"""`temperature` above 2, which is vLLM's limit. TGI and Friendli have none.

The request's own temperature is 2, so vLLM has divided the scores by 2, after the penalties; the rest is done here.
vLLM's min_p acts in between: a caller that sends both raises min_p to the power of temperature / 2, which is the same.
"""

from collections.abc import Sequence
from typing import Self

import torch

from app.internal_api import Xarg
from deployments.engine.logits.processor import SamplingRequest

KEY = Xarg.TEMPERATURE
LIMIT = 2.0


class Temperature:
    """Divides scores that are already divided by LIMIT."""

    def __init__(self, temperature: float) -> None:
        self._rest = temperature / LIMIT

    @classmethod
    def from_request(cls, request: SamplingRequest) -> Self | None:
        temperature = request.number(KEY)
        if temperature is None:
            return None
        if temperature <= LIMIT:
            raise ValueError(f"{KEY} among the vllm_xargs must be above {LIMIT:g}, got {temperature:g}")
        if request.temperature != LIMIT:
            own = f"{request.temperature:g}"
            raise ValueError(f"{KEY} among the vllm_xargs needs {LIMIT:g} as the request's temperature, got {own}")
        return cls(temperature)

    def __call__(self, scores: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        scores.div_(self._rest)
