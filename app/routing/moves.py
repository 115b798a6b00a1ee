"""What a change of weights moves: pure functions of keys and weights."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.routing.traffic import rendezvous

MADE_UP_KEYS = 20_000


class Moved(NamedTuple):
    """The part of the keys that would go to another deployment, by (from, to)."""

    keys: int
    pairs: Mapping[tuple[str, str], int]

    @property
    def share(self) -> float:
        """Of all keys; 0 without any."""
        return sum(self.pairs.values()) / self.keys if self.keys else 0.0


def moved(keys: Sequence[str], before: Mapping[str, int], after: Mapping[str, int]) -> Moved:
    """Which of the keys move. Takes about 5 µs a key and deployment."""
    pairs = Counter((rendezvous(key, before), rendezvous(key, after)) for key in keys)
    return Moved(len(keys), {pair: count for pair, count in pairs.most_common() if pair[0] != pair[1]})


def made_up_keys() -> list[str]:
    """Keys that stand for any: the same on every router."""
    return [f"made-up-{number}" for number in range(MADE_UP_KEYS)]
