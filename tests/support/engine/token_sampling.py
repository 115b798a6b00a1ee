"""Texts without a model: tokens sampled from random scores, through logits processors."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from deployments.engine.logits.processor import Processor

Ids = list[int]
T = TypeVar("T")


def made_up_scores(vocabulary_size: int, seed: int) -> Callable[[], torch.Tensor]:
    """Draws scores of shape (vocabulary,), other ones at each call: normal, with deviation 2, as varied as a text."""
    generator = torch.Generator().manual_seed(seed)
    return lambda: 2 * torch.randn(vocabulary_size, generator=generator)


def generate(
    draw_scores: Callable[[], torch.Tensor], prompt: Sequence[int], length: int, *processors: Processor, seed: int = 0
) -> Ids:
    """`length` sampled tokens."""
    generator = torch.Generator().manual_seed(seed)
    output: Ids = []
    for _ in range(length):
        scores = draw_scores()
        for processor in processors:
            processor(scores, prompt, output)
        output.append(int(scores.softmax(-1).multinomial(1, generator=generator)))
    return output


def present(value: T | None) -> T:
    """`value`, which is there."""
    assert value is not None
    return value


def ruled_out(scores: Any) -> set[int]:
    """The tokens that cannot be sampled."""
    return set(torch.isneginf(scores).nonzero().flatten().tolist())
