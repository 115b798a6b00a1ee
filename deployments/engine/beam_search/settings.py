"""The parameters of a beam search."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Kind(StrEnum):
    """The method that chooses the beams that survive a step. The names are Friendli's."""

    DETERMINISTIC = "DETERMINISTIC"
    """The likeliest: transformers' `num_beams`."""
    NAIVE_SAMPLING = "NAIVE_SAMPLING"
    """Drawn from all continuations of all beams: transformers' `num_beams` with `do_sample`."""
    STOCHASTIC = "STOCHASTIC"
    """Whole answers drawn without replacement: Kool et al., "Stochastic Beams and Where to Find Them" (2019)."""


Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """Lengths are in tokens of the answer, the ending token included.

    - `eos` ends a beam. A sequence of `stops` ends one too, but it keeps its place among the `width` active beams: the
      search is over only when all of them contain a stop. Before `min_tokens` neither may occur.
    - `forbidden` sequences never come in the answer; no n-gram of `no_repeat_ngram` tokens (1: off) comes again in
      prompt and answer.
    - `repetition_penalty` multiplies the log-probability of tokens in prompt and answer, as in transformers, which
      hands log-probabilities to it where it searches; `frequency_penalty` (per occurrence) and `presence_penalty` are
      subtracted from the log-probability of tokens in the answer.
    - `temperature` (above 0), `top_k` (0: off) and `top_p` shape what the sampling kinds draw from, in this order;
      DETERMINISTIC leaves them out, as transformers does.
    - A finished beam is worth the sum of its scores divided by length ** `length_penalty`.
    - `early_stopping` as in transformers: True ends the search once `width` beams are finished, "never" only when no
      beam can become better than those, False already when none would be if it ended now. A stochastic search has
      nothing to stop early: it is over when all of its beams have ended.
    - `top_logprobs`: so many of the model's favourites are recorded per token; None records none.
    """

    width: int
    max_tokens: int
    kind: Kind = Kind.DETERMINISTIC
    min_tokens: int = 0
    eos: frozenset[int] = frozenset()
    stops: tuple[Tokens, ...] = ()
    forbidden: tuple[Tokens, ...] = ()
    no_repeat_ngram: int = 1
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    top_logprobs: int | None = None

    @property
    def samples(self) -> bool:
        """Whether the search draws."""
        return self.kind is not Kind.DETERMINISTIC

    @property
    def breadth(self) -> int:
        """The number of continuations that a ranked search considers: enough to keep `width` without all eos ids."""
        return max(2, 1 + len(self.eos)) * self.width

    def value(self, score: float, length: int) -> float:
        """The value of an answer of `length` tokens whose scores sum up to `score`."""
        return score / math.pow(max(length, 1), self.length_penalty)
