"""A t-test that is checked repeatedly, for comparison only. It finds effects that do not exist."""

import math

from scipy.special import stdtr

from app.experiments.statistics.look import Look


def p_value(look: Look) -> float:
    """Student's two-sided p-value of this look, as if it were the only one."""
    return float(2 * stdtr(look.nu, -abs(look.est / look.se)))


class PeekedTest:
    """Rejects "no effect" as soon as any look's p-value is below alpha."""

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self.smallest = 1.0
        """The smallest p-value so far."""

    def add(self, look: Look | None) -> None:
        """Adds a look; None is a look without a result."""
        if look is not None and look.enough and math.isfinite(look.se):
            self.smallest = min(self.smallest, p_value(look))

    @property
    def rejects(self) -> bool:
        return self.smallest < self._alpha
