"""The shift of a quantile, by inverting a test of proportions.

Under a shift λ of the treatment's logarithms, control's values and the treatment's less λ share their p-quantile; the
arms' shares above it differ by S(λ), stratified and clustered as in `look`, with variance V(λ). The estimate is where S
is 0; the confidence sequence holds every λ with |S| ≤ k √V, k being the boundary of `sequences` with half the length of
{λ: |S| ≤ √V} as standard error. No density is estimated (Woodruff 1952, "Confidence intervals for medians and other
position measures", with the time-uniform boundary of `sequences`).
"""

import math
from dataclasses import dataclass

import numpy as np

from app.experiments.statistics.look import MIN_UNITS, NO_SLACK, Codes, Floats, Slack, squares_of_arms, variance_of
from app.experiments.statistics.sequences import Interval, boundary, log_e_mixture

MIN_ABOVE = 30
"""The number of requests above the quantile that each arm must have before any estimate."""

FARTHEST = 2.0
"""The range of the search for shifts: between exp(-2) and exp(2)."""

_PRECISION = 2e-5


class _ShiftTest:
    """S(λ)/√V(λ) for one data set, falling in λ. Rows in strata without two of each arm do not count."""

    def __init__(self, values: Floats, unit: Codes, stratum: Codes, arm: Codes, p: float) -> None:
        self._p = p
        cell = 2 * stratum + arm
        n = np.bincount(cell, minlength=2 * (int(stratum.max()) + 1)).reshape(-1, 2).astype(np.float64)
        ok = n.min(axis=1) >= 2
        self._size = int(ok.sum())
        if not self._size:
            self.units, self.rows, self.free = (0, 0), (0, 0), 0
            return
        kept = ok[stratum]
        order = np.argsort(unit[kept], kind="stable")  # sums by unit then run through memory in order
        self._values, self._unit, self._arm, self._pair = (
            column[kept][order] for column in (values, unit, arm.astype(np.bool_), 2 * cell)
        )
        counted = np.where(ok[:, None], n, 1.0)
        w = _weights(n)
        self._factor = (w[:, None] / counted * np.array([-1.0, 1.0]) / w.sum()).ravel()
        self._exchange = np.sqrt(counted / counted[:, ::-1]).ravel()
        self._counts = counted.ravel()
        self._sorted = tuple(np.sort(self._values[self._arm == treated]) for treated in (False, True))
        self.rows = (len(self._sorted[0]), len(self._sorted[1]))
        self._width = int(self._unit[-1]) + 1
        seen = np.zeros((2, self._width), dtype=np.bool_)
        seen[self._arm.astype(np.intp), self._unit] = True
        self._line = self._arm * self._width + self._unit
        control, treated = seen.sum(axis=1)
        self.units = (int(control), int(treated))
        self.free = min(self.units) - self._size
        """Units of the smaller arm beyond the means that it has."""

    def threshold(self, shift: float) -> float:
        """The p-quantile of control's values and the treatment's less `shift`: the smallest with that share below."""
        control, treated = self._sorted
        wanted = math.ceil(self._p * (len(control) + len(treated)))
        return _kth(control, treated - shift, wanted)

    def z(self, shift: float) -> float:
        """S/√V; ±inf where V is 0 and S is not."""
        difference, variance, _ = self._moments(shift)
        if variance <= 0:
            return math.copysign(math.inf, difference) if abs(difference) > 1e-12 else 0.0
        return difference / math.sqrt(variance)

    def nu(self, shift: float) -> float:
        """The degrees of freedom of V."""
        return self._moments(shift)[2]

    def _moments(self, shift: float) -> tuple[float, float, float]:
        """S, V and V's degrees of freedom."""
        q = self.threshold(shift)
        above = self._values - np.where(self._arm, shift, 0.0) > q  # as in `threshold`, to the last bit
        index = self._pair + above  # (cell, above): two entries of a table for each cell
        number_above = np.bincount(index, minlength=2 * len(self._counts))[1::2]
        mean = number_above / self._counts
        difference = float(self._factor @ number_above)
        influences = np.stack([-self._factor * mean, self._factor * (1 - mean)], axis=1)
        squares = np.stack(
            [
                squares_of_arms(self._by_unit(part.ravel()[index]))
                for part in (influences, influences * self._exchange[:, None])
            ]
        )
        variance, nu = variance_of(squares, self.units, self._size) or (0.0, 0.0)
        return difference, variance, nu

    def _by_unit(self, influence: Floats) -> Floats:
        """Sums of each arm and unit: shape (2, units)."""
        return np.asarray(np.bincount(self._line, influence, 2 * self._width).reshape(2, -1), np.float64)

    def crossing(self, level: float, low: float = -FARTHEST, high: float = FARTHEST) -> tuple[float, float] | None:
        """The two near shifts between which `z` falls through `level`; None if not between `low` and `high`."""
        if not self.z(low) > level >= self.z(high):
            return None
        while high - low > _PRECISION:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.z(middle) > level else (low, middle)
        return low, high


def _kth(one: Floats, other: Floats, k: int) -> float:
    """The k-th smallest (from 1) of two sorted arrays together."""
    low, high = max(0, k - len(other)), min(k, len(one))  # the number of elements of `one` among the k smallest
    while low < high:
        middle = (low + high) // 2
        if one[middle] < other[k - middle - 1]:
            low = middle + 1
        else:
            high = middle
    candidates = [one[low - 1]] if low else []
    if k - low:
        candidates.append(other[k - low - 1])
    return float(max(candidates))


@dataclass(frozen=True, slots=True)
class QuantileEstimate:
    """A shift of ln y at a quantile; `log_e_value` and `interval` as a `Look` has them."""

    est: float
    se: float
    nu: float
    units: tuple[int, int]
    _test: _ShiftTest

    @property
    def information(self) -> float:
        return 1 / self.se**2

    @property
    def enough(self) -> bool:
        """Whether both arms have the units that a claim needs."""
        return min(self.units) >= MIN_UNITS

    @property
    def z(self) -> float:
        """The test of "no shift": its difference of proportions in standard errors."""
        return self._test.z(0.0)

    def log_e_value(self, *, effect: float, alpha: float, slack: Slack = NO_SLACK) -> float:
        """The evidence against "no shift", by the test at 0; it reaches ln(1/alpha) where `interval` excludes 0."""
        z = self.z
        if not self.enough or not math.isfinite(z):
            return 0.0
        return float(log_e_mixture(slack.shrink(z * self.se), self.se, self.nu, effect=effect, alpha=alpha))

    def interval(
        self, *, effect: float, alpha: float, level: float | None = None, slack: Slack = NO_SLACK
    ) -> Interval | None:
        """The confidence sequence; None before both arms have enough units, or if an end is beyond ±FARTHEST."""
        k = float(boundary(self.se, self.nu, effect=effect, alpha=alpha, level=level))
        if not self.enough or not math.isfinite(k):
            return None
        lower, upper = self._crossing(k), self._crossing(-k)
        return None if lower is None or upper is None else slack.widen(Interval(lower[0], upper[1]))

    def _crossing(self, k: float) -> tuple[float, float] | None:
        """Searches first where a normal estimate has it."""
        near, far = (self.est - factor * k * self.se for factor in (0.75, 1.25))
        return self._test.crossing(k, min(near, far), max(near, far)) or self._test.crossing(k)


def quantile_shift(values: Floats, unit: Codes, stratum: Codes, arm: Codes, p: float) -> QuantileEstimate | None:
    """The treatment's shift of ln y against control's at quantile `p`, one row per request.

    `values` are ln y; `unit` and `stratum` codes from 0 without large gaps; `arm` 0 or 1. None where fewer than
    MIN_ABOVE requests of an arm lie above the quantile, or where the shift or its error is not to be found.
    """
    if not len(values):
        return None
    test = _ShiftTest(values, unit, stratum, arm, p)
    if test.free <= 0 or min(test.rows) * min(p, 1 - p) < MIN_ABOVE:
        return None
    centre, lower, upper = test.crossing(0.0), test.crossing(1.0), test.crossing(-1.0)
    if centre is None or lower is None or upper is None:
        return None
    est, se = 0.5 * (centre[0] + centre[1]), 0.5 * (upper[1] - lower[0])
    return QuantileEstimate(est, se, test.nu(est), test.units, test)


def reach_of_quantile(values: Floats, p: float, unknown: float, least: float, most: float) -> Slack:
    """How far quantile `p` of `values` and so many unknown ones, each between `least` and `most`, may be from that of
    `values` alone.
    """
    count = len(values)
    low, high = (p * (count + unknown) - unknown) / count, p * (count + unknown) / count
    known = float(np.quantile(values, p))
    lowest = float(np.quantile(values, low)) if low > 0 else least
    highest = float(np.quantile(values, high)) if high < 1 else most
    return Slack(known - lowest, highest - known)


def reach_of_quantiles(
    values: Floats, band: Codes, arm: Codes, *, p: float, missing: Floats, least: float, most: float
) -> Slack:
    """About how far the shift of quantile `p` may be off because so many values of each band and arm are missing, shape
    (bands, 2), each between `least` and `most`. `band`, `arm`: of each value.

    Each arm's quantile is taken as that of its values with their strata's weights, which the shift is about the
    difference of.
    """
    size = max(len(missing), int(band.max()) + 1)
    n = np.bincount(2 * band + arm, minlength=2 * size).reshape(-1, 2).astype(np.float64)
    filled = n + np.pad(missing, ((0, size - len(missing)), (0, 0)))
    now, then = _weights(n), _weights(filled)
    if np.count_nonzero(then) == np.count_nonzero(now) == 1:
        only = int(np.flatnonzero(now)[0])
        control, treated = (
            reach_of_quantile(values[(band == only) & (arm == of_arm)], p, missing[only, of_arm], least, most)
            if only < len(missing)
            else NO_SLACK
            for of_arm in (0, 1)
        )
        return Slack(treated.down + control.up, treated.up + control.down)
    if not now.any():
        return NO_SLACK
    reaches = []
    for of_arm in (0, 1):
        own = np.flatnonzero(arm == of_arm)
        own = own[np.argsort(values[own], kind="stable")]
        value, place = values[own], band[own]
        known = _weighted(value, (now / np.maximum(n[:, of_arm], 1))[place], p, least, most, 0.0)
        each, unknown = then / np.maximum(filled[:, of_arm], 1), filled[:, of_arm] - n[:, of_arm]
        low, high = (
            _weighted(value, each[place], p, least, most, float((each * unknown).sum()) * share) for share in (-1, 1)
        )
        reaches.append(Slack(max(known - low, 0.0), max(high - known, 0.0)))
    return Slack(reaches[1].down + reaches[0].up, reaches[1].up + reaches[0].down)


def _weights(n: Floats) -> Floats:
    """The overlap weights of strata; 0 where they do not count."""
    weights: Floats = np.where(n.min(axis=1) >= 2, n.prod(axis=1) / np.maximum(n.sum(axis=1), 1), 0.0)
    return weights


def _weighted(values: Floats, weights: Floats, p: float, least: float, most: float, unknown: float) -> float:
    """The quantile of sorted `values` with `weights`, and with others of the weight `unknown`: all of them above, or
    below if it is negative.
    """
    kept = weights > 0
    values, weights = values[kept], weights[kept]
    total = float(weights.sum())
    wanted = p * (total + abs(unknown)) + min(unknown, 0.0)
    if not len(values) or not 0 < wanted < total:
        return most if unknown > 0 else least
    below = np.cumsum(weights) - weights
    return float(np.interp(wanted / total, below / max(below[-1], np.finfo(np.float64).tiny), values))
