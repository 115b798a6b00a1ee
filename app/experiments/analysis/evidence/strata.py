"""Strata of requests: the treatment's share under the plan that assigned them, and declared strata.

Only what was known before a unit met its arm may be a stratum. A conversation's later prompts hold the arm's own
answers, and how long a user waits decides when the next request comes: compared within such strata, a treatment that
writes more looks faster than it is. So the declared strata of a unit that comes back are those of its first request.
Where every request is a unit, they are its own: its arm has just been drawn.

The recorded stratum holds the plan's weights; the share follows from them for each treatment, so that plans with the
same share are one stratum. With many shares, neighbours are merged.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from app.config.experiments import Stratum
from app.experiments.analysis.evidence.arrays import Floats, Growing, Hashes, Ints
from app.experiments.analysis.evidence.first_seen import FirstSeen
from app.experiments.columns import I32, RowColumns

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
        self._first.add(rows.unit, rows.at, self._strata.of(rows, nowhere), np.zeros(len(rows), np.int8))

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


def within(stratum: I32, units: Hashes, codes: CodesOf | None) -> I32:
    """The strata of lines, split by the units' codes: again codes without large gaps."""
    if codes is None or not len(stratum):
        return stratum
    code = codes(units)
    split = stratum.astype(np.int64) * (int(code.max()) + 1) + code
    inverse: NDArray[np.intp] = np.unique(split, return_inverse=True)[1].reshape(-1)
    return inverse.astype(np.int32)


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

    def of(self, rows: RowColumns, weights: I32) -> I32:
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

    def for_treatment(self, treatment: int, weights: Ints, requests: Floats) -> I32:
        """For each recorded stratum, the one in which control and `treatment` are compared: codes from 0.

        `weights` as in `Arms`, shape (sets, arms). `requests` per recorded stratum, for the bands.
        """
        if not len(self):
            return np.zeros(0, np.int32)
        band = _bands(shares_of(treatment, weights)[self._weights.values], requests)
        _, code = np.unique(np.stack([band, self._rest.values]), axis=1, return_inverse=True)
        return code.reshape(-1).astype(np.int32)


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
        bounds = [f"{it:,}" for it in _PROMPT_BYTES.tolist()]
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
