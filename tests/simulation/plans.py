"""The planner's promise: with the units that it asks for, 80 % of experiments reach a verdict."""

import math
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np

from app.experiments.statistics.planner import information_needed, units_needed
from tests.simulation.looks import found, runs, spaced
from tests.simulation.pool import spread
from tests.simulation.worlds import World

EFFECT = 0.1
SIGMA = 0.7


@dataclass(frozen=True)
class Promise:
    units: int
    power: float
    """The share of runs with a verdict by then."""
    half: float
    """The median of the units until the verdict, as a share of the plan."""
    false: float
    """The share of runs without an effect in which one is found."""


def _world(effect: float, units: int) -> World:
    return World(
        "log_ttft", requests=units, users=None, effect=effect, user_sd=0.0, noise=SIGMA, prompt_slope=0.0, wave=0.0
    )


def _part(effect: float, units: int, seeds: range) -> np.ndarray:
    estimates = runs(_world(effect, units), spaced(units), f"plan {effect}", seeds).single
    return found(estimates, EFFECT)


def promise(executor: Executor, count: int) -> Promise:
    """The promise for a lift and minimal effect of 10 % with an even split, from `count` runs with the effect and as
    many without."""
    delta = math.log1p(EFFECT)
    units = units_needed(information_needed(delta, alpha=0.05, power=0.8), SIGMA, 0.5)
    real, none = (
        np.concatenate(spread(executor, partial(_part, effect, units), count)) for effect in (1 + EFFECT, 1.0)
    )
    first = np.where(real.any(axis=1), np.array(spaced(units))[real.argmax(axis=1)], math.inf)
    power, false = (float(hits.any(axis=1).mean()) for hits in (real, none))
    return Promise(units, power, float(np.median(first)) / units, false)
