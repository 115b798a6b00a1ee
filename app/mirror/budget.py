"""Limits the tokens that copies may cost within a minute. Pure; times are seconds of any clock."""

from collections import deque
from dataclasses import dataclass

PERIOD_S = 60.0
_MEMORY = 0.9
"""The weight of earlier calls in the estimates' error, with each call that ends."""

_MOST_WRONG = 10.0
"""The largest factor by which an estimate is corrected."""


@dataclass(slots=True)
class Charge:
    """The cost of one copy: estimated first, then counted."""

    at: float
    estimate: float
    """The estimate before the correction."""
    tokens: float
    is_counted: bool = True
    """Whether it is in the window."""


class TokenBudget:
    """The tokens of the last minute: as estimated for running calls, as counted for the others.

    Estimates are corrected by the errors of the last ones: a shadow that generates more than the primary must not
    exceed its budget again and again.
    """

    def __init__(self) -> None:
        self._charges: deque[Charge] = deque()
        self._used = self._estimated = self._counted = 0.0

    def take(self, estimate: float, limit: int | None, now: float) -> Charge | None:
        """Charges a call; None if the minute would then cost more than `limit`."""
        if limit is None:
            return Charge(now, estimate, 0.0, is_counted=False)
        self._forget(now)
        tokens = estimate * self._correction
        if self._used + tokens > limit:
            return None
        charge = Charge(now, estimate, tokens)
        self._charges.append(charge)
        self._used += tokens
        return charge

    def settle(self, charge: Charge, tokens: float | None, now: float) -> None:
        """Replaces the estimate of a call that has ended by its `tokens`; None: unknown, the estimate remains."""
        if tokens is None:
            return
        if tokens and charge.estimate:
            self._estimated = _MEMORY * self._estimated + charge.estimate
            self._counted = _MEMORY * self._counted + tokens
        if charge.is_counted:
            self._used += tokens - charge.tokens
            charge.tokens = tokens
        elif tokens > charge.tokens > 0:  # it ran for longer than a minute: its cost beyond the estimate counts now
            self._charges.append(Charge(now, 0.0, tokens - charge.tokens))
            self._used += tokens - charge.tokens

    @property
    def _correction(self) -> float:
        if not self._estimated:
            return 1.0
        return min(max(self._counted / self._estimated, 1 / _MOST_WRONG), _MOST_WRONG)

    def _forget(self, now: float) -> None:
        while self._charges and self._charges[0].at <= now - PERIOD_S:
            charge = self._charges.popleft()
            charge.is_counted = False
            self._used -= charge.tokens
        if not self._charges:
            self._used = 0.0  # sums of floats drift
