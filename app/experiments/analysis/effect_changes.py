"""Whether an effect has stayed the same during a run.

A look's estimate is the mean of the effects so far. What the mean is weighted by depends on the scale. A difference of
means weighs requests alike. A ratio of means weighs them by their level, control's sum: if everything takes three times
as long from the second day on, that day has three quarters of the weight. Weighed alike, a constant effect would seem
to change with the level. But where the level falls, the noise of the heavy past is large against the light present. So
with ratios, two watches look, with either weight, and an effect has changed if both say so.
"""

from typing import Any, NamedTuple

import numpy as np

from app.experiments.statistics.look import Estimate
from app.experiments.statistics.sequences import Floats, is_well_defined, log_e_mixture

LARGE = 8.0
"""The change that is to be found soon, in multiples of the smallest effect of interest."""
MAX_STARTS = 32
"""Looks from which on the effect is watched. Older ones are thinned: a change long ago has much evidence since."""


class EffectChange(NamedTuple):
    """An effect that has changed: its estimates until a look at `at` (Unix seconds) and since, on the estimate's
    scale."""

    at: float
    until: float
    since: float
    flips: bool
    """Whether there is evidence for the other direction since."""

    @property
    def has_estimates(self) -> bool:
        """Landmarks of earlier versions have none, until a look finds them again."""
        return self.until != self.since

    def says(self, other: "EffectChange") -> bool:
        """Whether another one is of the same time, and has no more evidence."""
        return self.at == other.at and self.has_estimates and self.flips >= other.flips


class _Start(NamedTuple):
    number: int
    """From 1."""
    size: float
    total: float
    """The estimate times the size."""
    at: float
    variance: float = 0.0
    """Of the total; 0 in records of earlier versions, which leaves all of it to what came later."""


class _Later(NamedTuple):
    """What came after a change: as of a start."""

    size: float = 0.0
    total: float = 0.0
    variance: float = 0.0


class EffectWatch:
    """Whether one constant effect explains all looks; if not, the effect on the traffic has changed.

    What came after a look is the difference of two sums, and independent of the look's own. The difference of both
    estimates is 0 in the mean if the effect is constant, whatever it is. So from each of many looks on, it has an
    e-value that mixes over changes of the effect, as `log_e_mixture` does over effects. The n-th of these looks has the
    part 1 / (n (n + 1)) of alpha, which bounds the probability of a false alarm in all.

    Where a look rests on other records than those before, `begin_anew` makes it the first again.
    """

    def __init__(self, effect: float, alpha: float) -> None:
        """`effect`: the smallest of interest, on the estimate's scale."""
        self._large, self._alpha = LARGE * effect, alpha
        self._starts: list[_Start] = []
        """After a change, only its look, or the first that is compared with others since."""
        self._last = 0
        """The number of the last start."""
        self.change: EffectChange | None = None
        self._found: EffectChange | None = None
        """The change as it was when it, or evidence for the other direction, was found."""
        self._later = self._kept = _Later()
        """What came after the change until the latest look, and until the first start."""

    @property
    def has_flipped(self) -> bool:
        return self.change is not None and self.change.flips

    def begin_anew(self) -> None:
        """What comes cannot be compared with earlier looks: units were halved since, or records are gone."""
        self._starts, self._kept = [], self._later

    def add(self, est: float, se: float, nu: float, size: float, at: float, level: float = 1.0) -> None:
        """A look at Unix seconds. `size`: what estimates are weighted by, and adds up from look to look. `level`: the
        mean size of a request.
        """
        if not is_well_defined(est, se, nu):
            return
        if self._starts:
            self._compare(est * size, size, (se * size) ** 2, nu / size, level)
        if self.change is not None and self._starts:
            return
        if not self._starts or (size - self._starts[-1].size) / (se**2 * size) >= self._large**-2:
            self._last += 1
            self._starts.append(_Start(self._last, size, est * size, at, (se * size) ** 2))
        if len(self._starts) > MAX_STARTS:
            older = self._starts[: MAX_STARTS // 2]
            self._starts = older[::2] + self._starts[MAX_STARTS // 2 :]

    def _compare(self, total: float, size: float, variance: float, nu: float, level: float) -> None:
        """`variance` is that of the total; `nu` that of size 1.

        A part's variance is the larger of two: its share of the whole by size, since its own is noisy where it is
        short, and its own, since traffic may vary more in one part than in the other. What is taken from the latter is
        what a change adds to it at equal halves, since residuals are about the mean of both.
        """
        starts = [start for start in self._starts if start.size < size]  # none while records are counted again
        if not starts:
            return
        number, before, total_before, _, variance_before = np.array(starts).T
        gained = size - before
        until, since = total_before / before, (total - total_before) / gained
        of_until = np.maximum(variance * before / size, variance_before) / before**2
        own = variance - variance_before - 0.5 * level * (since - until) ** 2 * before * gained / size
        of_since = np.maximum(variance * gained / size, own) / gained**2
        if self.change is None:
            excess = self._evidence(since - until, of_until + of_since, nu * np.minimum(before, gained))
            excess -= np.log(number * (number + 1) / self._alpha)
            which = int(excess.argmax())
            if excess[which] < 0:
                return
            self._starts = [starts[which]]
            until, since, gained, of_since = (column[[which]] for column in (until, since, gained, of_since))
        self._follow(until[0], _Later(gained[0], since[0] * gained[0], of_since[0] * gained[0] ** 2), nu)

    def _follow(self, until: float, later: _Later, nu: float) -> None:
        """`until`: the estimate before the first start, which is that of the change when it has just been found."""
        at, flips = self._starts[0].at, False
        if self.change is not None:
            at, flips = self.change.at, self.change.flips
            until = self.change.until if self.change.has_estimates else until
        size, total, variance = self._later = _Later(*map(float, np.add(later, self._kept)))
        since = total / size
        if until * since < 0:
            evidence = self._evidence(np.array([since]), np.array([variance / size**2]), np.array([nu * size]))
            flips |= bool(evidence[0] >= -np.log(self._alpha))
        self.change = EffectChange(at, float(until), since, flips)
        if self._found is None or flips != self._found.flips:
            self._found = self.change

    def _evidence(self, effect: Floats, square: Floats, nu: Floats) -> Floats:
        return log_e_mixture(effect, np.sqrt(square), nu, effect=self._large, alpha=self._alpha)

    def landmarks(self) -> dict[str, Any] | None:
        """The `state` after a change, with the estimates of when it was found; None before one."""
        if self.change is None:
            return None
        return {"starts": list(self._starts), "last": self._last, "change": self._found, "kept": self._kept}

    def state(self) -> dict[str, Any]:
        """What is known so far, as plain data."""
        known = {"starts": self._starts, "last": self._last, "change": self.change, "found": self._found}
        return known | {"kept": self._kept, "later": self._later}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`, or from `landmarks`, which take no newer estimates away."""
        change = None if state["change"] is None else EffectChange(*state["change"])
        starts = [_Start(*start) for start in state["starts"]]
        if change is not None and self.change is not None and self.change.says(change) and starts == self._starts:
            return
        self._starts = starts
        self._last = state.get("last", self._starts[-1].number if self._starts else 0)
        self._kept = _Later(*state.get("kept", ()))
        self._later = _Later(*state.get("later", self._kept))
        self.change = change
        found = state.get("found")
        self._found = change if found is None else EffectChange(*found)


class EffectChanges:
    """The watches of one comparison. `by_level`: its scale is that of ratios."""

    def __init__(self, effect: float, alpha: float, *, by_level: bool) -> None:
        """As `EffectWatch`."""
        self._by_count = EffectWatch(effect, alpha)
        self._by_level = EffectWatch(effect, alpha) if by_level else None
        self._share = 1.0

    @property
    def change(self) -> EffectChange | None:
        """What all watches have found: of a ratio, as its own weights have it."""
        found = self._by_count.change
        if self._by_level is None or found is None or (own := self._by_level.change) is None:
            return found if self._by_level is None else None
        return own._replace(flips=own.flips and found.flips)

    @property
    def has_flipped(self) -> bool:
        """Whether there is evidence for the other direction."""
        return self.change is not None and self.change.flips

    def begin_anew(self) -> None:
        """As `EffectWatch.begin_anew`."""
        self._by_count.begin_anew()
        if self._by_level is not None:
            self._by_level.begin_anew()

    def add(self, look: Estimate, at: float, share: float = 1.0) -> None:
        """A look at Unix seconds, at a `share` of the units. Sizes are as if it were at all."""
        if share != self._share:
            self._share = share
            self.begin_anew()
        self._by_count.add(look.est, look.se, look.nu, look.overlap / share, at, 1 / share)
        if self._by_level is not None:
            level = look.s0 / look.overlap
            self._by_level.add(look.est, look.se, look.nu, look.s0 / share, at, level / share)

    def landmarks(self) -> dict[str, Any] | None:
        """As `EffectWatch.landmarks`; None before a change."""
        if self.change is None or (known := self._by_count.landmarks()) is None:
            return None
        return self._with_level(known, None if self._by_level is None else self._by_level.landmarks())

    def state(self) -> dict[str, Any]:
        """What is known so far, as plain data."""
        return self._with_level(self._by_count.state(), None if self._by_level is None else self._by_level.state())

    def _with_level(self, known: dict[str, Any], by_level: dict[str, Any] | None) -> dict[str, Any]:
        return known | {"share": self._share} | ({} if by_level is None else {"by_level": by_level})

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`, or from `landmarks`. Earlier versions have one watch, which counts for both."""
        self._share = state.get("share", 1.0)
        self._by_count.restore(state)
        if self._by_level is not None:
            self._by_level.restore(state.get("by_level") or state)
