"""What units did on the endpoint before the run: known before they met their arm, so that it may adjust results.

Only requests count whose deployment no draw had decided: those under a plan that gave one deployment all of the
traffic, and in mode `aa` all, since labels are drawn anew. Under a plan that divided the traffic a unit may have had
the arm that it has now, and its values would hold the arm's effect.
"""

from collections.abc import Sequence

import numpy as np

from app.experiments.analysis.evidence.arrays import Floats, Growing, Hashes, Mask, grouped, kept_share
from app.experiments.analysis.evidence.hash_index import HashIndex
from app.experiments.analysis.evidence.metrics import Values

MAX_UNITS = 2_000_000
"""About 20 bytes each, and 20 more for each metric. Above, half of the units, by hash, count as without history."""

SHRINKAGE = 3.0
"""A unit's mean of n values counts n / (n + 3): as much as is typical of it, rather than chance, if requests of one
unit are correlated by 1/4."""


class History:
    """Sums of each unit and measure."""

    def __init__(self, measures: int, max_units: int = MAX_UNITS) -> None:
        self._max = max_units
        self._bits = 0
        self._index = HashIndex()
        self._n = Growing(np.int32, measures)
        self._x = Growing(np.float64, measures)
        self._d = Growing(np.float64, measures)

    def __len__(self) -> int:
        return len(self._index)

    def add(self, unit: Hashes, values: Sequence[Values | None]) -> None:
        """Requests from before the run, in any order, with each measure's values."""
        kept: Mask = kept_share(unit, self._bits)
        if not kept.any():
            return
        order, starts = grouped(unit[kept])
        position = self._index.add(unit[kept][order[starts]])
        for column in (self._n, self._x, self._d):
            column.resize(len(self._index))
        for number, known in enumerate(values):
            if known is not None:
                for column, one in ((self._n, known.valid), (self._x, known.x), (self._d, known.d)):
                    sums = np.add.reduceat(one[kept][order].astype(np.float64), starts)
                    column.values[position, number] += sums.astype(column.values.dtype)
        while len(self) > self._max:
            self._bits += 1
            which = np.flatnonzero(kept_share(self._index.keys, self._bits))
            self._index.keep(which)
            for column in (self._n, self._x, self._d):
                column.keep(which)

    def covariates(self, measure: int, units: Hashes) -> Floats | None:
        """By how much each unit's sum exceeded what its requests had with the mean of all, and its mean, shrunk: shape
        (units, 2). 0 for a unit without history, which is the mean; None if no unit has one.
        """
        n, x, d = (column.values[:, measure] for column in (self._n, self._x, self._d))
        if not d.sum() > 0:
            return None
        excess = x - d * (x.sum() / d.sum())
        position = self._index.find(units)
        known = (position >= 0)[:, None]
        return np.where(known, np.stack([excess, excess / (n + SHRINKAGE)], axis=1)[np.maximum(position, 0)], 0.0)
