"""Computes which keys a change of plans moves: pure functions of keys and plans."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from app.routing.overrides import Overrides
from app.routing.stops import NO_STOPS
from app.routing.traffic import rendezvous

Choice = Callable[[str], str]
"""The deployment that answers a key."""

MADE_UP_KEYS = 20_000
_CHOICES = 200_000
"""Scores of a deployment for a key that made-up keys may cost for one plan."""


class Moved(NamedTuple):
    """The part of the keys that would go to another deployment, by (from, to)."""

    keys: int
    pairs: Mapping[tuple[str, str], int]

    @property
    def share(self) -> float:
        """The part of all keys that moves; 0 without keys."""
        return sum(self.pairs.values()) / self.keys if self.keys else 0.0


def choice(
    traffic: Mapping[str, int], overrides: Overrides | None = None, stops: Mapping[str, str] = NO_STOPS
) -> Choice:
    """The deployment of a conversation's first turn under a plan. `stops`: stopped deployments, each with the one that
    gets its share."""

    def chosen(key: str) -> str:
        found = (overrides.deployment(key) if overrides is not None else None) or rendezvous(key, traffic)
        return stops.get(found, found)

    return chosen


def moved(keys: Sequence[str], before: Choice, after: Choice) -> Moved:
    """Splits the keys into those that move and those that stay. Takes about 5 µs a key and deployment."""
    pairs = Counter((before(key), after(key)) for key in keys)
    return Moved(len(keys), {pair: count for pair, count in pairs.most_common() if pair[0] != pair[1]})


def made_up_keys(deployments: int = 2) -> list[str]:
    """Sample keys, the same on every router. Beyond ten `deployments` there are fewer, since each deployment costs a
    microsecond per key: with a hundred, 2,000 keys and half a second."""
    return [f"made-up-{number}" for number in range(min(MADE_UP_KEYS, _CHOICES // max(1, deployments)))]
