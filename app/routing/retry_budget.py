"""The extra load that retries may cause: a budget per endpoint, after Finagle's RetryBudget, shared by its callers.

Each request repays a tenth of a retry, so that retries add at most a tenth to the load when everything fails. Nothing
is saved beyond that: a quiet hour does not pay for a burst. A reserve lets an endpoint with little traffic retry.

One caller's failing requests must not use up the retries of the others. So a caller may owe no more retries than are
left: one that fails all the time leaves half of the reserve, two of them a third, and so on.
"""

SHARE = 0.1
RESERVE = 20.0
"""Retries that all callers together may owe. One caller alone gets half of them."""

_ROUNDING = 1e-9
"""Tenths do not add up to one exactly."""


class RetryBudget:
    """One endpoint's budget. It holds at most `RESERVE` callers."""

    __slots__ = ("_owed",)

    def __init__(self) -> None:
        self._owed: dict[str, float] = {}
        """Retries that are not repaid, by caller; the oldest debt comes first."""

    def request(self, caller: str) -> None:
        """Repays the share of one request: first the caller's own retries, else the oldest."""
        if self._owed:
            self._repay(caller if caller in self._owed else next(iter(self._owed)))

    def take(self, caller: str) -> bool:
        """Takes one retry for the caller; False if there is none for it."""
        owed = self._owed.get(caller, 0.0)
        left = RESERVE - sum(self._owed.values())
        if left - owed < 1 - _ROUNDING:
            return False
        self._owed[caller] = owed + 1
        return True

    def _repay(self, caller: str) -> None:
        owed = self._owed[caller] - SHARE
        if owed > _ROUNDING:
            self._owed[caller] = owed
        else:
            del self._owed[caller]
