"""Growing numpy arrays, and sums by group."""

from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

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
