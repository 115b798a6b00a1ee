"""A/A runs on recorded exposures: units get random labels, many times, and every verdict is a false one.

Two methods see the same labels and the same looks: the confidence sequences of the report, and a t-test that is
repeated at every look. Units come in the order in which they were first seen, each with all of its requests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.experiments.analysis.arrays import Hashes, Ints, mix
from app.experiments.contract.report import FalseVerdicts
from app.experiments.statistics.look import Covariates, LookScale, UnitSums, look
from app.experiments.statistics.planner import PeekedTest

MAX_UNITS = 10_000
"""The most units of a run: of more, a sample is taken by hash, since a run must not take seconds."""

LOOKS = 20
FIRST_LOOK = 60
"""Units of both labels at the first look."""

PEEKED_ALPHA = 0.05


@dataclass(frozen=True)
class RecordedMetric:
    """One metric's lines, ordered by unit; `unit` are codes from 0, in the order in which units came."""

    metric: str
    scale: LookScale
    effect: float
    """The minimal effect on the estimate's scale."""
    lines: UnitSums
    """`arm` does not matter."""
    hashes: Hashes
    """The hash of each unit."""
    covariates: Covariates | None = None
    """What was known of units before they met an arm, ordered by unit. `arm` does not matter."""


def false_verdicts(recorded: Sequence[RecordedMetric], runs: int, alpha: float) -> list[FalseVerdicts]:
    """The shares of runs with a verdict, at the level `alpha` for the sequences and 5 % for the t-test."""
    return [_of_metric(one, runs, alpha) for one in recorded]


def _of_metric(recorded: RecordedMetric, runs: int, alpha: float) -> FalseVerdicts:
    units = len(recorded.hashes)
    seen = np.unique(np.linspace(min(FIRST_LOOK, units), units, LOOKS).astype(np.int64)) if units else np.zeros(0, int)
    ends = np.searchsorted(recorded.lines.unit, seen)
    verdicts = np.array([_run(recorded, mix(recorded.hashes, 1000 + run), ends, alpha) for run in range(runs)])
    shares = verdicts.mean(axis=0) if runs else np.zeros(2)
    return FalseVerdicts(
        metric=recorded.metric,
        runs=runs,
        looks=len(seen),
        units=units,
        sequences=float(shares[0]),
        peeked=float(shares[1]),
    )


def _run(recorded: RecordedMetric, salted: Hashes, ends: Ints, alpha: float) -> tuple[bool, bool]:
    """Whether each method finds a difference at any look."""
    label = (salted >> np.uint64(63)).astype(np.int64)
    lines, peeked, largest = recorded.lines._replace(arm=label[recorded.lines.unit]), PeekedTest(PEEKED_ALPHA), 0.0
    for end in ends.tolist():
        known = recorded.covariates
        if known is not None:
            seen = known.unit <= lines.unit[max(end - 1, 0)]
            known = Covariates._make(column[seen] for column in known._replace(arm=label[known.unit]))
        now = look(UnitSums._make(column[:end] for column in lines), recorded.scale, known)
        peeked.add(now and (now.unadjusted or now))
        if now is not None:
            largest = max(largest, now.log_e_value(effect=recorded.effect, alpha=alpha))
    return largest >= math.log(1 / alpha), peeked.rejects
