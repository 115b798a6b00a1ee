"""Counts of each arm's exposures, for reports and for the explanation of a wrong sample ratio."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.evidence.arms import Placement
from app.experiments.analysis.evidence.arrays import Floats, Growing, Mask
from app.experiments.columns import LateColumns, RowColumns, StartColumns, Tables
from app.experiments.rendering import words
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

    def add_starts(self, starts: StartColumns, placed: Placement) -> None:
        """Starts that belong to the experiment; forced ones, too."""
        self._starts += self._count(placed.arm, (starts.flags & Flag.FORCED) == 0)

    def add_rows(self, rows: RowColumns, placed: Placement) -> None:
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

    def add_late(self, late: LateColumns, placed: Placement) -> None:
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
