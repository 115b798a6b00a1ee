"""The last minute's requests: the difference of two readings of the router's counters.

A reading is taken every few seconds and on demand, so requests pay nothing for it.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple, Self

from app.telemetry.metrics import Telemetry

EVERY_S = 10.0
WINDOW_S = 60.0

Arm = tuple[str, str]
"""Endpoint and deployment."""

_DRAWN = frozenset({"override", "pinned", "sticky", "traffic", "failover"})
"""The reasons for which the plan decided. For the others, the client named the deployment."""


@dataclass(slots=True)
class BucketCounts:
    """A histogram. `counts` are those of each bucket, not of all below it; the last bucket has no upper bound."""

    bounds: Sequence[float] = ()
    counts: list[float] = field(default_factory=list)

    def add(self, bounds: Sequence[float], counts: Sequence[float]) -> None:
        """Counts of another histogram with the same bounds."""
        self.bounds = bounds
        self.counts = list(map(add, self.counts, counts)) if self.counts else list(counts)

    def since(self, before: Self) -> "BucketCounts":
        """What was counted after `before`."""
        if not before.counts:
            return BucketCounts(self.bounds, self.counts)
        return BucketCounts(self.bounds, [a - b for a, b in zip(self.counts, before.counts, strict=True)])

    def quantile(self, share: float) -> float | None:
        """The value that `share` of the observations do not exceed, interpolated within its bucket.

        None without observations. Beyond the last bound it is that bound: a histogram knows no more.
        """
        total = sum(self.counts)
        if total <= 0:
            return None
        wanted, seen, lower = share * total, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if seen + count >= wanted and count > 0:
                return lower if bound == float("inf") else lower + (bound - lower) * (wanted - seen) / count
            seen += count
            lower = bound if bound != float("inf") else lower
        return lower


@dataclass(slots=True)
class Counts:
    """One deployment's part of an endpoint's requests. `drawn`: those for which the plan decided; `diverted`: those of
    them that another deployment should have had, which is failing. `errors`: those that failed and were not the
    client's fault; `refused`: answered with a status from 400 to 499."""

    requests: float = 0
    drawn: float = 0
    diverted: float = 0
    errors: float = 0
    refused: float = 0
    output_tokens: float = 0
    first_token: BucketCounts = field(default_factory=BucketCounts)
    inter_token: BucketCounts = field(default_factory=BucketCounts)

    def since(self, before: Self) -> "Counts":
        """What was counted after `before`."""
        return Counts(
            self.requests - before.requests,
            self.drawn - before.drawn,
            self.diverted - before.diverted,
            self.errors - before.errors,
            self.refused - before.refused,
            self.output_tokens - before.output_tokens,
            self.first_token.since(before.first_token),
            self.inter_token.since(before.inter_token),
        )


class RecentCounts(NamedTuple):
    """The counts of the last `seconds`."""

    seconds: float
    counts: Mapping[Arm, Counts]


class Recent:
    """Readings of the last minute. `now`: seconds of any clock that does not go backwards."""

    def __init__(self, telemetry: Telemetry, now: float) -> None:
        self._telemetry = telemetry
        self.readings: deque[tuple[float, Mapping[Arm, Counts]]] = deque([(now, {})])

    def sample(self, now: float) -> None:
        """Takes a reading, and forgets those that no window needs any more."""
        self.readings.append((now, read(self._telemetry)))
        while len(self.readings) > 1 and self.readings[1][0] <= now - WINDOW_S:
            self.readings.popleft()

    def window(self, now: float) -> RecentCounts:
        """The last minute; less if the router has run for a shorter time."""
        before = [reading for reading in self.readings if reading[0] <= now - WINDOW_S]
        at, earlier = before[-1] if before else self.readings[0]
        present = read(self._telemetry)
        return RecentCounts(
            now - at, {arm: counts.since(earlier.get(arm, Counts())) for arm, counts in present.items()}
        )


def read(telemetry: Telemetry) -> Mapping[Arm, Counts]:
    """The counters as they are, by endpoint and deployment."""
    arms: dict[Arm, Counts] = {}
    # The numbers themselves, not `collect`: that makes an object of every bucket, which takes a hundred times as long.
    # Nor `get`, which takes a lock for each: a number is read whole anyway.
    for metric, labels, child in telemetry.children():
        if (counts := arms.get(arm := (labels[0], labels[1]))) is None:
            counts = arms[arm] = Counts()
        if metric is telemetry.requests:
            value = child._value._value
            counts.requests += value
            counts.drawn += value if labels[4] in _DRAWN else 0
            counts.diverted += value if labels[4] == "failover" else 0
            counts.refused += value if labels[3].startswith("4") else 0
        elif metric is telemetry.errors:
            counts.errors += 0 if labels[3].startswith("4") else child._value._value
        elif metric is telemetry.tokens and labels[4] == "output":
            counts.output_tokens += child._sum._value
        elif metric is telemetry.first_token:
            counts.first_token.add(child._upper_bounds, [bucket._value for bucket in child._buckets])
        elif metric is telemetry.per_token:
            counts.inter_token.add(child._upper_bounds, [bucket._value for bucket in child._buckets])
    return arms


def in_flight(telemetry: Telemetry) -> Mapping[Arm, int]:
    """The number of requests on which each deployment works, by endpoint."""
    arms: dict[Arm, int] = {}
    for metric, labels, child in telemetry.children():
        if metric is telemetry.in_flight:
            arm = (labels[0], labels[1])
            arms[arm] = arms.get(arm, 0) + int(child._value._value)
    return arms
