"""Sums per unit, stratum and arm, and per stratum and arm: all the data that a look needs.

`Cells` are for endpoints whose units come back: one line for each (unit, stratum, arm). `Totals` hold second moments of
single requests: a look needs them where the request is the unit, and they show how much the clustering matters.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.evidence.arrays import Floats, Growing, Hashes, Ints, combined, grouped, kept_share, mix
from app.experiments.analysis.evidence.hash_index import HashIndex
from app.experiments.analysis.evidence.strata import CodesOf, within
from app.experiments.columns import I32
from app.experiments.statistics.look import Lines, Moments

MAX_LINES = 2_000_000
"""About 20 bytes each, and 20 more for each metric. Above, half of the units are left out, by hash."""

_ARMS = 128


class Block(NamedTuple):
    """Requests of analysed exposures. `n`, `x` and `d` have the shape (requests, metrics)."""

    unit: Hashes
    stratum: I32
    arm: NDArray[np.int8]
    n: Floats
    """1 where the metric has a value."""
    x: Floats
    d: Floats

    def take(self, rows: NDArray[np.bool_]) -> "Block":
        """These cells only."""
        return Block._make(column[rows] for column in self)


class Cells:
    """One line for each unit, stratum and arm."""

    def __init__(self, metrics: int, max_lines: int = MAX_LINES) -> None:
        self._max = max_lines
        self._bits = 0
        self._lines = HashIndex()
        self._units = HashIndex()
        self._unit = Growing(np.int32)
        self._stratum = Growing(np.int32)
        self._arm = Growing(np.int8)
        self._n = Growing(np.int32, metrics)
        self._x = Growing(np.float64, metrics)
        self._d = Growing(np.float64, metrics)

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, block: Block) -> None:
        """Requests, in any order."""
        if self._bits:
            block = block.take(kept_share(block.unit, self._bits))
        if not len(block.unit):
            return
        key = _line_keys(block)
        order, starts = grouped(key)
        first = order[starts]
        known = len(self._lines)
        position = self._lines.add(key[first])
        new = first[position >= known]
        units, inverse = np.unique(block.unit[new], return_inverse=True)
        self._unit.append(self._units.add(units)[inverse])
        self._stratum.append(block.stratum[new])
        self._arm.append(block.arm[new])
        for column, values in ((self._n, block.n), (self._x, block.x), (self._d, block.d)):
            column.resize(len(self._lines))
            column.values[position] += np.add.reduceat(values[order], starts, axis=0).astype(column.values.dtype)
        while len(self._lines) > self._max:
            self._thin(self._bits + 1)

    def lines(
        self,
        metric: int,
        strata: I32,
        treatment: int,
        without: "Cells | None" = None,
        codes: CodesOf | None = None,
    ) -> Lines:
        """Lines of control and one treatment that have a value.

        `strata` maps recorded strata to those of the comparison, which `codes` splits by unit. `without` are requests
        that are to be taken away: cells that hold a part of what these hold.
        """
        n, x, d = (column.values[:, metric] for column in (self._n, self._x, self._d))
        if without is not None and len(without):
            where, rows = self._positions(without)
            n, x, d = n.astype(np.float64), x.copy(), d.copy()
            n[where] -= without._n.values[rows, metric]
            x[where] -= without._x.values[rows, metric]
            d[where] -= without._d.values[rows, metric]
        arm = self._arm.values
        kept = (n > 0) & ((arm == 0) | (arm == treatment))
        unit = self._unit.values[kept]
        return Lines(
            unit,
            within(strata[self._stratum.values[kept]], self._units.keys[unit], codes),
            (arm[kept] != 0).astype(np.int64),
            n[kept].astype(np.float64),
            x[kept],
            d[kept],
        )

    def codes_of(self, units: Hashes) -> Ints:
        """The codes of units as in `lines`: of those that have no line, the next ones; -1 if they were left out."""
        code = self._units.find(units)
        new = np.flatnonzero(code < 0)
        code[new] = len(self._units) + np.arange(len(new))
        return np.where(kept_share(units, self._bits), code, -1)

    def line_codes(self, lines: Lines, codes: CodesOf) -> I32:
        """The code of each line's unit."""
        return codes(self._units.keys[lines.unit])

    def recorded(self, metric: int, strata: I32, most: int, codes: CodesOf | None = None) -> tuple[Lines, Hashes]:
        """The lines of at most about `most` units of all arms that have a value, ordered by unit, and the units'
        hashes. Units are codes from 0, in the order in which they were first seen. If there are more, a sample is taken
        by hash.
        """
        kept = self._n.values[:, metric] > 0
        hashes = self._units.keys[self._unit.values]
        bits = 0
        while len(np.unique(self._unit.values[kept])) > most:
            bits += 1
            kept = kept & (mix(hashes, 3) >> np.uint64(64 - bits) == 0)
        rows = np.flatnonzero(kept)
        rows = rows[np.argsort(self._unit.values[rows], kind="stable")]
        units, unit = np.unique(self._unit.values[rows], return_inverse=True)
        n, x, d = (column.values[rows, metric] for column in (self._n, self._x, self._d))
        stratum = within(strata[self._stratum.values[rows]], self._units.keys[self._unit.values[rows]], codes)
        arm = np.zeros(len(rows), np.int64)
        return Lines(unit, stratum, arm, n.astype(np.float64), x, d), self._units.keys[units]

    @property
    def share(self) -> float:
        """The share of units that is kept."""
        return 0.5**self._bits

    def units(self, metric: int, arm: int) -> int:
        """Distinct units of an arm that have a value; an estimate once units were halved."""
        kept = (self._n.values[:, metric] > 0) & (self._arm.values == arm)
        seen = np.zeros(len(self._units), np.bool_)
        seen[self._unit.values[kept]] = True
        return round(int(seen.sum()) / self.share)

    def _positions(self, part: "Cells") -> tuple[Ints, Ints]:
        """The positions here of `part`'s lines, and their positions in `part`; without those that were thinned here."""
        where = self._lines.find(part._lines.keys)
        rows = np.flatnonzero(where >= 0)
        return where[rows], rows

    def _thin(self, bits: int) -> None:
        self._bits = bits
        kept = np.flatnonzero(kept_share(self._units.keys[self._unit.values], bits))
        self._lines.keep(kept)
        for column in (self._unit, self._stratum, self._arm, self._n, self._x, self._d):
            column.keep(kept)
        units, inverse = np.unique(self._unit.values, return_inverse=True)
        self._units.keep(units.astype(np.int64))
        self._unit.values[:] = inverse


class Totals:
    """Sums per stratum and arm: n, Σx, Σd, Σx², Σxd, Σd² of each metric."""

    def __init__(self, metrics: int, arms: int) -> None:
        self._arms = arms
        self._sums = Growing(np.float64, arms, metrics, 6)

    def add(self, block: Block) -> None:
        """Requests, in any order."""
        if not len(block.unit):
            return
        self._sums.resize(int(block.stratum.max()) + 1)
        cell = block.stratum.astype(np.int64) * self._arms + block.arm
        order, starts = grouped(cell)
        n, x, d = (column[order] for column in block[3:])
        sums = [np.add.reduceat(values, starts, axis=0) for values in (n, x, d, x * x, x * d, d * d)]
        cells = cell[order[starts]]
        self._sums.values[cells // self._arms, cells % self._arms] += np.stack(sums, axis=-1)

    def of_arms(self, metric: int) -> Floats:
        """n, Σx, Σd, Σx², Σxd, Σd² of each arm: shape (arms, 6)."""
        return np.asarray(self._sums.values[:, :, metric].sum(axis=0))

    def moments(
        self,
        metric: int,
        strata: I32,
        treatment: int,
        without: "Totals | None" = None,
        *,
        only: NDArray[np.bool_] | None = None,
    ) -> Moments:
        """Moments of control and one treatment, by the comparison's strata. `without`: as in `Cells.lines`. `only`: of
        these recorded strata.
        """
        pair = self._sums.values[:, [0, treatment], metric].copy()
        if only is not None:
            pair[~only[: len(pair)]] = 0.0
        if without is not None:
            pair[: len(without._sums)] -= without._sums.values[:, [0, treatment], metric]
        sums = np.zeros((int(strata.max(initial=-1)) + 1, 2, 6))
        np.add.at(sums, strata[: len(pair)], pair)
        return Moments(*np.moveaxis(sums, -1, 0))


def _line_keys(block: Block) -> Hashes:
    return combined(block.unit, block.stratum.astype(np.int64) * _ARMS + block.arm)
