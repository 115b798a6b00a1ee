"""The analysed exposures of one experiment, summed up for every measure; and looks at them.

Beside them, what is known of units before they met their arm: what they did on the endpoint before the run, so that it
may adjust results, and their subgroups, by their first request.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.config.experiments import Covariate, Stratum
from app.experiments.analysis.arms import ArmAssignment, Arms, FirstExposures, Held
from app.experiments.analysis.arrays import (
    FirstSeen,
    Floats,
    Growing,
    Hashes,
    HashIndex,
    Ints,
    Mask,
    grouped,
    kept_share,
)
from app.experiments.analysis.cells import (
    MAX_LINES,
    ArmMoments,
    CellBlock,
    CodesOf,
    ColdMinutes,
    ComparedStrata,
    FirstRequests,
    InStrata,
    Strata,
    UnitLines,
    UnitTable,
    bands_of,
    count_missing,
    within,
)
from app.experiments.analysis.distributions import MAX_VALUES, Distributions, RawValues
from app.experiments.analysis.feedback import MaturedExposures
from app.experiments.analysis.metrics import RESPONSE_RATE, Measure, MetricContext, Values, values_of
from app.experiments.analysis.missing_values import KnownValues, MissingValues
from app.experiments.analysis.rare_events import FEW
from app.experiments.statistics.look import (
    MIN_UNITS,
    Covariates,
    Estimate,
    LookScale,
    Moments,
    Slack,
    UnitSums,
    look,
    look_of_requests,
)
from app.experiments.statistics.planner import PLACES
from app.experiments.statistics.quantile import QuantileEstimate, quantile_shift
from app.experiments.statistics.sequences import Interval
from app.experiments.storage.columns import I32, RowColumns

# Only requests count whose deployment no draw had decided: those under a plan that gave one deployment all of the
# traffic, and in mode `aa` all, since labels are drawn anew. Under a plan that divided the traffic a unit may have had
# the arm that it has now, and its values would hold the arm's effect.

MAX_UNITS = 2_000_000
"""About 20 bytes each, and 20 more for each metric. Above, half of the units, by hash, count as without history."""

SHRINKAGE = 3.0
"""A unit's mean of n values counts n / (n + 3): as much as is typical of it, rather than chance, if requests of one
unit are correlated by 1/4."""


class UnitHistory:
    """Sums of each unit and measure."""

    def __init__(self, measures: int, max_units: int = MAX_UNITS) -> None:
        self._max = max_units
        self._bits = 0
        self._index = HashIndex()
        self._n = Growing(np.int32, measures)
        self._x = Growing(np.float64, measures)
        self._d = Growing(np.float64, measures)

    def __len__(self) -> int:
        return len(self._index)

    def add(self, unit: Hashes, values: Sequence[Values | None]) -> None:
        """Requests from before the run, in any order, with each measure's values."""
        kept: Mask = kept_share(unit, self._bits)
        if not kept.any():
            return
        order, starts = grouped(unit[kept])
        position = self._index.add(unit[kept][order[starts]])
        for column in (self._n, self._x, self._d):
            column.resize(len(self._index))
        for number, known in enumerate(values):
            if known is not None:
                for column, one in ((self._n, known.valid), (self._x, known.x), (self._d, known.d)):
                    sums = np.add.reduceat(one[kept][order].astype(np.float64), starts)
                    column.values[position, number] += sums.astype(column.values.dtype)
        while len(self) > self._max:
            self._bits += 1
            which = np.flatnonzero(kept_share(self._index.keys, self._bits))
            self._index.keep(which)
            for column in (self._n, self._x, self._d):
                column.keep(which)

    def covariates(self, measure: int, units: Hashes) -> Floats | None:
        """By how much each unit's sum exceeded what its requests had with the mean of all, and its mean, shrunk: shape
        (units, 2). 0 for a unit without history, which is the mean; None if no unit has one.
        """
        n, x, d = (column.values[:, measure] for column in (self._n, self._x, self._d))
        if not d.sum() > 0:
            return None
        excess = x - d * (x.sum() / d.sum())
        position = self._index.find(units)
        known = (position >= 0)[:, None]
        return np.where(known, np.stack([excess, excess / (n + SHRINKAGE)], axis=1)[np.maximum(position, 0)], 0.0)


AnyEstimate = Estimate | QuantileEstimate


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
        stratum = self._strata.codes_of(rows, nowhere if self._first is not None else placed.weights)
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


class SubgroupLook(NamedTuple):
    """The looks at a subgroup and at all other units, with what the requests without a value allow for in each."""

    subgroup: Subgroup
    place: int
    """In the order in which subgroups came."""
    inside: Estimate
    outside: Estimate
    slack: Slack
    slack_outside: Slack


_Part = tuple[Estimate | None, InStrata]
"""A look, and what is known in its strata."""

_SAMPLED_REQUESTS = 50_000
"""The number of requests kept one by one where requests are the units: A/A runs draw their arms again."""


class SufficientStatistics:
    """The evidence of one experiment. `returning`: units come back, and results are clustered by them; else every
    request is a separate unit. `first_exposures`: with it, results are adjusted for what units did before the run, and
    by what `covariates` says.
    """

    def __init__(
        self,
        measures: Sequence[Measure],
        arms: Arms,
        facts: MetricContext,
        strata: tuple[Stratum, ...],
        covariates: tuple[Covariate, ...] = (),
        *,
        returning: bool,
        first_exposures: Callable[[], FirstExposures | None] = lambda: None,
        max_lines: int = MAX_LINES,
    ) -> None:
        self.measures = measures
        self.strata = Strata(() if returning else strata)
        """Recorded strata: the plans' weights, and the declared strata where every request is a unit."""
        self._by_size = returning and "first_prompt" in covariates
        self._first = FirstRequests(strata) if returning and (strata or self._by_size) else None
        self._subgroups = SubgroupCells(len(measures), len(arms.names), returning=returning)
        self.requests: Ints = np.zeros(len(arms.names), np.int64)
        """Analysed requests of each arm."""
        self._arms = arms
        self._facts = facts
        self._returning = returning
        size = len(measures)
        self._first_exposures = first_exposures
        self._history = UnitHistory(size)
        self.unknown: Ints = np.zeros((len(arms.names), 1), np.int64)
        self.running: Ints = np.zeros((len(arms.names), 1), np.int64)
        """Requests of each arm and set of weights that have started and not ended; `unknown` if that was long ago
        (`Arrivals`)."""
        self.held: Held | None = None
        self._per_stratum = Growing(np.float64)
        self._totals = ArmMoments(size, len(arms.names))
        self._cells = UnitTable(size, max_lines if returning else _SAMPLED_REQUESTS)
        self._cold_cells = ColdMinutes(UnitTable(size, max_lines))
        self._cold_totals = ColdMinutes(ArmMoments(size, len(arms.names)))
        quantiles = {measure.metric for measure in measures if measure.kind == "quantile"}
        self.distributions = Distributions(arms.names)
        self._raw = {name: RawValues(MAX_VALUES // len(quantiles)) for name in quantiles}
        known = KnownValues(self._compared, self._totals, self._cells, self._codes, self._raw)
        self.missing = MissingValues(measures, arms, self.strata, known, returning=returning)
        """What values that are missing allow for."""

    def add(self, rows: RowColumns, placed: ArmAssignment) -> list[Values | None]:
        """Adds analysed rows. Returns each measure's values for them (None: feedback, which comes later).

        Every row belongs to the experiment.
        """
        stratum = self.strata.codes_of(rows, placed.weights)
        values = [None if measure.feedback else values_of(measure, rows, self._facts) for measure in self.measures]
        block = _block(rows.unit, stratum, placed.arm, values)
        if self._first is not None:
            self._first.add(rows)
        nothing = np.zeros(len(rows), np.bool_)
        missing = np.stack([nothing if known is None else known.missing for known in values], axis=1)
        self._subgroups.add(rows, placed, block, missing)
        self.requests += np.bincount(placed.arm, minlength=len(self.requests))
        self.distributions.add(rows, placed, self._facts)
        self._per_stratum.resize(len(self.strata))
        self.missing.add(block, values, missing)
        np.add.at(self._per_stratum.values, stratum, 1.0)
        self._totals.add(block)
        self._cells.add(block)
        if self._returning:
            self._cold_cells.add(rows.at, rows.cold, block)
        else:
            self._cold_totals.add(rows.at, rows.cold, block)
        filled = set[str]()
        for measure, known in zip(self.measures, values, strict=True):
            if measure.kind == "quantile" and known is not None and measure.metric not in filled:
                filled.add(measure.metric)
                here = known.valid
                raw = (known.x[here], rows.unit[here], stratum[here], placed.arm[here], rows.at[here])
                self._raw[measure.metric].add(*raw)
        return values

    def add_earlier(self, rows: RowColumns) -> None:
        """Adds rows from before the run (`Arms.before`)."""
        self._history.add(rows.unit, [self._earlier_values(measure, rows) for measure in self.measures])

    def _earlier_values(self, measure: Measure, rows: RowColumns) -> Values | None:
        return None if measure.feedback or measure.kind == "quantile" else values_of(measure, rows, self._facts)

    def _covariates(self, column: int, treatment: int) -> Covariates | None:
        """What was known of the units that have met either arm, before they did; None if nothing was."""
        exposures = self._first_exposures() if len(self._history) or self._by_size else None
        if exposures is None:
            return None
        unit = self._cells.codes_of(exposures.unit)
        among = (unit >= 0) & ((exposures.arm == 0) | (exposures.arm == treatment))
        if self._by_size and self._first is not None:  # counted in the order of arrival: no arm decides who is known
            among &= np.isfinite(self._first.sizes(exposures.unit))
        which = np.flatnonzero(among)
        values = self._before(column, exposures.unit[which])
        if values is None:
            return None
        stratum = bands_of(treatment, self._arms.weights, exposures.weights[which]).astype(np.int32)
        treated = (exposures.arm[which] != 0).astype(np.int64)
        if self._by_size and self._codes is not None:
            stratum = within(stratum, self._codes(exposures.unit[which]), unit[which], treated)
        return Covariates(unit[which], stratum, treated, values)

    def _before(self, column: int, units: Hashes) -> Floats | None:
        """The covariates of units: shape (units, covariates)."""
        values = self._history.covariates(column, units)
        if not self._by_size or self._first is None or not len(units):
            return values
        sizes = self._first.sizes(units)[:, None]
        sizes = np.nan_to_num(sizes - np.nanmean(sizes)) if np.isfinite(sizes).any() else np.zeros_like(sizes)
        return sizes if values is None else np.hstack([values, sizes])

    def add_feedback(self, metric: str, matured: MaturedExposures) -> None:
        """Exposures whose window for a feedback metric is over."""
        given = np.isfinite(matured.value)
        everything, nothing = np.ones(len(given), np.bool_), np.zeros(len(given), np.bool_)
        values: list[Values | None] = []
        for measure in self.measures:
            if not measure.feedback or measure.metric != metric:
                values.append(None)
            elif measure.statistic == RESPONSE_RATE:
                values.append(Values(given.astype(np.float64), np.ones(len(given)), everything, nothing, nothing))
            else:
                values.append(
                    Values(np.where(given, matured.value, 0.0), given.astype(np.float64), given, nothing, nothing)
                )
        block = _block(matured.unit, matured.stratum, matured.arm, values)
        self.missing.add_values(values)
        self._totals.add(block)
        self._cells.add(block)

    @property
    def share(self) -> float:
        """The share of units that is kept for looks."""
        return self._cells.share if self._returning else 1.0

    @property
    def quantiles_share(self) -> float:
        """The share of units that is kept for quantiles."""
        return min([1.0, *(raw.share for raw in self._raw.values())])

    @property
    def has_cold_minutes(self) -> bool:
        """Whether any replica was new, so that a look without those minutes differs."""
        return bool(len(self._cold.minutes))

    @property
    def _cold(self) -> "ColdMinutes[UnitTable] | ColdMinutes[ArmMoments]":
        return self._cold_cells if self._returning else self._cold_totals

    def _compared(self, treatment: int) -> ComparedStrata:
        self._per_stratum.resize(len(self.strata))
        return self.strata.compared(treatment, self._arms.weights, self._per_stratum.values)

    @property
    def strata_used(self) -> int:
        """The number of strata in which control and the first treatment are compared."""
        shares = int(self._compared(1).codes.max(initial=-1)) + 1
        return shares * (1 if self._first is None else self._first.used)

    @property
    def _codes(self) -> CodesOf | None:
        return None if self._first is None else self._first.codes

    def look(self, column: int, treatment: int, *, without_cold: bool = False) -> AnyEstimate | None:
        """A measure of a treatment against control; None where there is no estimate yet."""
        measure, strata = self.measures[column], self._compared(treatment)
        if measure.kind == "quantile":
            minutes = self._cold.minutes if without_cold else None
            raw = self._raw[measure.metric].select(treatment, *strata, minutes, self._codes)
            return quantile_shift(*raw, measure.quantile)
        if not self._returning:
            return self._look_of_requests(column, treatment, strata, without_cold=without_cold)
        cold = self._cold_cells.sums if without_cold else None
        lines = self._cells.lines(column, strata.codes, treatment, cold, self._codes)
        return look(lines, measure.look_scale, self._covariates(column, treatment))

    def _look_of_requests(
        self, column: int, treatment: int, strata: ComparedStrata, *, without_cold: bool = False
    ) -> Estimate | None:
        """The same look, as if every request were a separate unit."""
        cold = self._cold_totals.sums if without_cold else None
        return look_of_requests(
            self._totals.moments(column, *strata, treatment, cold), self.measures[column].look_scale
        )

    def looks_of_subgroups(self, column: int, treatment: int, rate: Interval | None = None) -> Iterator[SubgroupLook]:
        """A measure of a treatment against control in each subgroup, and in all other units, of those with enough
        units. Not for quantiles. `rate`: of scores, as in `MissingValues.slack_of_scores`.
        """
        places, measure = self._subgroups.places(), self.measures[column]
        if len(places) <= len(ATTRIBUTES):  # one of each: all units are alike
            return
        for subgroup, *parts in self._split(column, treatment):
            if measure.kind == "proportion" and min(known.sums.x.sum(axis=0).min() for _, known in parts) < FEW:
                continue
            (inside, known_inside), (outside, known_outside) = parts
            if inside is not None and outside is not None and inside.enough and outside.enough:
                slacks = (
                    self.missing.slack_in_part(column, treatment, known, rate)
                    for known in (known_inside, known_outside)
                )
                yield SubgroupLook(subgroup, places[subgroup], inside, outside, *slacks)

    def _split(self, column: int, treatment: int) -> Iterator[tuple[Subgroup, _Part, _Part]]:
        """The looks at each subgroup and at all other units."""
        scale = self.measures[column].look_scale
        if not self._returning:
            for subgroup, *moments in self._subgroups.split_moments(column, treatment, self._arms.weights):
                first, second = ((look_of_requests(part, scale), known) for part, known in moments)
                yield subgroup, first, second
            return
        lines = self.missing.unit_lines(column, treatment)
        codes = self.missing.codes_of_units(lines, self._subgroups.codes)
        for subgroup, *parts in self._subgroups.split_lines(lines, codes):
            looked = ((part, part.of_look) for part in parts)
            first, second = ((look(of_look, scale), part.in_strata(of_look)) for part, of_look in looked)
            yield subgroup, first, second

    def design_effect(self, column: int, treatment: int, clustered: AnyEstimate) -> float | None:
        """The clustered variance by the unclustered one; None where requests are the units. `clustered` is the look."""
        if not self._returning or not isinstance(clustered, Estimate):
            return None
        strata = self._compared(treatment)
        single = self._look_of_requests(column, treatment, strata)
        within_shares: Estimate | None = clustered
        if self._first is not None or clustered.unadjusted is not None:
            # the strata of single requests are the plans' shares alone
            lines = self._cells.lines(column, strata.codes, treatment)
            within_shares = look(lines, self.measures[column].look_scale)
        if single is None or within_shares is None:
            return None
        return within_shares.se**2 * self._cells.share / single.se**2

    def recorded(self, most: int) -> Iterator[tuple[Measure, LookScale, UnitSums, Hashes, Covariates | None]]:
        """Yields the lines of at most about `most` units of all arms, for every declared measure except quantiles, like
        `UnitTable.recorded`, and the units' covariates, in the order of the lines' units.
        """
        strata = self._compared(1).codes
        for column, measure in enumerate(self.measures):
            if measure.kind != "quantile" and not measure.guard:
                lines, hashes = self._cells.recorded(column, strata, most, self._codes)
                values, nothing = self._before(column, hashes), np.zeros(len(hashes), np.int64)
                known = None if values is None else Covariates(np.arange(len(hashes)), nothing, nothing, values)
                yield measure, measure.look_scale, lines, hashes, known

    def value(self, column: int, arm: int) -> float | None:
        """A measure's value in an arm, unadjusted, in the metric's own unit."""
        measure = self.measures[column]
        if measure.kind == "quantile":
            raw = self._raw[measure.metric].of_arm(arm)
            return float(np.exp(np.quantile(raw, measure.quantile))) if len(raw) else None
        n, x, d = self.sums(column, arm)
        if measure.kind == "geometric_mean":
            return float(np.exp(x / n)) if n else None
        return x / d if d else None

    def sums(self, column: int, arm: int) -> tuple[float, float, float]:
        """Requests with a value, their numerators and their denominators."""
        n, x, d = self._totals.of_arms(column)[arm, :3].tolist()
        return n, x, d

    def requests_with_value(self, column: int, arm: int) -> int:
        """Requests of an arm that have a value."""
        return int(self.sums(column, arm)[0])

    def response_rate(self, metric: str, arm: int) -> float | None:
        """The share of an arm's matured exposures that has any score."""
        for column, measure in enumerate(self.measures):
            if measure.metric == metric and measure.statistic == RESPONSE_RATE:
                return self.value(column, arm)
        return None

    def units(self, column: int, arm: int) -> int:
        """Units of an arm that have a value."""
        if self.measures[column].kind == "quantile":
            return self._raw[self.measures[column].metric].units(arm)
        return self._cells.units(column, arm) if self._returning else int(self.sums(column, arm)[0])


def _block(unit: NDArray[np.uint64], stratum: I32, arm: NDArray[np.int8], values: Sequence[Values | None]) -> CellBlock:
    shape = (len(unit), len(values))
    n, x, d = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for column, known in enumerate(values):
        if known is not None:
            n[:, column], x[:, column], d[:, column] = known.valid, known.x, known.d
    return CellBlock(unit, stratum, arm, n, x, d)
