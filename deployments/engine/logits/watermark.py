"""`watermark`: marks generated text, and detects the mark.

Kirchenbauer et al., "A Watermark for Large Language Models", with the parameters and the seed of TGI's `watermark.py`:
the token before chooses a random half of the vocabulary, the green list, whose raw scores gain 2. In text without the
mark about every second token is green; marked text has more. transformers' `WatermarkDetector` finds the mark too, with
`WatermarkingConfig(greenlist_ratio=0.5, bias=2.0, hashing_key=15485863, seeding_scheme="lefthash")` on the CPU.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Self

import torch

from app.internal_api import Xarg
from deployments.engine.logits.processor import SamplingRequest

GAMMA = 0.5
DELTA = 2.0
HASH_KEY = 15_485_863


@lru_cache(maxsize=256)
def green_list(previous: int, vocabulary_size: int) -> torch.Tensor:
    """The tokens that are green after `previous`: a mask of shape (vocabulary,), on the CPU.

    On the CPU on every machine: a GPU's generator draws others, and the text could not be checked elsewhere.
    """
    generator = torch.Generator().manual_seed(HASH_KEY * previous)
    drawn = torch.randperm(vocabulary_size, generator=generator)[: int(vocabulary_size * GAMMA)]
    mask = torch.zeros(vocabulary_size, dtype=torch.bool)
    mask[drawn] = True
    return mask


class Watermark:
    """Adds DELTA to the green tokens' scores."""

    @classmethod
    def from_request(cls, request: SamplingRequest) -> Self | None:
        return cls() if request.flag(Xarg.WATERMARK) else None

    def __call__(self, scores: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        before = output or prompt
        if before:  # a prompt of embeddings has no ids
            scores.add_(green_list(before[-1], len(scores)).to(scores), alpha=DELTA)


@dataclass(frozen=True)
class Detection:
    """The number of tested tokens, the number of green ones among them, and the z-score of that count.

    Unmarked text has a z above 4 once in 30,000 times.
    """

    tokens: int
    green: int

    @property
    def z(self) -> float:
        if not self.tokens:
            return 0.0
        return (self.green - GAMMA * self.tokens) / math.sqrt(self.tokens * GAMMA * (1 - GAMMA))


def detect(token_ids: Sequence[int], vocabulary_size: int) -> Detection:
    """Tests a text's token ids for the mark; `vocabulary_size` is the model's (`vocab_size` in its config.json).

    A pair of tokens counts once, however often the text repeats it: its colour is always the same.
    """
    pairs = set(pairwise(token_ids))
    green = sum(bool(green_list(previous, vocabulary_size)[token]) for previous, token in pairs)
    return Detection(len(pairs), green)
