"""Pairs of a shadow without a difference: how often one is reported under continuous looks."""

import math
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from app.experiments.statistics.look import MIN_UNITS
from app.experiments.statistics.pairs import Discordant, PairedLook, paired_look
from app.experiments.statistics.sequences import log_e_mixture
from tests.simulation.pool import generator, spread

PAIRS, USERS, LOOKS = 3_000, 250, 40
ALPHA = 0.05
EFFECT = 0.02
"""The smallest effect of interest, in seconds."""

NOMINAL = 1.959964


@dataclass(frozen=True)
class Row:
    """A world of differences in seconds. `user_sd`: by how much users differ; `tail`: the spread of ln of the noise."""

    name: str
    user_sd: float = 0.03
    noise: float = 0.05
    tail: float = 0.0
    activity: float = 1.0
    """The shape of users' activity; below 1, few users make most requests."""
    effect: float = 0.0


ROWS = (
    Row("users alike", user_sd=0.0),
    Row("users differ"),
    Row("users differ most", user_sd=0.1),
    Row("very unequal users", activity=0.3),
    Row("heavy tails", tail=1.0),
)
LATER = Row("20 ms later", effect=0.02)


@dataclass(frozen=True)
class Rates:
    """The shares of runs that reject at any look (by the confidence sequence, ignoring users, by |z|), and that miss
    the true mean at any look."""

    cs: float
    cs_single: float
    peeked: float
    missed: float


def rates(executor: Executor, row: Row, runs: int) -> Rates:
    """Of `runs` runs."""
    parts = spread(executor, _Runs(row), runs)
    return Rates(*(float(share) for share in np.concatenate(parts).mean(axis=0)))


def discordant_rate(executor: Executor, runs: int) -> float:
    """The share of runs in which equally frequent events are reported as different after any pair."""
    return float(np.concatenate(spread(executor, _discordant_runs, runs)).mean())


@dataclass(frozen=True)
class _Runs:
    row: Row

    def __call__(self, seeds: range) -> np.ndarray:
        return np.array([_rejections(self.row, generator(self.row.name, seed)) for seed in seeds])


def _rejections(row: Row, random: np.random.Generator) -> tuple[bool, bool, bool, bool]:
    unit, d = _pairs(row, random)
    ends = np.linspace(PAIRS / LOOKS, PAIRS, LOOKS).astype(int)
    looks = [_look(unit[:end], d[:end]) for end in ends]
    singles = [_look(np.arange(end), d[:end]) for end in ends]
    beyond = [look.se is not None and look.units >= MIN_UNITS and abs(look.est) > NOMINAL * look.se for look in looks]
    return _rejected(looks), _rejected(singles), any(beyond), _rejected(looks, row.effect)


def _look(unit: np.ndarray, d: np.ndarray) -> PairedLook:
    look = paired_look(unit, np.ones(len(d)), d)
    assert look is not None
    return look


def _rejected(looks: list[PairedLook], effect: float = 0.0) -> bool:
    """Whether the confidence sequence excludes an effect at any look, that is, the evidence against it reaches 1 /
    alpha."""
    known = [look for look in looks if look.se is not None and look.units >= MIN_UNITS]
    est, se, nu = (
        np.array(column)
        for column in zip(*((estimate.est, estimate.se, estimate.nu) for estimate in known), strict=True)
    )
    return bool((log_e_mixture(est - effect, se, nu, effect=EFFECT, alpha=ALPHA) >= math.log(1 / ALPHA)).any())


def _pairs(row: Row, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    activity = random.gamma(row.activity, size=USERS)
    unit = random.choice(USERS, PAIRS, p=activity / activity.sum())
    scale = np.exp(row.tail * random.normal(size=PAIRS) - row.tail**2) if row.tail else 1.0
    noise = row.noise * scale * random.normal(size=PAIRS)
    return unit, row.effect + row.user_sd * random.normal(size=USERS)[unit] + noise


def _discordant_runs(seeds: range) -> np.ndarray:
    found = []
    for seed in seeds:
        random = generator("discordant", seed)
        evidence = Discordant()
        rate = random.beta(0.5, 10, size=400)
        shadow, primary = random.random((2, 400)) < rate
        evidence.add(shadow[shadow != primary])
        found.append(evidence.log_e_value >= math.log(1 / ALPHA))
    return np.array(found)
