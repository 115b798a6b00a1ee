"""How many tokens copies may cost within a minute. Pure; times are seconds of any clock."""

from collections import deque
from dataclasses import dataclass

PERIOD_S = 60.0
_MEMORY = 0.9
"""How much of what is known of estimates' errors stays with each call that ends."""

_MOST_WRONG = 10.0
"""An estimate is corrected by this factor at most."""


@dataclass(slots=True)
class Charge:
    """What one copy is thought to cost, and then costs."""

    at: float
    estimate: float
    """Before the correction."""
    tokens: float
    is_counted: bool = True
    """It is in the window."""


class TokenBudget:
    """The tokens of the last minute: of running calls as estimated, of others as counted.

    Estimates are corrected by what the last calls cost beside theirs: a shadow that talks more than the primary must
    not exceed its budget again and again.
    """

    def __init__(self) -> None:
        self._charges: deque[Charge] = deque()
        self._used = self._estimated = self._counted = 0.0

    def take(self, estimate: float, limit: int | None, now: float) -> Charge | None:
        """Charges a call, unless the minute would then cost more than `limit`; None: it would."""
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
        """The call has ended: it cost so many tokens; None: nobody knows, the estimate stands."""
        if tokens is None:
            return
        if tokens and charge.estimate:
            self._estimated = _MEMORY * self._estimated + charge.estimate
            self._counted = _MEMORY * self._counted + tokens
        if charge.is_counted:
            self._used += tokens - charge.tokens
            charge.tokens = tokens
        elif tokens > charge.tokens > 0:  # it ran for longer than a minute: what it cost beyond the estimate counts now
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
