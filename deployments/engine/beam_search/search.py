"""What all searches are made of: beams, how they end, and one step from what the model says to what may follow."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from deployments.engine.beam_search.scoring import Continuations, NextToken, Scoring
from deployments.engine.beam_search.settings import Settings, Tokens


class FinishReason(StrEnum):
    """Why a beam does not go on."""

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    EXHAUSTED = "exhausted"
    """Every token that could follow is ruled out."""


@dataclass(frozen=True, slots=True)
class BeamStep:
    """What the model said where a token was chosen: its log-probability, and the favourites with theirs."""

    logprob: float
    favourites: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Beam:
    """An answer as far as it goes. `score` is the sum of its tokens' scores.

    Once it has an `ending` it goes no further; its last `closing` tokens are what ended it. `perturbed` is of the
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
        self._held: Sequence[Beam] = ()  # ended, but among the active beams still

    def needed(self, beam: Beam) -> int | None:
        """How many of the likeliest tokens after `beam` `advance` has to know; None: all of them."""
        return self._scoring.needed(beam.tokens)

    @abstractmethod
    def advance(self, next_tokens: Sequence[NextToken]) -> None:
        """One token further, by the model's word on what follows each of `live`."""

    @abstractmethod
    def results(self) -> list[Beam]:
        """At most `width` ended beams, the most valuable first."""

    def value(self, beam: Beam) -> float:
        """What beams are compared by in the end."""
        return self._settings.value(beam.score, len(beam.tokens))

    def _continuations(self, next_tokens: Sequence[NextToken]) -> list[Continuations]:
        """What may follow each of `live`. A beam that nothing may follow ends there, and is held."""
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
    """Gumbel noise, one for each of `ids`, in whatever order they come: near ties in a ranking do not move it."""
    noise = np.empty(len(ids))
    noise[np.argsort(ids)] = random.gumbel(size=len(ids))
    return noise
