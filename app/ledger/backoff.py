"""The pause after each failure of the controller: 1, 2, 4 … 30 seconds."""

_FIRST_S, _LONGEST_S = 1.0, 30.0


class Backoff:
    """`now`: seconds of any clock that does not go backwards."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._not_before = float("-inf")

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt failed."""
        return self._pause_s > 0.0

    def allows(self, now: float) -> bool:
        """Whether it may be tried."""
        return now >= self._not_before

    def failed(self, now: float) -> None:
        """Records a failed attempt."""
        self._pause_s = min(self._pause_s * 2 or _FIRST_S, _LONGEST_S)
        self._not_before = now + self._pause_s

    def succeeded(self) -> None:
        """Records a successful attempt."""
        self._pause_s = 0.0
