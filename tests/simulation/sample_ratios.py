"""Sample ratio: units until the alarm if the treatment loses some of its exposures."""

import math
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.arms import Arms
from app.experiments.analysis.sample_ratio import SampleRatioWatch
from app.experiments.statistics.events import RETURNS_THRESHOLD, THRESHOLD, log_e_value_of_plan
from app.experiments.storage.columns import Tables
from app.exposures.wire import Plan
from tests.simulation.pool import generator, spread
from tests.support.experiments.world import BLUE, GREEN, config

EVERY = 25
UNITS = 200_000

DESIGN: dict[tuple[float, float], float] = {
    (0.05, 0.05): 118_300,
    (0.05, 0.25): 32_750,
    (0.05, 0.5): 24_450,
    (0.10, 0.05): 32_275,
    (0.10, 0.25): 8_125,
    (0.10, 0.5): 6_150,
    (0.30, 0.01): 15_500,
    (0.30, 0.05): 3_750,
    (0.30, 0.25): 1_250,
    (0.30, 0.5): 950,
}
"""(loss, weight) to the median that the design measured."""


def first_alarm(loss: float, weight: float, rng: np.random.Generator) -> float:
    """The recorded units until the alarm, checked every 25 units; infinite if there is no alarm within 200,000."""
    recorded = weight * (1 - loss) / (1 - weight * loss)
    treated = np.zeros(1)
    begin = 0
    while begin < UNITS:  # in growing parts, since most alarms come early
        steps = min(max(200, begin // EVERY), (UNITS - begin) // EVERY)
        now = treated[-1] + np.cumsum(rng.binomial(EVERY, recorded, steps))
        seen = begin + EVERY * np.arange(1, steps + 1)
        alarms = np.flatnonzero(
            log_e_value_of_plan(np.stack([seen - now, now], axis=1), (1 - weight, weight)) >= THRESHOLD
        )
        if len(alarms):
            return float(seen[alarms[0]])
        treated, begin = now, int(seen[-1])
    return float("inf")


def _part(loss: float, weight: float, seeds: range) -> list[float]:
    return [first_alarm(loss, weight, generator(f"sample ratio {loss} {weight}", seed)) for seed in seeds]


def alarms(executor: Executor, loss: float, weight: float, count: int) -> tuple[float, float]:
    """The median of the units until the alarm, and the share of `count` runs that have one."""
    alarmed = np.concatenate(spread(executor, partial(_part, loss, weight), count))
    return float(np.median(alarmed)), float(np.isfinite(alarmed).mean())


@dataclass(frozen=True)
class Returning:
    """Units that come back: 500 users, forty looks; or conversations of one and, in the mean, three more turns."""

    name: str
    lost: float = 0.0
    """The share of the treatment's requests that are missing."""
    weight: float = 0.5
    """The treatment's, in whole percent."""
    requests: int = 6_000
    activity: float | None = None
    """The shape of users' activity, as in `World`; None: conversations."""
    least: float = 0.0
    most: float = 1.0
    """The bounds of the share of runs with an alarm."""


RETURNING = (
    Returning("users differ most", activity=0.3, most=0.01),
    Returning("users are alike, 5 %", weight=0.05, activity=20.0, most=0.01),
    Returning("conversations", most=0.01),
    Returning("30 % lost, users are alike", lost=0.3, activity=20.0, least=0.95),
    Returning("10 % lost, conversations", lost=0.1, requests=8_000, least=0.85),
    Returning("10 % lost, users are alike", lost=0.1, requests=20_000, activity=20.0, least=0.85),
)


def _requests(world: Returning, rng: np.random.Generator) -> tuple[NDArray[np.intp], int]:
    """The unit of each request in the order of arrival, and the number of units."""
    if world.activity is not None:
        users = 500 * world.requests // 6_000
        activity = rng.gamma(world.activity, size=users)
        return rng.choice(users, world.requests, p=activity / activity.sum()), users
    conversations = world.requests // 4
    turns = 1 + rng.poisson(3, conversations)
    unit = np.repeat(np.arange(conversations), turns)
    return unit[np.argsort(rng.random(conversations)[unit] + 0.01 * rng.random(len(unit)))], conversations


def _is_alarmed(world: Returning, rng: np.random.Generator) -> bool:
    unit, units = _requests(world, rng)
    arm = (rng.random(units) < world.weight).astype(np.int8)
    unit = unit[(arm[unit] == 0) | (rng.random(len(unit)) >= world.lost)]
    tables, share = Tables(), round(100 * world.weight)
    plan = tables.plan(Plan("chat", "0-a", {BLUE: 100 - share, GREEN: share}))
    arms = Arms("green-float32", config().experiments["green-float32"], tables, 0.0)
    watch, largest = SampleRatioWatch(arms, tables, returning=True), -math.inf
    for at, part in enumerate(np.array_split(unit, 40)):
        watch.add(part.astype(np.uint64), np.full(len(part), float(at)), np.full(len(part), plan, np.int32), arm[part])
        largest = max(largest, watch.compare_returns(0.0))
    return largest >= RETURNS_THRESHOLD


def _alarmed(world: Returning, seeds: range) -> list[bool]:
    return [_is_alarmed(world, generator(f"returns {world.name}", seed)) for seed in seeds]


def returns(executor: Executor, world: Returning, count: int) -> float:
    """The share of runs with an alarm about units' numbers of requests."""
    return float(np.mean(np.concatenate(spread(executor, partial(_alarmed, world), count))))
