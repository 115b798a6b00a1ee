"""Which batches of one router are done: a set of numbers from 1 that is almost always everything up to some number."""

from collections.abc import Iterable


class Numbers:
    """`floor`: every number up to it is in the set, or never comes."""

    def __init__(self, floor: int = 0, above: Iterable[int] = ()) -> None:
        self.floor = floor
        self._above = {number for number in above if number > floor}
        self._settle()

    def __contains__(self, number: int) -> bool:
        return number <= self.floor or number in self._above

    def add(self, number: int) -> None:
        """Puts `number` into the set."""
        if number > self.floor:
            self._above.add(number)
            self._settle()

    def raise_floor(self, floor: int) -> None:
        """Puts every number up to `floor` into the set."""
        if floor > self.floor:
            self.floor = floor
            self._above = {number for number in self._above if number > floor}
            self._settle()

    def union(self, other: "Numbers") -> "Numbers":
        """What either holds."""
        return Numbers(max(self.floor, other.floor), self._above | other._above)

    def is_within(self, other: "Numbers") -> bool:
        """Whether `other` holds everything that this holds."""
        return all(number in other for number in (*range(other.floor + 1, self.floor + 1), *self._above))

    def dump(self) -> list[int]:
        """The floor, then the numbers above it: `Numbers(found[0], found[1:])` is this set again."""
        return [self.floor, *sorted(self._above)]

    def _settle(self) -> None:
        while self.floor + 1 in self._above:
            self.floor += 1
            self._above.discard(self.floor)
