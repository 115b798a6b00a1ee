"""Beam search without an engine: numpy in, numpy out; no I/O, no clock, no randomness but the generator it is given.

    search = start(settings, prompt, random)
    while search.live:
        search.advance([next_token(beam.tokens, search.needed(beam)) for beam in search.live])
    search.results()

`settings` holds the parameters, `scoring` decides which tokens may follow a beam and with what score, `ranked` and
`stochastic` which beams survive a step.
"""

from collections.abc import Sequence

import numpy as np

from deployments.engine.beam_search.kinds import RankedSearch, StochasticSearch
from deployments.engine.beam_search.search import Kind, Search, Settings


def start(settings: Settings, prompt: Sequence[int], random: np.random.Generator) -> Search:
    """A search for answers to `prompt`, which is token ids."""
    kind = StochasticSearch if settings.kind is Kind.STOCHASTIC else RankedSearch
    return kind(settings, prompt, random)
