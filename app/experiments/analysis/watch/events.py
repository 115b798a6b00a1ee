"""Events of units: the evidence about a treatment's rate against control's.

An event counts once per unit. Only the arm of its unit matters: `app.experiments.statistics.events` has the
mathematics.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.evidence.arrays import Floats, Hashes, Ints
from app.experiments.analysis.evidence.first_seen import FirstSeen
from app.experiments.analysis.evidence.hash_index import HashIndex
from app.experiments.columns import F64, I32
from app.experiments.report import Effect
from app.experiments.statistics.events import EventEvidence, chance, two_sided

MAX_UNITS = 2_000_000
"""Units with an event of one kind. Above, half of them are dropped, by hash: the rest suffices for any effect of
interest.
"""

_LARGEST_RATIO = 1e4
_HALVINGS = 40


class UnitEvents:
    """The first event of each unit, of control and one treatment."""

    def __init__(self, treatment: int) -> None:
        self._treatment = treatment
        self._first = FirstSeen(arms=2, max_units=MAX_UNITS)

    def add(self, unit: Hashes, at: F64, weights: I32, arm: NDArray[np.int8]) -> bool:
        """Events of any arms: equally long arrays, `weights` and `arm` as in `Arms`. False if none counts here."""
        here = (arm == 0) | (arm == self._treatment)
        if here.any():
            self._first.add(unit[here], at[here], weights[here], (arm[here] != 0).astype(np.int8))
        return bool(here.any())

    @property
    def units(self) -> tuple[int, int]:
        """Units with the event, on control and on the treatment."""
        control, treated = self._first.counts.sum(axis=0).tolist()
        return round(control / self._first.share), round(treated / self._first.share)

    def more(self, weights: Ints, r0: float) -> EventEvidence:
        """The evidence that the treatment's rate is more than `r0` times control's. `weights` as in `Arms`."""
        w_c, w_t, control, treated = self._counts(weights)
        return _evidence(treated, control, chance(w_t, w_c, r0))

    def less(self, weights: Ints, r0: float) -> EventEvidence:
        """The evidence that the treatment's rate is less than `r0` times control's."""
        w_c, w_t, control, treated = self._counts(weights)
        return _evidence(control, treated, chance(w_c, w_t, 1 / r0))

    def difference(self, weights: Ints) -> float:
        """ln of the e-value against "the same rate"."""
        return two_sided(self.more(weights, 1.0), self.less(weights, 1.0))

    def lift(self, weights: Ints, alpha: float) -> Effect:
        """The treatment's rate over control's, less 1, with its confidence sequence.

        It is exact at every look. The upper bound is None where every larger ratio is possible.
        """
        target = math.log(2 / alpha)
        lower = _crossing(lambda ratio: self.more(weights, ratio).ln_e >= target)
        upper = _crossing(lambda ratio: self.less(weights, 1 / ratio).ln_e >= target)
        return Effect(
            estimate=self._estimate(weights),
            lower=-1.0 if lower is None else lower - 1,
            upper=None if upper is None else 1 / upper - 1,
        )

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

    def _counts(self, weights: Ints) -> tuple[Floats, Floats, Floats, Floats]:
        """Weights and units, of control and the treatment, per set of weights."""
        counts = self._first.counts
        known = weights[: len(counts)].astype(np.float64)
        return known[:, 0], known[:, self._treatment], counts[:, 0].astype(float), counts[:, 1].astype(float)


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


class OncePerPeriod:
    """Finds units that are new in a period (an hour or a day). The latest two periods are remembered, older ones
    closed.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._periods: dict[int, HashIndex] = {}

    def new(self, unit: Hashes, at: F64) -> Ints:
        """The indexes of units that are new in the period of their time, ordered by time."""
        period = (at // self._seconds).astype(np.int64)
        latest = max([int(period.max(initial=0)), *self._periods])
        self._periods = {number: index for number, index in self._periods.items() if number >= latest - 1}
        found = []
        for number in (latest - 1, latest):
            rows = np.flatnonzero(period == number)
            rows = rows[np.lexsort((unit[rows], at[rows]))]
            distinct, first = np.unique(unit[rows], return_index=True)
            index = self._periods.setdefault(number, HashIndex())
            known = len(index)
            new = index.add(distinct) >= known
            found.append(rows[np.sort(first[new])])
        return np.asarray(np.concatenate(found), np.int64)
