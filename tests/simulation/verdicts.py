"""The design's second table: requests until the verdict, compared with a test that looks once, and coverage at all
looks."""

import math
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tests.simulation.false_positives import NOMINAL
from tests.simulation.looks import Estimates, found, misses, runs, spaced
from tests.simulation.pool import spread
from tests.simulation.worlds import RAMP, World

POWER_80 = 0.841621

_BIG = World("log_ttft", requests=40_000, users=12_000)


@dataclass(frozen=True)
class Row:
    name: str
    world: World
    design: tuple[float, float, float, float]
    """The design's numbers: CS, power, fixed horizon, and when the peeked test first rejects; NaN: none."""
    minimal_effect: float = 0.05


def _times(effect: float) -> World:
    return replace(_BIG, effect=effect)


def _kind(kind: str, effect: float) -> World:
    return replace(_BIG, kind=kind, effect=effect)  # type: ignore[arg-type]


ROWS = (
    Row("ln TTFT -5 %", _times(0.95), (15_690, 0.83, 13_012, 2_414)),
    Row("ln TTFT -10 %", _times(0.90), (2_651, 1.0, 2_651, 715)),
    Row("ln TTFT -20 %", _times(0.80), (715, 1.0, 492, 212)),
    Row("mean TTFT -10 %", _kind("mean_ttft", 0.90), (4_233, 1.0, 3_855, 593)),
    Row("tokens/s +5 %", _kind("tokens_per_second", 1.05), (14_288, 0.77, 14_288, 1_198)),
    Row("tokens/s +10 %", _kind("tokens_per_second", 1.10), (2_198, 1.0, 2_002, 492)),
    Row("error rate +50 % of 2 %", _kind("errors", 1.5), (9_388, 1.0, 6_758, 2_100), minimal_effect=0.25),
    Row("error rate +100 % of 2 %", _kind("errors", 2.0), (2_651, 1.0, 2_414, 785), minimal_effect=0.25),
    Row("ln TTFT -10 %, ramp", replace(_times(0.90), shares=RAMP), (10_791, 1.0, 10_791, 8_149)),
    Row("no effect", _BIG, (math.nan, 0.03, math.nan, math.nan)),
)


@dataclass(frozen=True)
class Verdicts:
    """Requests are medians over runs; runs without a verdict count as infinite."""

    requests: float
    power: float
    fixed: float
    """The first look at which a test that looks only there has 80 % power: |effect| ≥ (1.96 + 0.84) median se."""
    peeked: float
    peeked_power: float
    missed: float
    """The share of runs whose confidence sequence ever missed the true effect."""
    wrong_sign: float

    @property
    def ratio(self) -> float:
        return self.requests / self.fixed


def _first(hits: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The requests at each run's first hit, infinite if there is none."""
    return np.where(hits.any(axis=1), ends[hits.argmax(axis=1)], np.inf)


def _part(row: Row, ends: list[int], seeds: range) -> Estimates:
    return runs(row.world, ends, row.name, seeds).clustered


def verdicts(executor: Executor, row: Row, count: int) -> Verdicts:
    """Of `count` runs."""
    ends = spaced(row.world.requests)
    parts = spread(executor, partial(_part, row, ends), count)
    estimates = Estimates(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    at = np.array(ends, dtype=np.float64)
    decided = found(estimates, row.minimal_effect)
    beyond = np.abs(estimates.z) > NOMINAL
    truth = math.log(row.world.effect)
    error = np.median(np.where(np.isnan(estimates.se), np.inf, estimates.se), axis=0)
    powerful = np.flatnonzero(abs(truth) >= (NOMINAL + POWER_80) * error)
    return Verdicts(
        requests=float(np.median(_first(decided, at))),
        power=float(decided.any(axis=1).mean()),
        fixed=float(at[powerful[0]]) if len(powerful) else math.inf,
        peeked=float(np.median(_first(beyond, at))),
        peeked_power=float(beyond.any(axis=1).mean()),
        missed=float(misses(estimates, truth, row.minimal_effect).any(axis=1).mean()),
        wrong_sign=float((decided & (np.sign(estimates.est) != np.sign(truth))).any(axis=1).mean()) if truth else 0.0,
    )
