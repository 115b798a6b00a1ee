"""Sample ratio: units until the alarm if the treatment loses some of its exposures."""

from concurrent.futures import Executor
from functools import partial

import numpy as np

from app.experiments.statistics.sample_ratio import THRESHOLD, ln_e_of_plan
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
