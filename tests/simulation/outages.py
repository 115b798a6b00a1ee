"""Outages of a few minutes, and absolute limits: one of both arms is no alarm, one of the treatment alone is."""

import math
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from app.experiments.analysis.unit_events import UnitExposures, UnitTrials
from app.experiments.analysis.witnesses import UNBOUNDED
from app.experiments.statistics.events import alarm_at
from tests.simulation.pool import generator, spread

ALPHA, LIMIT = 0.01, 0.02
USUALLY_FAILS = 0.003
START_S, LASTS_S, UNTIL_S = 2_400.0, 180.0, 10_800.0
"""Of the outage, and of the run: three minutes, and more than two hours after them."""


@dataclass(frozen=True)
class Outage:
    """A request a second, of which all fail while the outage lasts."""

    name: str
    share: float
    """The treatment's, of the users."""
    users: int | None = None
    """None: each request is a new user's."""
    both: bool = True
    """Of both arms, or of the treatment alone."""

    def alarmed(self, seed: int) -> tuple[float, float]:
        """The treatment's requests from the start of the outage until the alarm, and the seconds; inf without one."""
        rng = generator(self.name, seed)
        count = rng.poisson(UNTIL_S)
        at = np.sort(rng.random(count)) * UNTIL_S
        unit = np.arange(count) if self.users is None else rng.integers(0, self.users, count)
        arm = (rng.random(int(unit.max()) + 1) < self.share).astype(np.int8)[unit]
        fails = (at >= START_S) & (at < START_S + LASTS_S) & (self.both | (arm == 1))
        hit = rng.random(count) < np.where(fails, 1.0, USUALLY_FAILS)
        trials, turn = UnitTrials(LIMIT, 1, ALPHA), np.zeros(count, np.uint16)
        soon, later = START_S + np.arange(0.0, 400.0), np.arange(START_S + 400.0, UNTIL_S, 40.0)
        ends = np.concatenate([np.arange(0.0, START_S, 300.0), soon, later])
        for begin, end in pairwise(ends):
            now = slice(*np.searchsorted(at, [begin, end]))
            came, part = np.full(len(at[now]), end), np.full(len(at[now]), UNBOUNDED, np.int8)
            columns = (unit[now].astype(np.uint64), at[now], hit[now], turn[now], came, part, part != UNBOUNDED)
            trials.add(UnitExposures(*columns), arm[now])
            if trials.course.top >= alarm_at(ALPHA) and not trials.control_is_above:
                return float(((at >= START_S) & (at < end) & (arm == 1)).sum()), float(end - START_S)
        return math.inf, math.inf


OF_BOTH = (
    Outage("both arms, 50 %", 0.5),
    Outage("both arms, 50 %, 200 users who return", 0.5, 200),
    Outage("both arms, 90 %", 0.9),
    Outage("both arms, 10 %, 200 users who return", 0.1, 200),
)
OF_ONE = (
    Outage("the treatment, 50 %", 0.5, both=False),
    Outage("the treatment, 50 %, 200 users who return", 0.5, 200, both=False),
    Outage("the treatment, 90 %", 0.9, both=False),
    Outage("the treatment, 10 %", 0.1, both=False),
)


def _part(outage: Outage, seeds: range) -> list[tuple[float, float]]:
    return [outage.alarmed(seed) for seed in seeds]


def alarms(executor: Executor, outage: Outage, count: int) -> tuple[float, float]:
    """The share of `count` runs with an alarm, and the median of the treatment's requests until it."""
    requests = np.concatenate(spread(executor, partial(_part, outage), count))[:, 0]
    return float(np.isfinite(requests).mean()), float(np.median(requests))
