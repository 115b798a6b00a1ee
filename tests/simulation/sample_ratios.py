"""Sample ratio: units until the alarm if the treatment loses some of its exposures."""

import math
from concurrent.futures import Executor
from functools import partial

import numpy as np

from app.experiments.analysis.evidence.first_seen import FirstSeen
from app.experiments.statistics.sample_ratio import RETURNS, RETURNS_THRESHOLD, THRESHOLD, ln_e_of_plan, ln_e_of_returns
from tests.simulation.pool import generator, spread

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
        alarms = np.flatnonzero(ln_e_of_plan(np.stack([seen - now, now], axis=1), (1 - weight, weight)) >= THRESHOLD)
        if len(alarms):
            return float(seen[alarms[0]])
        treated, begin = now, int(seen[-1])
    return float("inf")


def _part(loss: float, weight: float, seeds: range) -> list[float]:
    return [first_alarm(loss, weight, generator(f"sample ratio {loss} {weight}", seed)) for seed in seeds]


def alarms(executor: Executor, loss: float, weight: float, count: int) -> tuple[float, float]:
    """The median of the units until the alarm, and the share of `count` runs that have one."""
    found = np.concatenate(spread(executor, partial(_part, loss, weight), count))
    return float(np.median(found)), float(np.isfinite(found).mean())


def _alarmed(lost: float, weight: float, shape: float, seeds: range) -> list[bool]:
    return [_returns_alarm(lost, weight, shape, generator(f"returns {lost} {weight}", seed)) for seed in seeds]


def _returns_alarm(lost: float, weight: float, shape: float, rng: np.random.Generator) -> bool:
    """6,000 requests of 500 users; forty looks."""
    users, requests = 500, 6_000
    activity = rng.gamma(shape, size=users)
    user = rng.choice(users, requests, p=activity / activity.sum())
    arm = (rng.random(users) < weight).astype(np.int8)
    user = user[(arm[user] == 0) | (rng.random(requests) >= lost)]
    seen, largest = FirstSeen(arms=2), -math.inf
    for at, part in enumerate(np.array_split(user, 40)):
        zeros = np.zeros(len(part))
        seen.add(part.astype(np.uint64), zeros + at, zeros.astype(np.int32), arm[part])
        largest = max(largest, float(ln_e_of_returns(seen.reached(RETURNS), [(1 - weight, weight)]).max()))
    return largest >= RETURNS_THRESHOLD


def returns(executor: Executor, lost: float, weight: float, shape: float, count: int) -> float:
    """The share of runs with an alarm about users' numbers of requests. `lost`: the share of the treatment's requests
    that are missing; `shape`: of users' activity, as in `World`.
    """
    return float(np.mean(np.concatenate(spread(executor, partial(_alarmed, lost, weight, shape), count))))
