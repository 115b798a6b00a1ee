"""How far an estimate may move once the values that are missing are known.

The estimate is that of `look`: strata's sums with overlap weights, which the missing values change, too. Its largest
value is found exactly (Dinkelbach 1967, "On nonlinear fractional programming"). The ratio of the arms' sums over strata
S1 / S0 may be r if, and only if, the largest S1 - r S0 is at least 0; and there each stratum counts by itself. What one
arm's missing values add to a stratum changes it as a ratio of linear functions: the largest is where all of them are
the same one, or none is there. The least is the largest with the arms exchanged.

Of values whose stratum is not known, each may be where it moves the estimate most, as fast as it does there at most.

Values that one arm has in excess are taken away instead. If m of a stratum's d are, its sums are linear in m / (total -
m), and so is the weight that they would have in the estimate without them: those whose weight is bounded are a
knapsack's, to be filled with what moves the estimate most for its weight.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from app.experiments.statistics.look import NO_SLACK, Codes, Floats, LookScale, Slack

_PRECISION = 1e-12


class StrataSums(NamedTuple):
    """Requests with a value, numerators and denominators of each stratum and arm: shape (strata, 2)."""

    n: Floats
    x: Floats
    d: Floats

    @property
    def exchanged(self) -> "StrataSums":
        """With the arms exchanged."""
        return StrataSums._make(column[:, ::-1] for column in self)


_Options = list[tuple[Floats, Floats]]
"""What may add to the numerator and the denominator of the estimate, one of the choices of each row: shapes (rows,
choices)."""


def reach(sums: StrataSums, missing: Floats, pairs: Floats, scale: LookScale) -> Slack:
    """How far the estimate may be off because of so many `missing` values of each stratum and arm, shape (strata, 2):
    each may have any of `pairs`, its numerator and its denominator, shape (pairs, 2).
    """
    return reach_anywhere(sums, missing, np.arange(len(missing)), np.zeros((0, 2)), pairs, scale)


def reach_anywhere(
    sums: StrataSums, missing: Floats, band: Codes, anywhere: Floats, pairs: Floats, scale: LookScale
) -> Slack:
    """The same, and because of those `anywhere` in a band's strata: so many of each band and arm. `band`: of each
    stratum.
    """
    roaming = []
    for number in np.flatnonzero(anywhere.any(axis=1)).tolist():
        strata = np.flatnonzero(band == number)
        if len(strata) > 1:
            roaming.append((strata, anywhere[number]))
        elif len(strata):
            missing = missing + anywhere[number] * (np.arange(len(missing)) == strata[0])[:, None]
        else:
            sums = StrataSums._make(np.vstack([column, np.zeros(2)]) for column in sums)
            missing = np.vstack([missing, anywhere[number]])
    if not len(pairs) or not (missing.any() or roaming):
        return NO_SLACK
    pairs = _corners(pairs)
    if scale == "difference":  # no difference depends on where 0 is
        least = float(np.append(pairs[:, 0] / pairs[:, 1], 0.0).min())
        sums = sums._replace(x=sums.x - least * sums.d)
        pairs = np.column_stack([pairs[:, 0] - least * pairs[:, 1], pairs[:, 1]])
    exchanged = [(strata, of_band[::-1]) for strata, of_band in roaming]
    return Slack(
        _most(sums.exchanged, missing[:, ::-1], exchanged, pairs, scale), _most(sums, missing, roaming, pairs, scale)
    )


def _corners(pairs: Floats) -> Floats:
    """Those of `pairs` that are corners of all: a ratio of linear functions is largest at one of them."""
    ordered = sorted(set(map(tuple, pairs.tolist())))
    corners = set[tuple[float, ...]]()
    for points in (ordered, ordered[::-1]):
        chain: list[tuple[float, ...]] = []
        for x, d in points:
            while len(chain) > 1 and (
                (chain[-1][0] - chain[-2][0]) * (d - chain[-2][1]) <= (chain[-1][1] - chain[-2][1]) * (x - chain[-2][0])
            ):
                chain.pop()
            chain.append((x, d))
        corners.update(chain)
    return np.array(sorted(corners))


def _most(
    sums: StrataSums, missing: Floats, roaming: Sequence[tuple[Codes, Floats]], pairs: Floats, scale: LookScale
) -> float:
    """By how much the estimate may be larger."""
    counts = (sums.n.min(axis=1) >= 2) & (sums.d.min(axis=1) > 0)
    above, below = _parts(sums.x[:, 0], sums.x[:, 1], sums.d[:, 0], sums.d[:, 1], scale)
    now = above[counts].sum(), below[counts].sum()
    if not now[1] > 0 or (scale == "ratio" and not now[0] > 0):
        return math.inf  # there is no estimate
    extra = np.zeros_like(missing)
    for strata, of_band in roaming:
        extra[strata] += of_band
    may_count = (sums.n + missing + extra).min(axis=1) >= 2
    changes = np.flatnonzero(may_count & (missing.any(axis=1) | ~counts))
    fixed = counts.copy()
    fixed[changes] = False
    options = [(above[fixed].sum(keepdims=True)[None], below[fixed].sum(keepdims=True)[None])]
    if len(changes):
        options.append(_filled(sums, missing, changes, counts[changes], pairs, scale))
    for strata, of_band in roaming:
        options += _added(StrataSums._make(column[strata] for column in sums), of_band, pairs, scale)
    est = now[0] / now[1]
    most = _largest(lambda ratio: _chosen(options, ratio), est)
    return most - est if scale == "difference" else math.log(most / est)


def reach_without_excess(
    sums: StrataSums, arm: int, share: float, seen: tuple[float, float], scale: LookScale, weight: float = 0.0
) -> Slack:
    """How far the estimate may be off because `arm` has values in excess: those of people who have none on the other.

    They are at most `share` of the arm's, in strata of any kind, each value counting as the estimate without them
    weighs it: so a ratio of rates by the same strata has them. Each may be any between the two that were `seen`, the
    least and the largest, as may the mean of those that are left. `weight`: the sum of the overlap weights of all
    values among which they are, if these are a part of them. Each value's denominator is 1. The bound lets parts of
    values go, so that it may be larger than what whole ones do.
    """
    return Slack(
        _most_without(sums.exchanged, 1 - arm, share, seen, scale, weight),
        _most_without(sums, arm, share, seen, scale, weight),
    )


def _most_without(
    sums: StrataSums, arm: int, share: float, seen: tuple[float, float], scale: LookScale, weight: float
) -> float:
    """By how much the estimate may be larger."""
    counts = (sums.n.min(axis=1) >= 2) & (sums.d.min(axis=1) > 0)
    x, d = sums.x[counts][:, arm], sums.d[counts][:, arm]
    other_x, other = sums.x[counts][:, 1 - arm], sums.d[counts][:, 1 - arm]
    total = d + other
    taken, left = seen if arm == 1 else seen[::-1]

    def parts(x: Floats, d: Floats) -> tuple[Floats, Floats]:
        x0, x1, d0, d1 = (other_x, x, other, d) if arm == 1 else (x, other_x, d, other)
        return _parts(x0, x1, d0, d1, scale)

    above, below = parts(x, d)
    if share >= 1 or not below.sum() > 0 or (scale == "ratio" and not above.sum() > 0):
        return math.inf
    est = float(above.sum() / below.sum())
    weights = d * other / total
    # The last but one takes its stratum out of the estimate. Before, all that are left may be as good as any was.
    last = d - 1
    gone = np.clip((x - left * d) / (taken - left), 0.0, last) if taken != left else np.zeros(len(d))
    rest = parts(x - taken * gone, d - gone)
    above, below = (np.stack([now, then, np.zeros(len(d))]) for now, then in zip((above, below), rest, strict=True))
    price = np.stack([np.zeros(len(d)), gone / (total - gone), last / (total - last)])
    cost = other * (1 - share * d / total) * price
    budget = share * max(weight, float(weights.sum()))

    def best(ratio: float) -> tuple[float, float]:
        return _filled_knapsack(above, below, cost, budget, ratio)

    most = _largest(best, est)
    return most - est if scale == "difference" else math.log(most / est)


def _filled_knapsack(above: Floats, below: Floats, cost: Floats, budget: float, ratio: float) -> tuple[float, float]:
    """The sums with the largest above - ratio * below. Each column goes from its first row by way of the second to the
    third, or past the second if that is below the straight line.
    """
    value = above - ratio * below
    straight = value[0] + (value[2] - value[0]) * cost[1] / cost[2]
    middle = np.where(value[1] > straight, 1, 2)
    columns = np.arange(above.shape[1])
    steps = [
        tuple(table[middle, columns] - table[0] for table in (above, below, cost)),
        tuple(table[2] - table[middle, columns] for table in (above, below, cost)),
    ]
    more_above, more_below, price = (np.concatenate(parts) for parts in zip(*steps, strict=True))
    gain = more_above - ratio * more_below
    useful = np.flatnonzero((gain > 0) & (price > 0))
    useful = useful[np.argsort(-gain[useful] / price[useful], kind="stable")]
    spent = np.cumsum(price[useful]) - price[useful]
    part = np.clip((budget - spent) / price[useful], 0.0, 1.0)
    return (
        float(above[0].sum() + part @ more_above[useful]),
        float(below[0].sum() + part @ more_below[useful]),
    )


def _parts(x0: Floats, x1: Floats, d0: Floats, d1: Floats, scale: LookScale) -> tuple[Floats, Floats]:
    """What strata add to the numerator and the denominator of the estimate."""
    both = np.maximum(d0 + d1, np.finfo(np.float64).tiny)
    if scale == "difference":
        return (x1 * d0 - x0 * d1) / both, d0 * d1 / both
    return x1 * d0 / both, x0 * d1 / both


def _filled(
    sums: StrataSums, missing: Floats, strata: Codes, counts: Codes, pairs: Floats, scale: LookScale
) -> tuple[Floats, Floats]:
    """The choices of `strata`: each arm's missing values all the same, or not there."""
    fills = np.vstack([np.zeros(2), pairs])
    x, d = (
        column[strata][:, :, None] + missing[strata][:, :, None] * fill
        for column, fill in ((sums.x, fills[:, 0]), (sums.d, fills[:, 1]))
    )
    parts = _parts(x[:, 0, :, None], x[:, 1, None, :], d[:, 0, :, None], d[:, 1, None, :], scale)
    above, below = (part.reshape(len(strata), -1) for part in parts)
    # Where an arm has too few values now, the stratum need not count either.
    return (
        np.column_stack([above, np.where(counts, above[:, 0], 0.0)]),
        np.column_stack([below, np.where(counts, below[:, 0], 0.0)]),
    )


def _added(sums: StrataSums, missing: Floats, pairs: Floats, scale: LookScale) -> _Options:
    """The choices of an arm's missing values, which may be in any of the strata, for both arms: bounds of the
    derivatives, on all ways to the sums with them. Numerators are not negative.
    """
    (x0, x1), (d0, d1), both = sums.x.T[..., None], sums.d.T[..., None], sums.d.sum(axis=1)[:, None]
    x, d = pairs.T
    most_x, most_d = missing * x.max(), missing * d.max()
    fewest, least = both + most_d.sum(), 1 / np.maximum(both, np.finfo(np.float64).tiny)
    largest = ((d0 + most_d[0]) / (d0 + most_d[0] + d1), (d1 + most_d[1]) / (d1 + most_d[1] + d0))
    smallest = (d0 / (both + most_d[1]), d1 / (both + most_d[0]))
    if scale == "ratio":
        added = [
            (x - d * x1 / fewest, d * x0 / fewest),
            (d * (x1 + most_x[1]) * least, x - d * (x0 + most_x[0]) * least),
        ]
    else:
        means = (x0 + x1) / fewest, (x0 + x1 + most_x.sum()) * least
        added = [
            (np.hstack([part, part]), np.hstack([d * largest[number], d * smallest[number]]))
            for number, part in enumerate((x - d * means[0], d * means[1] - x))
        ]
    options = []
    for number, (above, below) in enumerate(added):
        factor = missing[1 - number] * largest[number]
        choices = [np.append((factor * part).ravel(), 0.0)[None] for part in (above, below)]
        options.append((choices[0], choices[1]))
    return options


def _chosen(options: _Options, ratio: float) -> tuple[float, float]:
    """The sums of the choices with the largest above - ratio * below."""
    above = below = 0.0
    for numerators, denominators in options:
        rows, chosen = np.arange(len(numerators)), (numerators - ratio * denominators).argmax(axis=1)
        above += float(numerators[rows, chosen].sum())
        below += float(denominators[rows, chosen].sum())
    return above, below


def _largest(best: Callable[[float], tuple[float, float]], start: float) -> float:
    """The largest ratio of sums. `best`: those with the largest above - ratio * below; `start`: a ratio that some
    have.
    """
    ratio = start
    for _ in range(100):
        above, below = best(ratio)
        if not below > 0:
            return math.inf
        if above / below <= ratio + _PRECISION * abs(ratio):
            return max(above / below, ratio)
        ratio = above / below
    return math.inf
