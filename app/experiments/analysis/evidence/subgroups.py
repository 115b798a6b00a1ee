"""Subgroups of units, by what is known of them before they meet their arm: their first request.

A unit that comes back belongs to the subgroup of its first request: later prompts hold the arm's own answers.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.config.experiments import Stratum
from app.experiments.analysis.evidence.arms import Placement
from app.experiments.analysis.evidence.arrays import Growing, Hashes, Ints
from app.experiments.analysis.evidence.cells import Block, Totals
from app.experiments.analysis.evidence.first_seen import FirstSeen
from app.experiments.analysis.evidence.strata import Strata
from app.experiments.columns import I32, RowColumns
from app.experiments.statistics.look import Lines, Moments

ATTRIBUTES: tuple[Stratum, ...] = ("dialect", "prompt_bytes", "stream", "group")


class Subgroup(NamedTuple):
    """Units whose first request has a value of an attribute. `value`: as in `strata.value_name`."""

    attribute: Stratum
    value: int


class Subgroups:
    """The subgroups of one experiment's units. `returning`: as in `Collected`."""

    def __init__(self, measures: int, arms: int, *, returning: bool) -> None:
        self._strata = Strata(ATTRIBUTES)
        self._first = FirstSeen(1) if returning else None
        self._requests = Growing(np.float64)
        self._totals = Totals(measures, arms)
        """Where every request is a unit."""

    def add(self, rows: RowColumns, placed: Placement, block: Block) -> None:
        """Analysed requests, in any order."""
        if self._first is not None:
            nowhere = np.zeros(len(rows), np.int32)
            self._first.add(rows.unit, rows.at, self._strata.of(rows, nowhere), np.zeros(len(rows), np.int8))
            return
        stratum = self._strata.of(rows, placed.weights)
        self._requests.resize(len(self._strata))
        np.add.at(self._requests.values, stratum, 1.0)
        self._totals.add(block._replace(stratum=stratum))

    def codes(self, units: Hashes) -> I32:
        """The recorded stratum of each unit's first request; -1 where that is not known."""
        assert self._first is not None, "units come back"
        return self._first.groups(units, unknown=-1)

    def split_lines(self, lines: Lines, codes: I32) -> Iterator[tuple[Subgroup, Lines, Lines]]:
        """The lines of each subgroup's units, and of the others. `codes`: each line's."""
        known = codes >= 0
        for subgroup, of_code in self._each():
            inside = known & of_code[codes]
            yield subgroup, _taken(lines, inside), _taken(lines, known & ~inside)

    def split_moments(self, column: int, treatment: int, weights: Ints) -> Iterator[tuple[Subgroup, Moments, Moments]]:
        """The moments of each subgroup's requests, and of the others. `weights`: as in `Arms`."""
        strata = self._strata.for_treatment(treatment, weights, self._requests.values)
        for subgroup, inside in self._each():
            parts = (self._totals.moments(column, strata, treatment, only=it) for it in (inside, ~inside))
            yield subgroup, next(parts), next(parts)

    def _each(self) -> Iterator[tuple[Subgroup, NDArray[np.bool_]]]:
        """The subgroups of attributes that differ between units, each with the mask of its recorded strata."""
        for attribute in ATTRIBUTES:
            value_of = self._strata.values(attribute)
            if len(values := np.unique(value_of).tolist()) > 1:
                for value in values:
                    yield Subgroup(attribute, value), value_of == value


def events_of(lines: Lines) -> Sequence[float]:
    """The sums of the numerators, of control and the treatment."""
    return [float(lines.x[lines.arm == arm].sum()) for arm in (0, 1)]


def _taken(lines: Lines, which: NDArray[np.bool_]) -> Lines:
    return Lines._make(column[which] for column in lines)
