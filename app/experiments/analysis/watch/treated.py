"""Traffic that treatments have received: units since the present step began, and totals that `harm_budget` limits."""

from collections.abc import Sequence

import numpy as np

from app.config.experiments import Experiment
from app.experiments.analysis.evidence.arms import Placement
from app.experiments.analysis.evidence.arrays import Hashes
from app.experiments.analysis.evidence.hash_index import HashIndex
from app.experiments.analysis.evidence.outcomes import Limits, happened
from app.experiments.columns import RowColumns, StartColumns
from app.experiments.report import Treated


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

    def add_starts(self, starts: StartColumns, placed: Placement) -> None:
        """Adds records of randomised units."""
        self._units.add(starts.unit[placed.arm > 0])
        present = starts.at >= self._since
        for number, units in enumerate(self._at_step, 1):
            units.add(starts.unit[present & (placed.arm == number)])

    def add_rows(self, rows: RowColumns, placed: Placement) -> None:
        """Adds records of randomised units."""
        treated = placed.arm > 0
        self._errors += int((treated & happened("error", rows, Limits())).sum())
        self._tokens += int(np.nansum(rows.prompt_tokens[treated]) + np.nansum(rows.completion_tokens[treated]))

    @property
    def total(self) -> Treated:
        """The counts since the start."""
        return Treated(units=len(self._units), errors=self._errors, tokens=self._tokens)

    @property
    def step_units(self) -> dict[str, int]:
        """Units of each treatment at this step."""
        return {name: len(units) for name, units in zip(self._treatments, self._at_step, strict=True)}
