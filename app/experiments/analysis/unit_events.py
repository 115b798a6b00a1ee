"""Events that count once per unit. Only the arm of its unit matters: `app.experiments.statistics.events` has the
mathematics.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.arrays import FirstSeen, Floats, Hashes, Ints
from app.experiments.analysis.trials import MAX_UNITS
from app.experiments.analysis.witnesses import Part
from app.experiments.contract.report import Effect
from app.experiments.statistics.events import EventEvidence, chance, two_sided
from app.experiments.storage.columns import F64, I32

_LARGEST_RATIO = 1e4
_HALVINGS = 40


class Counted(Protocol):
    """What is known of units."""

    @property
    def counts(self) -> Ints:
        """By group and arm."""

    @property
    def share(self) -> float:
        """The share of units that is counted."""


class CountsThen(NamedTuple):
    """`Counted` at some time."""

    counts: Ints
    share: float


class EventCounts:
    """Units with the event, of control and one treatment, and what follows from their numbers."""

    def __init__(self, treatment: int, counted: Counted, parts: int = 1) -> None:
        """`counted`: by set of weights and part of callers (see `witnesses`), and by arm."""
        self._treatment, self._counted, self._parts = treatment, counted, parts

    @property
    def units(self) -> tuple[int, int]:
        """Units with the event, on control and on the treatment."""
        control, treated = self._counted.counts.sum(axis=0).tolist()
        return round(control / self._counted.share), round(treated / self._counted.share)

    @property
    def table(self) -> Ints:
        """Units by set of weights, part, and arm (control, the treatment)."""
        counts = self._counted.counts
        sets = -(-len(counts) // self._parts)
        padded = np.zeros((sets * self._parts, 2), np.int64)
        padded[: len(counts)] = counts
        return padded.reshape(sets, self._parts, 2)

    def more(self, weights: Ints, r0: float, busier: Floats | None = None, table: Ints | None = None) -> EventEvidence:
        """The evidence that the treatment's rate is more than `r0` times control's. `weights` as in `Arms`; `busier` as
        in `AtRisk`. `table`: the units that count, by set of weights and arm, if not all do.
        """
        w_c, w_t, control, treated = self._counts(weights, table)
        return _evidence(treated, control, chance(w_t if busier is None else w_t * busier[: len(w_t)], w_c, r0))

    def less(self, weights: Ints, r0: float, table: Ints | None = None) -> EventEvidence:
        """The evidence that the treatment's rate is less than `r0` times control's."""
        w_c, w_t, control, treated = self._counts(weights, table)
        return _evidence(control, treated, chance(w_c, w_t, 1 / r0))

    def difference(self, weights: Ints) -> float:
        """ln of the e-value against "the same rate"."""
        return two_sided(self.more(weights, 1.0).ln_e, self.less(weights, 1.0).ln_e)

    def lift(self, weights: Ints, alpha: float, unknown: tuple[int, int] = (0, 0)) -> Effect:
        """The treatment's rate over control's, less 1, with its confidence sequence. `unknown`: further units of
        control and of the treatment that may have the event.

        It is exact at every look. The upper bound is None where every larger ratio is possible.
        """
        target = math.log(2 / alpha)

        def proven(ratio: float, arm: int) -> bool:
            """Whether the other arm's rate is more than `ratio` times that of `arm`, also with its unknown units."""
            tables = self._with(unknown[arm], arm, weights)
            if arm == 0:
                return all(self.more(weights, ratio, table=table).ln_e >= target for table in tables)
            return all(self.less(weights, 1 / ratio, table).ln_e >= target for table in tables)

        lower, upper = _crossing(lambda ratio: proven(ratio, 0)), _crossing(lambda ratio: proven(ratio, 1))
        return Effect(
            estimate=self._estimate(weights),
            lower=-1.0 if lower is None else lower - 1,
            upper=None if upper is None else 1 / upper - 1,
        )

    def _with(self, unknown: int, arm: int, weights: Ints) -> Iterator[Ints]:
        """Units by set of weights and arm, with so many more of an arm: one table for each set that they may be of."""
        known = self.table.sum(axis=1)
        if not unknown:
            yield known
            return
        table = np.zeros((len(weights), 2), np.int64)
        table[: len(known)] = known
        for place in np.flatnonzero((weights[:, 0] > 0) & (weights[:, self._treatment] > 0)):
            more = table.copy()
            more[place, arm] += unknown
            yield more

    def _estimate(self, weights: Ints) -> float | None:
        """The ratio of the largest likelihood, less 1."""
        w_c, w_t, control, treated = self._counts(weights)
        counts = (w_c > 0) & (w_t > 0)
        w_c, w_t, control, treated = w_c[counts], w_t[counts], control[counts], treated[counts]
        if not control.sum():
            return None
        if not treated.sum():
            return -1.0
        both = control + treated
        ratio = _crossing(lambda r: float(treated.sum() - both @ (w_t * r / (w_t * r + w_c))) >= 0)
        return None if ratio is None else ratio - 1

    def _counts(self, weights: Ints, table: Ints | None = None) -> tuple[Floats, Floats, Floats, Floats]:
        """Weights and units, of control and the treatment, per set of weights."""
        counts = self.table.sum(axis=1) if table is None else table
        known = weights[: len(counts)].astype(np.float64)
        return known[:, 0], known[:, self._treatment], counts[:, 0].astype(float), counts[:, 1].astype(float)


class UnitEvents(EventCounts):
    """The first event of each unit, of control and one treatment."""

    def __init__(self, treatment: int, parts: int = 1) -> None:
        self._first = FirstSeen(arms=2, max_units=MAX_UNITS)
        super().__init__(treatment, self._first, parts)

    def add(self, unit: Hashes, at: F64, weights: I32, arm: NDArray[np.int8], part: Part | None = None) -> bool:
        """Events of any arms: equally long arrays, `weights` and `arm` as in `Arms`. False if none counts here."""
        here = (arm == 0) | (arm == self._treatment)
        if here.any():
            group = weights * np.int32(self._parts) + (0 if part is None else part)
            self._first.add(unit[here], at[here], group[here].astype(np.int32), (arm[here] != 0).astype(np.int8))
        return bool(here.any())

    def at_present(self) -> EventCounts:
        """What is known now, whatever is added later."""
        return EventCounts(self._treatment, CountsThen(self._first.counts.copy(), self._first.share), self._parts)


def _evidence(hits: Floats, misses: Floats, p0: Floats) -> EventEvidence:
    evidence = EventEvidence()
    sums: dict[float, tuple[int, int]] = {}
    for hit, miss, chance_ in zip(hits.tolist(), misses.tolist(), p0.tolist(), strict=True):
        if 0 < chance_ < 1:
            before = sums.get(chance_, (0, 0))
            sums[chance_] = (before[0] + int(hit), before[1] + int(miss))
    evidence.restore({"counts": [(value, *pair) for value, pair in sums.items()], "largest": 0.0})
    return evidence


def _crossing(holds: Callable[[float], bool]) -> float | None:
    """The largest ratio for which a condition holds that holds for every smaller one; None if for no ratio."""
    low, high = 1 / _LARGEST_RATIO, _LARGEST_RATIO
    if not holds(low):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
