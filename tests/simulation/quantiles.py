"""Quantiles of TTFT: how often the shift's confidence sequence excludes 0 without a difference, and how often it misses
the true one where users come and go.
"""

import math
from concurrent.futures import Executor
from functools import partial

import numpy as np

from app.experiments.statistics.look import Estimate, UnitSums, look
from app.experiments.statistics.quantile import QuantileEstimate, quantile_shift
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
            rejected |= result.log_e_value(effect=EFFECT, alpha=ALPHA) >= math.log(1 / ALPHA)
            peeked |= abs(result.z) > NOMINAL
    return rejected, peeked


LEAVING = World(
    "log_ttft", requests=10_000, users=3_000, shares=(0.05, 0.25, 0.5), effect=0.9, stay=0.3, prompt_strata=True
)
"""Users come and go while a ramp grows. Its first looks have few units of the treatment in many strata."""


def misses(p: float | None, rng: np.random.Generator) -> bool:
    """Whether any look's interval misses the true effect: of quantile `p`, or of the geometric mean."""
    traffic, truth = draw(LEAVING, rng), math.log(LEAVING.effect)
    for end in np.geomspace(LEAVING.requests / 40, LEAVING.requests, LOOKS):
        now = slice(0, round(end))
        x, unit, stratum, arm = traffic.x[now], traffic.unit[now], traffic.stratum[now], traffic.arm[now]
        known: Estimate | QuantileEstimate | None
        if p is None:
            ones = np.ones(len(x))
            known = look(UnitSums(unit, stratum, arm, ones, x, ones), "difference")
        else:
            known = quantile_shift(x, unit, stratum, arm, p)
        interval = None if known is None else known.interval(effect=EFFECT, alpha=ALPHA)
        if interval is not None and not interval.lower <= truth <= interval.upper:
            return True
    return False


def _misses_part(p: float | None, seeds: range) -> int:
    return sum(misses(p, generator(f"leaving {p}", seed)) for seed in seeds)


def coverage(executor: Executor, p: float | None, count: int) -> float:
    """The share of `count` runs in which every look's interval holds the true effect."""
    return 1 - sum(spread(executor, partial(_misses_part, p), count)) / count


def _part(name: str, seeds: range) -> list[tuple[bool, bool]]:
    world, p, _ = ROWS[name]
    return [run(world, p, generator(name, seed)) for seed in seeds]


def rejections(executor: Executor, name: str, count: int) -> tuple[float, float]:
    """The shares of `count` runs that reject: by the confidence sequence, and by |z| at any look."""
    sequence, peeked = np.concatenate(spread(executor, partial(_part, name), count)).mean(axis=0)
    return float(sequence), float(peeked)
