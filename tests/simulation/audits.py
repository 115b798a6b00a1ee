"""Histories of a controller: reports of the past, from ledger and journal alone, say what was shown then."""

import tempfile
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.simulation.pool import generator, spread
from tests.support.experiments.life import DECISIONS, REDEPLOYED, Life, audited
from tests.support.experiments.world import World

REQUESTS = 2_000
STEPS = 6


class Audited(NamedTuple):
    """The reports that were read while a history went on, and those of them that the audit contradicts."""

    shown: int
    other: int


def audit(seed: int) -> Audited:
    """Of one history."""
    rng = generator("audits", seed)
    with tempfile.TemporaryDirectory() as directory:
        world = World(seed=seed, slower=float(rng.choice([1.0, 1.6])), hangs=float(rng.choice([0.0, 0.05])))
        life = Life(Path(directory), world, REQUESTS)
        life.traffic(3, 0)
        life.look()
        for _ in range(STEPS):
            _step(life, rng)
            life.look()
        life.controller.close()
        said = [audited(Path(directory), at, life.clock) == shown for at, shown in life.shown]
        return Audited(len(said), said.count(False))


def _step(life: Life, rng: np.random.Generator) -> None:
    steps: list[tuple[Any, ...]] = [
        (life.traffic, int(rng.integers(1, 6)), int(rng.choice([0, 3, 900]))),
        (life.wait, float(rng.choice([5.0, 300.0, 7200.0]))),
        (life.redeploy, int(rng.integers(len(REDEPLOYED)))),
        (life.restart,),
        (life.kill,),
        (life.decide, DECISIONS[int(rng.integers(len(DECISIONS)))]),
    ]
    act, *arguments = steps[int(rng.choice(len(steps), p=[0.4, 0.1, 0.15, 0.1, 0.15, 0.1]))]
    act(*arguments)


def _part(seeds: range) -> list[Audited]:
    return [audit(seed) for seed in seeds]


def audits(executor: Executor, count: int) -> Audited:
    """Of `count` histories together."""
    results = [result for part in spread(executor, _part, count) for result in part]
    return Audited(sum(result.shown for result in results), sum(result.other for result in results))
