"""The times at which a failed operation is tried again."""

from dataclasses import dataclass

PAUSES_S = (5.0, 10.0, 20.0, 40.0, 60.0)
"""The delays after the first failure in a row, the second …"""


@dataclass(slots=True)
class Attempts:
    """The outcome of the attempts so far. Times are Unix seconds."""

    failing_since: float | None = None
    """The time of the first failure in a row; None if the last attempt succeeded."""
    error: str | None = None
    retry_at: float = 0.0
    _failures: int = 0

    def allowed(self, now: float) -> bool:
        """Whether it may be tried."""
        return now >= self.retry_at

    def failed(self, error: str, now: float) -> None:
        """Records a failed attempt."""
        self.retry_at = now + PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
        self._failures += 1
        self.error = error
        if self.failing_since is None:
            self.failing_since = now

    def succeeded(self) -> None:
        """Records a successful attempt."""
        self._failures, self.failing_since, self.error = 0, None, None
