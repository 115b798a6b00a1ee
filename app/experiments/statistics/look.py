"""A look: an effect with its standard error, from what is known at one moment.

Treatment is compared with control within strata; the strata's differences are averaged with overlap (Mantel-Haenszel)
weights, and the variance is clustered by unit: whole users, not requests, carry the information. Strata hold the
treatment's share, so that ramps neither bias the estimate nor need inverse propensities.

The variance is the larger of two. *Welch's* estimates each arm's from its own units, less one for each mean that it
has: thousands of units of control may vary less than the thirty of the treatment. *The permutation's* is the variance
if the arms' residuals were exchanged, as they may be where nothing differs: an arm that has not met a rare and large
value yet would seem to vary hardly at all, but control has met it. With equal halves the two are the same. The degrees
of freedom are Welch's and Satterthwaite's, of the variance that counts. Where no value differs from its arm's mean, as
where all answers have 16 tokens on one and 8 on the other, residuals are those from the mean of both.

Covariates adjust the estimate by regression, as in Lindon et al. 2022. Where they were known before a unit met its arm,
the difference of their means between the arms is 0 but for chance. So the estimate less any multiple of it has the same
mean, and the multiple that least squares finds on the units' influences has the least variance (Deng et al. 2013,
"CUPED"; with one slope for both arms it is Lin's 2013 estimate in the limit). Each unit counts once, with its first arm
and the stratum of its first request: how often it comes back may depend on the arm.

Two scales. ``ratio``: ln of the ratio of the arms' means (means, proportions, ratios of sums). ``difference``: the
difference of means; with x = ln(value) and d = 1 that of geometric means, again the ln of a ratio.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.experiments.statistics.sequences import Interval, confidence_sequence, log_e_mixture

Floats = NDArray[np.float64]
Codes = NDArray[np.integer]

LookScale = Literal["ratio", "difference"]

MIN_UNITS = 30
"""The number of units that each arm must have before any claim."""

MIN_IN_STRATUM = 10
"""The number of units that each arm must have in a stratum of its own (`merged`)."""

MIN_VARYING = 10.0
"""A covariate adjusts once its variance in each arm is spread over as many units (`_units_that_vary`)."""

_COLLINEAR = 1e-9

# A variance below this share of the second moment is rounding: the values do not vary. With sums of squares the
# subtraction loses half of the digits.
_ROUNDING = 1e-24
_ROUNDING_OF_MOMENTS = 1e-13


class UnitSums(NamedTuple):
    """Sums of each (unit, stratum, arm): equally long arrays.

    The same combination may occur in several lines. `unit` and `stratum` are codes from 0, without large gaps.
    """

    unit: Codes
    stratum: Codes
    arm: Codes
    """0 control, 1 treatment."""
    n: Floats
    """Requests that have a value."""
    x: Floats
    """The sum of their numerators."""
    d: Floats
    """The sum of their denominators: n, unless the metric is a ratio of sums."""


class Covariates(NamedTuple):
    """What was known of units before they met an arm: equally long arrays, one entry for each unit.

    A unit of which nothing was known has the covariates' mean.
    """

    unit: Codes
    """As in `UnitSums`."""
    stratum: Codes
    """Of its first request: codes of their own."""
    arm: Codes
    """That it met first: 0 control, 1 treatment."""
    values: Floats
    """Shape (units, covariates)."""


class Slack(NamedTuple):
    """The most by which an estimate's true value may be below, and above, what is known: because of missing values."""

    down: float = 0.0
    up: float = 0.0

    def plus(self, other: "Slack") -> "Slack":
        """What both allow for."""
        return Slack(self.down + other.down, self.up + other.up)

    def shrink(self, est: float) -> float:
        """The possible estimate that is nearest to 0."""
        return max(est - self.down, 0.0) if est > 0 else min(est + self.up, 0.0)

    def widen(self, interval: Interval | None) -> Interval | None:
        """The interval with what the missing values allow; None if they allow everything."""
        if interval is None or not math.isfinite(self.down + self.up):
            return None
        return Interval(interval.lower - self.down, interval.upper + self.up)


NO_SLACK = Slack()


def extremes(pairs: Floats) -> Floats:
    """Of numerators with their denominators, shape (pairs, 2), those that make a ratio of sums largest or smallest: no
    other one has a larger numerator and a smaller denominator, or the reverse."""
    return np.vstack([_frontier(pairs), -_frontier(-pairs)])


def _frontier(pairs: Floats) -> Floats:
    by_denominator = pairs[np.lexsort((-pairs[:, 0], pairs[:, 1]))]
    largest = np.maximum.accumulate(by_denominator[:, 0])
    frontier: Floats = by_denominator[np.append(True, by_denominator[1:, 0] > largest[:-1])]
    return frontier


class Moments(NamedTuple):
    """Moments of each stratum and arm where the request is the unit: arrays of shape (strata, 2)."""

    n: Floats
    x: Floats
    d: Floats
    xx: Floats
    xd: Floats
    dd: Floats


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate on a logarithmic scale (or a plain difference), with what the decision needs."""

    est: float
    se: float
    nu: float
    """Degrees of freedom: between the smaller arm's units, less one for each stratum that counts, and both arms'."""
    s0: float
    s1: float
    """Sums over strata of weight times mean, of control and of the treatment."""
    overlap: float
    """The sum of the strata's weights D0 D1 / (D0 + D1)."""
    denominator: float
    """Σd over the strata that count."""
    units: tuple[int, int]
    """Distinct units of each arm, in the strata that count."""
    clusters: int
    """Distinct units of both arms together."""
    unadjusted: "Estimate | None" = None
    """The same look without covariates, if these adjust it."""

    @property
    def information(self) -> float:
        return 1 / self.se**2

    @property
    def variance_ratio(self) -> float | None:
        """The variance by that without covariates; None if none adjusts the look."""
        return (self.se / self.unadjusted.se) ** 2 if self.unadjusted is not None else None

    @property
    def sigma(self) -> float:
        """The residuals' standard deviation per unit: se² = sigma² / (units * share * (1 - share))."""
        return self.se * math.sqrt(self.clusters * self.overlap / self.denominator)

    @property
    def enough(self) -> bool:
        """Whether both arms have the units that a claim needs."""
        return min(self.units) >= MIN_UNITS

    def log_e_value(self, *, effect: float, alpha: float, slack: Slack = NO_SLACK) -> float:
        """The evidence against "no effect"; 0 before both arms have enough units."""
        est = slack.shrink(self.est)
        return float(log_e_mixture(est, self.se, self.nu, effect=effect, alpha=alpha)) if self.enough else 0.0

    def interval(
        self, *, effect: float, alpha: float, level: float | None = None, slack: Slack = NO_SLACK
    ) -> Interval | None:
        """The confidence sequence at this look; None before both arms have enough units. `level`: see `boundary`."""
        if not self.enough:
            return None
        return slack.widen(confidence_sequence(self.est, self.se, self.nu, effect=effect, alpha=alpha, level=level))


class _Cells(NamedTuple):
    """The estimator's pieces for each stratum and arm, shape (strata, 2); 0 in strata that do not count."""

    ok: NDArray[np.bool_]
    mean: Floats
    g: Floats
    exchange: Floats
    """The factors by which residuals move the estimate if they are exchanged with the other arm's, by those here."""
    s0: float
    s1: float
    overlap: float
    denominator: float


def _cells(n: Floats, x: Floats, d: Floats) -> _Cells | None:
    """None if no stratum has two requests, with a denominator, in each arm."""
    ok = (n.min(axis=1) >= 2) & (d.min(axis=1) > 0)
    if not ok.any():
        return None
    counted = np.where(ok[:, None], d, 1.0)
    w = np.where(ok, counted.prod(axis=1) / counted.sum(axis=1), 0.0)
    mean = np.where(ok[:, None], x / counted, 0.0)
    g = w[:, None] / counted
    s0, s1 = (w[:, None] * mean).sum(axis=0)
    return _Cells(
        ok, mean, g, np.sqrt(counted / counted[:, ::-1]), float(s0), float(s1), float(w.sum()), float(d[ok].sum())
    )


def _alike(n: Floats, x: Floats, d: Floats, scale: LookScale) -> tuple[_Cells, Floats] | None:
    """The pieces and the multipliers if both arms had the mean of both."""
    cells = _cells(n, d * (x.sum(axis=1) / np.maximum(d.sum(axis=1), np.finfo(np.float64).tiny))[:, None], d)
    multipliers = None if cells is None else _multipliers(cells, scale)
    return None if cells is None or multipliers is None else (cells, multipliers)


def _multipliers(cells: _Cells, scale: LookScale) -> Floats | None:
    """The factors by which the arms' residuals move the estimate: shape (2,). None where the ratio has no logarithm."""
    if scale == "difference":
        return np.array([-1.0, 1.0]) / cells.overlap
    if not (cells.s0 > 0 and cells.s1 > 0):
        return None
    return np.array([-1 / cells.s0, 1 / cells.s1])


def _estimate(cells: _Cells, scale: LookScale) -> float:
    if scale == "difference":
        return (cells.s1 - cells.s0) / cells.overlap
    return math.log(cells.s1 / cells.s0)


def _result(
    cells: _Cells,
    scale: LookScale,
    squares: Floats,
    *,
    floor: float,
    units: tuple[int, int],
    clusters: int,
    adjustment: "_Adjustment | None" = None,
) -> Estimate | None:
    """`squares` as in `variance_of`; if the arms' own are at most `floor` together, they are rounding."""
    if not math.isfinite(squares.sum()) or squares[0].sum() <= floor:
        return None
    by, slopes = (adjustment.by, adjustment.slopes) if adjustment is not None else (0.0, 0)
    spread = variance_of(squares, units, int(cells.ok.sum()) + slopes)
    if spread is None:
        return None
    variance, nu = spread
    se, est = math.sqrt(variance), _estimate(cells, scale) - by
    if not (se * se > 0 and math.isfinite(se) and math.isfinite(est)):
        return None
    return Estimate(est, se, nu, cells.s0, cells.s1, cells.overlap, cells.denominator, units, clusters)


def variance_of(squares: Floats, units: tuple[int, int], strata: int) -> tuple[float, float] | None:
    """The variance of a difference, and its degrees of freedom.

    `squares` are the sums of the arms' squared influences, as they are and exchanged between the arms: shape (2, 2).
    None if an arm has no more units than means.
    """
    counts = np.array(units, np.float64)
    free = counts - strata
    if free.min() <= 0:
        return None
    own, exchanged = squares * counts / free
    if exchanged.sum() > own.sum():
        return float(exchanged.sum()), _degrees(counts[::-1], free)
    return float(own.sum()), _degrees(own, free) if own.sum() > 0 else float(free.sum())


def _degrees(variances: Floats, free: Floats) -> float:
    """Welch's and Satterthwaite's degrees of freedom of the sum of two variances, from their sizes and their own."""
    return 1 / float((np.square(variances / variances.sum()) / free).sum())


def _sums(codes: Codes, values: Floats, size: int = 0) -> Floats:
    return np.asarray(np.bincount(codes, values, size), dtype=np.float64)


def _units_of(stratum: Codes, unit: Codes, arm: Codes) -> Floats:
    """The distinct units of each stratum and arm: shape (strata, 2)."""
    width = int(unit.max()) + 1
    distinct = np.unique((2 * stratum.astype(np.int64) + arm) * width + unit)
    return _sums(distinct // width, np.ones(len(distinct)), 2 * (int(stratum.max()) + 1)).reshape(-1, 2)


def merging(units: Floats, within: Codes) -> Codes:
    """What strata become so that none has fewer than `MIN_IN_STRATUM` units of an arm: all that have fewer are one
    together, or part of the largest if they are still too few. Only strata `within` the same one are merged, and none
    that an arm lacks: these do not count. `units` of each stratum and arm: shape (strata, 2).

    A unit that is nearly alone in its stratum and arm hardly differs from their mean, however much it differs from
    other units: the variance would miss it.
    """
    fewest = units.min(axis=1)
    few, enough = (fewest > 0) & (fewest < MIN_IN_STRATUM), fewest >= MIN_IN_STRATUM
    becomes = np.arange(len(units))
    for wider in np.unique(within[few]).tolist():
        small, others = (np.flatnonzero((within == wider) & which) for which in (few, enough))
        alone = units[small].sum(axis=0).min() >= MIN_IN_STRATUM or not len(others)
        becomes[small] = small[0] if alone else others[fewest[others].argmax()]
    return becomes


def merged(stratum: Codes, within: Codes, unit: Codes, arm: Codes) -> Codes:
    """The strata of lines after `merging`, as codes without gaps. Each unit is in one stratum `within` the same one."""
    units = _units_of(stratum, unit, arm)
    wider = np.zeros(len(units), np.int64)
    wider[stratum] = within
    becomes = merging(units, wider)
    return np.asarray(np.unique(becomes, return_inverse=True)[1].reshape(-1)[stratum], stratum.dtype)


def sum_of_squares(values: Floats) -> float:
    """The sum of squares, not as a product of vectors: BLAS would start threads, which wait busily while others need
    the cores.
    """
    return float(np.square(values).sum())


def look(lines: UnitSums, scale: LookScale, covariates: Covariates | None = None) -> Estimate | None:
    """The treatment against control, clustered by unit, and adjusted by `covariates` where that is possible.

    None where there is no estimate with an error: no stratum with two requests in each arm, a ratio whose numerator or
    denominator is 0, an arm with no more units than means, or values that do not vary.
    """
    if not len(lines.unit):
        return None
    cell = 2 * lines.stratum + lines.arm
    size = 2 * (int(lines.stratum.max()) + 1)
    n, x, d = (_sums(cell, values, size).reshape(-1, 2) for values in (lines.n, lines.x, lines.d))
    with np.errstate(over="ignore", invalid="ignore"):
        cells = _cells(n, x, d)
        multipliers = None if cells is None else _multipliers(cells, scale)
        if cells is None or multipliers is None:
            return None
        if not cells.ok.all():
            kept = cells.ok[lines.stratum]
            lines = UnitSums._make(column[kept] for column in lines)
        influence, own = _influences(cells, multipliers, lines)
        floor = _ROUNDING * sum_of_squares(own)
        if _squares(influence)[0].sum() <= floor and (alike := _alike(n, x, d, scale)):
            influence, _ = _influences(*alike, lines)
        seen = np.zeros((2, influence.shape[2]), dtype=np.bool_)
        seen[lines.arm, lines.unit] = True
        control, treated = seen.sum(axis=1)
        units, clusters = (int(control), int(treated)), int(seen.any(axis=0).sum())
        unadjusted = _result(cells, scale, _squares(influence), floor=floor, units=units, clusters=clusters)
        if unadjusted is None or covariates is None:
            return unadjusted
        adjustment = _adjustment(influence, covariates)
        if adjustment is None:
            return unadjusted
        squares = _squares(adjustment.influence)
        adjusted = _result(cells, scale, squares, floor=floor, units=units, clusters=clusters, adjustment=adjustment)
    return unadjusted if adjusted is None else replace(adjusted, unadjusted=unadjusted)


def _influences(cells: _Cells, multipliers: Floats, lines: UnitSums) -> tuple[Floats, Floats]:
    """The units' influences on the estimate, as they are and exchanged between the arms: shape (2, 2 arms, units); and
    the lines' own parts of it.
    """
    cell, width = 2 * lines.stratum + lines.arm, int(lines.unit.max()) + 1
    factor = (cells.g * multipliers).ravel()[cell]
    own = factor * lines.x
    part, line = own - factor * cells.mean.ravel()[cell] * lines.d, lines.arm * width + lines.unit
    kinds = [_sums(line, values, 2 * width) for values in (part, part * cells.exchange.ravel()[cell])]
    return np.stack(kinds).reshape(2, 2, width), own


def _squares(influence: Floats) -> Floats:
    """As `variance_of` takes them."""
    return np.stack([squares_of_arms(of_kind) for of_kind in influence])


class _Adjustment(NamedTuple):
    by: float
    """What is taken from the estimate."""
    slopes: int
    influence: Floats
    """What is left of the units' influences, of the same shape."""


def _adjustment(influence: Floats, covariates: Covariates) -> _Adjustment | None:
    """None if no covariate varies between enough units of each arm."""
    unit, stratum, arm, _ = covariates
    cell, ones = 2 * stratum + arm, np.ones(len(unit))
    n = _sums(cell, ones, 2 * (int(stratum.max(initial=-1)) + 1)).reshape(-1, 2)
    differences: list[float] = []
    influences: list[Floats] = []
    for values in covariates.values.T:
        cells = _cells(n, _sums(cell, values, n.size).reshape(-1, 2), n)
        if cells is None:
            return None
        kept = cells.ok[stratum]
        lines = UnitSums(unit[kept], stratum[kept], arm[kept], ones[kept], values[kept], ones[kept])
        of_units, parts = _influences(cells, np.array([-1.0, 1.0]) / cells.overlap, lines)
        size = math.sqrt(sum_of_squares(of_units[0]))
        varies = size**2 > _ROUNDING_OF_MOMENTS * sum_of_squares(parts)
        if varies and min(_units_that_vary(part) for part in of_units[0]) >= MIN_VARYING:
            differences.append((cells.s1 - cells.s0) / cells.overlap / size)
            influences.append(of_units / size)
    if not influences:
        return None
    width = max(influence.shape[2], influences[0].shape[2])
    own, *of_covariates = (
        np.pad(part, ((0, 0), (0, 0), (0, width - part.shape[2]))) for part in (influence, *influences)
    )
    regressors = np.array([part[0].sum(axis=0) for part in of_covariates])
    products = np.einsum("iu,ju->ij", regressors, regressors)
    target = np.einsum("iu,u->i", regressors, own[0].sum(axis=0))
    slopes, _, rank, _ = np.linalg.lstsq(products, target, rcond=_COLLINEAR)
    left = own - np.einsum("i,ikau->kau", slopes, np.array(of_covariates))
    return _Adjustment(float((slopes * differences).sum()), int(rank), left)


def _units_that_vary(influence: Floats) -> float:
    """The number of units over which an arm's variance is spread: all of them, if their influences are equally large,
    and a third of them if normal.
    """
    squares = np.square(influence)
    return float(squares.sum() ** 2 / max(np.square(squares).sum(), np.finfo(np.float64).tiny))


def squares_of_arms(influence: Floats) -> Floats:
    """The arms' shares of the sum of the units' squared influences, from the influences of shape (2, units).

    A unit that has moved from one arm to the other has one influence, since its requests are alike; it belongs to both
    arms in proportion to the squares of its parts.
    """
    parts = np.square(influence)
    moved = np.flatnonzero((parts > 0).all(axis=0))
    parts[:, moved] *= np.square(influence[:, moved].sum(axis=0)) / parts[:, moved].sum(axis=0)
    return np.asarray(parts.sum(axis=1), dtype=np.float64)


def look_of_requests(moments: Moments, scale: LookScale) -> Estimate | None:
    """Like `look`, where every request is its own unit: second moments are enough."""
    if not len(moments.n):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        cells = _cells(moments.n, moments.x, moments.d)
        multipliers = None if cells is None else _multipliers(cells, scale)
        if cells is None or multipliers is None:
            return None
        squares, floor = _squares_of_requests(cells, multipliers, moments)
        if squares[0].sum() <= floor and (alike := _alike(moments.n, moments.x, moments.d, scale)):
            squares, _ = _squares_of_requests(*alike, moments)
    control, treated = (int(count) for count in moments.n[cells.ok].sum(axis=0))
    return _result(cells, scale, squares, floor=floor, units=(control, treated), clusters=control + treated)


def _squares_of_requests(cells: _Cells, multipliers: Floats, moments: Moments) -> tuple[Floats, float]:
    """As `variance_of` takes them; and the size up to which they are rounding."""
    weights = np.where(cells.ok[:, None], (cells.g * multipliers) ** 2, 0.0)
    squares = weights * (moments.xx - 2 * cells.mean * moments.xd + cells.mean**2 * moments.dd)
    floor = _ROUNDING_OF_MOMENTS * float((weights * moments.xx).sum())
    return np.stack([squares.sum(axis=0), (cells.exchange**2 * squares).sum(axis=0)]), floor
