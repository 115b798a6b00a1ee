"""Quantiles of TTFT without a difference: how often the shift's confidence sequence excludes 0."""

import math
from concurrent.futures import Executor
from functools import partial

import numpy as np

from app.experiments.statistics.quantile import quantile_shift
from app.experiments.statistics.sequences import effect_size
from tests.simulation.false_positives import NOMINAL
from tests.simulation.pool import generator, spread
from tests.simulation.worlds import RAMP, World, draw

LOOKS = 25
ALPHA = 0.05
EFFECT = effect_size(0.05, "relative")

ROWS: dict[str, tuple[World, float, float]] = {
    "p50, 50/50": (World("log_ttft"), 0.5, 0.005),
    "p95, 50/50": (World("log_ttft"), 0.95, 0.0),
    "p50, ramp": (World("log_ttft", shares=RAMP), 0.5, 0.0),
    "p95, ramp": (World("log_ttft", shares=RAMP), 0.95, 0.005),
}
"""World, quantile, and the design's share."""


def run(world: World, p: float, rng: np.random.Generator) -> tuple[bool, bool]:
    """Whether any look rejects: by the confidence sequence, and by |z|."""
    traffic = draw(world, rng)
    rejected = peeked = False
    for end in np.geomspace(world.requests / 40, world.requests, LOOKS):
        now = slice(0, round(end))
        result = quantile_shift(traffic.x[now], traffic.unit[now], traffic.stratum[now], traffic.arm[now], p)
        if result is not None and result.enough:
            rejected |= result.ln_e(effect=EFFECT, alpha=ALPHA) >= math.log(1 / ALPHA)
            peeked |= abs(result.z) > NOMINAL
    return rejected, peeked


def _part(name: str, seeds: range) -> list[tuple[bool, bool]]:
    world, p, _ = ROWS[name]
    return [run(world, p, generator(name, seed)) for seed in seeds]


def rejections(executor: Executor, name: str, count: int) -> tuple[float, float]:
    """The shares of `count` runs that reject: by the confidence sequence, and by |z| at any look."""
    sequence, peeked = np.concatenate(spread(executor, partial(_part, name), count)).mean(axis=0)
    return float(sequence), float(peeked)
