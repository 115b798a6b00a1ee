"""Units that a guardrail's event can still happen to, and units to which it always happens.

A unit's first event counts once, whatever its number of requests: so an arm whose units send more requests has more
units with the event, at the same rate per request. `AtRisk.busier` says how many more requests, until the first event
or now, a unit of an arm has sent than one of control.

A unit of a treatment *always fails* if its first `ALWAYS` requests have the event. One of control does so if its first
request has it: that is the case at least as often, however many requests units send. All other units work.
"""

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.arrays import Floats, Growing, Hashes, HashIndex, Ints, Mask, grouped, kept_share
from app.experiments.analysis.witnesses import Part
from app.experiments.statistics.events import always_failing
from app.experiments.storage.columns import I32

ALWAYS = 3
"""The number of requests, the first ones of a unit, all of which have the event if it always fails."""

MAX_UNITS = 1_000_000
"""Above, half of the units, by hash, are forgotten and never counted again."""

_NOWHERE = -1
_FAILING, _WORKING, _OPEN = 0, 1, 2

Arm = NDArray[np.int8]


class Units:
    """Numbers units, in the order in which they come, and keeps the arm and weights of their first exposure."""

    def __init__(self, max_units: int = MAX_UNITS) -> None:
        self._index = HashIndex()
        self._max = max_units
        self._bits = 0
        self.arm = Growing(np.int8)
        """`_NOWHERE` if the plan that drew it is not known."""
        self.weights = Growing(np.int32)

    def __len__(self) -> int:
        return len(self._index)

    def kept(self, unit: Hashes) -> Mask:
        """The units that are counted."""
        return kept_share(unit, self._bits)

    def add(self, unit: Hashes, weights: I32, arm: Arm, known: Mask) -> Ints:
        """The number of each exposure's unit; exposures in the order in which they came. `known`: whether its plan is
        the one that drew its arm.
        """
        keys, first, inverse = np.unique(unit, return_index=True, return_inverse=True)
        before = len(self)
        numbers = self._index.add(keys)
        new = first[numbers >= before]
        self.arm.append(np.where(known[new], arm[new], _NOWHERE))
        self.weights.append(weights[new])
        return numbers[inverse.reshape(-1)]

    def thin(self) -> Ints | None:
        """If there are too many units, drops half of them; returns the numbers of the others, which are new then."""
        if len(self) <= self._max:
            return None
        self._bits += 1
        kept = np.flatnonzero(self.kept(self._index.keys))
        self._index.keep(kept)
        self.arm.keep(kept)
        self.weights.keep(kept)
        return kept


class AtRisk:
    """The exposures to one event, of all arms. `units`: shared by all events. `parts` of callers: see `witnesses`."""

    def __init__(self, units: Units, arms: int, parts: int = 1) -> None:
        self._units = units
        self._arms = arms
        self._had = Growing(np.bool_)
        self._failed = Growing(np.uint8)
        """How many of its first requests had the event."""
        self._end = Growing(np.uint8)
        self._place = Growing(np.int32)
        """The weights and arm of its latest exposure, counted from 1."""
        self._requests, self._entries = Growing(np.int64, parts, arms), Growing(np.int64, parts, arms)
        """Per set of weights, part and arm: exposures of units without an event before, and how many units they are
        of.
        """
        self._ends = Growing(np.int64, parts, arms, 2)

    def add(
        self, number: Ints, hit: Mask, weights: I32, arm: Arm, known: Mask, part: Part | None = None, *, ended: bool
    ) -> None:
        """Exposures in the order in which they came. `number` and `known` as in `Units`. `ended`: the requests have
        ended; of running ones, no row has come yet.
        """
        if not len(number):
            return
        self._grow(int(weights.max()) + 1)
        part = np.zeros(len(number), np.int8) if part is None else part
        order, starts = grouped(number)
        number, hit, weights, arm, known = number[order], hit[order], weights[order], arm[order], known[order]
        part = part[order]
        at_risk = ~self._had.values[number] & (_before(hit, starts) == 0)
        counted = at_risk & known
        self._count(number[counted], weights[counted], part[counted], arm[counted])
        if ended:
            self._follow(number, hit, arm, part)
        self._had.values[number[hit]] = True

    def keep(self, numbers: Ints) -> None:
        """Keeps only these units: see `Units.thin`."""
        for column in (self._had, self._failed, self._end, self._place):
            column.keep(numbers)

    def _grow(self, sets: int) -> None:
        before = len(self._end)
        for column in (self._had, self._failed, self._end, self._place):
            column.resize(len(self._units))
        self._end.values[before:] = _OPEN
        for table in (self._requests, self._entries, self._ends):
            table.resize(sets)

    def _count(self, number: Ints, weights: I32, part: Part, arm: Arm) -> None:
        if not len(number):
            return
        np.add.at(self._requests.values, (weights, part, arm), 1)
        place = (weights * self._arms + arm + 1).astype(np.int32)
        first = np.append(True, number[1:] != number[:-1])
        before = np.where(first, self._place.values[number], np.append(0, place[:-1]))
        enters = place != before
        np.add.at(self._entries.values, (weights[enters], part[enters], arm[enters]), 1)
        self._place.values[number] = place

    def _follow(self, number: Ints, hit: Mask, arm: Arm, part: Part) -> None:
        """Decides which units always fail. Units whose arm changes before that stay open."""
        own = self._units.arm.values[number]
        open_ = (self._end.values[number] == _OPEN) & (own == arm)
        number, hit, part = number[open_], hit[open_], part[open_]
        if not len(number):
            return
        starts = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
        number, own, part = number[starts], own[open_][starts], part[starts]
        leading = np.add.reduceat(hit & (_before(~hit, starts) == 0), starts)
        works = np.logical_or.reduceat(~hit, starts)
        failed = np.minimum(self._failed.values[number] + leading, ALWAYS)
        self._failed.values[number] = failed
        fails = failed >= np.where(own == 0, 1, ALWAYS)
        end = np.where(fails, _FAILING, np.where(works, _WORKING, _OPEN))
        self._end.values[number] = end
        done = end != _OPEN
        weights = self._units.weights.values[number[done]]
        np.add.at(self._ends.values, (weights, part[done], own[done], end[done]), 1)

    def busier(self, treatment: int, left_out: int | None = None) -> Floats:
        """Per set of weights: how many requests, without an event before, a unit of `treatment` has sent by one of
        control; at least 1. `left_out`: a part of the callers.
        """
        requests, entries = self._requests.values, self._entries.values
        requests_of_all, entries_of_all = requests.sum(axis=1), entries.sum(axis=1)
        if left_out is not None:
            requests_of_all -= requests[:, left_out]
            entries_of_all -= entries[:, left_out]
        with np.errstate(divide="ignore", invalid="ignore"):
            per_unit = requests_of_all / entries_of_all
            ratio = per_unit[:, treatment] / per_unit[:, 0]
        return np.asarray(np.maximum(np.nan_to_num(ratio, nan=1.0), 1.0), np.float64)

    def always_failing(self, treatment: int, weights: Ints) -> tuple[float, int]:
        """As `always_failing_of`, of all units."""
        return always_failing_of(self.ends(treatment).sum(axis=1), treatment, weights)

    def ends(self, treatment: int) -> Ints:
        """How many units of control and of `treatment` always fail, and do not: by set of weights and part."""
        return np.asarray(self._ends.values[:, :, [0, treatment]])


def always_failing_of(ends: Ints, treatment: int, weights: Ints) -> tuple[float, int]:
    """ln of the e-value against "no unit always fails because of its arm", and how many of `treatment`'s units always
    fail. `ends` by set of weights, as in `AtRisk`; `weights` as in `Arms`.
    """
    known = weights[: len(ends)]
    log_e_value = always_failing(known[:, treatment], known[:, 0], ends[:, :, _FAILING], ends[:, :, _WORKING])
    return log_e_value, int(ends[:, 1, _FAILING].sum())


def _before(flags: Mask, starts: Ints) -> Ints:
    """How many flags of its group are set before each row; groups begin at `starts`."""
    total: Ints = np.cumsum(flags) - flags
    sizes = np.diff(np.append(starts, len(flags)))
    return np.asarray(total - np.repeat(total[starts], sizes), np.int64)
