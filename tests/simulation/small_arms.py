"""A small arm that has not met a rare and large value yet, where nothing differs.

Its own units then seem to vary hardly at all: an interval from each arm's own variance excludes 0 until one comes.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tests.simulation.looks import Estimates, follow, found, spaced
from tests.simulation.pool import generator, spread
from tests.simulation.worlds import RAMP, Kind, Traffic, World

Floats = NDArray[np.float64]

LOOKS = 20
REQUESTS = 6_000

SHARES: dict[str, tuple[float, ...]] = {
    "1 %": (0.01,),
    "5 %": (0.05,),
    "10 %": (0.1,),
    "20 %": (0.2,),
    "50 %": (0.5,),
    "90 %": (0.9,),
    "ramp": RAMP,
}


@dataclass(frozen=True)
class Tail:
    """`draw` gives so many units' values; a unit has `requests` of them, all alike."""

    draw: Callable[[np.random.Generator, int], Floats]
    minimal_effect: float = 0.05
    kind: Kind = "mean_ttft"
    """For its scale: that of a mean is a ratio, that of logarithms a difference."""
    requests: int = 1


def _usually(usual: float, sd: float, rarely: float, share: float, rng: np.random.Generator, n: int) -> Floats:
    return np.where(rng.random(n) < share, rarely, usual * np.exp(rng.normal(0, sd, n)))


def _ln_cold(share: float, factor: float, rng: np.random.Generator, n: int) -> Floats:
    return np.asarray(rng.normal(0, 0.15, n) + np.log(factor) * (rng.random(n) < share))


def _stars(share: float, rng: np.random.Generator, n: int) -> Floats:
    return np.where(rng.random(n) < share, rng.integers(1, 6, n), 0).astype(np.float64)


TAILS: dict[str, Tail] = {
    "goodput 99 %": Tail(partial(_usually, 1.0, 0.0, 0.0, 0.01), 0.02),
    "goodput 99.5 %": Tail(partial(_usually, 1.0, 0.0, 0.0, 0.005), 0.02),
    "thumbs up 98 %, users of 3 scores": Tail(partial(_usually, 1.0, 0.0, 0.0, 0.02), requests=3),
    "mean TTFT, 1 % wait 8 s": Tail(partial(_usually, 0.3, 0.3, 8.0, 0.01)),
    "mean TTFT, 5 % wait 8 s": Tail(partial(_usually, 0.3, 0.3, 8.0, 0.05)),
    "mean TTFT, 1 % of users wait 8 s": Tail(partial(_usually, 0.3, 0.3, 8.0, 0.01), requests=4),
    "mean, log-normal, deviation 1.5": Tail(lambda rng, n: rng.lognormal(4.0, 1.5, n), 0.1),
    "mean, Pareto, index 1.5": Tail(lambda rng, n: rng.pareto(1.5, n) + 1),
    "ln TTFT, 2 % cold, 30 times as long": Tail(partial(_ln_cold, 0.02, 30.0), kind="log_ttft"),
    "ln TTFT, 0.5 % cold, 30 times as long": Tail(partial(_ln_cold, 0.005, 30.0), kind="log_ttft"),
    "ln TTFT, 5 % cold, 10 times as long": Tail(partial(_ln_cold, 0.05, 10.0), kind="log_ttft"),
    "stars 0 to 5, 98 % zero": Tail(partial(_stars, 0.02), kind="log_ttft"),
    "stars 0 to 5, 99.5 % zero": Tail(partial(_stars, 0.005), kind="log_ttft"),
}

CASES = (
    ("goodput 99 %", "5 %"),
    ("goodput 99.5 %", "ramp"),
    ("thumbs up 98 %, users of 3 scores", "10 %"),
    ("mean TTFT, 1 % wait 8 s", "5 %"),
    ("mean TTFT, 1 % of users wait 8 s", "90 %"),
    ("mean, log-normal, deviation 1.5", "5 %"),
    ("ln TTFT, 2 % cold, 30 times as long", "5 %"),
    ("stars 0 to 5, 98 % zero", "ramp"),
)
"""Those of the test: with each arm's own variance, at least 5 % of the runs reject."""


def _traffic(tail: Tail, shares: tuple[float, ...], rng: np.random.Generator) -> Traffic:
    """Units come once, with all of their requests."""
    units = REQUESTS // tail.requests
    step = np.arange(units) * len(shares) // units
    arm = (rng.random(units) < np.array(shares)[step]).astype(np.intp)
    unit = np.repeat(np.arange(units), tail.requests)
    x = np.repeat(tail.draw(rng, units), tail.requests)
    return Traffic(unit, step[unit], arm[unit], x, np.ones(len(x)))


def _welch(traffic: Traffic, scale: str, ends: list[int]) -> Floats:
    """Estimates, errors and degrees of freedom from each arm's own variance, where a unit is a request."""
    rows = []
    for end in ends:
        arms = [traffic.x[:end][traffic.arm[:end] == arm] for arm in (0, 1)]
        if min(map(len, arms)) < 30 or (scale == "ratio" and min(values.mean() for values in arms) <= 0):
            rows.append([np.nan] * 3)
            continue
        by = [values.mean() if scale == "ratio" else 1.0 for values in arms]
        squares = np.array([values.var(ddof=1) / mean**2 / len(values) for values, mean in zip(arms, by, strict=True)])
        means = [float(values.mean()) for values in arms]
        est = np.log(means[1] / means[0]) if scale == "ratio" else means[1] - means[0]
        nu = squares.sum() ** 2 / (squares**2 / [len(values) - 1 for values in arms]).sum() if squares.any() else 0.0
        rows.append([est, np.sqrt(squares.sum()), nu])
    return np.array(rows)


def _part(name: str, share: str, seeds: range) -> NDArray[np.bool_]:
    tail, shares = TAILS[name], SHARES[share]
    world = World(tail.kind, requests=REQUESTS, users=REQUESTS // tail.requests, shares=shares)
    ends = spaced(REQUESTS, LOOKS)
    sequences, own = [], []
    for seed in seeds:
        traffic = _traffic(tail, shares, generator(f"{name}, {share}", seed))
        sequences.append(follow(traffic, world, ends)[0])
        if tail.requests == len(shares) == 1:
            own.append(_welch(traffic, world.scale, ends))
    rejected = [
        found(Estimates(*np.moveaxis(np.array(runs), 2, 0)), tail.minimal_effect).any(axis=1)
        for runs in (sequences, own or sequences)
    ]
    return np.stack(rejected, axis=1)


def rejections(executor: Executor, name: str, share: str, count: int) -> tuple[float, float | None]:
    """The shares of runs that ever reject "no difference": by the look, and with each arm's own variance (None for
    ramps and for units of several requests).
    """
    sequence, own = np.concatenate(spread(executor, partial(_part, name, share), count)).mean(axis=0).tolist()
    return sequence, own if TAILS[name].requests == len(SHARES[share]) == 1 else None
