"""The extra load that retries may cause: a budget per endpoint, after Finagle's RetryBudget.

Each request deposits a tenth of a retry and each retry withdraws one, so that retries add at most a tenth to the load
when everything fails. The balance is capped, so that a quiet hour does not pay for a burst; it starts full, so that an
endpoint with little traffic can retry.
"""

from dataclasses import dataclass

SHARE = 0.1
RESERVE = 10.0


@dataclass(slots=True)
class RetryBudget:
    """One endpoint's budget; `balance` is in retries."""

    balance: float = RESERVE

    def request(self) -> None:
        """Deposits the share of one request."""
        self.balance = min(RESERVE, self.balance + SHARE)

    def take(self) -> bool:
        """Withdraws one retry; whether there was one."""
        # Tenths do not add up to one exactly.
        if self.balance < 1 - 1e-9:
            return False
        self.balance -= 1
        return True
