"""Paired differences: shadow minus primary of the same requests.

A mean is a one-sample look: its variance is clustered by unit, and `sequences` makes it hold at any time. Of 0/1
outcomes, only discordant pairs are informative: if shadow and primary have them equally often, each
such pair is the shadow's with probability 1/2, which is what `events` tests.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.experiments.statistics.events import EventEvidence, two_sided
from app.experiments.statistics.look import MIN_UNITS, Codes, Floats, sum_of_squares
from app.experiments.statistics.sequences import Interval, confidence_sequence, log_e_mixture

_ROUNDING = 1e-24
"""A variance below this share of the second moment is rounding: the values do not vary."""

_HALF = 0.5


@dataclass(frozen=True, slots=True)
class PairedLook:
    """The mean difference at one moment. `se` is None where the values do not vary, or one unit has all of them."""

    est: float
    se: float | None
    nu: float
    """Degrees of freedom: units less one."""
    units: int
    pairs: int

    def log_e_value(self, *, effect: float, alpha: float) -> float:
        """The evidence against "no difference"; 0 before there are enough units."""
        if self.se is None or self.units < MIN_UNITS:
            return 0.0
        return float(log_e_mixture(self.est, self.se, self.nu, effect=effect, alpha=alpha))

    def interval(self, *, effect: float, alpha: float) -> Interval | None:
        """The confidence sequence at this look; None before there are enough units."""
        if self.se is None or self.units < MIN_UNITS:
            return None
        return confidence_sequence(self.est, self.se, self.nu, effect=effect, alpha=alpha)


def paired_look(unit: Codes, n: Floats, x: Floats) -> PairedLook | None:
    """The look at `n` differences with the sum `x` for each unit (codes from 0; several lines may be of one).

    None without a pair.
    """
    pairs = float(n.sum())
    if pairs <= 0:
        return None
    est = float(x.sum()) / pairs
    residuals = np.asarray(np.bincount(unit, x - est * n), np.float64)
    units = int((np.bincount(unit, n) > 0).sum())
    variance, floor = sum_of_squares(residuals), _ROUNDING * sum_of_squares(x)
    nu = units - 1
    se = None
    if nu > 0 and variance > floor and math.isfinite(variance):
        se = math.sqrt(variance * units / nu) / pairs
    return PairedLook(est, se, float(nu), units, round(pairs))


class Discordant:
    """The evidence that an event is more frequent on one side. Each unit counts once, with its first such pair."""

    def __init__(self) -> None:
        self._more, self._less = EventEvidence(), EventEvidence()

    def add(self, on_shadow: NDArray[np.bool_]) -> None:
        """New units' discordant pairs: whether the event was the shadow's."""
        if len(on_shadow):
            self._more.add(on_shadow, _HALF)
            self._less.add(~on_shadow, _HALF)

    @property
    def log_e_value(self) -> float:
        """The evidence now, ln, for a difference in the direction of `units`; at least 0. The largest so far may have
        been for the other one.
        """
        return max(0.0, two_sided(self._more.log_e_value, self._less.log_e_value))

    @property
    def units(self) -> tuple[int, int]:
        """Pairs with the event on the primary alone, and on the shadow alone."""
        return self._more.misses, self._more.hits
