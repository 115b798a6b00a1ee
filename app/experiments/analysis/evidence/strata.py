"""Strata of requests: the treatment's share under the plan that assigned them, and declared strata.

A request's stratum is known before its arm acts. The recorded stratum holds the plan's weights; the share follows from
them for each treatment, so that plans with the same share are one stratum. With many shares, neighbours are merged.
"""

import numpy as np
from numpy.typing import NDArray

from app.config.experiments import Stratum
from app.experiments.analysis.evidence.arrays import Floats, Growing, Ints
from app.experiments.columns import I32, RowColumns

MAX_SHARES = 12
"""The most bands: more different shares than this are merged into as many bands, of equal numbers of requests."""

_PROMPT_BYTES = np.array([256, 1024, 4096, 16384])
_BITS = {"prompt_bytes": 3, "hour": 5, "dialect": 20, "stream": 1}
_WEIGHTS_SHIFT = sum(_BITS.values())


class Strata:
    """Gives every combination of weights and declared strata a small number, in the order in which they come."""

    def __init__(self, declared: tuple[Stratum, ...]) -> None:
        self._declared = declared
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
        distinct, inverse = np.unique(packed, return_inverse=True)
        return np.array([self._number(value) for value in distinct.tolist()], np.int32)[inverse]

    def _number(self, packed: int) -> int:
        number = self._known.setdefault(packed, len(self._known))
        if number == len(self._weights):
            self._weights.append(np.array([packed >> _WEIGHTS_SHIFT], np.int32))
            self._rest.append(np.array([packed & ((1 << _WEIGHTS_SHIFT) - 1)], np.int64))
        return number

    def for_treatment(self, treatment: int, weights: Ints, requests: Floats) -> I32:
        """For each recorded stratum, the one in which control and `treatment` are compared: codes from 0.

        `weights` as in `Arms`, shape (sets, arms). `requests` per recorded stratum, for the bands.
        """
        if not len(self):
            return np.zeros(0, np.int32)
        own, control = weights[:, treatment], weights[:, 0]
        share = own / np.maximum(own + control, 1)
        band = _bands(share[self._weights.values], requests)
        _, code = np.unique(np.stack([band, self._rest.values]), axis=1, return_inverse=True)
        return code.reshape(-1).astype(np.int32)


def _code(name: str, rows: RowColumns) -> Ints:
    """One declared stratum's value, in `_BITS` bits."""
    if name == "prompt_bytes":
        return np.searchsorted(_PROMPT_BYTES, rows.prompt_bytes, side="right").astype(np.int64)
    if name == "hour":
        return (rows.at // 3600 % 24).astype(np.int64)  # of the day, UTC
    if name == "dialect":
        return rows.dialect.astype(np.int64) & ((1 << _BITS["dialect"]) - 1)
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
