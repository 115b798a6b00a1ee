"""`no_repeat_ngram`: an n-gram of tokens occurs at most once in prompt and output.

Friendli's `no_repeat_ngram`, Hugging Face's `no_repeat_ngram_size`. Repetitions within the prompt do not matter.
"""

from collections import deque
from collections.abc import Sequence
from typing import Self

import torch

from app.internal_api import Xarg
from deployments.engine.logits.processor import SamplingRequest, forbid

KEY = Xarg.NO_REPEAT_NGRAM
MODULUS = 2**61 - 1
BASE = 1_000_003


class NoRepeatNgram:
    """Records which tokens followed every n - 1 tokens, reading each token once.

    The table's key is a rolling hash, so that neither time nor memory grows with n. The probability that two windows of
    a text collide is about its length squared / 2**61; a collision forbids a token that need not be.
    """

    def __init__(self, n: int) -> None:
        self._width = n - 1
        self._leaving = pow(BASE, self._width, MODULUS)  # the oldest token's weight once the next one is in
        self._forget()

    @classmethod
    def from_request(cls, request: SamplingRequest) -> Self | None:
        n = request.integer(KEY)
        if n is not None and n < 1:
            raise ValueError(f"{KEY} must be at least 1, got {n}")
        return cls(n) if n is not None and n > 1 else None

    def __call__(self, scores: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        if self._read > len(prompt) + len(output):  # vLLM took tokens back: it does when a KV transfer fails
            self._forget()
        for token in prompt[self._read :]:
            self._append(token)
        for token in output[self._read - len(prompt) :]:
            self._append(token)
        if len(self._window) == self._width:
            forbid(scores, list(self._followers.get(self._hash, ())))

    def _forget(self) -> None:
        self._followers: dict[int, set[int]] = {}
        self._window: deque[int] = deque()
        self._hash = 0
        self._read = 0

    def _append(self, token: int) -> None:
        shifted = self._hash * BASE + token
        if len(self._window) == self._width:
            self._followers.setdefault(self._hash, set()).add(token)
            shifted -= self._window.popleft() * self._leaving
        self._hash = shifted % MODULUS
        self._window.append(token)
        self._read += 1
