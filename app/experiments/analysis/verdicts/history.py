"""What the looks of the past leave behind: points for a plot, and whether the effect has stayed the same."""

from typing import Any, NamedTuple

import numpy as np

from app.experiments.report import Effect, HistoryPoint, Verdict
from app.experiments.statistics.sequences import Floats, ln_e_mix, usable

MAX_POINTS = 500
EVERY_S = 60.0

LARGE = 8.0
"""The change that is to be found soon, in multiples of the smallest effect of interest."""
MAX_STARTS = 32
"""Looks from which on the effect is watched. Older ones are thinned: a change long ago has much evidence since."""


class History:
    """For a plot: one look a minute, and the latest. When they are more than `MAX_POINTS`, every second one is dropped,
    and fewer are kept from then on."""

    def __init__(self) -> None:
        self._points: list[HistoryPoint] = []
        self._every = EVERY_S
        self._latest: HistoryPoint | None = None

    @property
    def points(self) -> list[HistoryPoint]:
        """Oldest first."""
        latest = [self._latest] if self._latest is not None else []
        return self._points + [it for it in latest if not self._points or it.at > self._points[-1].at]

    def add(self, at: float, effect: Effect, ln_e: float | None, verdict: Verdict) -> None:
        """A look. One that comes too soon after the last one that was kept is kept only until the next."""
        self._latest = HistoryPoint(at=at, effect=effect, log_e_value=ln_e, verdict=verdict)
        if self._points and at - self._points[-1].at < self._every:
            return
        self._points.append(self._latest)
        if len(self._points) >= MAX_POINTS:
            self._points = self._points[::2]
            self._every *= 2

    def state(self) -> dict[str, Any]:
        """The history as plain data."""
        points = [
            [point.at, point.effect.estimate, point.effect.lower, point.effect.upper, point.log_e_value, point.verdict]
            for point in self._points
        ]
        return {"every": self._every, "points": points}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`."""
        self._every = state["every"]
        self._points = [
            HistoryPoint(
                at=at, effect=Effect(estimate=estimate, lower=lower, upper=upper), log_e_value=ln_e, verdict=verdict
            )
            for at, estimate, lower, upper, ln_e, verdict in state["points"]
        ]


class Change(NamedTuple):
    """An effect that has changed: its estimates until a look at `at` (Unix seconds) and since, on the estimate's
    scale."""

    at: float
    until: float
    since: float
    flips: bool
    """Whether there is evidence for the other direction since."""


class _Start(NamedTuple):
    number: int
    """From 1."""
    size: float
    total: float
    """The estimate times the size."""
    at: float


class EffectWatch:
    """Whether one constant effect explains all looks; if not, the effect on the traffic has changed.

    What came after a look is the difference of two sums, and independent of the look's own. The difference of both
    estimates is 0 in the mean if the effect is constant, whatever it is. So from each of many looks on, it has an
    e-value that mixes over changes of the effect, as `ln_e_mix` does over effects. The n-th of these looks has the part
    1 / (n (n + 1)) of alpha, which bounds the probability of a false alarm in all.
    """

    def __init__(self, effect: float, alpha: float) -> None:
        """`effect`: the smallest of interest, on the estimate's scale."""
        self._large, self._alpha = LARGE * effect, alpha
        self._starts: list[_Start] = []
        """After a change, only its look."""
        self.change: Change | None = None

    @property
    def has_flipped(self) -> bool:
        return self.change is not None and self.change.flips

    def add(self, est: float, se: float, nu: float, size: float, at: float) -> None:
        """A look at Unix seconds. `size`: what estimates are weighted by, and adds up from look to look.

        Information per size is that of the whole: parts of it would be noisy.
        """
        if not usable(est, se, nu):
            return
        if self._starts:
            self._compare(est * size, size, se**2 * size, nu / size)
        if self.change is not None:
            return
        if not self._starts or (size - self._starts[-1].size) / (se**2 * size) >= self._large**-2:
            number = self._starts[-1].number + 1 if self._starts else 1
            self._starts.append(_Start(number, size, est * size, at))
        if len(self._starts) > MAX_STARTS:
            older = self._starts[: MAX_STARTS // 2]
            self._starts = older[::2] + self._starts[MAX_STARTS // 2 :]

    def _compare(self, total: float, size: float, variance: float, nu: float) -> None:
        """`variance` and `nu` are those of size 1."""
        number, before, total_before, _ = np.array(self._starts).T
        later = size > before
        gained = np.where(later, size - before, 1.0)
        until, since = total_before / before, (total - total_before) / gained
        if self.change is None:
            difference, inverse = np.where(later, since - until, 0.0), 1 / before + 1 / gained
            excess = self._evidence(difference, inverse * variance, nu * np.minimum(before, gained))
            excess -= np.log(number * (number + 1) / self._alpha)
            which = int(excess.argmax())
            if excess[which] < 0:
                return
            self._starts = [self._starts[which]]
            until, since, gained, later = until[[which]], since[[which]], gained[[which]], later[[which]]
        flips = self.has_flipped
        if later[0] and until[0] * since[0] < 0:
            flips |= bool(self._evidence(since, variance / gained, nu * gained)[0] >= -np.log(self._alpha))
        self.change = Change(self._starts[0].at, float(until[0]), float(since[0]), flips)

    def _evidence(self, effect: Floats, square: Floats, nu: Floats) -> Floats:
        return ln_e_mix(effect, np.sqrt(square), nu, effect=self._large, alpha=self._alpha)

    def landmarks(self) -> dict[str, Any] | None:
        """The `state` after a change, whose estimates the next look finds again; None before one."""
        if self.change is None:
            return None
        return {"starts": list(self._starts), "change": self.change._replace(until=0.0, since=0.0)}

    def state(self) -> dict[str, Any]:
        """What is known so far, as plain data."""
        return {"starts": self._starts, "change": self.change}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`."""
        self._starts = [_Start(*start) for start in state["starts"]]
        self.change = None if state["change"] is None else Change(*state["change"])
