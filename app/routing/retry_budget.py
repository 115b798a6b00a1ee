"""How much extra load retries may make: a budget per endpoint.

Each request pays in a tenth of a retry and each retry takes one out, so that in a storm of failures the load grows by a
tenth and no more. What is saved is bounded: an hour of calm does not pay for a storm. The reserve at the start lets an
endpoint with little traffic retry at all. Finagle's RetryBudget is the model.
"""

from dataclasses import dataclass

SHARE = 0.1
RESERVE = 10.0


@dataclass(slots=True)
class RetryBudget:
    """One endpoint's budget; `balance` is in retries."""

    balance: float = RESERVE

    def request(self) -> None:
        """A request came in."""
        self.balance = min(RESERVE, self.balance + SHARE)

    def take(self) -> bool:
        """Whether a retry is allowed; if so it is paid for."""
        # Tenths do not add up to one exactly.
        if self.balance < 1 - 1e-9:
            return False
        self.balance -= 1
        return True
