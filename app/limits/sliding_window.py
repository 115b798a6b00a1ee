"""Sliding windows: the rest of a limit, and the time at which more becomes free. Pure; times are in seconds.

Usage is counted per minute; the previous minute counts by the share of it that lies within the last 60 seconds. That
takes two numbers per limit, and gives the exact time at which a rejected request would pass. Usage is taken to be
spread evenly over its minute: a burst at the end of one may be followed, little by little, by as much in the next 60
seconds. Contract of the headers: OpenAI's API, "rate limits in headers".
"""

import math
from dataclasses import dataclass

PERIOD_S = 60


@dataclass(frozen=True, slots=True)
class Window:
    """One limit's counts, as the library `limits` returns them.

    `previous_left_s` is the time for which the previous minute still counts (0 to 60), `current_left_s` that of the
    current one (60 to 120; 0 before the first count).
    """

    previous: int
    previous_left_s: float
    current: int
    current_left_s: float

    @property
    def used(self) -> int:
        """The usage at this moment."""
        return math.floor(self.previous * self.previous_left_s / PERIOD_S) + self.current

    def remaining(self, limit: int) -> int:
        """The rest of `limit`; 0 if a settled request took more than was left."""
        return min(limit, max(0, limit - self.used))

    @property
    def resets_in_s(self) -> float:
        """The time until the usage is 0, if nothing is added."""
        if self.current > 0:
            return self.current_left_s
        return self.previous_left_s if self.previous > 0 else 0.0

    def frees_in_s(self, limit: int, cost: int) -> float:
        """The time until `cost` fits into `limit`, if nothing is added; `cost` is at most `limit`."""
        room = limit - cost
        if self.used <= room:
            return 0.0
        if self.current <= room:  # the previous minute has to fade far enough
            return self.previous_left_s - PERIOD_S * (room - self.current) / self.previous
        until_previous = max(self.current_left_s - PERIOD_S, 0.0)
        return until_previous + PERIOD_S * (1 - room / self.current)


def duration(seconds: float) -> str:
    """A duration in the format of OpenAI's headers: ``6m0s``, ``12.5s``, ``20ms``."""
    milliseconds = math.ceil(max(0.0, seconds) * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{text}s" if minutes else f"{text}s"
