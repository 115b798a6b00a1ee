"""The batches of one router that are done: a set of numbers, kept as a few ranges, since they come almost in order."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence


class Numbers:
    """A set of whole numbers."""

    def __init__(self, numbers: Iterable[int] = (), *, ranges: Iterable[Sequence[int]] = ()) -> None:
        """`numbers`: single numbers, or ranges as first and last."""
        self._ranges: list[list[int]] = []
        for first, last in sorted([*([n, n] for n in numbers), *(list(it) for it in ranges)]):
            if self._ranges and first <= self._ranges[-1][1] + 1:
                self._ranges[-1][1] = max(self._ranges[-1][1], last)
            else:
                self._ranges.append([first, last])

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._ranges, number, key=lambda it: it[0]) - 1
        return index >= 0 and number <= self._ranges[index][1]

    def __iter__(self) -> Iterator[int]:
        for first, last in self._ranges:
            yield from range(first, last + 1)

    def add(self, number: int) -> None:
        """Puts `number` into the set."""
        if self._ranges and number == self._ranges[-1][1] + 1:
            self._ranges[-1][1] = number
        elif number not in self:
            self._ranges = Numbers([number], ranges=self._ranges)._ranges

    def union(self, other: "Numbers") -> "Numbers":
        """The union."""
        return Numbers(ranges=[*self._ranges, *other._ranges])

    def update(self, other: "Numbers") -> None:
        """Puts all of `other` into the set."""
        self._ranges = self.union(other)._ranges

    def is_within(self, other: "Numbers") -> bool:
        """Whether `other` holds everything that this holds."""
        return self.union(other)._ranges == other._ranges

    def reach(self, floor: int) -> int:
        """The largest number up to which all above `floor` are in the set; `floor` itself if the next is not."""
        index = bisect_right(self._ranges, floor + 1, key=lambda it: it[0]) - 1
        return max(floor, self._ranges[index][1]) if index >= 0 else floor

    def dump(self) -> list[list[int]]:
        """The ranges: first and last."""
        return [list(it) for it in self._ranges]
