"""Beam search and its naive sampling, step by step as in transformers 5 (`GenerationMixin._beam_search`).

Stochastic beam search: W. Kool, H. van Hoof, M. Welling, "Stochastic Beams and Where to Find Them", ICML 2019.
"""

from collections.abc import Sequence

import numpy as np

from deployments.engine.beam_search.search import (
    Beam,
    Continuations,
    FinishReason,
    Floats,
    Kind,
    NextToken,
    Search,
    drawn_by_id,
)


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
