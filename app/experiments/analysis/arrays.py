"""Growing numpy arrays, and sums by group.

- A set of 64-bit hashes, each with its position: 0, 1, 2 … in the order in which they came.
- Each unit's earliest exposure, or earliest event, which counts once per unit.
"""

from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.experiments.storage.columns import F64, I32

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Mask = NDArray[np.bool_]

T = TypeVar("T", bound=np.generic)


class Growing(Generic[T]):
    """An array that grows along its first axis, by doubling. New rows are 0."""

    def __init__(self, dtype: type[T], *width: int) -> None:
        self._data: NDArray[T] = np.zeros((16, *width), dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def values(self) -> NDArray[T]:
        """A view, for reading and writing, that is good until the array grows."""
        return self._data[: self._size]

    def resize(self, size: int) -> None:
        """Makes room for at least `size` rows."""
        if size > len(self._data):
            grown: NDArray[T] = np.zeros((max(size, 2 * len(self._data)), *self._data.shape[1:]), self._data.dtype)
            grown[: self._size] = self.values
            self._data = grown
        self._size = max(self._size, size)

    def append(self, rows: NDArray[Any]) -> None:
        """Adds rows at the end."""
        start = self._size
        self.resize(start + len(rows))
        self._data[start : self._size] = rows

    def keep(self, rows: NDArray[Any]) -> None:
        """Keeps only these rows: a mask or indexes."""
        self._data = self.values[rows]
        self._size = len(self._data)


def grouped(keys: NDArray[Any]) -> tuple[Ints, Ints]:
    """`(order, starts)`: `order` sorts `keys`, and each group of equal keys begins at one of `starts` in that order.

    The sort is stable: within a group, rows keep their order.
    """
    order = np.argsort(keys, kind="stable").astype(np.int64)
    ordered = keys[order]
    first = np.ones(len(keys), dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return order, np.flatnonzero(first).astype(np.int64)


def mix(hashes: Hashes, salt: int = 0) -> Hashes:
    """Other hashes, each bit of which depends on every bit of the input (splitmix64's finalizer)."""
    with np.errstate(over="ignore"):
        z = hashes + np.uint64((salt * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def combined(hashes: Hashes, codes: NDArray[Any]) -> Hashes:
    """One hash for each pair. Among two million pairs, two are confused with probability 1e-7."""
    return mix(hashes ^ mix(codes.astype(np.int64).view(np.uint64), 1))


def kept_share(units: Hashes, bits: int) -> Mask:
    """The mask of the units among the 2 ** -bits that thinning keeps: the same ones everywhere."""
    if not bits:
        return np.ones(len(units), np.bool_)
    return np.asarray(mix(units, 2) >> np.uint64(64 - bits) == 0, np.bool_)


# A Python dict of two million numbers takes 300 MB; this takes 40, and whole batches are looked up at once.


class HashIndex:
    """Open addressing with linear probing, at most half full."""

    def __init__(self) -> None:
        self._keys = Growing(np.uint64)
        self._slots: NDArray[np.int32] = np.zeros(64, np.int32)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def keys(self) -> Hashes:
        """All hashes, by position."""
        return self._keys.values

    def find(self, keys: Hashes) -> Ints:
        """The position of each key, -1 where it is unknown."""
        rows = np.full(len(keys), -1, np.int64)
        waiting = np.arange(len(keys))
        slot = self._home(keys)
        while len(waiting):
            position = self._slots[slot].astype(np.int64) - 1
            occupied = position >= 0
            same = occupied & (self.keys[np.where(occupied, position, 0)] == keys[waiting]) if len(self) else occupied
            rows[waiting[same]] = position[same]
            on = occupied & ~same
            waiting, slot = waiting[on], self._next(slot[on])
        return rows

    def add(self, keys: Hashes) -> Ints:
        """The position of each key; unknown ones are added, in order. No key may occur twice in the argument."""
        rows = self.find(keys)
        new = rows < 0
        if new.any():
            start = len(self)
            self._keys.append(keys[new])
            rows[new] = np.arange(start, len(self))
            if 2 * len(self) > len(self._slots):
                self._rebuild()
            else:
                self._place(rows[new])
        return rows

    def keep(self, positions: Ints) -> None:
        """Keeps only these keys, which get the positions 0, 1, 2 …"""
        self._keys.keep(positions)
        self._rebuild()

    def _rebuild(self) -> None:
        self._slots = np.zeros(max(64, 1 << (4 * len(self) - 1).bit_length()), np.int32)
        self._place(np.arange(len(self)))

    def _place(self, positions: Ints) -> None:
        slot = self._home(self.keys[positions])
        while len(positions):
            free = self._slots[slot] == 0
            self._slots[slot[free]] = positions[free] + 1  # of several that want the same slot, the last one gets it
            on = self._slots[slot] != positions + 1
            positions, slot = positions[on], self._next(slot[on])

    def _home(self, keys: Hashes) -> Ints:
        return (mix(keys) & np.uint64(len(self._slots) - 1)).astype(np.int64)

    def _next(self, slot: Ints) -> Ints:
        return (slot + 1) & (len(self._slots) - 1)


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
