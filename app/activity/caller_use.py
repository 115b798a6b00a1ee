"""Counts each caller's use of each endpoint on one router: for managers, at `GET /api/callers`."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from app.activity.report import CallerCounts
from app.telemetry.logs import Record

_MOST = 10_000
"""Pairs of caller and endpoint that are counted separately. Tokens can name any number of callers."""


@dataclass(slots=True)
class Use:
    """One caller's requests on one endpoint. `failed`: those that were not answered completely. `last_at` is in Unix
    seconds."""

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    last_at: float = 0.0


def add_to(counts: Use | CallerCounts, record: Record) -> None:
    """Counts a finished request: what a caller reads of its use is the same everywhere."""
    counts.requests += 1
    counts.failed += record.has_failed
    if (used := record.used) is not None:
        counts.prompt_tokens += used.prompt_tokens
        counts.completion_tokens += used.completion_tokens


class CallerUse:
    """Counts of finished requests since `since` (Unix seconds), by name of the caller and endpoint, "" for none.

    Beyond `most` pairs, new callers are counted together, under the name "".
    """

    def __init__(self, clock: Callable[[], float] = time.time, most: int = _MOST) -> None:
        self.since = clock()
        self._clock, self._most = clock, most
        self._uses: dict[tuple[str, str], Use] = {}

    def count(self, record: Record) -> None:
        """Counts a finished request."""
        pair = record.caller, record.endpoint
        if (use := self._uses.get(pair)) is None:
            use = self._new(pair)
        use.last_at = self._clock()
        add_to(use, record)

    def items(self) -> Iterator[tuple[str, str, Use]]:
        """Caller, endpoint, use: ordered by both."""
        return ((caller, endpoint, self._uses[caller, endpoint]) for caller, endpoint in sorted(self._uses))

    def _new(self, pair: tuple[str, str]) -> Use:
        kept = pair if len(self._uses) < self._most else ("", pair[1])
        return self._uses.setdefault(kept, Use())
