"""Each unit's earliest exposure, or earliest event, which counts once per unit."""

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.evidence.arrays import Growing, Hashes, Ints, kept_share
from app.experiments.analysis.evidence.hash_index import HashIndex
from app.experiments.columns import F64, I32

MAX_UNITS = 8_000_000
"""About 45 bytes each. Above, half of the units, by hash, are forgotten and never counted again."""


class FirstSeen:
    """Counts units by the group and arm of their earliest exposure, in whatever order exposures come.

    A group is a small number: a plan, or a set of weights.
    """

    def __init__(self, arms: int, max_units: int = MAX_UNITS) -> None:
        self._index = HashIndex()
        self._at = Growing(np.float64)
        self._group = Growing(np.int32)
        self._arm = Growing(np.int8)
        self._times = Growing(np.int32)
        """The number of exposures of each unit."""
        self._counts = Growing(np.int64, arms)
        self._max = max_units
        self._bits = 0

    def __len__(self) -> int:
        return len(self._index)

    @property
    def share(self) -> float:
        """The share of units that is counted."""
        return 0.5**self._bits

    @property
    def counts(self) -> Ints:
        """Units per group and arm, shape (groups, arms)."""
        return self._counts.values

    def groups(self, unit: Hashes, unknown: int = 0) -> I32:
        """The group of each unit's earliest exposure; `unknown` where the unit is not known."""
        position = self._index.find(unit)
        if not len(self):
            return np.full(len(unit), unknown, np.int32)
        return np.where(position >= 0, self._group.values[np.maximum(position, 0)], unknown).astype(np.int32)

    def reached(self, times: NDArray[np.int64]) -> Ints:
        """Units that have come at least so often, for each of some rising numbers: shape (numbers, groups, arms)."""
        groups, arms = self.counts.shape
        level = np.searchsorted(times, self._times.values, side="right")
        cell = (level * groups + self._group.values) * arms + self._arm.values
        just = np.bincount(cell, minlength=(len(times) + 1) * groups * arms).reshape(len(times) + 1, groups, arms)
        return np.asarray(just[::-1].cumsum(axis=0)[::-1][1:], np.int64)

    @property
    def exposures(self) -> tuple[Hashes, I32, NDArray[np.int8]]:
        """The units that are counted, with the group and the arm of each one's earliest exposure."""
        return self._index.keys, self._group.values, self._arm.values

    @property
    def times(self) -> I32:
        """How often each of these units has come."""
        return self._times.values

    def new_since(self, at: float) -> int:
        """Units whose earliest exposure is at `at` or later, of those that are counted."""
        return int((self._at.values >= at).sum())

    def add(self, unit: Hashes, at: F64, group: I32, arm: NDArray[np.int8]) -> None:
        """Exposures, or events: equally long arrays. Of two at the same time, the lower group and arm is the first."""
        if self._bits:
            kept = kept_share(unit, self._bits)
            unit, at, group, arm = unit[kept], at[kept], group[kept], arm[kept]
        if not len(unit):
            return
        order = np.lexsort((arm, group, at, unit))
        unit, at, group, arm = unit[order], at[order], group[order], arm[order]
        first = np.ones(len(unit), dtype=np.bool_)
        first[1:] = unit[1:] != unit[:-1]
        times = np.diff(np.flatnonzero(first), append=len(unit))
        unit, at, group, arm = unit[first], at[first], group[first], arm[first]
        self._counts.resize(int(group.max()) + 1)
        known = len(self._index)
        position = self._index.add(unit)
        new = position >= known
        self._append(at[new], group[new], arm[new])
        self._replace(position[~new], at[~new], group[~new], arm[~new])
        self._times.resize(len(self._index))
        self._times.values[position] += times.astype(np.int32)
        if len(self._index) > self._max:
            self._thin()

    def _append(self, at: F64, group: I32, arm: NDArray[np.int8]) -> None:
        self._at.append(at)
        self._group.append(group)
        self._arm.append(arm)
        np.add.at(self.counts, (group, arm), 1)

    def _replace(self, position: Ints, at: F64, group: I32, arm: NDArray[np.int8]) -> None:
        old_at, old_group, old_arm = (column.values[position] for column in (self._at, self._group, self._arm))
        tie = (at == old_at) & ((group < old_group) | ((group == old_group) & (arm < old_arm)))
        earlier = (at < old_at) | tie
        if earlier.any():
            np.add.at(self.counts, (old_group[earlier], old_arm[earlier]), -1)
            np.add.at(self.counts, (group[earlier], arm[earlier]), 1)
            where = position[earlier]
            self._at.values[where], self._group.values[where] = at[earlier], group[earlier]
            self._arm.values[where] = arm[earlier]

    def _thin(self) -> None:
        self._bits += 1
        kept = np.flatnonzero(kept_share(self._index.keys, self._bits))
        self._index.keep(kept)
        for column in (self._at, self._group, self._arm, self._times):
            column.keep(kept)
        self.counts[:] = 0
        np.add.at(self.counts, (self._group.values, self._arm.values), 1)
