"""Sums per unit, stratum and arm, and per stratum and arm: all the data that a look needs.

A `UnitTable` is for endpoints whose units come back: one line for each (unit, stratum, arm). `ArmMoments` hold second
moments of single requests: a look needs them where the request is the unit, and they show how much the clustering
matters.

- Strata of requests: the treatment's share under the plan that assigned them, and declared strata.
- Requests of the minutes in which any arm had a cold replica, of all arms.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.config.experiments import Stratum
from app.experiments.analysis.arrays import (
    FirstSeen,
    Floats,
    Growing,
    Hashes,
    HashIndex,
    Ints,
    Mask,
    combined,
    grouped,
    kept_share,
    mix,
)
from app.experiments.statistics.look import Moments, UnitSums, merged, merging
from app.experiments.statistics.missing import StrataSums
from app.experiments.storage.columns import I32, RowColumns

# Only what was known before a unit met its arm may be a stratum. A conversation's later prompts hold the arm's own
# answers, and how long a user waits decides when the next request comes: compared within such strata, a treatment that
# writes more looks faster than it is. So the declared strata of a unit that comes back are those of its first request.
# Where every request is a unit, they are its own: its arm has just been drawn.
#
# The recorded stratum holds the plan's weights; the share follows from them for each treatment, so that plans with the
# same share are one stratum. With many shares, neighbours are merged.

MAX_SHARES = 12
"""The most bands: more different shares than this are merged into as many bands, of equal numbers of requests."""

_PROMPT_BYTES = np.array([256, 1024, 4096, 16384])
_BITS = {"prompt_bytes": 3, "hour": 5, "dialect": 16, "stream": 1, "group": 16}
_DECLARED_BITS = sum(_BITS.values())
_SIZES = 256
_SIZES_PER_DOUBLING = 8
_WEIGHTS_SHIFT = _DECLARED_BITS + 8


CodesOf = Callable[[Hashes], I32]
"""Units to the code of their declared strata."""


class FirstRequests:
    """The declared strata of each unit's first request, and the size of its prompt."""

    def __init__(self, declared: tuple[Stratum, ...]) -> None:
        self._strata = Strata(declared, sizes=True)
        self._first = FirstSeen(1)

    def add(self, rows: RowColumns) -> None:
        """Requests, in any order."""
        nowhere = np.zeros(len(rows), np.int32)
        self._first.add(rows.unit, rows.at, self._strata.codes_of(rows, nowhere), np.zeros(len(rows), np.int8))

    def codes(self, units: Hashes) -> I32:
        """The code of each unit's strata: 0 for a unit that is not known."""
        of_group = self._strata.without_sizes
        return of_group[self._first.groups(units)] if len(of_group) else np.zeros(len(units), np.int32)

    def sizes(self, units: Hashes) -> Floats:
        """ln of the bytes of each unit's first prompt, to within 5 %; NaN for a unit that is not known."""
        return np.append(self._strata.sizes, np.nan)[self._first.groups(units, unknown=-1)]

    @property
    def used(self) -> int:
        """The number of different codes."""
        return len(np.unique(self._strata.without_sizes[np.flatnonzero(self._first.counts[:, 0] > 0)]))


def within(stratum: I32, code: I32 | None, unit: Ints, arm: NDArray[np.integer]) -> I32:
    """The strata of lines, split by their units' codes where both arms have enough units (`merged`): again codes
    without large gaps. `arm`: 0 control, 1 the treatment.
    """
    if code is None or not len(stratum):
        return stratum
    split = stratum.astype(np.int64) * (int(code.max()) + 1) + code
    inverse: NDArray[np.intp] = np.unique(split, return_inverse=True)[1].reshape(-1)
    return np.asarray(merged(inverse.astype(np.int32), stratum, unit, arm), np.int32)


class ComparedStrata(NamedTuple):
    """For each recorded stratum, where control and a treatment are compared."""

    codes: I32
    """Of its stratum, from 0."""
    bands: Ints
    """Of its share of the treatment: strata are merged within one alone."""


class InStrata(NamedTuple):
    """What is known in the strata from which a look has its estimate."""

    sums: StrataSums
    missing: Floats
    """Ended requests without a value: shape (strata, 2)."""
    band: Ints
    """Of each stratum its share's; -1 where no request has a value."""


class Strata:
    """Gives every combination of weights and declared strata a small number, in the order in which they come. With
    `sizes`, prompts of different sizes have different numbers, too.
    """

    def __init__(self, declared: tuple[Stratum, ...], *, sizes: bool = False) -> None:
        self._declared, self._with_sizes = declared, sizes
        self._known: dict[int, int] = {}
        self._weights = Growing(np.int32)
        self._rest = Growing(np.int64)

    def __len__(self) -> int:
        return len(self._known)

    def codes_of(self, rows: RowColumns, weights: I32) -> I32:
        """Each row's stratum. `weights` as in `Arms`."""
        packed = weights.astype(np.int64) << _WEIGHTS_SHIFT
        shift = 0
        for name, bits in _BITS.items():
            if name in self._declared:
                packed |= _code(name, rows) << shift
            shift += bits
        if self._with_sizes:
            doublings = np.log2(np.maximum(rows.prompt_bytes, 1))
            packed |= np.minimum(np.round(_SIZES_PER_DOUBLING * doublings), _SIZES - 1).astype(np.int64) << shift
        distinct, inverse = np.unique(packed, return_inverse=True)
        return np.array([self._number(value) for value in distinct.tolist()], np.int32)[inverse]

    def _number(self, packed: int) -> int:
        number = self._known.setdefault(packed, len(self._known))
        if number == len(self._weights):
            self._weights.append(np.array([packed >> _WEIGHTS_SHIFT], np.int32))
            self._rest.append(np.array([packed & ((1 << _WEIGHTS_SHIFT) - 1)], np.int64))
        return number

    def values(self, name: Stratum) -> Ints:
        """For each recorded stratum, the value of a declared one, as `value_name` has it."""
        shift = sum(list(_BITS.values())[: list(_BITS).index(name)])
        return np.asarray((self._rest.values >> shift) & ((1 << _BITS[name]) - 1))

    @property
    def without_sizes(self) -> I32:
        """For each recorded stratum, a code of the declared ones, in the order in which they came."""
        declared = self._rest.values & ((1 << _DECLARED_BITS) - 1)
        _, first, code = np.unique(declared, return_index=True, return_inverse=True)
        return np.asarray(first.argsort().argsort()[code.reshape(-1)], np.int32)

    @property
    def sizes(self) -> Floats:
        """For each recorded stratum, ln of its prompts' bytes."""
        return np.asarray((self._rest.values >> _DECLARED_BITS) * (math.log(2) / _SIZES_PER_DOUBLING), np.float64)

    def compared(self, treatment: int, weights: Ints, requests: Floats) -> ComparedStrata:
        """In which strata control and `treatment` are compared.

        `weights` as in `Arms`, shape (sets, arms). `requests` per recorded stratum, for the bands.
        """
        if not len(self):
            return ComparedStrata(np.zeros(0, np.int32), np.zeros(0, np.int64))
        bands = _bands(shares_of(treatment, weights)[self._weights.values], requests)
        _, code = np.unique(np.stack([bands, self._rest.values]), axis=1, return_inverse=True)
        return ComparedStrata(code.reshape(-1).astype(np.int32), bands)

    def bands_of_sets(self, treatment: int, weights: Ints, compared: ComparedStrata) -> Ints:
        """The band to which each set of weights belongs: one of its own if no request of such a share has been counted,
        unless there are so many shares that neighbours are merged.
        """
        shares = np.round(shares_of(treatment, weights), 9)
        recorded = shares[self._weights.values]
        if not len(recorded):
            return np.unique(shares, return_inverse=True)[1].reshape(-1).astype(np.int64)
        nearest = np.abs(shares[:, None] - recorded).argmin(axis=1)
        bands: Ints = compared.bands[nearest]
        if len(np.unique(recorded)) <= MAX_SHARES:
            new = shares != recorded[nearest]
            bands[new] = compared.bands.max() + 1 + np.unique(shares[new], return_inverse=True)[1].reshape(-1)
        return bands


def shares_of(treatment: int, weights: Ints) -> Floats:
    """A treatment's share against control under each set of weights, which are as in `Arms`."""
    own, control = weights[:, treatment], weights[:, 0]
    return np.asarray(own / np.maximum(own + control, 1), np.float64)


def bands_of(treatment: int, weights: Ints, sets: I32) -> Ints:
    """The bands of shares to which units belong that met the arms under these `sets` of weights: codes from 0."""
    counts = np.bincount(sets, minlength=len(weights)).astype(np.float64)
    return _bands(shares_of(treatment, weights), counts)[sets]


def value_name(stratum: Stratum, value: int, names: Sequence[str]) -> str:
    """A declared stratum's value in words. `names`: those of the records' codes."""
    if stratum == "prompt_bytes":
        bounds = [f"{size:,}" for size in _PROMPT_BYTES.tolist()]
        if value == len(bounds):
            return f"{bounds[-1]} bytes and more"
        return f"under {bounds[0]} bytes" if not value else f"{bounds[value - 1]} bytes to under {bounds[value]}"
    if stratum == "dialect":
        return names[value]
    if stratum == "hour":
        return f"{value}:00 UTC"
    if stratum == "group":
        return names[value - 1] if value else "none"
    return "streams" if value else "whole answers"


def _code(name: str, rows: RowColumns) -> Ints:
    """One declared stratum's value, in `_BITS` bits."""
    if name == "prompt_bytes":
        return np.searchsorted(_PROMPT_BYTES, rows.prompt_bytes, side="right").astype(np.int64)
    if name == "hour":
        return (rows.at // 3600 % 24).astype(np.int64)  # of the day, UTC
    if name == "dialect":
        return rows.dialect.astype(np.int64) & ((1 << _BITS["dialect"]) - 1)
    if name == "group":
        return (rows.group.astype(np.int64) + 1) & ((1 << _BITS["group"]) - 1)
    return rows.stream.astype(np.int64)


def _bands(share: Floats, requests: Floats) -> Ints:
    """The band of each share: every share its own, or neighbours together, with about equal numbers of requests."""
    distinct, inverse = np.unique(np.round(share, 9), return_inverse=True)
    if len(distinct) <= MAX_SHARES:
        return inverse.astype(np.int64)
    total = np.bincount(inverse, requests, len(distinct))
    before = np.cumsum(total) - total / 2  # a share belongs where its middle lies
    band: NDArray[np.int64] = np.minimum(MAX_SHARES * before / max(total.sum(), 1.0), MAX_SHARES - 1).astype(np.int64)
    return band[inverse]


MAX_LINES = 2_000_000
"""About 20 bytes each, and 20 more for each metric. Above, half of the units are left out, by hash."""

_ARMS = 128


class CellBlock(NamedTuple):
    """Requests of analysed exposures. `n`, `x` and `d` have the shape (requests, metrics)."""

    unit: Hashes
    stratum: I32
    arm: NDArray[np.int8]
    n: Floats
    """1 where the metric has a value."""
    x: Floats
    d: Floats

    def take(self, rows: NDArray[np.bool_]) -> "CellBlock":
        """These cells only."""
        return CellBlock._make(column[rows] for column in self)


def count_missing(counts: Growing[np.int64], strata: int, stratum: I32, arm: NDArray[np.int8], missing: Mask) -> None:
    """Adds requests to `counts`, of each of that many recorded strata, measure and arm. `missing`: which lack each
    measure's value, shape (requests, measures).
    """
    counts.resize(strata)
    for column in np.flatnonzero(missing.any(axis=0)).tolist():
        np.add.at(counts.values[:, column], (stratum, arm), missing[:, column])


class UnitLines(NamedTuple):
    """The lines of control's and one treatment's units, and those of their requests without a value: `n` of them.
    Strata are those of shares.
    """

    lines: UnitSums
    lacking: UnitSums
    codes: tuple[I32, I32] | None
    """Of the units of both, which split the strata (`within`)."""

    def take(self, which: Mask, lacking: Mask) -> "UnitLines":
        """Some of the lines."""
        codes = None if self.codes is None else (self.codes[0][which], self.codes[1][lacking])
        return UnitLines(
            UnitSums._make(column[which] for column in self.lines),
            UnitSums._make(column[lacking] for column in self.lacking),
            codes,
        )

    @property
    def of_look(self) -> UnitSums:
        """The lines in the strata of a look."""
        code = None if self.codes is None else self.codes[0]
        stratum, unit = self.lines.stratum.astype(np.int32), self.lines.unit.astype(np.int64)
        return self.lines._replace(stratum=within(stratum, code, unit, self.lines.arm))

    def in_strata(self, of_look: UnitSums) -> InStrata:
        """The sums of those, and the missing values in the same strata: in others, where no request has a value."""
        stratum, (lines, lacking, codes) = of_look.stratum.astype(np.int64), self
        split, split_lacking = lines.stratum.astype(np.int64), lacking.stratum.astype(np.int64)
        if codes is not None:
            width = 1 + max(int(code.max(initial=-1)) for code in codes)
            split, split_lacking = split * width + codes[0], split_lacking * width + codes[1]
        becomes = np.full(1 + max(int(of.max(initial=-1)) for of in (split, split_lacking)), -1)
        becomes[split] = stratum
        new = np.unique(split_lacking[becomes[split_lacking] < 0])
        size = int(stratum.max(initial=-1)) + 1
        becomes[new] = size + np.arange(len(new))
        size += len(new)
        n, x, d, missing = (
            np.bincount(cell, values, 2 * size).reshape(-1, 2).astype(np.float64)
            for cell, values in (
                *((2 * stratum + lines.arm, values) for values in (lines.n, lines.x, lines.d)),
                (2 * becomes[split_lacking] + lacking.arm, lacking.n),
            )
        )
        band = np.full(size, -1)
        band[stratum] = lines.stratum
        return InStrata(StrataSums(n, x, d), missing, band)


class UnitTable:
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

    def add(self, block: CellBlock) -> None:
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
        without: "UnitTable | None" = None,
        codes: CodesOf | None = None,
    ) -> UnitSums:
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
        unit, treated = self._unit.values[kept], (arm[kept] != 0).astype(np.int64)
        code = None if codes is None else codes(self._units.keys[unit])
        return UnitSums(
            unit,
            within(strata[self._stratum.values[kept]], code, unit, treated),
            treated,
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

    def line_codes(self, lines: UnitSums, codes: CodesOf) -> I32:
        """The code of each line's unit."""
        return codes(self._units.keys[lines.unit])

    def recorded(self, metric: int, strata: I32, most: int, codes: CodesOf | None = None) -> tuple[UnitSums, Hashes]:
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
        code = None if codes is None else codes(self._units.keys[self._unit.values[rows]])
        stratum = within(strata[self._stratum.values[rows]], code, unit, self._arm.values[rows] != 0)
        arm = np.zeros(len(rows), np.int64)
        return UnitSums(unit, stratum, arm, n.astype(np.float64), x, d), self._units.keys[units]

    @property
    def strata(self) -> int:
        """One more than the largest recorded stratum."""
        return int(self._stratum.values.max(initial=-1)) + 1

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

    def _positions(self, part: "UnitTable") -> tuple[Ints, Ints]:
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


class ArmMoments:
    """Sums per stratum and arm: n, Σx, Σd, Σx², Σxd, Σd² of each metric."""

    def __init__(self, metrics: int, arms: int) -> None:
        self._arms = arms
        self._sums = Growing(np.float64, arms, metrics, 6)

    def add(self, block: CellBlock) -> None:
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

    def requests(self, metric: int) -> Floats:
        """Requests with a value by recorded stratum and arm."""
        return np.asarray(self._sums.values[:, :, metric, 0])

    def of_arms(self, metric: int) -> Floats:
        """n, Σx, Σd, Σx², Σxd, Σd² of each arm: shape (arms, 6)."""
        return np.asarray(self._sums.values[:, :, metric].sum(axis=0))

    def moments(
        self,
        metric: int,
        strata: I32,
        bands: Ints,
        treatment: int,
        without: "ArmMoments | None" = None,
    ) -> Moments:
        """Moments of control and one treatment, by the comparison's strata, of which those with too few requests are
        merged (`merging`) within `bands`, of each recorded stratum. `without`: as in `UnitTable.lines`.
        """
        pair = self._sums.values[:, [0, treatment], metric]
        if without is not None:
            pair[: len(without._sums)] -= without._sums.values[:, [0, treatment], metric]
        return _merged(pair, strata, bands)[0]

    def with_missing(
        self, metric: int, compared: ComparedStrata, treatment: int, missing: Ints, only: Mask | None = None
    ) -> tuple[Moments, InStrata]:
        """The moments as a look has them, and with them the values that are `missing`, of each recorded stratum for
        control and the treatment. `only`: of these recorded strata.
        """
        pair, (strata, bands) = self._sums.values[:, [0, treatment], metric], compared
        if only is not None:
            pair[~only[: len(pair)]] = 0.0
            missing = np.where(only[: len(missing), None], missing, 0)
        moments, becomes = _merged(pair, strata, bands)
        lacking, band = np.zeros_like(moments.n), np.full(len(moments.n), -1)
        np.add.at(lacking, becomes[strata[: len(missing)]], missing)
        band[strata] = bands
        sums = StrataSums(moments.n, moments.x, moments.d)
        return moments, InStrata(sums, lacking, np.where(sums.n.any(axis=1), band, -1))


def _merged(pair: Floats, strata: I32, bands: Ints) -> tuple[Moments, Ints]:
    """The moments, and for each of the comparison's strata the number of the one that it becomes in them. `pair`: the
    sums of each recorded stratum, for control and one treatment. `strata`, `bands`: as in `ArmMoments.moments`.
    """
    count = int(strata.max(initial=-1)) + 1
    sums, wider = np.zeros((count, 2, 6)), np.zeros(count, np.int64)
    np.add.at(sums, strata[: len(pair)], pair)
    wider[strata] = bands
    becomes = np.asarray(merging(sums[..., 0], wider), np.int64)
    together = np.zeros_like(sums)
    np.add.at(together, becomes, sums)
    return Moments(*np.moveaxis(together, -1, 0)), becomes


def _line_keys(block: CellBlock) -> Hashes:
    return combined(block.unit, block.stratum.astype(np.int64) * _ARMS + block.arm)


# A new replica compiles and fills its caches. Leaving out its own requests would flatter the arm that has more of them;
# leaving out whole minutes, of both arms, does not. That a minute is cold may be known only after most of its requests
# have been counted, so requests wait here for a while.

WAIT_MINUTES = 10
"""A cold request that ends later than that after its arrival marks its minute for later requests only."""

MAX_WAITING = 500_000


class Sums(Protocol):
    """`UnitTable` or `ArmMoments`."""

    def add(self, block: CellBlock) -> None: ...


S = TypeVar("S", bound=Sums)


class _WaitingBlock(NamedTuple):
    minute: Ints
    block: CellBlock


class ColdMinutes(Generic[S]):
    """Adds the requests of cold minutes to `sums`."""

    def __init__(self, sums: S) -> None:
        self._sums = sums
        self._minutes: Ints = np.zeros(0, np.int64)
        self._waiting: deque[_WaitingBlock] = deque()
        self._rows = 0
        self._latest = 0

    @property
    def minutes(self) -> Ints:
        """The cold minutes, counted from 1970."""
        return self._minutes

    @property
    def sums(self) -> S | None:
        """Sums over all requests of cold minutes; None if no minute is cold."""
        return self._sums if len(self._minutes) else None

    def add(self, at: Floats, cold: Mask, block: CellBlock) -> None:
        """Requests, with the time of their arrival and whether the replica was cold."""
        if not len(at):
            return
        minute = (at // 60).astype(np.int64)
        known = len(self._minutes)
        self._minutes = np.union1d(self._minutes, minute[cold])
        if len(self._minutes) > known:
            self._waiting = deque(self._count(waiting) for waiting in self._waiting)
        self._waiting.append(self._count(_WaitingBlock(minute, block)))
        self._rows += len(at)
        self._latest = max(self._latest, int(minute.max()))
        while self._waiting and (self._rows > MAX_WAITING or self._is_over(self._waiting[0])):
            self._rows -= len(self._waiting.popleft().minute)

    def _is_over(self, waiting: _WaitingBlock) -> bool:
        return self._latest - int(waiting.minute.max(initial=0)) > WAIT_MINUTES

    def _count(self, waiting: _WaitingBlock) -> _WaitingBlock:
        """Counts those of cold minutes; the others keep waiting."""
        cold = np.isin(waiting.minute, self._minutes)
        if not cold.any():
            return waiting
        self._sums.add(waiting.block.take(cold))
        self._rows -= int(cold.sum())
        return _WaitingBlock(waiting.minute[~cold], waiting.block.take(~cold))
