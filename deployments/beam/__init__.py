"""Beam search without an engine: numpy in, numpy out; no I/O, no clock, no randomness but the generator it is given.

    search = start(settings, prompt, random)
    while search.live:
        search.advance([next_token(beam.tokens, search.needed(beam)) for beam in search.live])
    search.results()

`settings` says what is asked, `scoring` which tokens may follow a beam and at what score, `ranked` and `stochastic`
which beams survive a step.
"""

from collections.abc import Sequence

import numpy as np

from deployments.beam.ranked import RankedSearch
from deployments.beam.search import Search
from deployments.beam.settings import Kind, Settings
from deployments.beam.stochastic import StochasticSearch


def start(settings: Settings, prompt: Sequence[int], random: np.random.Generator) -> Search:
    """A search for answers to the token ids of `prompt`."""
    kind = StochasticSearch if settings.kind is Kind.STOCHASTIC else RankedSearch
    return kind(settings, prompt, random)
