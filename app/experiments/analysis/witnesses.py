"""Whose evidence it is. A caller that learns which arm a unit has may choose what it asks of that arm.

Callers are dealt into `PARTS` parts, in the order in which they come. Beside the evidence of all exposures there is,
for each part, the evidence without what the callers of this part can have provoked, and an alarm that acts needs every
one of them. Let one caller do whatever it wants, and let it see everything. The evidence without its part is made of
others' exposures, and of failures that no request brings about: for these the caller chooses nothing, so that it is an
e-process as it was, and the smallest of all is no larger. Whatever one caller does, the probability of ever acting
without a cause is at most alpha. Two callers that conspire may be two parts; then this says nothing.

A cause that is real shows in every part. Of eight callers or more with equal traffic, an eighth is left out at a time:
an alarm takes a seventh more requests, and with two callers, twice as many. If one caller has nearly all traffic, what
it can have provoked alerts, and moves nothing, unless the guardrail has `one_caller: act`.

A caller cannot bring about: a request that fails other than by the time that it takes or is given, and a small request
that is slow (`Flag.LONG` is not set). Callers that are alone (`Flag.SHARED` is not set) are in no part: they harm
themselves.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from app.config.experiments import Event
from app.experiments.analysis.arrays import HashIndex, Ints, Mask
from app.experiments.storage.columns import OverdueColumns, RowColumns
from app.exposures.wire import Failure, Flag

PARTS = 8
UNBOUNDED = PARTS
"""The number of the exposures that are in no part, after those of the parts."""

Part = NDArray[np.int8]
Columns = TypeVar("Columns", RowColumns, OverdueColumns)


class Callers:
    """Deals callers into parts."""

    def __init__(self) -> None:
        self._known = HashIndex()

    def part(self, columns: RowColumns | OverdueColumns) -> Part:
        """The part of each exposure, in the order in which they came."""
        part = np.full(len(columns), UNBOUNDED, np.int8)
        shared = (columns.flags & Flag.SHARED) != 0
        if shared.any():
            callers, first, inverse = np.unique(columns.caller[shared], return_index=True, return_inverse=True)
            order = np.argsort(first)
            number = np.empty(len(callers), np.int64)
            number[order] = self._known.add(callers[order])
            part[shared] = (number % PARTS)[inverse.reshape(-1)]
        return part


def provokable(event: Event, columns: RowColumns | OverdueColumns, hit: Mask) -> Mask:
    """The exposures that count only together with other callers'. `hit`: whether each had the event."""
    shared = (columns.flags & Flag.SHARED) != 0
    long = (columns.flags & Flag.LONG) != 0
    if event == "slow":
        return np.asarray(shared & hit & long)
    if event == "error" and isinstance(columns, RowColumns):
        hurried = (columns.flags & Flag.OWN_FAILURE) != 0
        return np.asarray(shared & hit & (long | hurried) & (columns.error == Failure.TIMEOUT))
    return np.asarray(shared)


def without(table: Ints, sure: Ints, part: int) -> Ints:
    """Counts by (anything, part, anything) without those of `part`, but for those in `sure`; the parts are summed."""
    left: Ints = table.sum(axis=1) - table[:, part]
    left[: len(sure)] += sure[:, part]
    return left
