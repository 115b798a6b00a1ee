"""A few users with large prompts, which make a quarter of the requests and take longer, where nothing differs.

In a stratum of their own, each is nearly alone in its arm: what differs between them would not count as variance.
"""

from concurrent.futures import Executor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.cells import within
from app.experiments.statistics.look import UnitSums, look
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
