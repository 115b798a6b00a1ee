"""The interface of a logits processor, and the parameters that a request gives it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import Any, Protocol, Self

import torch

MAX_TOKEN_IDS = 16_384
"""The most token ids in one list. The process that serves all requests checks every id."""

LARGEST_ID = 2**31 - 1
"""The bound of token ids if the vocabulary's size is unknown."""

GREEDY = 1e-5
"""The temperature below which vLLM takes the likeliest token."""


class Processor(Protocol):
    """One request's processor."""

    @classmethod
    def from_request(cls, request: "SamplingRequest") -> Self | None:
        """The processor for `request`, None if it sets none of its keys. Raises ValueError; the message begins with the
        key."""

    def __call__(self, scores: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Changes `scores` in place: the next token's logits, float32 of shape (vocabulary,).

        `prompt` and `output` are the token ids so far. A step may repeat with the same output: vLLM discards samples in
        the middle of a long prompt.
        """


@dataclass(frozen=True)
class SamplingRequest:
    """The part of vLLM's `SamplingParams` that processors read.

    `xargs` are its `extra_args`; `is_structured`: a grammar constrains the tokens as well; `vocabulary_size` is None if
    unknown.
    """

    xargs: Mapping[str, Any]
    temperature: float = 1.0
    seed: int | None = None
    is_structured: bool = False
    vocabulary_size: int | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY

    def number(self, key: str) -> float | None:
        """A finite number. Raises ValueError for anything else, as the others do."""
        value = self.xargs.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{key} must be a finite number, got {shortened(value)}")
        return float(value)

    def integer(self, key: str) -> int | None:
        """An integer of 32 bits."""
        value = self.xargs.get(key)
        if value is None:
            return None
        if not _is_integer(value) or abs(value) > LARGEST_ID:
            raise ValueError(f"{key} must be an integer, got {shortened(value)}")
        return int(value)

    def flag(self, key: str) -> bool:
        """true or false, which vLLM's routes convert to 1 and 0."""
        value = self.xargs.get(key)
        if value is not None and (not isinstance(value, int) or value not in (0, 1)):
            raise ValueError(f"{key} must be true or false, got {shortened(value)}")
        return bool(value)

    def token_ids(self, key: str, *, separator: int | None = None) -> list[int] | None:
        """A flat list of ids of the vocabulary, and `separator`s."""
        value = self.xargs.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(map(_is_integer, value)):
            raise ValueError(f"{key} must be a list of integers, got {shortened(value)}")
        if len(value) > MAX_TOKEN_IDS:
            raise ValueError(f"{key} may hold {MAX_TOKEN_IDS} token ids, got {len(value)}")
        end = LARGEST_ID if self.vocabulary_size is None else self.vocabulary_size
        for number in value:
            if not 0 <= number < end and number != separator:
                raise ValueError(f"{key} holds {number}, which is no token id: they are 0 to {end - 1}")
        return list(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def forbid(scores: torch.Tensor, ids: Sequence[int]) -> None:
    """Forbids the tokens `ids`, unless that leaves none, as when a grammar allows only one token.

    It does not synchronize with the device.
    """
    inside = [number for number in ids if 0 <= number < len(scores)]
    if inside:
        forbid_tensor(scores, torch.tensor(inside, device=scores.device))


def forbid_tensor(scores: torch.Tensor, ids: torch.Tensor) -> None:
    """`forbid` for ids of the vocabulary that are already on the device."""
    kept = scores[ids]
    scores[ids] = -torch.inf
    scores[ids] = torch.where(scores.amax() == -torch.inf, kept, -torch.inf)
