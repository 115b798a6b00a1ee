"""Assigns exposures to an experiment and to one of its arms.

An exposure belongs if its plan is one of the experiment's endpoint, it came at or after the start, and its deployment
is an arm. In mode `aa` the arms are labels, drawn by a salted hash among the units of control's own traffic.
"""

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.config.experiments import Experiment
from app.experiments.analysis.arrays import Growing, Hashes, Ints, Mask
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
