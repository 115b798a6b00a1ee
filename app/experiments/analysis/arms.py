"""Which exposures count, and for which arm.

An exposure belongs to an experiment if its plan is one of the experiment's endpoint, it came at or after the start, and
its deployment is an arm. In mode `aa` the arms are labels, drawn by a salted hash among the units of control's own
traffic. Analysed requests count in the order of their arrival (`Arrivals`).
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.config.experiments import Experiment
from app.experiments.analysis.arrays import Growing, Hashes, HashIndex, Ints, Mask, combined
from app.experiments.runs import HISTORY_S
from app.experiments.storage.columns import F64, I32, OverdueColumns, RowColumns, StartColumns, Tables
from app.exposures.wire import Plan

AnyColumns = StartColumns | RowColumns | OverdueColumns
Arm = NDArray[np.int8]

OUTSIDE = -1


class ArmAssignment(NamedTuple):
    """The arm and weights of each exposure, and whether it belongs to the experiment. Equally long arrays."""

    belongs: Mask
    arm: Arm
    """0 is control. `OUTSIDE` where it does not belong."""
    weights: I32
    """The plan's weights: a row of `Arms.weights`."""

    def take(self, which: Mask) -> "ArmAssignment":
        """The placement of these exposures only."""
        return ArmAssignment(self.belongs[which], self.arm[which], self.weights[which])


class FirstExposures(NamedTuple):
    """Units that have started a request, whether or not it has ended: equally long arrays."""

    unit: Hashes
    weights: I32
    """Those of the plan that drew its first arm: a row of `Arms.weights`."""
    arm: Arm


class Arms:
    """One experiment's arms and weights, as codes."""

    def __init__(self, name: str, experiment: Experiment, tables: Tables, started_at: float) -> None:
        self._experiment = experiment
        self._tables = tables
        self._since = max(started_at, experiment.starts_at or started_at)
        self._salt = hashlib.blake2b(name.encode(), digest_size=16).digest()
        self._arm_of_name = Growing(np.int8)
        self._weights_of_plan = Growing(np.int32)
        self._undivided = Growing(np.int32)
        """Of each plan of the endpoint that gives one deployment all of the traffic, that deployment's code."""
        self._weights: dict[tuple[int, ...], int] = {}
        self._current: Plan | None = None
        self._latest = -np.inf
        self.names = experiment.arms
        """The arms' names, control first."""

    @property
    def current(self) -> Plan | None:
        """The plan of the latest exposure that was placed."""
        return self._current

    @property
    def since(self) -> float:
        """Earlier exposures do not count, in Unix seconds."""
        return self._since

    @property
    def weights(self) -> Ints:
        """Each set of weights that was seen: shape (sets, arms)."""
        return np.array(list(self._weights), np.int64).reshape(-1, len(self.names))

    def sets_of(self, plans: I32) -> I32:
        """The weights of each plan, rows of `weights`; `OUTSIDE` for plans of other endpoints."""
        self._learn()
        return self._weights_of_plan.values[plans]

    def weights_of(self, plan: Plan) -> tuple[int, ...]:
        """The weights of the arms under a plan, control's first; all the same in mode `aa`."""
        if self._experiment.mode == "aa":
            return (1,) * len(self.names)
        return tuple(plan.weights.get(name, 0) for name in self.names)

    def most_treated(self, treatment: int, first: I32, last: I32) -> I32:
        """The weights, a row of `weights`, of the plan that gives `treatment` most against control, of the endpoint's
        plans from `first` to `last`: codes of plans, equally long arrays.
        """
        pairs, inverse = np.unique(np.stack([first, last]), axis=1, return_inverse=True)
        codes = [self._most_treated(treatment, min(pair), max(pair)) for pair in pairs.T.tolist()]
        return np.array(codes, np.int32)[inverse.reshape(-1)]

    def _most_treated(self, treatment: int, first: int, last: int) -> int:
        between = self._weights_of_plan.values[first : last + 1]
        sets = np.unique(between[between >= 0])
        own, control = self.weights[sets, treatment], self.weights[sets, 0]
        return int(sets[np.argmax(own / np.maximum(own + control, 1))])

    def place(self, columns: AnyColumns) -> ArmAssignment:
        """The arm and weights of each exposure."""
        self._learn()
        arm = self._arm_of_name.values[columns.assigned]
        weights = self._weights_of_plan.values[columns.plan]
        belongs = (columns.at >= self._since) & (weights >= 0) & (arm >= 0)
        self._follow(columns.at[belongs], columns.plan[belongs])
        arm = np.where(belongs, arm, OUTSIDE).astype(np.int8)
        if self._experiment.mode == "aa" and belongs.any():
            arm[belongs] = labels(columns.unit[belongs], len(self.names), self._salt)
        return ArmAssignment(belongs, arm, np.where(belongs, weights, OUTSIDE).astype(np.int32))

    def before(self, rows: RowColumns) -> Mask:
        """The mask of the requests from the last `HISTORY_S` before the start whose deployment no draw had decided that
        also decides on the arm (`app.experiments.analysis.aggregates`).
        """
        self._learn()
        early = (rows.at < self._since) & (rows.at >= self._since - HISTORY_S)
        return np.asarray(early & (rows.assigned == self._undivided.values[rows.plan]), np.bool_)

    def _follow(self, at: F64, plan: I32) -> None:
        """Keeps the latest plan."""
        if len(at) and at.max() >= self._latest:
            self._latest = float(at.max())
            self._current = self._tables.plans[int(plan[at == self._latest].max())]

    def _learn(self) -> None:
        """Takes up the names and plans that are new in the tables."""
        arms = self.names[:1] if self._experiment.mode == "aa" else self.names
        code = {name: arm for arm, name in enumerate(arms)}
        names = self._tables.names[len(self._arm_of_name) :]
        self._arm_of_name.append(np.array([code.get(name, OUTSIDE) for name in names], np.int8))
        for plan in self._tables.plans[len(self._weights_of_plan) :]:
            set_ = OUTSIDE
            if plan.endpoint == self._experiment.endpoint:
                set_ = self._weights.setdefault(self.weights_of(plan), len(self._weights))
            self._weights_of_plan.append(np.array([set_], np.int32))
            self._undivided.append(np.array([self._only(plan)], np.int32))

    def _only(self, plan: Plan) -> int:
        if plan.endpoint != self._experiment.endpoint:
            return OUTSIDE
        if self._experiment.mode == "aa":
            return self._tables.name(self.names[0])
        names = [name for name, weight in plan.weights.items() if weight]
        return self._tables.name(names[0]) if len(names) == 1 else OUTSIDE


def labels(units: Hashes, arms: int, salt: bytes) -> Arm:
    """A label, 0 to arms - 1, for each unit: always the same for the same salt, and independent of the unit's arm."""
    distinct, inverse = np.unique(units, return_inverse=True)
    drawn = [
        int.from_bytes(hashlib.blake2b(unit.to_bytes(8, "big"), digest_size=8, salt=salt).digest(), "big") % arms
        for unit in distinct.tolist()
    ]
    return np.array(drawn, np.int8)[inverse]


HORIZON_S = 600.0
"""The longest time in seconds for which a running request holds up later ones."""

MAX_WAITING = 500_000
"""Requests that wait. Above, those that hold them up are unknown: the interval is wider, and memory bounded."""

_REMEMBERED_S = 86400.0
"""The time for which an unknown request may still end. Later it remains unknown."""

LEAST_KEPT = 4096
"""Requests that are remembered before those that are over are looked for."""


class Ended(NamedTuple):
    """Requests that have ended."""

    rows: RowColumns
    placed: ArmAssignment


class Held(NamedTuple):
    """Requests that have ended and wait for one that arrived before them."""

    requests: int
    since: float
    """The arrival of the one that they wait for, Unix seconds. They count once it ends, or `HORIZON_S` later."""


class Arrivals:
    """Takes starts and rows of one experiment's analysed requests in any order, and releases them in the order of their
    arrival: none is counted while an earlier one is still running.

    Fast requests end first. If each counted when it ends, an arm that answers most requests sooner and hangs on the
    others would look better until the others end. So the counted requests are a prefix of all arrivals, with every
    outcome in it known. A confidence sequence covers its estimand on all prefixes at once, so which of them is counted
    now may depend on the outcomes.

    A request that has run for longer than `HORIZON_S`, or whose router is gone, holds up no other. Until it ends it is
    *unknown*: a comparison allows for any value that it may have (`Slack`). That includes requests
    whose row was lost. So nothing false is said where a router was taken for dead, and lives: its requests count once
    they end.

    A router's clock may be ahead: no arrival is taken to be later than the time at which the controller had its record.

    Routers send their records every second, each in the order of arrival: requests that are not known yet are known
    neither by their starts nor by their rows, and select none.
    """

    def __init__(self, arms: int, *, max_waiting: int = MAX_WAITING, least_kept: int = LEAST_KEPT) -> None:
        self._max_waiting, self._least_kept = max_waiting, least_kept
        self.index = HashIndex()
        self._at = Growing(np.float64)
        self._arm = Growing(np.int8)
        self._weights = Growing(np.int32)
        self._router = Growing(np.uint64)
        self._gone: Hashes = np.zeros(0, np.uint64)
        self._open = Growing(np.bool_)
        self._waiting: list[Ended] = []
        self._now = self._holding_since = -np.inf
        """Unix seconds. Running requests from before `_holding_since` hold up no other."""
        self._forgotten: Ints = np.zeros((arms, 1), np.int64)
        self._kept = least_kept

    def start(self, starts: StartColumns, placed: ArmAssignment) -> None:
        """Requests that have started."""
        self._take(starts, placed, is_open=True)

    def end(self, rows: RowColumns, placed: ArmAssignment) -> None:
        """Requests that have ended."""
        position = self._take(rows, placed, is_open=False)
        self._open.values[position] = False
        self._waiting.append(Ended(rows, placed))

    def _take(self, requests: StartColumns | RowColumns, placed: ArmAssignment, *, is_open: bool) -> Ints:
        """The positions of the requests; new ones are added."""
        if not len(requests):
            return np.zeros(0, np.int64)
        key, first = np.unique(_keys(requests), return_index=True)
        known = len(self.index)
        position = self.index.add(key)
        new = first[position >= known]
        self._at.append(requests.at[new])
        self._arm.append(placed.arm[new])
        self._weights.append(placed.weights[new])
        self._router.append(requests.router[new])
        self._open.append(np.full(len(new), is_open))
        self._now = max(self._now, float(np.fmin(requests.at, requests.arrived).max()))
        return position

    def abandon(self, routers: Sequence[int]) -> None:
        """Takes the hashes of the routers that are gone: all of them, each time."""
        self._gone = np.array(routers, np.uint64)

    @property
    def _holding(self) -> Mask:
        """The running requests that hold up later ones."""
        holding = self._open.values & (self._at.values >= self._holding_since)
        return holding & ~np.isin(self._router.values, self._gone) if len(self._gone) else holding

    def release(self, now: float = -np.inf) -> Ended | None:
        """The ended requests that arrived before every running one, and have not been released. `now` in Unix seconds:
        by default, the latest arrival.
        """
        self._now = max(self._now, now)
        too_many = sum(len(ended.rows) for ended in self._waiting) > self._max_waiting
        self._holding_since = max(self._holding_since, self._now if too_many else self._now - HORIZON_S)
        frontier = self._at.values[self._holding].min(initial=np.inf)
        ready, waiting = [], []
        for ended in self._waiting:
            early = ended.rows.at < frontier
            ready.append(Ended(ended.rows.take(early), ended.placed.take(early)))
            if not early.all():
                waiting.append(Ended(ended.rows.take(~early), ended.placed.take(~early)))
        self._waiting = waiting
        self._forget()
        rows = RowColumns.concat([ended.rows for ended in ready])
        if not len(rows):
            return None
        placements = zip(*(ended.placed for ended in ready), strict=True)
        return Ended(rows, ArmAssignment(*(np.concatenate(columns) for columns in placements)))

    @property
    def held(self) -> Held | None:
        """What waits since the last `release`; None if nothing does."""
        count = sum(len(ended.rows) for ended in self._waiting)
        holding = self._at.values[self._holding]
        return Held(count, float(holding.min())) if count and len(holding) else None

    @property
    def running(self) -> Ints:
        """Requests of each arm and set of weights that have not ended, as far as is known."""
        return self._count(self._open.values)

    @property
    def unknown(self) -> Ints:
        """Those of them that hold up no later ones."""
        return self._count(self._open.values & ~self._holding)

    def _count(self, which: NDArray[np.bool_]) -> Ints:
        arm, weights = self._arm.values[which], self._weights.values[which]
        known = self._forgotten.shape[1]
        counts = np.pad(self._forgotten, ((0, 0), (0, max(0, int(weights.max(initial=0)) + 1 - known))))
        np.add.at(counts, (arm, weights), 1)
        return counts

    def _forget(self) -> None:
        """Forgets old requests, once they may be many: those that have ended, and those that never will."""
        if len(self.index) <= self._kept:
            return
        at, is_open = self._at.values, self._open.values
        lost = is_open & (at < self._now - _REMEMBERED_S)
        self._forgotten = self._count(lost)
        kept = np.flatnonzero((is_open & ~lost) | (at >= self._now - HORIZON_S))
        self.index.keep(kept)
        for column in (self._at, self._arm, self._weights, self._router, self._open):
            column.keep(kept)
        self._kept = max(self._least_kept, 2 * len(kept))


def _keys(requests: StartColumns | RowColumns) -> Hashes:
    return combined(requests.router, requests.seq.view(np.int64))
