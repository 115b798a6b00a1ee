"""Events of units: the evidence about a treatment's rate against control's.

An event counts once per unit. Only the arm of its unit matters: `app.experiments.statistics.events` has the
mathematics.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.evidence.arrays import Floats, Growing, Hashes, Ints, Mask, grouped
from app.experiments.analysis.evidence.first_seen import FirstSeen
from app.experiments.analysis.evidence.hash_index import HashIndex
from app.experiments.columns import F64, I32
from app.experiments.report import Effect
from app.experiments.statistics.events import Detector, EventEvidence, Trials, chance, two_sided

MAX_UNITS = 2_000_000
"""Units with an event of one kind. Above, half of them are dropped, by hash: the rest suffices for any effect of
interest.
"""

_LARGEST_RATIO = 1e4
_HALVINGS = 40
_LEAST_KEPT = 4096


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

    def more(self, weights: Ints, r0: float, busier: Floats | None = None) -> EventEvidence:
        """The evidence that the treatment's rate is more than `r0` times control's. `weights` as in `Arms`; `busier` as
        in `AtRisk`.
        """
        w_c, w_t, control, treated = self._counts(weights)
        return _evidence(treated, control, chance(w_t if busier is None else w_t * busier[: len(w_t)], w_c, r0))

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


class UnitDetector:
    """A detector of trials of units: `app.experiments.statistics.events` has the mathematics."""

    def __init__(self, trials: Trials = "events") -> None:
        self._detector = Detector(trials)
        self._taken = 0
        self._units = HashIndex()
        self._at = Growing(np.float64)
        self._number = Growing(np.int64)
        """Of each unit's latest trial: its time, and its number, counted from 1."""
        self._kept = _LEAST_KEPT

    def add(self, unit: Hashes, at: F64, hit: Mask, p0: Floats) -> None:
        """Trials, in about the order in which they happened: equally long arrays, `hit` and `p0` as in `Detector`.

        Records of one unit with the same time are of one request, which counts once.
        """
        order = np.lexsort((unit, at))
        unit, at = unit[order], at[order]
        again = np.zeros(len(unit), np.bool_)
        again[1:] = (unit[1:] == unit[:-1]) & (at[1:] == at[:-1])
        position = self._units.find(unit)
        known = np.flatnonzero(position >= 0)
        again[known] |= self._at.values[position[known]] == at[known]
        rows = order[~again]
        if len(rows):
            self._detector.add(hit[rows], p0[rows], self._follow(unit[~again], at[~again]))
            self._forget()

    def _follow(self, unit: Hashes, at: F64) -> Ints:
        """Takes up trials; returns the number of each unit's trial before, 0 if there is none."""
        order, starts = grouped(unit)
        position = self._units.add(unit[order[starts]])
        for column in (self._at, self._number):
            column.resize(len(self._units))
        numbers = self._taken + 1 + np.arange(len(unit))
        before = np.empty(len(unit), np.int64)
        before[order[1:]] = numbers[order[:-1]]
        before[order[starts]] = self._number.values[position]
        last = order[np.append(starts[1:], len(unit)) - 1]
        self._at.values[position], self._number.values[position] = at[last], numbers[last]
        self._taken += len(unit)
        return before

    def _forget(self) -> None:
        """Forgets units whose latest trial no living start counts, once they may be many."""
        if len(self._units) > self._kept:
            kept = np.flatnonzero(self._number.values > self._detector.oldest)
            self._units.keep(kept)
            for column in (self._at, self._number):
                column.keep(kept)
            self._kept = max(_LEAST_KEPT, 2 * len(kept))

    @property
    def ln_e(self) -> float:
        """The evidence now, ln."""
        return self._detector.ln_e

    @property
    def largest(self) -> float:
        """The largest evidence so far, ln: it alarms at `alarm_at`."""
        return self._detector.largest
