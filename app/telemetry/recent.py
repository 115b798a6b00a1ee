"""The last minute's requests: the difference of two readings of the router's counters, and what these cannot hold.

A reading is taken every few seconds and on demand, so requests pay nothing for it.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple, Self

from app.errors import outcome_of
from app.telemetry.metrics import Telemetry
from app.telemetry.periods import Arm, DrawnRequests, Period

EVERY_S = 10.0
WINDOW_S = 60.0

DRAWN = frozenset({"override", "pinned", "sticky", "traffic", "failover"})
"""The reasons for which the plan decided. For the others, the client named the deployment."""


@dataclass(slots=True)
class BucketCounts:
    """A histogram. `counts` are those of each bucket, not of all below it; the last bucket has no upper bound.
    `longest`: the highest value, 0 if it is not known. `values`: all of them, where they are known."""

    bounds: Sequence[float] = ()
    counts: list[float] = field(default_factory=list)
    longest: float = 0.0
    values: Sequence[float] = ()

    def add(self, bounds: Sequence[float], counts: Sequence[float]) -> None:
        """Counts of another histogram with the same bounds."""
        self.bounds = bounds
        self.counts = list(map(add, self.counts, counts)) if self.counts else list(counts)

    def since(self, before: Self) -> "BucketCounts":
        """What was counted after `before`."""
        counts = [a - b for a, b in zip(self.counts, before.counts, strict=True)] if before.counts else self.counts
        return BucketCounts(self.bounds, counts, self.longest)

    def quantile(self, share: float) -> float | None:
        """The value that `share` of the observations do not exceed; interpolated within its bucket, and never above the
        longest, where the values are not known.

        None without observations. Beyond the last bound it is the longest, or that bound: a histogram knows no more.
        """
        if self.values:
            return sorted(self.values)[max(0, math.ceil(share * len(self.values)) - 1)]
        total = sum(self.counts)
        if total <= 0:
            return None
        value = self._interpolated(share, total)
        return min(value, self.longest) if self.longest else value

    def _interpolated(self, share: float, total: float) -> float:
        wanted, seen, lower = share * total, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if seen + count >= wanted and count > 0:
                if bound == math.inf:
                    return self.longest or lower
                return lower + (bound - lower) * (wanted - seen) / count
            seen += count
            lower = bound if bound != math.inf else lower
        return lower


@dataclass(slots=True)
class Counts:
    """One deployment's part of an endpoint's requests; with the deployment "", those that none was asked to answer.

    `reasons`: the requests by the rule that chose the deployment. Each request was answered, or its client `left`
    before the end, or it is in `refusals` (the client's fault) or `failures` (any other), by the error's kind. `lost`:
    streams whose engine has died, whatever became of them.
    """

    requests: float = 0
    reasons: Counter[str] = field(default_factory=Counter)
    left: float = 0
    failures: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    output_tokens: float = 0
    first_token: BucketCounts = field(default_factory=BucketCounts)
    inter_token: BucketCounts = field(default_factory=BucketCounts)
    lost: int = 0

    @property
    def drawn(self) -> float:
        """The requests for which the plan decided."""
        return sum(self.reasons[reason] for reason in DRAWN)

    @property
    def errors(self) -> float:
        """The requests that failed and were not the client's fault, also those at their own time limits."""
        return self.failures.total()

    @property
    def refused(self) -> float:
        """The requests that were the client's fault."""
        return self.refusals.total()

    @property
    def answered(self) -> float:
        """The requests that were answered completely."""
        return self.requests - self.left - self.errors - self.refused

    def since(self, before: Self) -> "Counts":
        """What was counted after `before`."""
        return Counts(
            self.requests - before.requests,
            self.reasons - before.reasons,
            self.left - before.left,
            self.failures - before.failures,
            self.refusals - before.refusals,
            self.output_tokens - before.output_tokens,
            self.first_token.since(before.first_token),
            self.inter_token.since(before.inter_token),
            self.lost - before.lost,
        )


class RecentCounts(NamedTuple):
    """The counts of the last `seconds`. `drawn`: the requests for which the plan decided, by endpoint and plan."""

    seconds: float
    counts: Mapping[Arm, Counts]
    drawn: Mapping[tuple[str, str], DrawnRequests] = {}


class _CounterReading(NamedTuple):
    """The counters at a time, and what they cannot hold of the `period` that ended then."""

    at: float
    counts: Mapping[Arm, Counts]
    period: Period


class Recent:
    """Readings of the last minute. `now`: seconds of any clock that does not go backwards."""

    def __init__(self, telemetry: Telemetry, now: float) -> None:
        self._telemetry = telemetry
        self.readings: deque[_CounterReading] = deque([_CounterReading(now, {}, Period())])

    def sample(self, now: float) -> Mapping[Arm, Counts]:
        """Takes a reading and returns it, with the longest times since the one before; forgets those that no window
        needs any more."""
        counts, period = read(self._telemetry), self._telemetry.next_period()
        _know_times(counts, period)
        self.readings.append(_CounterReading(now, counts, period))
        while len(self.readings) > 1 and self.readings[1].at <= now - WINDOW_S:
            self.readings.popleft()
        return counts

    def so_far(self) -> Mapping[Arm, Counts]:
        """A reading as `sample` returns it, which is kept for no window."""
        counts = read(self._telemetry)
        _know_times(counts, self._telemetry.period)
        return counts

    def window(self, now: float) -> RecentCounts:
        """The last minute; less if the router has run for a shorter time."""
        readings = list(self.readings)
        before = max(1, sum(reading.at <= now - WINDOW_S for reading in readings))
        earlier = readings[before - 1]
        period = Period.joined([*(reading.period for reading in readings[before:]), self._telemetry.period])
        counts = {arm: counts.since(earlier.counts.get(arm, Counts())) for arm, counts in read(self._telemetry).items()}
        _know_times(counts, period)
        return RecentCounts(now - earlier.at, counts, period.drawn)


def _know_times(counts: Mapping[Arm, Counts], period: Period) -> None:
    """Adds to the counts of a period the times that it knows exactly."""
    for arm, longest in period.longest.items():
        if (known := counts.get(arm)) is not None:
            known.first_token.longest, known.inter_token.longest = longest.first_token, longest.inter_token
    if not period.is_whole:
        return
    values: dict[Arm, tuple[list[float], list[float]]] = {}
    for arm, first_token, inter_token in period.last:
        first_tokens, inter_tokens = values.setdefault(arm, ([], []))
        first_tokens.append(first_token)
        if inter_token is not None:
            inter_tokens.append(inter_token)
    for arm, (first_tokens, inter_tokens) in values.items():
        if (known := counts.get(arm)) is not None:
            known.first_token.values, known.inter_token.values = first_tokens, inter_tokens


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
            counts.reasons[labels[4]] += value
        elif metric is telemetry.errors:
            value = child._value._value
            match outcome_of(kind := labels[4]):
                case "left":
                    counts.left += value
                case outcome:
                    (counts.refusals if outcome == "refused" else counts.failures)[kind] += value
        elif metric is telemetry.tokens and labels[4] == "output":
            counts.output_tokens += child._sum._value
        elif metric is telemetry.first_token:
            counts.first_token.add(child._upper_bounds, [bucket._value for bucket in child._buckets])
        elif metric is telemetry.per_token:
            counts.inter_token.add(child._upper_bounds, [bucket._value for bucket in child._buckets])
    for arm, lost in telemetry.routing.lost.items():
        arms.setdefault(arm, Counts()).lost = lost
    return arms


def called(telemetry: Telemetry) -> frozenset[str]:
    """The deployments that this router has sent a request since it started, or a copy of one."""
    called_directly = {labels[1] for metric, labels, _ in telemetry.children() if metric is telemetry.in_flight}
    copies = [sample.labels for metric in telemetry.mirrored_requests.collect() for sample in metric.samples]
    return frozenset(called_directly | {of["deployment"] for of in copies if not of["outcome"].startswith("skipped")})


def in_flight(telemetry: Telemetry) -> Mapping[Arm, int]:
    """The number of requests on which each deployment works, by endpoint."""
    arms: dict[Arm, int] = {}
    for metric, labels, child in telemetry.children():
        if metric is telemetry.in_flight:
            arm = (labels[0], labels[1])
            arms[arm] = arms.get(arm, 0) + int(child._value._value)
    return arms
