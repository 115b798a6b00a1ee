"""Proportions with so few known events that only the exact test is informative.

The test is of units: of their first event. A metric is of requests, and a user whose every request fails is one unit.
So each bound of the ratio allows for the most events that a unit of an arm may have: the upper one of the treatment,
the lower one of control. That is one where each unit with the event has had it once; any number where one has had it
more often; and where none has had it, as many as a unit has requests.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.arrays import Hashes, Ints
from app.experiments.analysis.metrics import Values
from app.experiments.analysis.unit_events import EventCounts, UnitEvents
from app.experiments.contract.report import Effect
from app.experiments.statistics.events import two_sided
from app.experiments.storage.columns import F64, I32

FEW = 10
"""The fewest events per arm for an interval from the look: with fewer it would be too narrow."""

_NOTHING = -50.0
"""ln of an e-value that is no evidence, in place of one that is none at all."""

Pair = tuple[float, float]
"""Of control and of the treatment."""

_MAX_UNITS = 1_000_000
"""Units of an arm that has many events while the other one stays below `FEW`; later ones are not counted."""


@dataclass(frozen=True)
class RareCounts:
    """The test of what is known at some time. `requests` with the event: control's and the treatment's."""

    events: EventCounts
    requests: tuple[int, int]

    @property
    def is_repeated(self) -> bool:
        """Whether a unit of an arm has had the event more than once."""
        return max(self._of_each_unit()) > 1

    def effect(self, sets: Ints, alpha: float, requests: Pair, unknown: tuple[int, int] = (0, 0)) -> Effect:
        """The lift of the rate with its confidence sequence. `sets` as in `Arms.weights`; of control and of the
        treatment: `requests` of a unit, and how many are `unknown`, which may have the event."""
        lift, (control, treated) = self.events.lift(sets, alpha, unknown), self._of_each_unit()
        estimate = None if lift.estimate is None else (1 + lift.estimate) * treated / control - 1
        of_control, of_treated = self._most(requests)
        lower = (1 + (lift.lower or 0.0)) / of_control - 1
        upper = None if lift.upper is None or of_treated == math.inf else (1 + lift.upper) * of_treated - 1
        return Effect(estimate=estimate, lower=lower, upper=upper)

    def log_e_value(self, sets: Ints, requests: Pair) -> float:
        """ln of the e-value against "the same rate"."""
        events, (of_control, of_treated) = self.events, self._most(requests)
        more = events.more(sets, of_control).log_e_value if of_control < math.inf else -math.inf
        less = events.less(sets, 1 / of_treated).log_e_value if of_treated < math.inf else -math.inf
        return max(two_sided(more, less), _NOTHING)

    def _most(self, requests: Pair) -> Pair:
        """The most events of a unit of control, and of one of the treatment."""
        control, treated = (
            math.inf if each > 1 else 1.0 if events else max(of_unit, 1.0)
            for each, events, of_unit in zip(self._of_each_unit(), self.requests, requests, strict=True)
        )
        return control, treated

    def _of_each_unit(self) -> Pair:
        """Events by units that have had one, of control and of the treatment; 1 without any."""
        control, treated = (
            max(events / units, 1.0) if units else 1.0
            for events, units in zip(self.requests, self.events.units, strict=True)
        )
        return control, treated


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

    def at_present(self) -> RareCounts:
        """What is known now. Raises ValueError if that is enough for a look."""
        if self._events is None:
            raise ValueError("there are enough events for a look")
        return RareCounts(self._events.at_present(), (self._requests[0], self._requests[1]))
