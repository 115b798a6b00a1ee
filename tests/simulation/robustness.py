"""False positives in worlds that are harder than those of the first table."""

import math
from dataclasses import dataclass, replace

import numpy as np

from tests.simulation.false_positives import ROWS as FIRST
from tests.simulation.false_positives import Row
from tests.simulation.worlds import World

UNKNOWN = (math.nan,) * 6

_TTFT = World("log_ttft")
_FORTY = tuple(np.random.default_rng(40).choice(np.arange(0.02, 0.62, 0.01), 40).round(2).tolist())
"""Forty shares, a change every 250 requests."""


@dataclass(frozen=True)
class Hard:
    row: Row
    design: str
    """The share of runs in which the confidence sequence ever excludes 0, as the design measured it."""
    looks: int = 60


def _users(count: int, activity: float, name: str) -> Hard:
    return Hard(Row(name, replace(_TTFT, users=count, activity=activity), UNKNOWN), "0.003 to 0.010")


ROWS = (
    Hard(replace(FIRST[10], name="tokens/s, 397 looks"), "0.013", looks=397),
    Hard(replace(FIRST[5], name="mean TTFT, ramp, 397 looks"), "0.037", looks=397),
    Hard(
        Row("forty changes of weights, merged into 12 shares", replace(_TTFT, shares=_FORTY, step=250), UNKNOWN),
        "0.010",
    ),
    Hard(Row("minimal effect a quarter", _TTFT, UNKNOWN, minimal_effect=0.0125), "0.000 to 0.056"),
    Hard(Row("minimal effect four times", _TTFT, UNKNOWN, minimal_effect=0.2), "0.000 to 0.056"),
    Hard(Row("strata of prompt lengths, ramp", replace(FIRST[2].world, prompt_strata=True), UNKNOWN), "-"),
    *(_users(count, 100.0, f"{count} users, equally active") for count in (100, 150)),
    *(_users(count, 0.23, f"{count} users, very unequal") for count in (100, 150)),
)
