"""The tokens that may follow a beam, and their scores.

The order is transformers': penalties and bans act on log-probabilities, then temperature, top_k and top_p where the
search draws. Scores are not normalised again, except for the stochastic search, whose beams are probabilities.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.engine.beam_search.settings import Kind, Settings, Tokens

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
        found = Continuations(ids[order], scores[order], logprobs[order])
        if self._settings.samples:
            found = self._warped(found)
        if self._settings.kind is Kind.STOCHASTIC and len(found.scores):
            found = Continuations(found.ids, found.scores - _logsumexp(found.scores), found.logprobs)
        return found

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

    def _warped(self, found: Continuations) -> Continuations:
        settings = self._settings
        found = Continuations(found.ids, found.scores / settings.temperature, found.logprobs)
        if settings.top_k:
            found = found.only(slice(max(settings.top_k, self._keeps)))
        if settings.top_p < 1 and len(found.scores):
            mass = np.exp(found.scores - _logsumexp(found.scores))
            before = np.cumsum(mass) - mass
            before[: self._keeps] = 0
            found = found.only(before < settings.top_p)
        return found


def _ends_with(tokens: Tokens, ending: Tokens) -> bool:
    return not ending or tokens[-len(ending) :] == ending


def _logsumexp(values: Floats) -> float:
    highest = values.max()
    return float(highest + np.log(np.exp(values - highest).sum()))
