"""A set of 64-bit hashes, each with its position: 0, 1, 2 … in the order in which they came.

A Python dict of two million numbers takes 300 MB; this takes 40, and whole batches are looked up at once.
"""

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.evidence.arrays import Growing, Hashes, Ints, mix


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
        found = np.full(len(keys), -1, np.int64)
        waiting = np.arange(len(keys))
        slot = self._home(keys)
        while len(waiting):
            position = self._slots[slot].astype(np.int64) - 1
            occupied = position >= 0
            same = occupied & (self.keys[np.where(occupied, position, 0)] == keys[waiting]) if len(self) else occupied
            found[waiting[same]] = position[same]
            on = occupied & ~same
            waiting, slot = waiting[on], self._next(slot[on])
        return found

    def add(self, keys: Hashes) -> Ints:
        """The position of each key; unknown ones are added, in order. No key may occur twice in the argument."""
        found = self.find(keys)
        new = found < 0
        if new.any():
            start = len(self)
            self._keys.append(keys[new])
            found[new] = np.arange(start, len(self))
            if 2 * len(self) > len(self._slots):
                self._rebuild()
            else:
                self._place(found[new])
        return found

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
