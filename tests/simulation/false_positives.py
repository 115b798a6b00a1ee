"""The design's first table: how often "no difference" is rejected, by continuous looks and at the end; also in worlds
that are harder than those of the table.
"""

import math
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tests.simulation.looks import Estimates, found, runs, spaced
from tests.simulation.pool import spread
from tests.simulation.worlds import RAMP, World

LOOKS = 60
MINIMAL_EFFECT = 0.05
NOMINAL = 1.959964

_TTFT = World("log_ttft")
_MEAN = World("mean_ttft")
_ERRORS = World("errors")
_SPEED = World("tokens_per_second")


@dataclass(frozen=True)
class Row:
    name: str
    world: World
    design: tuple[float, float, float, float, float, float]
    """The columns of `Rates`, as the design measured them."""
    minimal_effect: float = MINIMAL_EFFECT


ROWS = (
    Row("ln TTFT, unit = request, 50/50", replace(_TTFT, users=None), (0.018, 0.018, 0.437, 0.437, 0.051, 0.051)),
    Row("ln TTFT, users, 50/50", _TTFT, (0.013, 0.241, 0.354, 0.664, 0.062, 0.400)),
    Row("ln TTFT, users, ramp", replace(_TTFT, shares=RAMP), (0.017, 0.178, 0.253, 0.592, 0.057, 0.322)),
    Row(
        "the same without plan strata",
        replace(_TTFT, shares=RAMP, plan_strata=False),
        (0.178, 0.587, 0.744, 0.965, 0.232, 0.544),
    ),
    Row("mean TTFT (log-normal), users, 50/50", _MEAN, (0.016, 0.166, 0.412, 0.654, 0.058, 0.325)),
    Row("mean TTFT, users, ramp", replace(_MEAN, shares=RAMP), (0.032, 0.137, 0.309, 0.539, 0.058, 0.261)),
    Row(
        "mean TTFT, coefficient of variation 2.9",
        replace(_MEAN, noise=1.39),
        (0.013, 0.029, 0.544, 0.591, 0.065, 0.113),
    ),
    Row("error rate 2 %, users, 50/50", _ERRORS, (0.006, 0.027, 0.255, 0.363, 0.052, 0.146)),
    Row("error rate 2 %, users, ramp", replace(_ERRORS, shares=RAMP), (0.011, 0.021, 0.224, 0.288, 0.054, 0.105)),
    Row("error rate 0.3 %, users, 50/50", replace(_ERRORS, error_rate=0.003), (0.0, 0.0, 0.132, 0.147, 0.046, 0.058)),
    Row("tokens/s (ratio), users, 50/50", _SPEED, (0.035, 0.314, 0.401, 0.765, 0.054, 0.478)),
    Row("tokens/s, users, ramp", replace(_SPEED, shares=RAMP), (0.029, 0.315, 0.279, 0.709, 0.053, 0.391)),
    Row("ln TTFT, very unequal users", replace(_TTFT, activity=0.23), (0.009, 0.404, 0.298, 0.755, 0.044, 0.581)),
    Row("ln TTFT, users differ most", replace(_TTFT, user_sd=1.0), (0.004, 0.458, 0.296, 0.785, 0.065, 0.613)),
    Row(
        "mean TTFT, weights 50-5-50",
        replace(_MEAN, shares=(0.5, 0.05, 0.5), step=3_334),
        (0.017, 0.121, 0.415, 0.620, 0.065, 0.288),
    ),
)

_UNKNOWN = (math.nan,) * 6

_FORTY = tuple(np.random.default_rng(40).choice(np.arange(0.02, 0.62, 0.01), 40).round(2).tolist())
"""Forty shares, a change every 250 requests."""


@dataclass(frozen=True)
class Hard:
    row: Row
    design: str
    """The share of runs in which the confidence sequence ever excludes 0, as the design measured it."""
    looks: int = 60


def _users(count: int, activity: float, name: str) -> Hard:
    return Hard(Row(name, replace(_TTFT, users=count, activity=activity), _UNKNOWN), "0.003 to 0.010")


HARDER = (
    Hard(replace(ROWS[10], name="tokens/s, 397 looks"), "0.013", looks=397),
    Hard(replace(ROWS[5], name="mean TTFT, ramp, 397 looks"), "0.037", looks=397),
    Hard(
        Row("forty changes of weights, merged into 12 shares", replace(_TTFT, shares=_FORTY, step=250), _UNKNOWN),
        "0.010",
    ),
    Hard(Row("minimal effect a quarter", _TTFT, _UNKNOWN, minimal_effect=0.0125), "0.000 to 0.056"),
    Hard(Row("minimal effect four times", _TTFT, _UNKNOWN, minimal_effect=0.2), "0.000 to 0.056"),
    Hard(Row("strata of prompt lengths, ramp", replace(ROWS[2].world, prompt_strata=True), _UNKNOWN), "-"),
    *(_users(count, 100.0, f"{count} users, equally active") for count in (100, 150)),
    *(_users(count, 0.23, f"{count} users, very unequal") for count in (100, 150)),
)


@dataclass(frozen=True)
class Rates:
    """Shares of runs that reject."""

    cs: float
    cs_single: float
    peeked: float
    peeked_single: float
    fixed: float
    fixed_single: float


def _rejected(estimates: Estimates, minimal_effect: float) -> np.ndarray:
    """By the confidence sequence at any look, |z| at any look, |z| at the last: shape (runs, 3)."""
    beyond = np.abs(estimates.z) > NOMINAL
    return np.stack([found(estimates, minimal_effect).any(axis=1), beyond.any(axis=1), beyond[:, -1]], axis=1)


def _part(row: Row, looks: int, seeds: range) -> np.ndarray:
    result = runs(row.world, spaced(row.world.requests, looks), row.name, seeds)
    return np.asarray(
        np.stack([_rejected(kind, row.minimal_effect) for kind in (result.clustered, result.single)], axis=2).sum(
            axis=0
        )
    )


def rates(executor: Executor, row: Row, count: int, looks: int = LOOKS) -> Rates:
    """Of `count` runs."""
    parts = spread(executor, partial(_part, row, looks), count)
    return Rates(*(np.sum(parts, axis=0) / count).ravel().tolist())
