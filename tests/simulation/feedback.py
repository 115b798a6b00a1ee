"""Delayed feedback: arms whose users are equally content, but give feedback at different speeds. Discontent users do so
sooner than content ones, and the treatment's users twice as fast as control's. The feedback that has arrived at a look
is then not a fair sample of all feedback, but that on exposures older than the window is.
"""

from concurrent.futures import Executor
from functools import partial

import numpy as np

from app.experiments.statistics.look import UnitSums, look
from tests.simulation.looks import Estimates, found
from tests.simulation.pool import generator, spread

WINDOW_S = 4 * 3_600.0
LASTS_S = 8 * 3_600.0
LOOKS = 60
USERS = 2_000
REQUESTS = 22_000
MINIMAL_EFFECT = 0.05
CONTENT_S = 2_400.0
DISCONTENT_S = 300.0
"""The mean time until control's users give feedback, in seconds."""


def run(matured: bool, rng: np.random.Generator) -> np.ndarray:
    """(est, se, nu) at each look of one run, counting exposures once matured, or feedback at once."""
    unit = rng.integers(0, USERS, REQUESTS)
    arm = (rng.random(USERS) < 0.5).astype(np.intp)[unit]
    at = np.sort(rng.random(REQUESTS)) * LASTS_S
    content = rng.random(REQUESTS) < np.clip(0.7 + rng.normal(0, 0.1, USERS)[unit], 0, 1)
    answers = rng.random(REQUESTS) < 0.5
    delay = rng.exponential(np.where(content, CONTENT_S, DISCONTENT_S)) * np.where(arm == 1, 0.5, 1.0)
    rows = []
    first = WINDOW_S * 1.05 if matured else LASTS_S / 50
    for now in np.geomspace(first, LASTS_S + WINDOW_S, LOOKS):
        arrived = answers & (delay <= WINDOW_S) & (at + delay <= now) & (at <= now - (WINDOW_S if matured else 0.0))
        ones = np.ones(int(arrived.sum()))
        lines = UnitSums(
            unit[arrived], np.zeros(len(ones), dtype=np.intp), arm[arrived], ones, content[arrived].astype(float), ones
        )
        result = look(lines, "ratio")
        usable = result is not None and result.enough
        rows.append((result.est, result.se, result.nu) if result and usable else (np.nan,) * 3)
    return np.array(rows)


def _part(matured: bool, seeds: range) -> np.ndarray:
    return np.array([run(matured, generator("feedback", seed)) for seed in seeds])


def false_verdicts(executor: Executor, matured: bool, count: int) -> float:
    """The share of `count` runs without a difference in which one is found."""
    every = np.concatenate(spread(executor, partial(_part, matured), count))
    return float(found(Estimates(*np.moveaxis(every, 2, 0)), MINIMAL_EFFECT).any(axis=1).mean())
