"""The pairs of one shadow, summed up. Memory is bounded by units, not by pairs."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.evidence.cells import Block, Cells
from app.experiments.analysis.evidence.hash_index import HashIndex
from app.experiments.columns import PairColumns
from app.experiments.report import Effect
from app.experiments.shadows.report import PairedEvent, PairedValue, ShadowOf, Side
from app.experiments.statistics.pairs import Discordant, paired_look
from app.exposures.wire import Failure, Finish

ALPHA = 0.05

MAX_UNITS = 1_000_000
"""Above, half of the units are left out of the means, by hash."""

Kind = Literal["difference", "ratio", "share", "mean"]
Values = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of pairs. `effect`: the smallest one that matters, for which the interval is narrowest; it holds for
    every other, too."""

    name: str
    column: str
    kind: Kind
    effect: float


METRICS = (
    Metric("ttft", "ttft_s", "difference", 0.02),
    Metric("duration", "duration_s", "difference", 0.1),
    Metric("tokens_per_second", "tokens_per_s", "difference", 2.0),
    Metric("length", "length_ratio", "ratio", math.log(1.1)),
    Metric("equal", "equal", "share", 0.05),
    Metric("equal_words", "equal_words", "share", 0.05),
    Metric("same_finish", "same_finish", "share", 0.05),
    Metric("same_tools", "same_tools", "share", 0.05),
    Metric("cosine", "cosine", "mean", 0.01),
)
EVENTS = ("invalid_output", "truncated", "empty")
_ONE_STRATUM = np.zeros(1, np.int32)


class ShadowEvidence:
    """Pairs of one primary."""

    def __init__(self, max_units: int = MAX_UNITS) -> None:
        self.compared = self.tokens = 0
        self.failed: Counter[str] = Counter()
        self._cells = Cells(len(METRICS), max_units)
        self._events = {name: _Event() for name in EVENTS}

    @property
    def copies(self) -> int:
        """Copies that were sent."""
        return self.compared + self.failed.total()

    def add(self, pairs: PairColumns) -> None:
        """Copies that were sent, in any order."""
        self.tokens += int(np.nansum(pairs.tokens))
        codes, counts = np.unique(pairs.error[pairs.error > 0], return_counts=True)
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
            self.failed[_failure(code)] += count
        answered = pairs.take(pairs.error == 0)
        self.compared += len(answered)
        if not len(answered):
            return
        values = np.stack([_numbers(answered, metric) for metric in METRICS], axis=1)
        known = np.isfinite(values)
        n, x = known.astype(np.float64), np.where(known, values, 0.0).astype(np.float64)
        some = known.any(axis=1)
        zeros = np.zeros(int(some.sum()), np.int32)
        self._cells.add(Block(answered.unit[some], zeros, zeros.astype(np.int8), n[some], x[some], n[some]))
        for name, event in self._events.items():
            event.add(answered.unit, *_events(answered, name))

    def report(self, primary: str) -> ShadowOf:
        """The report at this moment."""
        values = [value for number, metric in enumerate(METRICS) if (value := self._value(number, metric)) is not None]
        events = [event.report(name) for name, event in self._events.items() if event.pairs]
        return ShadowOf(primary=primary, compared=self.compared, failed=dict(self.failed), values=values, events=events)

    def _value(self, number: int, metric: Metric) -> PairedValue | None:
        lines = self._cells.lines(number, _ONE_STRATUM, 0)
        look = paired_look(lines.unit, lines.n, lines.x) if len(lines.unit) else None
        if look is None:
            return None
        interval = look.interval(effect=metric.effect, alpha=ALPHA)
        lower, upper = interval if interval is not None else (None, None)
        side: Side | None = None
        if metric.kind in ("difference", "ratio"):
            side = _side(lower, upper)
        value = Effect(estimate=_shown(metric, look.est), lower=_shown(metric, lower), upper=_shown(metric, upper))
        return PairedValue(
            metric=metric.name, kind=metric.kind, pairs=look.pairs, units=look.units, value=value, side=side
        )


class _Event:
    """One kind of event."""

    def __init__(self) -> None:
        self.pairs = self._both = self._shadow_only = self._primary_only = 0
        self._evidence = Discordant()
        self._seen = HashIndex()

    def add(self, unit: NDArray[np.uint64], known: NDArray[np.bool_], shadow: Values, primary: Values) -> None:
        """Pairs: for which it is known on both sides, and whether each side has it."""
        self.pairs += int(known.sum())
        on_shadow, on_primary = known & (shadow > 0), known & (primary > 0)
        self._both += int((on_shadow & on_primary).sum())
        self._shadow_only += int((on_shadow & ~on_primary).sum())
        self._primary_only += int((on_primary & ~on_shadow).sum())
        rows = np.flatnonzero(on_shadow != on_primary)
        _, first = np.unique(unit[rows], return_index=True)
        rows = rows[np.sort(first)]
        new = rows[self._seen.find(unit[rows]) < 0]
        self._seen.add(unit[new])
        self._evidence.add(on_shadow[new])

    def report(self, name: str) -> PairedEvent:
        ln_e, (primary, shadow) = self._evidence.ln_e, self._evidence.units
        side: Side = "undecided"
        if ln_e >= math.log(1 / ALPHA):
            side = "higher" if shadow > primary else "lower"
        return PairedEvent(
            event=name,
            pairs=self.pairs,
            both=self._both,
            shadow_only=self._shadow_only,
            primary_only=self._primary_only,
            log_e_value=ln_e,
            side=side,
        )


def _numbers(pairs: PairColumns, metric: Metric) -> Values:
    """The values on the scale of the mean; NaN where there is none."""
    values = getattr(pairs, metric.column).astype(np.float64)
    if metric.kind != "ratio":
        return np.asarray(values)
    return np.asarray(np.log(values, out=np.full(len(values), np.nan), where=values > 0))


def _events(pairs: PairColumns, name: str) -> tuple[NDArray[np.bool_], Values, Values]:
    """The mask of pairs in which the event is known, and whether the shadow's and the primary's answers have it."""
    if name == "truncated":
        known = (pairs.finish != Finish.NONE) & (pairs.primary_finish != Finish.NONE)
        return known, *((it == Finish.LENGTH).astype(np.float64) for it in (pairs.finish, pairs.primary_finish))
    good, primary = (
        (pairs.valid, pairs.primary_valid) if name == "invalid_output" else (pairs.visible, pairs.primary_visible)
    )
    return ~(np.isnan(good) | np.isnan(primary)), 1 - good, 1 - primary


def _shown(metric: Metric, value: float | None) -> float | None:
    """The value on the scale of the report."""
    if value is None:
        return None
    if metric.kind == "ratio":
        return math.expm1(value)
    return min(max(value, 0.0), 1.0) if metric.kind == "share" else value


def _side(lower: float | None, upper: float | None) -> Side:
    if lower is None or upper is None or lower <= 0 <= upper:
        return "undecided"
    return "higher" if lower > 0 else "lower"


def _failure(code: int) -> str:
    return next((it.name.lower() for it in Failure if it == code), "other")
