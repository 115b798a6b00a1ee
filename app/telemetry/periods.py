"""What counters cannot hold of the requests that have ended in a period: the times of streams as they were, and the
plans that drew requests.

A period ends when somebody reads it. Reading the counters gives no more than the number of times in each bucket of a
histogram, so that a percentile of it may lie above the longest time there was.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

MOST_STREAMS = 500
"""Streams whose times are kept one by one, the last ones."""

Arm = tuple[str, str]
"""Endpoint and deployment."""


class StreamTimes(NamedTuple):
    """Seconds from a request's arrival to its stream's first chunk, and between two tokens after it; None: no token
    followed, or nobody has counted them."""

    arm: Arm
    first_token: float
    inter_token: float | None


@dataclass(slots=True)
class DrawnRequests:
    """How many requests a plan has drawn, and its percentages."""

    weights: Mapping[str, int]
    requests: int = 0


@dataclass(slots=True)
class Longest:
    """The longest times of one deployment's streams, in seconds: 0 without any."""

    first_token: float = 0.0
    inter_token: float = 0.0

    def add(self, first_token: float, inter_token: float) -> None:
        """Adds the times of a stream, or the longest of several."""
        self.first_token = max(self.first_token, first_token)
        self.inter_token = max(self.inter_token, inter_token)


@dataclass(slots=True)
class Period:
    """`streams`: how many there were, of which `last` are kept. `drawn` by endpoint and plan."""

    streams: int = 0
    last: deque[StreamTimes] = field(default_factory=lambda: deque(maxlen=MOST_STREAMS))
    longest: dict[Arm, Longest] = field(default_factory=dict)
    drawn: dict[tuple[str, str], DrawnRequests] = field(default_factory=dict)

    def streamed(self, times: StreamTimes) -> None:
        """Adds a stream that has ended."""
        self.streams += 1
        self.last.append(times)
        if (longest := self.longest.get(times.arm)) is None:
            longest = self.longest[times.arm] = Longest()
        longest.add(times.first_token, times.inter_token or 0.0)

    def drew(self, endpoint: str, plan: str, weights: Mapping[str, int], requests: int = 1) -> None:
        """Adds requests that have ended and for which a plan with these weights had decided."""
        if (drawn := self.drawn.get((endpoint, plan))) is None:
            drawn = self.drawn[endpoint, plan] = DrawnRequests(weights)
        drawn.requests += requests

    @property
    def is_whole(self) -> bool:
        """Whether `last` has every stream."""
        return self.streams == len(self.last)

    @classmethod
    def joined(cls, periods: Iterable[Self]) -> Self:
        """One period of several, the oldest first."""
        whole = cls()
        for period in periods:
            whole.streams += period.streams
            whole.last.extend(period.last)
            for arm, longest in period.longest.items():
                whole.longest.setdefault(arm, Longest()).add(longest.first_token, longest.inter_token)
            for (endpoint, plan), drawn in period.drawn.items():
                whole.drew(endpoint, plan, drawn.weights, drawn.requests)
        return whole
