"""Beam searches without an engine, on models that are functions."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.engine.beam_search import NextToken, Search, Settings, start

Model = Callable[[Sequence[int]], NDArray[np.float64]]
"""The log-probabilities of all tokens after an answer."""


def made_up_model(vocabulary: int, seed: int, spread: float = 2.0) -> Model:
    """A different distribution after every answer; `spread` is the standard deviation of its logits."""

    def logprobs(answer: Sequence[int]) -> NDArray[np.float64]:
        logits = spread * np.random.default_rng([seed, *answer]).normal(size=vocabulary)
        return normalised(logits)

    return logprobs


def normalised(logits: Any) -> NDArray[np.float64]:
    """Log-probabilities."""
    values = np.asarray(logits, dtype=np.float64)
    level: NDArray[np.float64] = values - np.log(np.exp(values - values.max()).sum()) - values.max()
    return level


def said(logprobs: NDArray[np.float64], count: int | None = None) -> NextToken:
    """The `count` likeliest tokens, or all."""
    ids = np.argsort(-logprobs, kind="stable")[:count]
    return NextToken(ids, logprobs[ids])


def searched(
    model: Model, settings: Settings, prompt: Sequence[int] = (), *, seed: int = 0, tell_all: bool = False
) -> Search:
    """A search that is over."""
    search = start(settings, prompt, np.random.default_rng(seed))
    while search.live:
        counts = [None if tell_all else search.needed(beam) for beam in search.live]
        pairs = zip(search.live, counts, strict=True)
        search.advance([said(model(beam.tokens), count) for beam, count in pairs])
    return search


def answers(search: Search) -> list[tuple[int, ...]]:
    """What was found, the best first."""
    return [beam.tokens for beam in search.results()]
