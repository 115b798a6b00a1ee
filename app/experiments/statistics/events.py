"""Guardrails: exact evidence that events come too often on the treatment, from the first event on.

Only *whose* an event was matters. Under "the treatment's rate is at most r0 times control's" an event is the
treatment's with probability at most p0 = w_T r0 / (w_T r0 + w_C), w being the weights of the plan that assigned it. No
model of load, time of day or error rate is needed, and a cause that both arms share moves nothing. An absolute limit
uses the same code: a trial is one exposure of the treatment, p0 the largest rate allowed.

The alternatives to p0 are 40 larger rates, averaged as e-values with weights 1/i. The whole-run e-process bounds the
probability of ever raising a false alarm (Ville's inequality; Ramdas, Grünwald, Vovk and Shafer 2023, "Game-theoretic
statistics and safe anytime-valid inference").

The detector finds what a long healthy past hides: it is the same e-process, started again and again. A unit that fails
every day is one coin, not a coin a day, so each start counts a unit's first trial since then and no other. That makes
each start's process an e-process by itself; together they are none, since one unit counts for several starts. So each
start has a share of alpha (a union bound), less for later ones, and the whole run has most of it.

A handful of units whose every request fails is seldom enough for that: an event alone says little at an even split. But
if a unit's fate does not depend on its arm, the healthy units' arms were drawn, too: `always_failing` tests both.

Tests whether the arms' counts contradict the weights (sample-ratio mismatch), at every look.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, ndtri, zeta

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Trials = Literal["events", "exposures"]
"""A trial is an event of either arm (relative limits), or an exposure of the treatment (absolute ones)."""

MULTIPLES: Floats = np.exp(np.linspace(math.log(1.15), math.log(50.0), 40))
"""The alternatives, as multiples of the allowed rate."""

_LN_PRIOR: Floats = -np.log(np.arange(1.0, 41.0)) - math.log(float((1 / np.arange(1.0, 41.0)).sum()))

LATE_SHARE = 0.1
"""The share of alpha that the detector's starts have together."""

SECOND_SHARE = 0.06
"""The share of alpha of the second tests: of units whose every request fails, once for all relative limits, and of
later turns for each absolute one. The whole run has the rest.
"""

_WHOLE_SHARE = 1 - LATE_SHARE - SECOND_SHARE

LN_SECOND = math.log(SECOND_SHARE / _WHOLE_SHARE)
"""The share of later turns by the whole run's, ln: added to their evidence, so that they alarm at `alarm_at`."""

FAILS, WORKS = 0.98, 0.02
"""The alternative of `always_failing`: the shares of the treatment's and of control's units that always fail."""

EVERY = 32
"""The number of units after which the detector starts again."""

_LIVES = 4
_LONGEST = 1024
"""A start whose number is divisible by 2, 4, 8 … up to `_LONGEST` lives until so many times `_LIVES` others follow: the
ages of the living starts grow geometrically.
"""

_DECAY = 1.2
"""Start number i has a share of alpha in proportion to i to the power of minus this."""

_LN_FIRST_SHARE = math.log(LATE_SHARE / _WHOLE_SHARE / float(zeta(_DECAY)))
"""The first start's share of alpha by the whole run's, ln."""

POWER = 0.8
"""The probability with which what is called detectable would have been detected."""

_Z_OF_POWER = float(ndtri(POWER))
_LARGEST_RATE = 0.99
_HALVINGS = 50
_LARGEST_RATIO = 1e6


def alarm_at(alpha: float) -> float:
    """The evidence, ln, at which a limit alarms, be it the whole run's, later turns' or the detector's. Without a
    cause, one of them, or `always_failing`, ever alarms with probability at most `alpha`.
    """
    return -math.log(_WHOLE_SHARE * alpha)


def always_failing_at(alpha: float) -> float:
    """The evidence, ln, at which `always_failing` alarms, if all limits of a treatment share `alpha`."""
    return -math.log(SECOND_SHARE * alpha)


def share_of_start(number: int) -> float:
    """The share, ln, of an error rate that the evidence from the start `number` (1, 2, …) on has: all together 1."""
    return -_DECAY * math.log(number) - math.log(float(zeta(_DECAY)))


def always_failing(w_t: ArrayLike, w_c: ArrayLike, failing: NDArray[Any], working: NDArray[Any]) -> float:
    """ln of the e-value against "a unit that always fails on its arm would do so on the other one, too".

    Per set of weights (the first axis): the treatment's weight and control's, and how many units always fail, and do
    not, on control and on the treatment (shape (sets, 2)). Each unit is one draw of its arm.
    """
    w_t, w_c = np.asarray(w_t, dtype=np.float64), np.asarray(w_c, dtype=np.float64)
    drawn = (w_t > 0) & (w_c > 0)
    p = w_t[drawn] / (w_t + w_c)[drawn]
    total = 0.0
    for units, of_t, of_c in ((failing, FAILS, WORKS), (working, 1 - FAILS, 1 - WORKS)):
        both = p * of_t + (1 - p) * of_c
        total += float(units[drawn, 1] @ np.log(of_t / both) + units[drawn, 0] @ np.log(of_c / both))
    return total


def chance(w_t: ArrayLike, w_c: ArrayLike, r0: float) -> Floats:
    """p0 of an event, by the weights that assigned it: the probability that it is the treatment's at the largest rate
    allowed.

    NaN where both weights are 0; such an event is no evidence.
    """
    w_t, w_c = np.asarray(w_t, dtype=np.float64), np.asarray(w_c, dtype=np.float64)
    both = r0 * w_t + w_c
    return np.asarray(np.divide(r0 * w_t, both, out=np.full(both.shape, np.nan), where=both > 0), dtype=np.float64)


def ln_likelihood(hit: ArrayLike, p0: ArrayLike, trials: Trials) -> Floats:
    """ln of the likelihood ratio of each trial against each alternative: shape (trials, 40).

    `hit`: the event is the treatment's, or the exposure had the event. Trials whose p0 is not between 0 and 1 could
    only go one way, and count 0.
    """
    hit, p0 = np.atleast_1d(np.asarray(hit, dtype=np.bool_)), np.atleast_1d(np.asarray(p0, dtype=np.float64))
    informative = (p0 > 0) & (p0 < 1)
    p = np.where(informative, p0, 0.5)[:, None]
    if trials == "events":
        q_of_hit, q_of_miss = MULTIPLES / (1 + p * (MULTIPLES - 1)), 1 / (1 + p * (MULTIPLES - 1))
    else:
        q = np.maximum(p, np.minimum(MULTIPLES * p, _LARGEST_RATE))
        q_of_hit, q_of_miss = q / p, (1 - q) / (1 - p)
    return np.where(informative[:, None], np.log(np.where(hit[:, None], q_of_hit, q_of_miss)), 0.0)


class EvidenceState(TypedDict):
    """The stored state of an `EventEvidence`, as JSON."""

    counts: list[tuple[float, int, int]]
    largest: float


class EventEvidence:
    """The whole-run e-process. Its state is counts: neither order nor batches nor merging change `log_e_value`."""

    def __init__(self, trials: Trials = "events") -> None:
        self.trials: Trials = trials
        self._counts: dict[float, tuple[int, int]] = {}
        self._sums = np.zeros(len(MULTIPLES))
        self._largest = 0.0

    def add(self, hit: ArrayLike, p0: ArrayLike) -> Floats:
        """Adds trials, and returns `log_e_value` after each of them."""
        hit, p0 = np.broadcast_arrays(np.atleast_1d(np.asarray(hit, dtype=np.bool_)), np.asarray(p0, dtype=np.float64))
        path = self._sums + np.cumsum(ln_likelihood(hit, p0, self.trials), axis=0)
        log_e_value = np.asarray(np.logaddexp.reduce(_LN_PRIOR + path, axis=1), dtype=np.float64)
        for value in np.unique(p0[~np.isnan(p0)]).tolist():
            hits, misses = self._counts.get(value, (0, 0))
            of_value = p0 == value
            self._counts[value] = (hits + int((hit & of_value).sum()), misses + int((~hit & of_value).sum()))
        self._recompute()
        self._largest = max(self._largest, float(log_e_value.max(initial=0.0)))
        return log_e_value

    def merge(self, other: "EventEvidence") -> None:
        """Adds the counts of another controller."""
        for value, (hits, misses) in other._counts.items():
            mine = self._counts.get(value, (0, 0))
            self._counts[value] = (mine[0] + hits, mine[1] + misses)
        self._recompute()
        self._largest = max(self._largest, other._largest, self.log_e_value)

    def _recompute(self) -> None:
        """Recomputes the state from the counts, so that rounding does not depend on the order either."""
        values = sorted(self._counts)
        counts = np.array([self._counts[value] for value in values], dtype=np.float64).reshape(-1, 2)
        hits, misses = (ln_likelihood(np.full(len(values), hit), values, self.trials) for hit in (True, False))
        self._sums = counts[:, 0] @ hits + counts[:, 1] @ misses

    @property
    def log_e_value(self) -> float:
        """The evidence now, ln."""
        return float(np.logaddexp.reduce(_LN_PRIOR + self._sums))

    @property
    def largest(self) -> float:
        """The largest evidence so far, ln, at least 0: it alarms at ln(1 / alpha)."""
        return self._largest

    @property
    def hits(self) -> int:
        """Trials that were the treatment's, or had the event."""
        return sum(hits for hits, _ in self._counts.values())

    @property
    def misses(self) -> int:
        """The other trials."""
        return sum(misses for _, misses in self._counts.values())

    def detectable(self, r0: float, threshold: float) -> float | None:
        """The smallest ratio to control's rate (the smallest rate, for exposures) that would have been detected by now
        with probability `POWER`: in as many runs its evidence reaches `threshold` (ln), given control's events so far
        (the treatment's exposures). `r0` is the ratio (or rate) that is allowed. None before anything is detectable.
        """
        p0 = np.array(sorted(self._counts), dtype=np.float64)
        counts = np.array([self._counts[value] for value in p0.tolist()], dtype=np.float64).reshape(-1, 2)
        counts, p0 = counts[(p0 > 0) & (p0 < 1)], p0[(p0 > 0) & (p0 < 1)]
        hit, miss = (ln_likelihood(np.full(len(p0), value), p0, self.trials) for value in (True, False))

        def reached(ratio: float) -> bool:
            if self.trials == "events":  # both arms' events are Poisson's
                hits, misses = counts[:, 1] * (ratio / r0) * p0 / (1 - p0), counts[:, 1]
                variance = hits @ hit**2 + misses @ miss**2
            else:
                hits, misses = ratio * counts.sum(axis=1), (1 - ratio) * counts.sum(axis=1)
                variance = hits * (1 - ratio) @ (hit - miss) ** 2
            usual = hits @ hit + misses @ miss - _Z_OF_POWER * np.sqrt(variance)
            return float(np.logaddexp.reduce(_LN_PRIOR + usual)) >= threshold

        low, high = r0, _LARGEST_RATIO if self.trials == "events" else 1.0
        if not len(p0) or not reached(high):
            return None
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if reached(middle) else (middle, high)
        return high

    def state(self) -> EvidenceState:
        """The state for the journal."""
        counts = [(value, *pair) for value, pair in sorted(self._counts.items())]
        return {"counts": counts, "largest": self._largest}

    def restore(self, state: EvidenceState) -> None:
        """Continues from a `state`."""
        self._counts = {value: (hits, misses) for value, hits, misses in state["counts"]}
        self._recompute()
        self._largest = state["largest"]


class Detector:
    """The e-process from several starts on. It takes trials in the order in which they happened."""

    def __init__(self, trials: Trials = "events") -> None:
        self.trials: Trials = trials
        self._taken = self._since_start = 0
        self._number: Ints = np.ones(1, np.int64)
        self.begins: Ints = np.zeros(1, np.int64)
        """The number of trials before each living start."""
        self._sums = np.zeros((1, len(MULTIPLES)))
        self._log_e_value = self._largest = -math.inf

    def add(self, hit: ArrayLike, p0: ArrayLike, before: Ints | None = None) -> Floats:
        """Adds trials, and returns `largest` after each of them.

        `before`: the number, counted from 1, of the trial before of the same unit; 0 if there is none, or none that a
        living start counts. None: every trial is a unit.
        """
        hit, p0 = np.broadcast_arrays(np.atleast_1d(np.asarray(hit, dtype=np.bool_)), np.asarray(p0, dtype=np.float64))
        before = np.zeros(len(hit), np.int64) if before is None else before
        likelihood = ln_likelihood(hit, p0, self.trials)
        largest = np.full(len(hit), self._largest)
        begin = 0
        while begin < len(hit):
            end = begin + 2 * EVERY
            new = begin + np.flatnonzero(before[begin:end] <= self.begins[-1])[: EVERY - self._since_start]
            if len(new):
                largest[new] = self._count(likelihood[new], before[new])
            begin = min(end, len(hit))
            if self._since_start == EVERY:
                begin = int(new[-1]) + 1
                self._start(self._taken + begin)
        self._taken += len(hit)
        largest = np.asarray(np.maximum(np.maximum.accumulate(largest), self._largest), dtype=np.float64)
        self._largest = float(largest[-1]) if len(largest) else self._largest
        return largest

    def _count(self, likelihood: Floats, before: Ints) -> Floats:
        """Counts trials of units that are new since the latest start; returns the evidence after each."""
        counts = before <= self.begins[:, None]
        path = self._sums[:, None] + np.cumsum(np.where(counts[..., None], likelihood, 0.0), axis=1)
        self._sums = path[:, -1]
        self._since_start += len(before)
        top = path.max(axis=2)
        log_e_value = top + np.log(np.exp(path - top[..., None]) @ np.exp(_LN_PRIOR))
        weighted = (log_e_value + (_LN_FIRST_SHARE - _DECAY * np.log(self._number))[:, None]).max(axis=0)
        self._log_e_value = float(weighted[-1])
        return np.asarray(weighted, dtype=np.float64)

    def _start(self, begins: int) -> None:
        number = int(self._number[-1]) + 1
        lives = number - self._number < _LIVES * np.minimum(self._number & -self._number, _LONGEST)
        self._number = np.append(self._number[lives], number)
        self.begins = np.append(self.begins[lives], begins)
        self._sums = np.vstack([self._sums[lives], np.zeros((1, len(MULTIPLES)))])
        self._since_start = 0

    @property
    def oldest(self) -> int:
        """The number of trials before the oldest living start."""
        return int(self.begins[0])

    @property
    def log_e_value(self) -> float:
        """The evidence now, ln, of the start for which it is largest in proportion to its share of alpha; -inf before
        the first trial.
        """
        return self._log_e_value

    @property
    def largest(self) -> float:
        """The largest evidence so far, ln: it alarms at `alarm_at`."""
        return self._largest


def two_sided(more: float, less: float) -> float:
    """ln of the average of two e-values, of which it has ln: evidence for a difference in either direction."""
    return float(np.logaddexp(more, less)) - math.log(2)


# The e-value is the Dirichlet-multinomial against the multinomial with the plan's own probabilities: Lindon and Malek
# 2022, "Anytime-Valid Inference for Multinomial Count Data". A unit counts once, under the plan of its first exposure:
# counted again under a later plan it would be the same coin twice.
#
# The same test finds arms whose units come back less, or whose requests are lost: the units that have made two, three,
# four … requests are as random a part of the arms as all units, if the arm has no influence on that. Each number of
# requests has an e-process of its own and a share of the error rate (a union bound), whatever units' activity is like.

CONCENTRATION = 1000.0
"""kappa: the concentration of the alternatives around the plan's probabilities."""

THRESHOLD = math.log(1000)
"""The ln of the evidence at which it raises an alarm: 1000 gives a false alarm in one of a thousand experiments."""

RETURNS = np.unique(np.round(2 * 1.4 ** np.arange(30)).astype(np.int64))
"""The numbers of requests at which the units that made as many are compared."""

RETURNS_CONCENTRATION = 30.0
"""kappa for these: fewer units, and larger differences."""

RETURNS_THRESHOLD = math.log(100)
"""The ln of the evidence at which they raise an alarm: a false one in one of a hundred experiments."""

FEWER = 0.05
"""The difference of the arms' mean numbers of requests, in ln, that is to be found soonest."""

SUSPICION = math.log(3)
"""The ln of the evidence above which nothing is shipped: a delay without a cause costs less than a biased verdict."""

_NUMBER = np.arange(1, len(RETURNS) + 1)
_LN_SHARES: NDArray[np.float64] = -np.log(_NUMBER * (_NUMBER + 1.0))

CERTAIN = 700.0
"""ln of the evidence of a unit in an arm that has no weight."""


def log_e_value(plans: Iterable[tuple[Sequence[int], Sequence[float]]]) -> float:
    """The evidence, ln, of (units of each arm, weights of each arm) per plan. Plans add up.

    Weights are of any sum; those of arms outside of the experiment are left out beforehand.
    """
    return float(sum(log_e_value_of_plan(counts, weights) for counts, weights in plans))


def log_e_value_of_returns(reached: NDArray[np.int64], weights: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """The evidence, ln, of each of `RETURNS`, less what its share of the error rate costs.

    `reached`: the units with as many requests, by the plan of their first one, shape (RETURNS, plans, arms); `weights`
    of each plan.
    """
    return np.asarray(
        _LN_SHARES
        + sum(
            log_e_value_of_plan(reached[:, plan], of_plan, RETURNS_CONCENTRATION)
            for plan, of_plan in enumerate(weights)
            if reached[:, plan].any()
        )
    )


def log_e_value_of_plan(
    counts: ArrayLike, weights: Sequence[float], concentration: float = CONCENTRATION
) -> NDArray[np.float64]:
    """The evidence, ln, of one plan's counts of shape (…, arms), for many moments at once: shape (…)."""
    c, w = np.asarray(counts, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    weightless = c[..., w <= 0].any(axis=-1)
    c, p = c[..., w > 0], w[w > 0] / w[w > 0].sum()
    mixture = gammaln(concentration * p + c) - gammaln(concentration * p)
    together = gammaln(concentration) - gammaln(concentration + c.sum(axis=-1))
    return np.where(weightless, CERTAIN, together + (mixture - c * np.log(p)).sum(axis=-1))
