"""Proportions with so few known events that only the exact test is informative."""

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.arrays import Hashes, Ints
from app.experiments.analysis.guardrails import UnitEvents
from app.experiments.analysis.metrics import Values
from app.experiments.contract.report import Effect
from app.experiments.storage.columns import F64, I32

FEW = 10
"""The fewest events per arm for an interval from the look: with fewer it would be too narrow."""

_MAX_UNITS = 1_000_000
"""Units of an arm that has many events while the other one stays below `FEW`; later ones are not counted."""


class RareEvents:
    """Rare events of one proportion, for one treatment. Forgotten once both arms have enough events."""

    def __init__(self, treatment: int) -> None:
        self._treatment = treatment
        self._events: UnitEvents | None = UnitEvents(treatment)
        self._requests = [0, 0]

    def add(self, values: Values, unit: Hashes, at: F64, weights: I32, arm: NDArray[np.int8]) -> None:
        """Analysed requests. `weights` and `arm` as in `Arms`."""
        hit = values.x > 0
        self._requests[0] += int((hit & (arm == 0)).sum())
        self._requests[1] += int((hit & (arm == self._treatment)).sum())
        if min(self._requests) >= FEW:
            self._events = None
        elif self._events is not None and max(self._events.units) < _MAX_UNITS:
            self._events.add(unit[hit], at[hit], weights[hit], arm[hit])

    @property
    def applies(self) -> bool:
        """Whether the exact test is to be used."""
        return self._events is not None

    @property
    def counts(self) -> tuple[int, int]:
        """Requests with the event: control's and the treatment's."""
        return self._requests[0], self._requests[1]

    def effect(self, sets: Ints, alpha: float) -> tuple[Effect, float]:
        """The lift of the rate with its confidence sequence, and ln of the e-value. `sets` as in `Arms.weights`."""
        if self._events is None:
            raise ValueError("there are enough events for a look")
        return self._events.lift(sets, alpha), self._events.difference(sets)
