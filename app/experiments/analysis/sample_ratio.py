"""Whether the arms get the traffic that they should, and the counts that explain it if they do not.

Sample ratio: checks whether the arms' units contradict the weights, and finds what differs by arm if they do. A unit
counts once, under the plan of its first exposure. Requests that may belong to conversations of an earlier plan are left
out, as they are from the analysis.

Units that come back are compared by their numbers of requests, too, in two ways whose evidence is averaged. One asks
whether those that have made two, three, four … requests are divided as all are: it is exact, whatever units' activity
is like. The other compares the arms' means: where units are alike, a few thousand requests show that a tenth is lost.

- Traffic that treatments have received: units since the present step began, and totals that `harm_budget` limits.
- Counts of each arm's exposures, for reports and for the explanation of a wrong sample ratio.
- Completeness: whether requests lack a metric's value more often on one arm.
- The load of each arm's deployment: requests in flight when its requests arrive, and replicas that share them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from app.config.experiments import Experiment
from app.experiments.analysis.arms import OUTSIDE, ArmAssignment, Arms, FirstExposures
from app.experiments.analysis.arrays import FirstSeen, Floats, Growing, Hashes, HashIndex, Ints, Mask
from app.experiments.analysis.cells import bands_of
from app.experiments.analysis.metrics import EventThresholds, gave_up, happened
from app.experiments.analysis.unit_events import UnitEvents
from app.experiments.contract.report import PlanCounts, SampleRatio, Treated
from app.experiments.rendering import words
from app.experiments.statistics.events import (
    FEWER,
    RETURNS,
    RETURNS_THRESHOLD,
    SUSPICION,
    THRESHOLD,
    log_e_value,
    log_e_value_of_returns,
)
from app.experiments.statistics.look import Estimate, Moments, look_of_requests
from app.experiments.storage.columns import F64, I32, U16, OverdueColumns, RowColumns, StartColumns, Tables
from app.exposures.plans import generation_of
from app.exposures.wire import Flag, LateKind

_HOUR_S = 3600.0
_HOURS_KEPT = 48
_GROWTH = 1.02
"""Units' numbers of requests are compared again once there are so many times as many requests."""


class SampleRatioWatch:
    """Units by plan and arm. `returning`: units come back; else every request is a separate unit."""

    def __init__(self, arms: Arms, tables: Tables, *, returning: bool) -> None:
        self._arms = arms
        self._tables = tables
        self._first = FirstSeen(len(arms.names)) if returning else None
        self._requests = Growing(np.int64, len(arms.names))
        self._hours: dict[int, int] = {}
        self._known: float | None = 0.0
        self._starts = self._starts_compared = 0
        self._evidence_of_returns = 0.0
        self.returns = ""
        """How the arms' units differ most in how many requests they make, in words."""
        self._compared_at: float | None = None
        self.alarmed_at: float | None = None

    def add(self, unit: Hashes, at: F64, plan: I32, arm: NDArray[np.int8]) -> None:
        """Starts of random exposures that belong to the experiment: equally long arrays."""
        if not len(unit):
            return
        self._starts += len(unit)
        if self._first is not None:
            self._first.add(unit, at, plan, arm)
        else:
            self._requests.resize(int(plan.max()) + 1)
            np.add.at(self._requests.values, (plan, arm), 1)
            self._count_hours(at)
        self._known = None

    def first_plans(self, unit: Hashes, plan: I32) -> I32:
        """The plan of each unit's first exposure; -1 where that is not known, `plan` where units do not come back."""
        return plan if self._first is None else self._first.groups(unit, unknown=-1)

    def first_exposures(self) -> FirstExposures | None:
        """None where units do not come back."""
        if self._first is None:
            return None
        unit, plan, arm = self._first.exposures
        return FirstExposures(unit, self._arms.sets_of(plan), arm)

    @property
    def _evidence(self) -> float:
        if self._known is None:
            self._known = log_e_value(
                (counts, self._arms.weights_of(self._tables.plans[plan]))
                for plan, counts in enumerate(self._counts.tolist())
                if any(counts)
            )
        return self._known

    def _count_hours(self, at: F64) -> None:
        hours, counts = np.unique((at // _HOUR_S).astype(np.int64), return_counts=True)
        for hour, count in zip(hours.tolist(), counts.tolist(), strict=True):
            self._hours[hour] = self._hours.get(hour, 0) + count
        oldest = max(self._hours) - _HOURS_KEPT
        self._hours = {hour: count for hour, count in self._hours.items() if hour >= oldest}

    def new_since(self, since: float) -> float:
        """Units that were first seen at `since` or later, to the hour where requests are units."""
        if self._first is not None:
            return self._first.new_since(since) / self.share
        return float(sum(count for hour, count in self._hours.items() if (hour + 1) * _HOUR_S > since))

    @property
    def _counts(self) -> Ints:
        return self._requests.values if self._first is None else self._first.counts

    @property
    def share(self) -> float:
        """The share of units that is counted: below 1 after eight million."""
        return 1.0 if self._first is None else self._first.share

    @property
    def units(self) -> list[int]:
        """Units per arm, by their first exposure."""
        return [round(count / self.share) for count in self._counts.sum(axis=0).tolist()]

    def is_new_alarm(self) -> bool:
        """Whether the evidence has reached the threshold, without an alarm before."""
        return self.alarmed_at is None and self._evidence >= THRESHOLD

    def compare_returns(self, now: float, *, growth: float = _GROWTH) -> float:
        """The evidence, ln, that the arms' units differ in how many requests they make; 0 where units do not come back.
        Computed anew once there are `growth` times as many requests as at the last time. `now`: the Unix time.
        """
        if self._first is None or self._starts < growth * self._starts_compared or not self._starts:
            return self._evidence_of_returns
        self._starts_compared, self._compared_at = self._starts, now
        reached = self._first.reached(RETURNS)
        used = reached[0].any(axis=1).tolist()
        nobody = (0,) * len(self._arms.names)
        weights = [
            self._arms.weights_of(self._tables.plans[plan]) if has_units else nobody
            for plan, has_units in enumerate(used)
        ]
        evidence = log_e_value_of_returns(reached, weights)
        of_means, treatment, look = max(self._means_of_requests(self._first), key=itemgetter(0))
        self._evidence_of_returns = float(np.logaddexp(evidence.max(), of_means)) - math.log(2)
        if look is not None and of_means > evidence.max():
            self.returns = self._difference_of_means(treatment, look)
        else:
            self.returns = self._difference(int(evidence.argmax()), reached, weights)
        return self._evidence_of_returns

    def _means_of_requests(self, first: FirstSeen) -> Iterator[tuple[float, int, Estimate | None]]:
        """For each treatment, the evidence, ln, that its units make more or fewer requests than control's in the mean,
        less what the number of treatments costs; and the look at it.
        """
        _, plan, arm = first.exposures
        sets, treatments = self._arms.sets_of(plan), len(self._arms.names) - 1
        for treatment in range(1, treatments + 1):
            which = (arm == 0) | (arm == treatment)
            cell = 2 * bands_of(treatment, self._arms.weights, sets[which]) + (arm[which] != 0)
            size, times = 2 * (int(cell.max(initial=-1)) + 1), first.times[which].astype(np.float64)
            n, x, xx = (_by_cell(cell, values, size) for values in (np.ones(len(cell)), times, times**2))
            look = look_of_requests(Moments(n, x, n, xx, x, n), "ratio")
            alpha = math.exp(-RETURNS_THRESHOLD)
            log_e_value = look.log_e_value(effect=FEWER, alpha=alpha) if look is not None else 0.0
            yield log_e_value - math.log(treatments), treatment, look

    @property
    def suspects(self) -> bool:
        """Whether there is some evidence for such a difference, not enough for an alarm."""
        return self._evidence_of_returns >= SUSPICION

    def _difference(self, number: int, reached: Ints, weights: list[tuple[int, ...]]) -> str:
        """The difference among the units that have made as many requests, for the arm that differs most."""
        shares = np.array([np.array(of_plan) / max(sum(of_plan), 1) for of_plan in weights])
        units = reached[number]
        observed, expected = units.sum(axis=0), (units.sum(axis=1)[:, None] * shares).sum(axis=0)
        arm = 1 + int(np.argmax(np.abs(observed - expected)[1:] / np.sqrt(np.maximum(expected[1:], 1.0))))
        name = self._arms.names[arm]
        counts = [f"{count / self.share:,.0f}" for count in (units.sum(), observed[arm], expected[arm])]
        how = (
            f"of {counts[0]} units with at least {RETURNS[number]:,}, {counts[1]} are {name}'s, where the weights say "
            f"{counts[2]}"
        )
        return _unlike(name, how, fewer=bool(observed[arm] < expected[arm]))

    def _difference_of_means(self, treatment: int, look: Estimate) -> str:
        control, name = self._arms.names[0], self._arms.names[treatment]
        how = f"{words.percent(abs(math.expm1(look.est)))} {'fewer' if look.est < 0 else 'more'} each than {control}'s"
        return _unlike(name, how, fewer=look.est < 0)

    def status(self, attribution: list[str], returns: str = "") -> SampleRatio:
        """Its state for reports."""
        names = self._arms.names
        plans = [(self._tables.plans[plan], counts) for plan, counts in enumerate(self._counts.tolist()) if any(counts)]
        plans.sort(key=lambda counted: (generation_of(counted[0].id), counted[0].id))  # not as this process met them
        return SampleRatio(
            log_e_value=self._evidence,
            alarm=self.alarmed_at is not None,
            alarmed_at=self.alarmed_at,
            plans=[
                PlanCounts(
                    plan=plan.id,
                    weights=dict(zip(names, self._arms.weights_of(plan), strict=True)),
                    units=dict(zip(names, counts, strict=True)),
                )
                for plan, counts in plans
            ],
            attribution=attribution,
            returns=returns,
            returns_compared_at=self._compared_at if self._starts > self._starts_compared else None,
        )


def _by_cell(cell: Ints, values: Floats, size: int) -> Floats:
    return np.asarray(np.bincount(cell, values, size), np.float64).reshape(-1, 2)


def _unlike(name: str, how: str, *, fewer: bool) -> str:
    why = (
        f"requests of {name} are missing, or its units come back less often"
        if fewer
        else f"clients of {name} try again, its units come back more often, or other arms' requests are missing"
    )
    more = "fewer" if fewer else "more"
    return f"Units of {name} make {more} requests: {how}. Either {why}."


class DistinctUnits:
    """Counts units up to a limit: more are not needed, and not kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._units = HashIndex()

    def add(self, units: Hashes) -> None:
        """Adds units, in any order."""
        if len(self._units) < self._limit:
            self._units.add(np.unique(units))

    def __len__(self) -> int:
        return min(len(self._units), self._limit)


class TreatedWatch:
    """Counts for one experiment: exposures whose arm was drawn, including carried ones."""

    def __init__(self, experiment: Experiment) -> None:
        self._treatments = experiment.treatments
        self._min_units = experiment.ramp.min_units if experiment.ramp is not None else 0
        self._units = DistinctUnits(experiment.harm_budget.units or 0)
        self._errors = self._tokens = 0
        self._since = 0.0
        self._at_step = self._empty()

    def count_since(self, since: float) -> None:
        """Starts a step at a Unix time: earlier exposures do not count towards the next one."""
        if since != self._since:
            self._since, self._at_step = since, self._empty()

    def _empty(self) -> Sequence[DistinctUnits]:
        return [DistinctUnits(self._min_units) for _ in self._treatments]

    def add_starts(self, starts: StartColumns, placed: ArmAssignment) -> None:
        """Adds records of randomised units."""
        self._units.add(starts.unit[placed.arm > 0])
        present = starts.at >= self._since
        for number, units in enumerate(self._at_step, 1):
            units.add(starts.unit[present & (placed.arm == number)])

    def add_rows(self, rows: RowColumns, placed: ArmAssignment) -> None:
        """Adds records of randomised units."""
        treated = placed.arm > 0
        failed = happened("error", rows, EventThresholds()) & ~gave_up(rows)
        self._errors += int((treated & failed).sum())
        self._tokens += int(np.nansum(rows.prompt_tokens[treated]) + np.nansum(rows.completion_tokens[treated]))

    @property
    def total(self) -> Treated:
        """The counts since the start."""
        return Treated(units=len(self._units), errors=self._errors, tokens=self._tokens)

    @property
    def step_units(self) -> dict[str, int]:
        """Units of each treatment at this step."""
        return {name: len(units) for name, units in zip(self._treatments, self._at_step, strict=True)}


SLOT_S = 3600.0
"""An hour in which an arm has no request is silence, however many come before and after it."""


class SharedTime:
    """For how long control and each treatment have had traffic at the same time.

    While plans give both a share, however often they change, that is from the first request of each until the last, in
    the hours in which both have any. The time of a plan that gives either nothing is not counted, nor that of a stop.
    """

    def __init__(self, arms: Arms) -> None:
        self._arms = arms
        self._first, self._last = (Growing(np.float64, len(arms.names) + 1) for _ in range(2))
        """Of each plan's requests: Unix seconds of arrival, by arm and, in the last column, of any; 0 without any."""
        self._slots: list[set[float]] = [set() for _ in arms.names]
        """The hours from 1970 in which each arm had requests."""

    def see(self, at: F64, plan: I32) -> None:
        """Requests of any endpoint, whatever decided on their deployment: their plans were in force."""
        counts = at >= self._arms.since
        self._add(at[counts], plan[counts], np.full(int(counts.sum()), OUTSIDE, np.int8))

    def add(self, at: F64, plan: I32, arm: NDArray[np.int8]) -> None:
        """Requests whose arm their plan drew: equally long arrays."""
        self._add(at, plan, arm)
        for number, slots in enumerate(self._slots):
            slots |= set(np.unique(at[arm == number] // SLOT_S).tolist())

    def _add(self, at: F64, plan: I32, column: NDArray[np.int8]) -> None:
        if not len(at):
            return
        first, last = self._first, self._last
        for times in (first, last):
            times.resize(int(plan.max()) + 1)
        np.maximum.at(last.values, (plan, column), at)
        earliest = _or_never(first.values)
        np.minimum.at(earliest, (plan, column), at)
        first.values[:] = np.where(np.isfinite(earliest), earliest, 0.0)

    def seconds(self, treatment: int) -> float:
        """The time of control and this treatment together."""
        plans = self._in_order()
        first, last = _or_never(self._first.values[plans]), self._last.values[plans]
        arms = [0, treatment]
        shares = self._arms.weights[self._arms.sets_of(plans)][:, arms]
        divided = (shares > 0).all(axis=1)
        # Plans in a row that give both arms a share are one stretch of time.
        stretch = np.cumsum(~divided)[divided]
        begins, ends = np.full((len(plans) + 1, 2), np.inf), np.zeros((len(plans) + 1, 2))
        np.minimum.at(begins, stretch, first[divided][:, arms])
        np.maximum.at(ends, stretch, last[divided][:, arms])
        # A stop has a plan of its own; the one before it goes on when it is lifted.
        goes_on = np.maximum.accumulate(np.where(divided, last[:, OUTSIDE], 0.0))
        interrupts = ~divided & (last[:, OUTSIDE] < goes_on)
        spans = np.stack([begins.max(axis=1), ends.min(axis=1)], axis=1)
        stops = np.stack([first[interrupts, OUTSIDE], last[interrupts, OUTSIDE]], axis=1)
        return _length(spans, np.concatenate([stops, self._silences(treatment)]))

    def _silences(self, treatment: int) -> Floats:
        """What lies between the hours in which both arms had requests: begins and ends."""
        shared = np.array(sorted(self._slots[0] & self._slots[treatment])) * SLOT_S
        return np.stack([np.append(-np.inf, shared + SLOT_S), np.append(shared, np.inf)], axis=1)

    def _in_order(self) -> I32:
        """The endpoint's plans that have been in force, in the order of their first requests."""
        plans = np.arange(len(self._first), dtype=np.int32)
        seen = plans[(self._arms.sets_of(plans) >= 0) & (self._first.values[:, OUTSIDE] > 0)]
        return seen[np.argsort(self._first.values[seen, OUTSIDE], kind="stable")]


def _or_never(times: Floats) -> Floats:
    return np.where(times > 0, times, np.inf)


def _length(spans: Floats, without: Floats) -> float:
    """The length of the union of spans, less the union of others: begins and ends, shape (spans, 2)."""
    spans, without = (of[of[:, 1] > of[:, 0]] for of in (spans, without))
    times = np.concatenate([spans.ravel(), without.ravel()])
    order = np.argsort(times, kind="stable")
    inside, outside = np.zeros((2, len(times)), np.int64)
    inside[: spans.size] = np.tile([1, -1], len(spans))
    outside[spans.size :] = np.tile([1, -1], len(without))
    counts = (np.cumsum(inside[order]) > 0) & (np.cumsum(outside[order]) == 0)
    return float(np.diff(times[order])[counts[:-1]].sum())


LOST_SHARE = 0.05
"""The largest share of an arm's rows that may be lost: above it no verdict counts."""

_STANDARD_ERRORS = 4.0
_ENOUGH = 30.0

Arm = NDArray[np.int8]


class Traffic:
    """Counts of one experiment. Arms by number, control first."""

    def __init__(self, names: Sequence[str], tables: Tables) -> None:
        self._names = names
        self._tables = tables
        self._served = Growing(np.float64, len(names))
        self._unanswered = np.zeros(len(names))
        self._starts, self._rows, self._forced, self._carried = (np.zeros(len(names)) for _ in range(4))
        self._fallbacks, self._refused, self._unfinished, self._gone = (np.zeros(len(names)) for _ in range(4))
        self._lost = np.zeros(len(names))

    def add_starts(self, starts: StartColumns, placed: ArmAssignment) -> None:
        """Starts that belong to the experiment; forced ones, too."""
        self._starts += self._count(placed.arm, (starts.flags & Flag.FORCED) == 0)

    def add_rows(self, rows: RowColumns, placed: ArmAssignment) -> None:
        """Rows that belong to the experiment; forced ones, too."""
        forced = (rows.flags & Flag.FORCED) != 0
        random = ~forced
        self._forced += self._count(placed.arm, forced)
        self._carried += self._count(placed.arm, random & ((rows.flags & Flag.CARRIED) != 0))
        self._rows += self._count(placed.arm, random)
        self._fallbacks += self._count(placed.arm, random & (rows.served >= 0) & (rows.served != rows.assigned))
        self._gone += self._count(placed.arm, random & ((rows.flags & Flag.CLIENT_GONE) != 0))
        refused = (rows.status >= 400) & (rows.status < 499) & (rows.error == 0)
        self._refused += self._count(placed.arm, random & refused)
        answered = random & (rows.served >= 0)
        self._served.resize(len(self._tables.names))
        np.add.at(self._served.values, (rows.served[answered], placed.arm[answered]), 1.0)
        self._unanswered += self._count(placed.arm, random & (rows.served < 0))

    def add_late(self, late: OverdueColumns, placed: ArmAssignment) -> None:
        """Late records that belong to the experiment; forced ones, too."""
        hanging = (late.kind == LateKind.UNFINISHED) & ((late.flags & Flag.FORCED) == 0)
        self._unfinished += self._count(placed.arm, hanging)

    def set_lost(self, rows: Mapping[str, int]) -> None:
        """Rows that routers dropped, by deployment, since the start."""
        self._lost = np.array([float(rows.get(name, 0)) for name in self._names])

    def _count(self, arm: Arm, which: Mask) -> NDArray[np.int64]:
        return np.bincount(arm[which], minlength=len(self._names))

    def _by_name(self, counts: Floats) -> dict[str, int]:
        return {name: int(count) for name, count in zip(self._names, counts.tolist(), strict=True)}

    @property
    def forced(self) -> dict[str, int]:
        """Requests that named their deployment."""
        return self._by_name(self._forced)

    @property
    def carried(self) -> dict[str, int]:
        """Requests of conversations that may have started under an earlier plan."""
        return self._by_name(self._carried)

    @property
    def lost(self) -> dict[str, int]:
        """Rows that routers dropped."""
        return self._by_name(self._lost)

    @property
    def served(self) -> dict[str, dict[str, int]]:
        """Assigned arm to the deployments that answered, with requests each."""
        return {
            name: {
                self._tables.names[code]: int(count)
                for code, count in enumerate(self._served.values[:, arm].tolist())
                if count
            }
            for arm, name in enumerate(self._names)
        }

    def too_many_lost(self) -> str:
        """The problem in words, empty if there is none."""
        for name, lost, rows in zip(self._names, self._lost.tolist(), self._rows.tolist(), strict=True):
            if lost > LOST_SHARE * (lost + rows):
                return f"{words.percent(lost / (lost + rows))} of the rows of {name} were lost"
        return ""

    def differences(self) -> list[str]:
        """Differences between arms that chance does not explain, in words."""
        open_ = np.maximum(self._starts - self._rows - self._lost, 0.0)
        kinds = [
            ("lost rows", self._lost, self._lost + self._rows),
            ("requests without a row", open_, self._starts),
            ("requests that did not end in time", self._unfinished, self._starts),
            ("requests that no deployment answered", self._unanswered, self._rows),
            ("requests answered by a fallback", self._fallbacks, self._rows),
            ("requests that were refused (4xx)", self._refused, self._rows),
            ("clients that disconnected", self._gone, self._rows),
            ("requests that named their deployment", self._forced, self._forced + self._rows),
            ("requests of earlier conversations", self._carried, self._rows),
        ]
        return [self._in_words(kind, counts, totals) for kind, counts, totals in kinds if _differs(counts, totals)]

    def _in_words(self, kind: str, counts: Floats, totals: Floats) -> str:
        shares = [
            f"{name} {words.percent(count / total)} ({words.count(count)})"
            for name, count, total in zip(self._names, counts.tolist(), totals.tolist(), strict=True)
            if total
        ]
        return f"{kind[0].upper()}{kind[1:]}: {', '.join(shares)}."


def _differs(counts: Floats, totals: Floats) -> bool:
    """Whether any arm's share is far from control's, in standard errors."""
    counts, totals = counts[totals > 0], totals[totals > 0]
    if len(totals) < 2:
        return False
    for count, total in zip(counts[1:].tolist(), totals[1:].tolist(), strict=True):
        pooled = (count + counts[0]) / (total + totals[0])
        error = math.sqrt(pooled * (1 - pooled) * (1 / total + 1 / totals[0])) if 0 < pooled < 1 else math.inf
        if total + totals[0] >= _ENOUGH and abs(count / total - counts[0] / totals[0]) > _STANDARD_ERRORS * error:
            return True
    return False


# A request without a value (no first token of a request that failed) cannot be compared, and the others flatter the arm
# that loses its worst ones. Such requests are events, tested in both directions against the same rate.


class Completeness:
    """Missing values of one metric, for one treatment."""

    def __init__(self, treatment: int) -> None:
        self._events = UnitEvents(treatment)
        self._sets: Ints = np.zeros((0, 2), np.int64)
        self._is_new = False
        self.alarmed_at: float | None = None

    def add(self, missing: Mask, unit: Hashes, at: F64, weights: I32, arm: NDArray[np.int8], sets: Ints) -> None:
        """Analysed requests, with whether each lacks its value. `weights`, `arm` and `sets` as in `Arms`."""
        if missing.any() and self._events.add(unit[missing], at[missing], weights[missing], arm[missing]):
            self._sets, self._is_new = sets, True

    @property
    def units(self) -> tuple[int, int]:
        """Units with a request that lacks its value: control's and the treatment's."""
        return self._events.units

    def is_new_alarm(self) -> bool:
        """Whether the evidence has reached the threshold since the last call, without an alarm before."""
        if self.alarmed_at is not None or not self._is_new:
            return False
        self._is_new = False
        return self._events.difference(self._sets) >= THRESHOLD


# A router knows the requests in flight on itself; the controller knows how many routers there are and, from the control
# plane, how many replicas run. Both change over time, so their means are weighted by the arm's requests that are
# recorded while each holds; those before the first observation count under it.

BUSIER = 1.5
"""Requests in flight per replica by which arms may differ."""


class ArmLoad:
    """The load of one experiment's arms. `deployments`: each arm's, in the order of `names`."""

    def __init__(self, names: Sequence[str], deployments: Sequence[str]) -> None:
        self._names, self._deployments = names, deployments
        self._in_flight, self._rows, self._early, self._routers = (np.zeros(len(names)) for _ in range(4))
        self._replicas, self._with_replicas = np.zeros(len(names)), np.zeros(len(names))
        self._now: tuple[int, Mapping[str, int] | None] | None = None
        """The latest observation."""

    def add(self, in_flight: U16, arm: Arm) -> None:
        """Rows: requests in flight on the router when each arrived, besides itself."""
        new = np.bincount(arm, minlength=len(self._names)).astype(np.float64)
        self._in_flight += np.bincount(arm, in_flight, len(self._names))
        self._rows += new
        if self._now is None:
            self._early += new
        else:
            self._weigh(new, *self._now)

    def observe(self, routers: int, replicas: Mapping[str, int] | None) -> None:
        """Routers that send rows and running replicas by deployment, now; None: replicas are not known."""
        if self._now is None:
            self._weigh(self._early, routers, replicas)
        self._now = routers, replicas

    def _weigh(self, new: Floats, routers: int, replicas: Mapping[str, int] | None) -> None:
        self._routers += new * max(routers, 1)
        if replicas is not None:
            self._replicas += new * np.array([float(replicas.get(name, 0)) for name in self._deployments])
            self._with_replicas += new

    @property
    def in_flight(self) -> dict[str, float | None]:
        """The mean over an arm's requests, on all routers together."""
        routers = self._means(self._routers, self._rows)
        means = self._means(self._in_flight, self._rows)
        return {name: None if mean is None else mean * (routers[name] or 1.0) for name, mean in means.items()}

    @property
    def replicas(self) -> dict[str, float | None]:
        """The mean over an arm's requests; None where it is not known."""
        return {name: mean or None for name, mean in self._means(self._replicas, self._with_replicas).items()}

    def _means(self, sums: Floats, counts: Floats) -> dict[str, float | None]:
        pairs = zip(self._names, sums.tolist(), counts.tolist(), strict=True)
        return {name: total / count if count else None for name, total, count in pairs}

    def warnings(self) -> list[str]:
        """A sentence if the arms' loads differ too much to compare the deployments themselves."""
        known = {name: mean for name, mean in self.in_flight.items() if mean is not None}
        replicas = {name: count for name, count in self.replicas.items() if count is not None and name in known}
        if per_replica := len(replicas) == len(known):
            known = {name: mean / replicas[name] for name, mean in known.items()}
        if not known or max(known.values()) - min(known.values()) <= BUSIER:
            return []
        if per_replica:
            means = ", ".join(f"{mean:.1f} on {name} (replicas: {replicas[name]:.3g})" for name, mean in known.items())
            loads = f"requests in flight per replica were {means}"
        else:
            means = ", ".join(f"{mean:.1f} on {name}" for name, mean in known.items())
            loads = f"requests in flight were {means}, and their replicas are not known"
        return [f"The arms' loads differ: {loads}. Compare them as provisioned."]
