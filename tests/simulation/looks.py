"""Runs of a world: the estimates at every look, clustered by user, and as if every request were its own unit."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.aggregates import UnitHistory
from app.experiments.analysis.arrays import Hashes
from app.experiments.analysis.cells import Strata
from app.experiments.analysis.metrics import Values
from app.experiments.statistics.look import MIN_UNITS, Covariates, Estimate, Moments, UnitSums, look, look_of_requests
from app.experiments.statistics.sequences import boundary, effect_size, log_e_mixture
from app.experiments.storage.columns import RowColumns
from tests.simulation.pool import generator
from tests.simulation.worlds import Traffic, World, draw

Floats = NDArray[np.float64]


class Estimates(NamedTuple):
    """Arrays of shape (runs, looks); NaN where there is no look, or too few units for a claim."""

    est: Floats
    se: Floats
    nu: Floats

    @property
    def z(self) -> Floats:
        return np.nan_to_num(self.est / self.se)


class Runs(NamedTuple):
    clustered: Estimates
    single: Estimates
    adjusted: Estimates
    """Clustered, and adjusted for what users did before."""


def spaced(requests: int, looks: int = 60) -> list[int]:
    """The numbers of requests after which to look: growing by a constant factor, from a 250th of all to all."""
    return [round(end) for end in np.geomspace(requests / 250, requests, looks)]


def _row(result: Estimate | None) -> tuple[float, float, float]:
    if result is None or min(result.units) < MIN_UNITS:
        return math.nan, math.nan, math.nan
    return result.est, result.se, result.nu


def follow(traffic: Traffic, world: World, ends: Sequence[int]) -> tuple[Floats, Floats, Floats]:
    """(est, se, nu) at each look: clustered by user, ignoring users, and adjusted. Shapes (looks, 3)."""
    strata = int(traffic.stratum.max()) + 1
    line = (traffic.unit * strata + traffic.stratum) * 2 + traffic.arm
    cell = traffic.stratum * 2 + traffic.arm
    lines = np.zeros((3, (int(traffic.unit.max()) + 1) * strata * 2))
    moments = np.zeros((6, strata, 2))
    ones = np.ones(len(line))
    firsts = (ones, traffic.x, traffic.d)
    products = (*firsts, traffic.x**2, traffic.x * traffic.d, traffic.d**2)
    clustered, single, adjusted = [], [], []
    known = _history(traffic)
    requests, merged = np.zeros(strata), _merged(world, strata)
    for begin, end in zip((0, *ends), ends, strict=False):
        now = slice(begin, end)
        if world.users is not None:
            lines += [np.bincount(line[now], column[now], lines.shape[1]) for column in firsts]
            seen = np.flatnonzero(lines[0])
            requests += np.bincount(traffic.stratum[now], minlength=strata)
            stratum = merged(requests)[seen // 2 % strata]
            here = UnitSums(seen // (2 * strata), stratum, seen % 2, *lines[:, seen])
            clustered.append(_row(look(here, world.scale)))
            if known is not None:
                adjusted.append(_row(look(here, world.scale, _covariates(traffic, end, known))))
        sums = [np.bincount(cell[now], column[now], 2 * strata) for column in products]
        moments += np.reshape(sums, moments.shape)
        single.append(_row(look_of_requests(Moments(*moments), world.scale)))
    return np.array(clustered or single), np.array(single), np.array(adjusted or clustered or single)


def _history(traffic: Traffic) -> Floats | None:
    """Each user's covariates, as the analysis computes them."""
    before = traffic.before
    if before is None:
        return None
    history, everything = UnitHistory(1), np.ones(len(before.unit), np.bool_)
    history.add(_hashes(before.unit), [Values(before.x, before.d, everything, ~everything, ~everything)])
    return history.covariates(0, _hashes(np.arange(int(traffic.unit.max()) + 1)))


def _hashes(users: NDArray[np.intp]) -> Hashes:
    return users.astype(np.uint64)


def _covariates(traffic: Traffic, end: int, known: Floats) -> Covariates:
    """Those of the users who have come so far."""
    unit, first = np.unique(traffic.unit[:end], return_index=True)
    return Covariates(unit, traffic.stratum[first], traffic.arm[first], known[unit])


def _merged(world: World, strata: int) -> Callable[[Floats], NDArray[np.integer]]:
    """Merges the strata of a look by their requests so far: many shares become bands, as in a report."""
    if strata != len(set(world.shares)) or world.prompt_strata:
        return lambda requests: np.arange(strata)
    weights = np.round(10_000 * np.unique(world.shares)).astype(np.int64)
    recorded = Strata(())
    recorded.codes_of(RowColumns.empty(), np.arange(strata, dtype=np.int32))
    sets = np.stack([10_000 - weights, weights], axis=1)
    return lambda requests: recorded.compared(1, sets, requests).codes


def runs(world: World, ends: Sequence[int], name: str, seeds: Sequence[int]) -> Runs:
    """One run per seed; `name` makes the seeds of each table row different."""
    each = [follow(draw(world, generator(name, seed)), world, ends) for seed in seeds]
    return Runs(*(Estimates(*np.moveaxis(np.array(kind), 2, 0)) for kind in zip(*each, strict=True)))


def log_e_value(estimates: Estimates, minimal_effect: float, alpha: float = 0.05) -> Floats:
    """The evidence at every look."""
    return log_e_mixture(*estimates, effect=effect_size(minimal_effect, "relative"), alpha=alpha)


def found(estimates: Estimates, minimal_effect: float, alpha: float = 0.05) -> NDArray[np.bool_]:
    """Whether the confidence sequence excludes 0 at each look: shape (runs, looks)."""
    return np.asarray(log_e_value(estimates, minimal_effect, alpha) >= math.log(1 / alpha), dtype=np.bool_)


def misses(estimates: Estimates, truth: float, minimal_effect: float, alpha: float = 0.05) -> NDArray[np.bool_]:
    """Whether the confidence sequence misses the true effect at each look."""
    k = boundary(estimates.se, estimates.nu, effect=effect_size(minimal_effect, "relative"), alpha=alpha)
    reach = k * np.where(np.isfinite(k), estimates.se, 1.0)
    return np.asarray(np.abs(np.nan_to_num(estimates.est) - truth) > reach, dtype=np.bool_)
