"""Completeness: whether requests lack a metric's value more often on one arm.

A request without a value (no first token of a request that failed) cannot be compared, and the others flatter the arm
that loses its worst ones. Such requests are events, tested in both directions against the same rate.
"""

import math

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.evidence.arrays import Hashes, Ints, Mask
from app.experiments.analysis.watch.events import UnitEvents
from app.experiments.columns import F64, I32

THRESHOLD = math.log(1000)
"""An alarm in one of a thousand metrics that are complete."""


class Completeness:
    """Missing values of one metric, for one treatment."""

    def __init__(self, treatment: int) -> None:
        self._events = UnitEvents(treatment)
        self._sets: Ints = np.zeros((0, 2), np.int64)
        self._is_new = False
        self.alarmed_at: float | None = None

    def add(self, missing: Mask, unit: Hashes, at: F64, weights: I32, arm: NDArray[np.int8], sets: Ints) -> None:
        """Analysed requests, with whether each lacks its value. `weights`, `arm` and `sets` as in `Arms`."""
        if missing.any() and self._events.add(unit[missing], at[missing], weights[missing], arm[missing]):
            self._sets, self._is_new = sets, True

    @property
    def units(self) -> tuple[int, int]:
        """Units with a request that lacks its value: control's and the treatment's."""
        return self._events.units

    def is_new_alarm(self) -> bool:
        """Whether the evidence has reached the threshold since the last call, without an alarm before."""
        if self.alarmed_at is not None or not self._is_new:
            return False
        self._is_new = False
        return self._events.difference(self._sets) >= THRESHOLD
