"""The base of all searches: beams, their ends, and one step from the model's output to the continuations."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from deployments.engine.beam_search.scoring import Continuations, NextToken, Scoring
from deployments.engine.beam_search.settings import Settings, Tokens


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
        found = [self._scoring.continuations(beam.tokens, next_token) for beam, next_token in pairs]
        stuck = (beam for beam, continuations in zip(self.live, found, strict=True) if not len(continuations.ids))
        self._held = [*self._held, *(replace(beam, ending=FinishReason.EXHAUSTED) for beam in stuck)]
        return found

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
