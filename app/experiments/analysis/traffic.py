"""Counts of each arm's exposures, for reports and for the explanation of a wrong sample ratio.

- Completeness: whether requests lack a metric's value more often on one arm.
- The load of each arm's deployment: requests in flight when its requests arrive, and replicas that share them.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.arms import ArmAssignment
from app.experiments.analysis.arrays import Floats, Growing, Hashes, Ints, Mask
from app.experiments.analysis.guardrails import UnitEvents
from app.experiments.rendering import words
from app.experiments.storage.columns import F64, I32, U16, OverdueColumns, RowColumns, StartColumns, Tables
from app.exposures.wire import Flag, LateKind

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

THRESHOLD = math.log(1000)
"""An alarm in one of a thousand metrics that are complete."""


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
