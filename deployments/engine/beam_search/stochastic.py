"""Stochastic beam search: W. Kool, H. van Hoof, M. Welling, "Stochastic Beams and Where to Find Them", ICML 2019.

Every answer has a log-probability; with Gumbel noise on each, the `width` highest are a sample of answers without
replacement. The search finds them without looking at all answers: a beam carries the highest perturbed log-probability
below it, and its continuations' are drawn under the condition that this is their maximum.

The root's maximum is 0 instead of drawn, as in the paper: which answers are the highest does not depend on it.
"""

from collections.abc import Sequence

import numpy as np

from deployments.engine.beam_search.scoring import Floats, NextToken
from deployments.engine.beam_search.search import Beam, Search, drawn_by_id


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
        for beam, found, next_token in zip(self.live, self._continuations(next_tokens), next_tokens, strict=True):
            if not len(found.ids):
                continue
            scores = beam.score + found.scores
            perturbed = with_maximum(scores + drawn_by_id(self._random, found.ids), beam.perturbed)
            for which in np.argsort(-perturbed, kind="stable")[: self._settings.width]:
                step = self._step(next_token, float(found.logprobs[which]))
                token, score = int(found.ids[which]), float(scores[which])
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
