"""A few users with large prompts, which make a quarter of the requests and take longer, where nothing differs. And a
few such requests, where every request is a unit.

In a stratum of their own, each is nearly alone in its arm: what differs between them would not count as variance.
"""

from concurrent.futures import Executor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.cells import within
from app.experiments.statistics.look import Moments, UnitSums, look, look_of_requests, merging
from tests.simulation.looks import Estimates, found
from tests.simulation.pool import generator, spread

REQUESTS, USERS, SHARE = 4_000, 200, 0.25
LARGE = (3, 4, 8, 16, 24)
MINIMAL_EFFECT = 0.05


def _run(large: int, ends: list[int], rng: np.random.Generator, *, merge: bool) -> list[tuple[float, float, float]]:
    arm = rng.integers(0, 2, USERS + large)
    is_large = (np.arange(USERS + large) >= USERS).astype(np.int32)
    usual = np.where(is_large, rng.normal(np.log(2.0), 0.5, len(arm)), rng.normal(np.log(0.3), 0.3, len(arm)))
    by_large = rng.random(REQUESTS) < SHARE
    unit = np.where(by_large, USERS + rng.integers(0, large, REQUESTS), rng.integers(0, USERS, REQUESTS))
    value = usual[unit] + rng.normal(0, 0.4, REQUESTS)
    rows = []
    for end in ends:
        users, n = np.unique(unit[:end], return_counts=True)
        x = np.bincount(unit[:end], value[:end])[users]
        together = np.zeros(len(users), np.int32)
        stratum = within(together, is_large[users], users, arm[users]) if merge else is_large[users]
        now = look(UnitSums(users, stratum, arm[users], n.astype(np.float64), x, n.astype(np.float64)), "difference")
        rows.append((np.nan, np.nan, np.nan) if now is None or not now.enough else (now.est, now.se, now.nu))
    return rows


def _part(large: int, merge: bool, seeds: range) -> NDArray[np.bool_]:
    ends = np.linspace(REQUESTS // 10, REQUESTS, 10).astype(int).tolist()
    runs = [_run(large, ends, generator(f"{large} large users", seed), merge=merge) for seed in seeds]
    return np.asarray(found(Estimates(*np.moveaxis(np.array(runs), 2, 0)), MINIMAL_EFFECT).any(axis=1))


def rejections(executor: Executor, large: int, count: int, *, merge: bool = True) -> float:
    """The share of runs that ever reject "no difference". Without `merge`, each size is a stratum."""
    return float(np.concatenate(spread(executor, partial(_part, large, merge), count)).mean())


def _run_of_requests(rng: np.random.Generator, ends: list[int], *, merge: bool) -> list[tuple[float, float, float]]:
    """Half a percent of the requests have large prompts, and take 60 times as long."""
    is_large = (rng.random(REQUESTS) < 0.005).astype(np.int64)
    cell = 2 * is_large + rng.integers(0, 2, REQUESTS)
    ln = np.log(0.3) + rng.normal(0, 0.4, REQUESTS)
    value = np.exp(ln + is_large * (np.log(60) + rng.normal(0, 1.0, REQUESTS)))
    rows = []
    for end in ends:
        n, x, xx = (np.bincount(cell[:end], value[:end] ** power, 4).reshape(2, 2) for power in (0, 1, 2))
        moments = np.stack([n, x, n, xx, x, n]).astype(np.float64)
        if merge:
            becomes = merging(n.astype(np.float64), np.zeros(2, np.int64))
            moments = np.stack([moments[:, becomes == stratum].sum(axis=1) for stratum in (0, 1)], axis=1)
        now = look_of_requests(Moments(*moments), "ratio")
        rows.append((np.nan, np.nan, np.nan) if now is None or not now.enough else (now.est, now.se, now.nu))
    return rows


def _part_of_requests(merge: bool, seeds: range) -> NDArray[np.bool_]:
    ends = np.geomspace(300, 3_000, 12).astype(int).tolist()
    runs = [_run_of_requests(generator("large requests", seed), ends, merge=merge) for seed in seeds]
    return np.asarray(found(Estimates(*np.moveaxis(np.array(runs), 2, 0)), MINIMAL_EFFECT).any(axis=1))


def rejections_of_requests(executor: Executor, count: int, *, merge: bool = True) -> float:
    """The same where every request is a unit."""
    return float(np.concatenate(spread(executor, partial(_part_of_requests, merge), count)).mean())
