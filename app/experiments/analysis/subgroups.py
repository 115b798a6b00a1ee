"""Subgroups of units, by what is known of them before they meet their arm: their first request."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.config.experiments import Stratum
from app.experiments.analysis.arms import ArmAssignment
from app.experiments.analysis.arrays import FirstSeen, Floats, Growing, Hashes, Ints
from app.experiments.analysis.cells import ArmMoments, CellBlock, InStrata, Strata, UnitLines, count_missing
from app.experiments.statistics.look import MIN_UNITS, Moments
from app.experiments.statistics.planner import PLACES
from app.experiments.storage.columns import I32, RowColumns

# A unit that comes back belongs to the subgroup of its first request: later prompts hold the arm's own answers.

ATTRIBUTES: tuple[Stratum, ...] = ("dialect", "prompt_bytes", "stream", "group")


class Subgroup(NamedTuple):
    """Units whose first request has a value of an attribute. `value`: as in `strata.value_name`."""

    attribute: Stratum
    value: int


class SubgroupCells:
    """The subgroups of one experiment's units. `returning`: as in `SufficientStatistics`."""

    def __init__(self, measures: int, arms: int, *, returning: bool) -> None:
        self._strata = Strata(ATTRIBUTES)
        self._first = FirstSeen(1) if returning else None
        self._begins = Growing(np.float64)
        """The time of each recorded stratum's first request."""
        self._requests = Growing(np.float64)
        self._totals = ArmMoments(measures, arms)
        """Where every request is a unit."""
        self._missing = Growing(np.int64, measures, arms)
        """The same: requests of each recorded stratum and arm that lack a value."""

    def add(self, rows: RowColumns, placed: ArmAssignment, block: CellBlock, missing: NDArray[np.bool_]) -> None:
        """Analysed requests, in any order. `missing`: which lack each measure's value, shape (requests, measures)."""
        nowhere = np.zeros(len(rows), np.int32)
        stratum = self._strata.of(rows, nowhere if self._first is not None else placed.weights)
        self._follow(stratum, rows.at)
        if self._first is not None:
            self._first.add(rows.unit, rows.at, stratum, np.zeros(len(rows), np.int8))
            return
        self._requests.resize(len(self._strata))
        np.add.at(self._requests.values, stratum, 1.0)
        self._totals.add(block._replace(stratum=stratum))
        count_missing(self._missing, len(self._strata), stratum, placed.arm, missing)

    def _follow(self, stratum: I32, at: Floats) -> None:
        before = len(self._begins)
        self._begins.resize(len(self._strata))
        self._begins.values[before:] = np.inf
        np.minimum.at(self._begins.values, stratum, at)

    def places(self) -> dict[Subgroup, int]:
        """The places of all subgroups, from 0 on, in the order in which they came: later ones change none."""
        begins = {
            Subgroup(attribute, value): float(self._begins.values[value_of == value].min())
            for attribute in ATTRIBUTES
            for value_of in [self._strata.values(attribute)]
            for value in np.unique(value_of).tolist()
        }
        order = sorted(begins, key=lambda subgroup: (begins[subgroup], ATTRIBUTES.index(subgroup.attribute), subgroup))
        return {subgroup: place for place, subgroup in enumerate(order)}

    def codes(self, units: Hashes) -> I32:
        """The recorded stratum of each unit's first request; -1 where that is not known."""
        assert self._first is not None, "units come back"
        return self._first.groups(units, unknown=-1)

    def split_lines(self, lines: UnitLines, codes: tuple[I32, I32]) -> Iterator[tuple[Subgroup, UnitLines, UnitLines]]:
        """The lines of each subgroup's units, and of the others. `codes`: of the units of both kinds of lines. A
        request without a value whose unit's subgroup is not known may be in either.
        """
        arm, (known, known_lacking) = lines.lines.arm, (code >= 0 for code in codes)
        counts = np.zeros((len(self._strata), 2))
        np.add.at(counts, (codes[0][known], arm[known]), 1.0)
        for subgroup, of_code in self._each(counts):
            inside, lacking = (of_code[code] for code in codes)
            yield (
                subgroup,
                lines.take(known & inside, ~known_lacking | lacking),
                lines.take(known & ~inside, ~known_lacking | ~lacking),
            )

    def split_moments(
        self, column: int, treatment: int, weights: Ints
    ) -> Iterator[tuple[Subgroup, tuple[Moments, InStrata], tuple[Moments, InStrata]]]:
        """The moments of each subgroup's requests, and of the others, with the values that are missing. `weights`: as
        in `Arms`.
        """
        compared = self._strata.compared(treatment, weights, self._requests.values)
        missing = self._missing.values[:, column, [0, treatment]]
        for subgroup, inside in self._each(self._totals.requests(column)[:, [0, treatment]]):
            parts = (
                self._totals.with_missing(column, compared, treatment, missing, side) for side in (inside, ~inside)
            )
            yield subgroup, next(parts), next(parts)

    def _each(self, counts: Floats) -> Iterator[tuple[Subgroup, NDArray[np.bool_]]]:
        """The subgroups of attributes that differ between units, each with the mask of its recorded strata. Those that
        came so late that nothing can be said of them are left out. `counts`: of control and the treatment in each
        stratum; those with fewer than a look needs are left out, too.
        """
        places = self.places()
        for attribute in ATTRIBUTES:
            value_of = self._strata.values(attribute)
            subgroups = [Subgroup(attribute, value) for value in np.unique(value_of).tolist()]
            for subgroup in subgroups if len(subgroups) > 1 else ():
                inside = value_of == subgroup.value
                is_small = counts[inside[: len(counts)]].sum(axis=0).min() < MIN_UNITS
                if places[subgroup] < PLACES and not is_small:
                    yield subgroup, inside
