"""`typical_p`: locally typical sampling (Meister et al.), transformers' own.

It keeps the tokens whose surprise is nearest to the expected one, up to this probability mass, and so may drop the
likeliest. TGI applies it after top_k and top_p; vLLM applies those after every processor, so here it comes before them.

- `forced_output_tokens`: the output's k-th token is the k-th of these.
- `temperature` above 2, which is vLLM's limit. TGI and Friendli have none.
- `xtc_threshold` and `xtc_probability`: exclude top choices.
- `bad_word_tokens`: sequences of token ids that the output never holds.
- `no_repeat_ngram`: an n-gram of tokens occurs at most once in prompt and output.
- `watermark`: marks generated text, and detects the mark.
"""

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Self

import torch
from transformers import TypicalLogitsWarper

from app.internal_api import BAD_WORD_SEPARATOR, Xarg
from deployments.engine.logits.processor import SamplingRequest, forbid, forbid_tensor

TYPICAL_P = Xarg.TYPICAL_P


class TypicalP:
    """Drops atypical tokens; at least one stays."""

    def __init__(self, mass: float) -> None:
        self._warp = TypicalLogitsWarper(mass)

    @classmethod
    def from_request(cls, request: SamplingRequest) -> Self | None:
        mass = request.number(TYPICAL_P)
        if mass is not None and not 0 < mass <= 1:
            raise ValueError(f"{TYPICAL_P} must be above 0 and at most 1, got {mass:g}")
        return cls(mass) if mass is not None and mass < 1 and not request.is_greedy else None

    def __call__(self, scores: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        scores.copy_(self._warp(None, scores[None])[0])


# Friendli's, to score given answers: vLLM's logprobs are the model's own. The tokens after the last of them are free,
# and an end-of-sequence token among them ends the output: `max_tokens` and `ignore_eos` are up to the caller.

FORCED_OUTPUT_TOKENS = Xarg.FORCED_OUTPUT_TOKENS


class ForcedOutputTokens:
    """Allows one token only. It is applied last and overrides what the others forbid."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    @classmethod
    def from_request(cls, request: SamplingRequest) -> Self | None:
        ids = request.token_ids(FORCED_OUTPUT_TOKENS)
        if ids and request.is_structured:
            raise ValueError(
                f"{FORCED_OUTPUT_TOKENS} cannot be combined with a structured output: its grammar chooses the tokens"
            )
        return cls(ids) if ids else None

    def __call__(self, scores: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        if len(output) < len(self._ids) and (token := self._ids[len(output)]) < len(scores):
            scores.fill_(-torch.inf)
            scores[token] = 0.0


# The request's own temperature is 2, so vLLM has divided the scores by 2, after the penalties; the rest is done here.
# vLLM's min_p acts in between: a caller that sends both raises min_p to the power of temperature / 2, which is the
# same.

TEMPERATURE = Xarg.TEMPERATURE
LIMIT = 2.0


class Temperature:
    """Divides scores that are already divided by LIMIT."""

    def __init__(self, temperature: float) -> None:
        self._rest = temperature / LIMIT

    @classmethod
    def from_request(cls, request: SamplingRequest) -> Self | None:
        temperature = request.number(TEMPERATURE)
        if temperature is None:
            return None
        if temperature <= LIMIT:
            raise ValueError(f"{TEMPERATURE} among the vllm_xargs must be above {LIMIT:g}, got {temperature:g}")
        if request.temperature != LIMIT:
            own = f"{request.temperature:g}"
            raise ValueError(
                f"{TEMPERATURE} among the vllm_xargs needs {LIMIT:g} as the request's temperature, got {own}"
            )
        return cls(temperature)

    def __call__(self, scores: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        scores.div_(self._rest)


# Friendli's semantics: with this probability, at each token, every choice whose probability is the threshold or more is
# dropped except the least likely of them. A single such choice stays.


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


# Friendli's semantics: if the output ends in a sequence's ids but the last, the last one is forbidden. A single id
# always is. On the wire the sequences are concatenated with -1 between them.

BAD_WORD_TOKENS = Xarg.BAD_WORD_TOKENS


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
        ids = request.token_ids(BAD_WORD_TOKENS, separator=BAD_WORD_SEPARATOR)
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
        raise ValueError(
            f"{BAD_WORD_TOKENS} holds an empty sequence: {BAD_WORD_SEPARATOR} goes between two sequences only"
        )
    return sequences


# Friendli's `no_repeat_ngram`, Hugging Face's `no_repeat_ngram_size`. Repetitions within the prompt do not matter.

NO_REPEAT_NGRAM = Xarg.NO_REPEAT_NGRAM
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
        n = request.integer(NO_REPEAT_NGRAM)
        if n is not None and n < 1:
            raise ValueError(f"{NO_REPEAT_NGRAM} must be at least 1, got {n}")
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


# Kirchenbauer et al., "A Watermark for Large Language Models", with the parameters and the seed of TGI's
# `watermark.py`: the token before chooses a random half of the vocabulary, the green list, whose raw scores gain 2. In
# text without the mark about every second token is green; marked text has more. transformers' `WatermarkDetector` finds
# the mark too, with `WatermarkingConfig(greenlist_ratio=0.5, bias=2.0, hashing_key=15485863,
# seeding_scheme="lefthash")` on the CPU.

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
