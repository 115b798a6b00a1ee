"""The values that requests of one experiment lack, and what they allow for.

A request that ended without a value may have had any that was ever seen, and one that has not ended any latency up to
`HORIZON_S`. Who sends scores on one arm alone may like or dislike it. A bound is about the estimate of the look itself,
in the strata in which it compares: a request counts for more where its arm has few.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from app.config.experiments import LATENCIES
from app.experiments.analysis.arms import HORIZON_S, Arms
from app.experiments.analysis.arrays import Floats, Growing, Ints, Mask
from app.experiments.analysis.cells import (
    ArmMoments,
    CellBlock,
    CodesOf,
    ComparedStrata,
    InStrata,
    Strata,
    UnitLines,
    UnitTable,
    count_missing,
)
from app.experiments.analysis.distributions import RawValues
from app.experiments.analysis.metrics import RESPONSE_RATE, Measure, Values
from app.experiments.statistics.look import NO_SLACK, Slack, extremes
from app.experiments.statistics.missing import reach, reach_anywhere, reach_without_excess
from app.experiments.statistics.quantile import reach_of_quantiles
from app.experiments.statistics.sequences import Interval
from app.experiments.storage.columns import I32


class KnownValues(NamedTuple):
    """The tables of the requests that have a value, as `SufficientStatistics` fills them."""

    compared: Callable[[int], ComparedStrata]
    """Where control and a treatment are compared."""
    totals: ArmMoments
    units: UnitTable
    codes: CodesOf | None
    """The declared strata of units that come back."""
    raw: Mapping[str, RawValues]


class MissingValues:
    """What is missing of each measure. `known`: what is not."""

    def __init__(
        self, measures: Sequence[Measure], arms: Arms, strata: Strata, known: KnownValues, *, returning: bool
    ) -> None:
        self._measures, self._arms, self._strata, self._known = measures, arms, strata, known
        self._counts = Growing(np.int64, len(measures), len(arms.names))
        """Ended requests of each recorded stratum and arm that lack each measure's value."""
        self._units = UnitTable(len(measures)) if returning else None
        """The same requests by unit, as n of its lines."""
        self._extremes: list[Floats] = [np.empty((0, 2))] * len(measures)
        """The extreme ones of each measure's numerators with their denominators: shape (pairs, 2)."""
        self._in_strata_known: dict[tuple[int, int], InStrata] = {}
        """Of measures and treatments, since the last request was added."""

    def add(self, block: CellBlock, values: Sequence[Values | None], missing: Mask) -> None:
        """Ended requests, with each measure's values; `missing`: which lack each, shape (requests, measures)."""
        self.add_values(values)
        count_missing(self._counts, len(self._strata), block.stratum, block.arm, missing)
        lacking = np.asarray(missing.any(axis=1), np.bool_)
        if self._units is not None and lacking.any():
            n = missing[lacking].astype(np.float64)
            self._units.add(block.take(lacking)._replace(n=n, x=np.zeros_like(n), d=np.zeros_like(n)))

    def add_values(self, values: Sequence[Values | None]) -> None:
        """Values of requests none of which is missing."""
        self._in_strata_known.clear()
        for column, known in enumerate(values):
            if known is not None and known.valid.any():
                seen = np.column_stack([known.x[known.valid], known.d[known.valid]])
                self._extremes[column] = extremes(np.vstack([self._extremes[column], seen]))

    def slack_of_unended(self, column: int, treatment: int, requests: Ints) -> Slack:
        """How far a comparison may be off because of so many requests without a row, of each arm and set of weights.

        Each may have any value that was ever seen, and a latency of up to `HORIZON_S`. It may be in any stratum of its
        share: what else decides on that is not known before its row.
        """
        measure = self._measures[column]
        if measure.feedback or not requests[[0, treatment]].any():
            return NO_SLACK
        compared = self._known.compared(treatment)
        bands = self._strata.bands_of_sets(treatment, self._arms.weights, compared)[: requests.shape[1]]
        anywhere = np.zeros((int(bands.max()) + 1, 2))
        np.add.at(anywhere, bands, requests[[0, treatment]].T)
        if measure.kind == "quantile":
            return self._slack_of_quantile(column, treatment, anywhere, HORIZON_S)
        known, anywhere = self._in_strata(column, treatment), anywhere * self._share_in_strata
        nothing, pairs = np.zeros_like(known.missing), self._possible(column, HORIZON_S)
        return reach_anywhere(known.sums, nothing, known.band, anywhere, pairs, measure.look_scale)

    def slack_of_missing(self, column: int, treatment: int) -> Slack:
        """The same because of the requests that ended without a value: each may have had any that was ever seen."""
        measure, missing = self._measures[column], self._counts.values[:, column, [0, treatment]]
        if measure.feedback or not missing.any():
            return NO_SLACK
        if measure.kind == "quantile":
            bands = self._known.compared(treatment).bands
            of_bands = np.zeros((int(bands.max()) + 1, 2))
            np.add.at(of_bands, bands[: len(missing)], missing)
            return self._slack_of_quantile(column, treatment, of_bands, 0.0)
        known = self._in_strata(column, treatment)
        return reach(known.sums, known.missing, self._possible(column, 0.0), measure.look_scale)

    def slack_in_part(self, column: int, treatment: int, part: InStrata, rate: Interval | None) -> Slack:
        """What values that are missing, or scores in excess, allow for in the look at a part of the units: of scores,
        all that one arm gets in excess may be there. `rate`: as in `slack_of_scores`.
        """
        measure = self._measures[column]
        if not measure.feedback:
            return reach(part.sums, part.missing, self._possible(column, 0.0), measure.look_scale)
        if measure.statistic == RESPONSE_RATE:
            return NO_SLACK
        all_sums = self._in_strata(column, treatment).sums.d
        weight = float((all_sums.prod(axis=1) / np.maximum(all_sums.sum(axis=1), 1.0)).sum())
        return self._slack_of_scores(column, part, rate, weight * self._known.units.share / self._share_in_strata)

    def unit_lines(self, column: int, treatment: int) -> UnitLines:
        """The lines of units that come back, in the strata of the comparison's shares."""
        assert self._units is not None, "units come back"
        strata, codes = self._known.compared(treatment).codes, self._known.codes
        lines, lacking = (table.lines(column, strata, treatment) for table in (self._known.units, self._units))
        # as many as there would be of the units that are kept
        n = lacking.n * self._known.units.share / self._units.share
        split = UnitLines(lines, lacking._replace(n=n), None)
        return split if codes is None else split._replace(codes=self.codes_of_units(split, codes))

    def codes_of_units(self, lines: UnitLines, codes: CodesOf) -> tuple[I32, I32]:
        """The code of the unit of each line of `unit_lines`."""
        assert self._units is not None, "units come back"
        return self._known.units.line_codes(lines.lines, codes), self._units.line_codes(lines.lacking, codes)

    def _in_strata(self, column: int, treatment: int) -> InStrata:
        """The sums from which a look has its estimate. Each look asks several times."""
        known = self._in_strata_known.get((column, treatment))
        if known is None:
            if self._known.codes is not None:
                lines = self.unit_lines(column, treatment)
                known = lines.in_strata(lines.of_look)
            else:
                compared, missing = self._known.compared(treatment), self._counts.values[:, column, [0, treatment]]
                _, known = self._known.totals.with_missing(column, compared, treatment, missing)
            self._in_strata_known[column, treatment] = known
        return known

    @property
    def _share_in_strata(self) -> float:
        """The share of requests that `_in_strata` sums up."""
        return self._known.units.share if self._known.codes is not None else 1.0

    def _slack_of_quantile(self, column: int, treatment: int, missing: Floats, longest: float) -> Slack:
        """`missing`: of each band of shares and arm, control first."""
        measure = self._measures[column]
        raw = self._known.raw[measure.metric]
        counted = np.maximum(self._known.totals.of_arms(column)[:, 0], 1.0)
        kept = [len(raw.of_arm(arm)) / counted[arm] for arm in (0, treatment)]
        values, band, arm = raw.in_bands(treatment, self._known.compared(treatment).bands)
        if not missing.any() or not len(values):
            return NO_SLACK
        possible = self._possible(column, longest)[:, 0]
        return reach_of_quantiles(
            values,
            band,
            arm,
            p=measure.quantile,
            missing=missing * kept,
            least=possible.min(),
            most=possible.max(),
        )

    def _possible(self, column: int, longest: float) -> Floats:
        """The extremes of what a request without a value may have: shape (pairs, 2), see `extremes`."""
        measure, seen = self._measures[column], self._extremes[column]
        if measure.kind == "proportion":
            return np.array([[0.0, 1.0], [1.0, 1.0]])
        if measure.metric in LATENCIES and longest:
            return np.vstack([seen, [math.log(longest) if measure.on_logarithms else longest, 1.0]])
        if measure.kind == "ratio" and longest and len(seen):
            return np.vstack([seen, [[0.0, longest], [seen[:, 0].max(), longest]]])
        return seen

    def slack_of_scores(self, column: int, treatment: int, rate: Interval | None) -> Slack:
        """How far a comparison of scores may be off because one arm's answers get more of them.

        `rate`: the interval of ln of the treatment's share of answers with a score by control's. The scores that an arm
        gets in excess may be the highest or the lowest that were seen: bounds as in Lee 2009, "Training, Wages, and
        Sample Selection". In which strata they are is not known. Only one arm has them: what both allow for together
        is more than either does.
        """
        return self._slack_of_scores(column, self._in_strata(column, treatment), rate)

    def _slack_of_scores(self, column: int, known: InStrata, rate: Interval | None, weight: float = 0.0) -> Slack:
        """`weight`: of all scores, of which those that are `known` are a part."""
        seen = self._extremes[column][:, 0]
        if rate is None or not len(seen):
            return Slack(math.inf, math.inf)
        between = float(seen.min()), float(seen.max())
        shares = -math.expm1(min(rate.lower, 0.0)), -math.expm1(-max(rate.upper, 0.0))
        scale = self._measures[column].look_scale
        control, treated = (
            reach_without_excess(known.sums, arm, share, between, scale, weight) for arm, share in enumerate(shares)
        )
        return control.plus(treated)
