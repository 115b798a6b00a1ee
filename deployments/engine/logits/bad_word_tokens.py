"""`bad_word_tokens`: sequences of token ids that the output never holds.

Friendli's semantics: if the output ends in a sequence's ids but the last, the last one is forbidden. A single id always
is. On the wire the sequences are concatenated with -1 between them.
"""

from collections.abc import Sequence
from typing import Self

import torch

from app.internal_api import BAD_WORD_SEPARATOR, Xarg
from deployments.engine.logits.processor import SamplingRequest, forbid, forbid_tensor

KEY = Xarg.BAD_WORD_TOKENS


class BadWordTokens:
    """Finds candidate sequences by the output's last id; others cost nothing."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._single = sorted({ids[0] for ids in sequences if len(ids) == 1})
        self._single_on_device: torch.Tensor | None = None
        self._by_second_last: dict[int, list[tuple[list[int], int]]] = {}
        for *prefix, last in sequences:
            if prefix:
                self._by_second_last.setdefault(prefix[-1], []).append((prefix, last))

    @classmethod
    def from_request(cls, request: SamplingRequest) -> Self | None:
        ids = request.token_ids(KEY, separator=BAD_WORD_SEPARATOR)
        return cls(_split(ids)) if ids else None

    def __call__(self, scores: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        if self._single:
            if self._single_on_device is None:
                inside = [number for number in self._single if number < len(scores)]
                self._single_on_device = torch.tensor(inside, dtype=torch.long, device=scores.device)
            forbid_tensor(scores, self._single_on_device)
        if output:
            candidates = self._by_second_last.get(output[-1], ())
            forbid(scores, [last for prefix, last in candidates if list(output[-len(prefix) :]) == prefix])


def _split(ids: Sequence[int]) -> list[list[int]]:
    sequences: list[list[int]] = [[]]
    for number in ids:
        if number == BAD_WORD_SEPARATOR:
            sequences.append([])
        else:
            sequences[-1].append(number)
    if not all(sequences):
        raise ValueError(f"{KEY} holds an empty sequence: {BAD_WORD_SEPARATOR} goes between two sequences only")
    return sequences
