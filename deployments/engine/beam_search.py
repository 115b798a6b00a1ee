"""Beam search without an engine: numpy in, numpy out; no I/O, no clock, no randomness but the generator it is given.

    search = start(settings, prompt, random)
    while search.live:
        search.advance([next_token(beam.tokens, search.needed(beam)) for beam in search.live])
    search.results()

`Settings` holds the parameters, `Scoring` decides which tokens may follow a beam and with what score, `RankedSearch`
and `StochasticSearch` which beams survive a step.

- Beam search and its naive sampling, step by step as in transformers 5 (`GenerationMixin._beam_search`).
- Stochastic beam search: W. Kool, H. van Hoof, M. Welling, "Stochastic Beams and Where to Find Them", ICML 2019.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


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


# The order is transformers': penalties and bans act on log-probabilities, then temperature, top_k and top_p where the
# search draws. Scores are not normalised again, except for the stochastic search, whose beams are probabilities.

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class NextToken:
    """The model's output after a beam: ids and log-probabilities, the likeliest first, all or the top ones."""

    ids: Ids
    logprobs: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Continuations:
    """The continuations of a beam, the best first: ids, scores, and the model's log-probabilities."""

    ids: Ids
    scores: Floats
    logprobs: Floats

    def only(self, which: slice | NDArray[Any]) -> "Continuations":
        """A selection."""
        return Continuations(self.ids[which], self.scores[which], self.logprobs[which])


class Scoring:
    """The rules of `settings` for answers to `prompt`."""

    def __init__(self, settings: Settings, prompt: Sequence[int]) -> None:
        self._settings = settings
        self._prompt = np.asarray(prompt, dtype=np.int64)
        self._in_prompt = np.unique(self._prompt)
        self._penalises = settings.frequency_penalty != 0 or settings.presence_penalty != 0
        self._raises = (
            settings.repetition_penalty < 1 or settings.frequency_penalty < 0 or settings.presence_penalty < 0
        )
        # transformers keeps this many through top_k and top_p, so that a beam is not left with its end alone.
        self._keeps = 1 + len(settings.eos) if settings.kind is Kind.NAIVE_SAMPLING else 1

    def needed(self, answer: Tokens) -> int | None:
        """The number of likeliest tokens that decide what follows `answer`; None: the whole vocabulary."""
        settings = self._settings
        if (settings.samples and settings.top_k == 0) or self._raises:
            return None
        wanted = max(settings.top_k, self._keeps) if settings.samples else settings.breadth
        displaced = len(self._banned(answer)) + len(self._lowered(answer))
        return max(wanted + displaced, settings.top_logprobs or 0)

    def continuations(self, answer: Tokens, next_token: NextToken) -> Continuations:
        """The continuations of `answer`, the best first."""
        allowed = np.isfinite(next_token.logprobs) & ~np.isin(next_token.ids, self._banned(answer))
        ids, logprobs = next_token.ids[allowed], next_token.logprobs[allowed]
        scores = self._penalised(answer, ids, logprobs)
        order = np.argsort(-scores, kind="stable")
        continuations = Continuations(ids[order], scores[order], logprobs[order])
        if self._settings.samples:
            continuations = self._warped(continuations)
        if self._settings.kind is Kind.STOCHASTIC and len(continuations.scores):
            continuations = Continuations(
                continuations.ids, continuations.scores - _logsumexp(continuations.scores), continuations.logprobs
            )
        return continuations

    def _banned(self, answer: Tokens) -> list[int]:
        settings = self._settings
        last = [sequence[-1] for sequence in settings.forbidden if _ends_with(answer, sequence[:-1])]
        if len(answer) < settings.min_tokens:
            last += settings.eos
            last += [sequence[-1] for sequence in settings.stops if _ends_with(answer, sequence[:-1])]
        return last + self._repeating(answer)

    def _repeating(self, answer: Tokens) -> list[int]:
        n = self._settings.no_repeat_ngram
        text = np.concatenate([self._prompt, np.asarray(answer, dtype=np.int64)])
        if n < 2 or len(text) < n:
            return []
        ngrams = np.lib.stride_tricks.sliding_window_view(text, n)
        same_beginning = (ngrams[:, :-1] == text[len(text) - n + 1 :]).all(axis=1)
        return [int(token) for token in np.unique(ngrams[same_beginning, -1])]

    def _lowered(self, answer: Tokens) -> set[int]:
        """The tokens that penalties apply to."""
        lowered = set(answer) if self._penalises or self._settings.repetition_penalty != 1 else set()
        return lowered | set(self._in_prompt.tolist()) if self._settings.repetition_penalty != 1 else lowered

    def _penalised(self, answer: Tokens, ids: Ids, logprobs: Floats) -> Floats:
        settings, scores = self._settings, logprobs.copy()
        if settings.repetition_penalty != 1:
            scores[np.isin(ids, self._in_prompt) | np.isin(ids, answer)] *= settings.repetition_penalty
        if self._penalises:
            said, counts = np.unique(np.asarray(answer, dtype=np.int64), return_counts=True)
            for token, count in zip(said, counts, strict=True):
                scores[ids == token] -= settings.frequency_penalty * count + settings.presence_penalty
        return scores

    def _warped(self, continuations: Continuations) -> Continuations:
        settings = self._settings
        continuations = Continuations(
            continuations.ids, continuations.scores / settings.temperature, continuations.logprobs
        )
        if settings.top_k:
            continuations = continuations.only(slice(max(settings.top_k, self._keeps)))
        if settings.top_p < 1 and len(continuations.scores):
            mass = np.exp(continuations.scores - _logsumexp(continuations.scores))
            before = np.cumsum(mass) - mass
            before[: self._keeps] = 0
            continuations = continuations.only(before < settings.top_p)
        return continuations


def _ends_with(tokens: Tokens, ending: Tokens) -> bool:
    return not ending or tokens[-len(ending) :] == ending


def _logsumexp(values: Floats) -> float:
    highest = values.max()
    return float(highest + np.log(np.exp(values - highest).sum()))


class FinishReason(StrEnum):
    """The reason why a beam ended."""

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    EXHAUSTED = "exhausted"
    """No token may follow: all are forbidden."""


@dataclass(frozen=True, slots=True)
class BeamStep:
    """The model's output at one token: its log-probability, and the likeliest tokens with theirs."""

    logprob: float
    favourites: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Beam:
    """An answer as far as it goes. `score` is the sum of its tokens' scores.

    Once it has an `ending` it is not continued; its last `closing` tokens are what ended it. `perturbed` is of the
    stochastic search: the highest perturbed log-probability among all the answers that begin with this beam.
    """

    tokens: Tokens = ()
    score: float = 0.0
    steps: tuple[BeamStep, ...] = ()
    perturbed: float = 0.0
    ending: FinishReason | None = None
    closing: int = 0


class Search(ABC):
    """A search in progress. `live` are the beams to be continued; once there are none, it is over."""

    def __init__(self, settings: Settings, prompt: Sequence[int], random: np.random.Generator) -> None:
        self.live: Sequence[Beam] = (Beam(),)
        self._settings = settings
        self._scoring = Scoring(settings, prompt)
        self._random = random
        self._held: Sequence[Beam] = ()  # ended, but still among the active beams

    def needed(self, beam: Beam) -> int | None:
        """The number of likeliest tokens after `beam` that `advance` needs; None: all of them."""
        return self._scoring.needed(beam.tokens)

    @abstractmethod
    def advance(self, next_tokens: Sequence[NextToken]) -> None:
        """Advances by one token, given the model's output after each of `live`."""

    @abstractmethod
    def results(self) -> list[Beam]:
        """At most `width` ended beams, the most valuable first."""

    def value(self, beam: Beam) -> float:
        """The value by which finished beams are ranked."""
        return self._settings.value(beam.score, len(beam.tokens))

    def _continuations(self, next_tokens: Sequence[NextToken]) -> list[Continuations]:
        """The continuations of each of `live`. A beam without any ends, and is held."""
        pairs = zip(self.live, next_tokens, strict=True)
        continuations = [self._scoring.continuations(beam.tokens, next_token) for beam, next_token in pairs]
        stuck = (
            beam for beam, continuations in zip(self.live, continuations, strict=True) if not len(continuations.ids)
        )
        self._held = [*self._held, *(replace(beam, ending=FinishReason.EXHAUSTED) for beam in stuck)]
        return continuations

    def _extended(self, beam: Beam, token: int, score: float, step: BeamStep, perturbed: float = 0.0) -> Beam:
        tokens = (*beam.tokens, token)
        ending, closing = self._ending(tokens)
        return Beam(tokens, score, (*beam.steps, step), perturbed, ending, closing)

    def _ending(self, tokens: Tokens) -> tuple[FinishReason | None, int]:
        if tokens[-1] in self._settings.eos:
            return FinishReason.EOS, 1
        for stop in self._settings.stops:
            if tokens[-len(stop) :] == stop:
                return FinishReason.STOP, len(stop)
        return (FinishReason.LENGTH if len(tokens) == self._settings.max_tokens else None), 0

    def _step(self, next_token: NextToken, logprob: float) -> BeamStep:
        count = self._settings.top_logprobs or 0
        favourites = zip(next_token.ids[:count].tolist(), next_token.logprobs[:count].tolist(), strict=True)
        return BeamStep(logprob, tuple(favourites))


def drawn_by_id(random: np.random.Generator, ids: np.ndarray) -> np.ndarray:
    """Gumbel noise for each of `ids`, independent of their order, which near ties can change."""
    noise = np.empty(len(ids))
    noise[np.argsort(ids)] = random.gumbel(size=len(ids))
    return noise


class RankedSearch(Search):
    """DETERMINISTIC chooses the best continuations of all beams, NAIVE_SAMPLING draws them.

    More than `width` are chosen. The first `width` of them may end an answer by eos; the best `width` of those that
    eos does not end are the active beams of the next step. One that contains a stop is held among them: it keeps its
    place until better ones push it out.
    """

    _finished: Sequence[Beam] = ()

    def advance(self, next_tokens: Sequence[NextToken]) -> None:
        width = self._settings.width
        is_last = len(self.live[0].tokens) + 1 == self._settings.max_tokens
        chosen = self._chosen(self._continuations(next_tokens), next_tokens)
        self._finish([beam for beam in chosen[:width] if beam.ending is FinishReason.EOS or (beam.ending and is_last)])
        active = [] if is_last else [beam for beam in chosen if beam.ending is not FinishReason.EOS]
        active = sorted(active, key=lambda beam: beam.score, reverse=True)[:width]
        self.live = [beam for beam in active if beam.ending is None]
        self._held = [beam for beam in active if beam.ending is not None]
        if self._is_over():
            self._finish(self._held)
            self.live, self._held = (), ()

    def results(self) -> list[Beam]:
        return list(self._finished)

    def _chosen(self, continuations: Sequence[Continuations], next_tokens: Sequence[NextToken]) -> list[Beam]:
        """The chosen beams, in order. Held beams compete unchanged."""
        scores = [
            beam.score + continuations.scores for beam, continuations in zip(self.live, continuations, strict=True)
        ]
        first = np.cumsum([0, *(len(part) for part in scores)])
        everything = np.concatenate([*scores, [beam.score for beam in self._held]])
        chosen = []
        for place in self._order(everything, continuations):
            if place >= first[-1]:
                chosen.append(self._held[place - first[-1]])
                continue
            parent = int(np.searchsorted(first, place, side="right")) - 1
            which = place - first[parent]
            step = self._step(next_tokens[parent], float(continuations[parent].logprobs[which]))
            token = int(continuations[parent].ids[which])
            chosen.append(self._extended(self.live[parent], token, float(everything[place]), step))
        return chosen

    def _order(self, scores: Floats, continuations: Sequence[Continuations]) -> np.ndarray:
        """Places in `scores`: those of all continuations, then those of held beams."""
        keys = scores
        if self._settings.kind is Kind.NAIVE_SAMPLING:
            # The highest log-weights with Gumbel noise are a draw without replacement, in drawing order.
            keys = scores + np.concatenate([*self._noise(continuations), self._random.gumbel(size=len(self._held))])
        count = min(self._settings.breadth, len(keys))
        highest = np.argpartition(-keys, count - 1)[:count]
        return highest[np.argsort(-keys[highest], kind="stable")]

    def _noise(self, continuations: Sequence[Continuations]) -> list[Floats]:
        """Gumbel noise for the continuations of each live beam, drawn in an order that near ties do not change."""
        noise: list[Floats] = [np.empty(0)] * len(continuations)
        for place in sorted(range(len(continuations)), key=lambda place: self.live[place].tokens):
            noise[place] = drawn_by_id(self._random, continuations[place].ids)
        return noise

    def _finish(self, beams: Sequence[Beam]) -> None:
        best_first = sorted([*self._finished, *beams], key=self.value, reverse=True)
        self._finished = best_first[: self._settings.width]

    def _is_over(self) -> bool:
        if not self.live:
            return True
        if len(self._finished) < self._settings.width:
            return False
        # A width of one is greedy search, which ends with its first eos, in transformers too.
        if self._settings.early_stopping is True or self._settings.width == 1:
            return True
        return max(self._promise(beam) for beam in (*self.live, *self._held)) <= self.value(self._finished[-1])

    def _promise(self, beam: Beam) -> float:
        """transformers' estimate of the best score that a beam can reach: its score at the present length, or at full
        length.
        """
        settings = self._settings
        at_full_length = settings.early_stopping == "never" and settings.length_penalty > 0 and beam.ending is None
        return settings.value(beam.score, settings.max_tokens if at_full_length else len(beam.tokens))


# Every answer has a log-probability; with Gumbel noise on each, the `width` highest are a sample of answers without
# replacement. The search finds them without looking at all answers: a beam carries the highest perturbed
# log-probability below it, and its continuations' are drawn under the condition that this is their maximum.
#
# The root's maximum is 0 instead of drawn, as in the paper: which answers are the highest does not depend on it.


class StochasticSearch(Search):
    """The active beams are those with the highest perturbed log-probability; it is over when all have ended."""

    def advance(self, next_tokens: Sequence[NextToken]) -> None:
        active = [*self._continued(next_tokens), *self._held]
        active = sorted(active, key=lambda beam: beam.perturbed, reverse=True)[: self._settings.width]
        self.live = [beam for beam in active if beam.ending is None]
        self._held = [beam for beam in active if beam.ending is not None]

    def results(self) -> list[Beam]:
        return sorted(self._held, key=self.value, reverse=True)

    def _continued(self, next_tokens: Sequence[NextToken]) -> list[Beam]:
        """The best continuations of each live beam: no more than `width` of them can stay."""
        continued = []
        for beam, continuations, next_token in zip(
            self.live, self._continuations(next_tokens), next_tokens, strict=True
        ):
            if not len(continuations.ids):
                continue
            scores = beam.score + continuations.scores
            perturbed = with_maximum(scores + drawn_by_id(self._random, continuations.ids), beam.perturbed)
            for which in np.argsort(-perturbed, kind="stable")[: self._settings.width]:
                step = self._step(next_token, float(continuations.logprobs[which]))
                token, score = int(continuations.ids[which]), float(scores[which])
                continued.append(self._extended(beam, token, score, step, float(perturbed[which])))
        return continued


def with_maximum(gumbels: Floats, maximum: float) -> Floats:
    """Independent Gumbels, conditioned on `maximum` (the paper's equation 23, numerically stable as in its B.3).

    The order stays; the highest becomes `maximum`.
    """
    highest = gumbels.max()
    below = gumbels < highest
    shifted = np.full(len(gumbels), maximum)
    v = maximum - gumbels[below] + _log1mexp(gumbels[below] - highest)
    shifted[below] = maximum - np.maximum(0, v) - np.log1p(np.exp(-np.abs(v)))
    return shifted


def _log1mexp(x: Floats) -> Floats:
    """log(1 - exp(x)) for x < 0, by the one of two formulas that loses nothing there."""
    near, far = np.maximum(x, -np.log(2)), np.minimum(x, -np.log(2))
    return np.where(x > -np.log(2), np.log(-np.expm1(near)), np.log1p(-np.exp(far)))


def start(settings: Settings, prompt: Sequence[int], random: np.random.Generator) -> Search:
    """A search for answers to `prompt`, which is token ids."""
    kind = StochasticSearch if settings.kind is Kind.STOCHASTIC else RankedSearch
    return kind(settings, prompt, random)
