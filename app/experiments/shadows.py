"""The shadows of all endpoints: the time since which each is one, and its evidence. The journal keeps these times.

- The report on an endpoint's shadow: returned as JSON by the API, rendered as Markdown and as words.
- The pairs of one shadow, summed up. Memory is bounded by units, not by pairs.
- The report of a shadow as a document for people: one sentence, then its basis.
- A shadow's numbers for Prometheus.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import force_setattr
from numpy.typing import NDArray

from app.config.endpoints import Mirror
from app.config.schema import Config
from app.experiments.analysis.arrays import HashIndex
from app.experiments.analysis.cells import CellBlock, UnitTable
from app.experiments.contract.journal import JournalEntry
from app.experiments.contract.report import Effect
from app.experiments.contract.series import Series
from app.experiments.rendering import words
from app.experiments.rendering.document import Block, Bullets, Heading, Paragraph, Table
from app.experiments.statistics.look import Slack
from app.experiments.statistics.pairs import Discordant, PairedLook, paired_look
from app.experiments.storage.columns import PairColumns, Tables
from app.exposures.wire import Failure, FinishCode, Skip

Side = Literal["higher", "lower", "undecided"]
"""The shadow's position relative to the primary, once the interval excludes 0 (or the evidence suffices)."""


class PairedValue(msgspec.Struct, frozen=True, kw_only=True):
    """A number of each pair, and its mean, of copies that were answered. The interval of `value` is a confidence
    sequence: it holds whenever one looks.
    """

    metric: str
    kind: Literal["difference", "ratio", "share", "mean"]
    """Shadow minus primary; shadow by primary, less 1; the share of pairs; the mean of a number."""
    pairs: int
    units: int
    value: Effect
    side: Side | None = None
    """Whatever values that were seen the failed copies had had. None where there is no value to compare with."""


class PairedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A 0/1 event, in pairs. Pairs with it on one side alone are evidence of a difference."""

    event: str
    pairs: int
    both: int
    shadow_only: int
    primary_only: int
    log_e_value: float
    """The evidence for a difference on the present counts: each unit counts once."""
    ln_e: float | None = None
    """Deprecated: `log_e_value`."""
    side: Side

    def __post_init__(self) -> None:
        force_setattr(self, "ln_e", self.log_e_value)


class ShadowOf(msgspec.Struct, frozen=True, kw_only=True):
    """The shadow against one primary. `failed`: copies without an answer, by the failure."""

    primary: str
    compared: int
    failed: dict[str, int]
    values: list[PairedValue]
    events: list[PairedEvent]


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint's shadow, since it became one. Times are Unix seconds."""

    endpoint: str
    shadow: str
    percent: float
    since: float
    at: float
    alpha: float
    """The error rate of each interval, and of each event's evidence."""
    copies: int
    """Copies that were sent."""
    tokens: int
    """Tokens that they cost, as far as the engine reported them."""
    skipped: dict[str, int]
    """Requests that were drawn and not copied, by the reason."""
    primaries: list[ShadowOf]
    """The one with most copies first."""
    headline: str
    warnings: list[str] = []


ALPHA = 0.05

MAX_UNITS = 1_000_000
"""Above, half of the units are left out of the means, by hash."""

Kind = Literal["difference", "ratio", "share", "mean"]
Values = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class PairMetric:
    """A number of pairs. `effect`: the smallest one that matters, for which the interval is narrowest; it holds for
    every other, too."""

    name: str
    column: str
    kind: Kind
    effect: float


METRICS = (
    PairMetric("ttft", "ttft_s", "difference", 0.02),
    PairMetric("duration", "duration_s", "difference", 0.1),
    PairMetric("tokens_per_second", "tokens_per_s", "difference", 2.0),
    PairMetric("length", "length_ratio", "ratio", math.log(1.1)),
    PairMetric("equal", "equal", "share", 0.05),
    PairMetric("equal_words", "equal_words", "share", 0.05),
    PairMetric("same_finish", "same_finish", "share", 0.05),
    PairMetric("same_tools", "same_tools", "share", 0.05),
    PairMetric("cosine", "cosine", "mean", 0.01),
)
EVENTS = ("invalid_output", "truncated", "empty")
_ONE_STRATUM = np.zeros(1, np.int32)


class ShadowEvidence:
    """Pairs of one primary."""

    def __init__(self, max_units: int = MAX_UNITS) -> None:
        self.compared = self.tokens = 0
        self.failed: Counter[str] = Counter()
        self._cells = UnitTable(len(METRICS), max_units)
        self._least, self._most = np.full(len(METRICS), np.inf), np.full(len(METRICS), -np.inf)
        """The range of each metric's values."""
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
        self._least = np.fmin(self._least, np.where(known, values, np.inf).min(axis=0))
        self._most = np.fmax(self._most, np.where(known, values, -np.inf).max(axis=0))
        some = known.any(axis=1)
        zeros = np.zeros(int(some.sum()), np.int32)
        self._cells.add(CellBlock(answered.unit[some], zeros, zeros.astype(np.int8), n[some], x[some], n[some]))
        for name, event in self._events.items():
            event.add(answered.unit, *_events(answered, name))

    def report(self, primary: str) -> ShadowOf:
        """The report at this moment."""
        values = [value for number, metric in enumerate(METRICS) if (value := self._value(number, metric)) is not None]
        events = [event.report(name) for name, event in self._events.items() if event.pairs]
        return ShadowOf(primary=primary, compared=self.compared, failed=dict(self.failed), values=values, events=events)

    def _value(self, number: int, metric: PairMetric) -> PairedValue | None:
        lines = self._cells.lines(number, _ONE_STRATUM, 0)
        look = paired_look(lines.unit, lines.n, lines.x) if len(lines.unit) else None
        if look is None:
            return None
        interval = look.interval(effect=metric.effect, alpha=ALPHA)
        lower, upper = interval if interval is not None else (None, None)
        side: Side | None = None
        if metric.kind in ("difference", "ratio"):
            side = _side(*(self._reach(number, look).widen(interval) or (None, None)))
        value = Effect(
            estimate=_in_unit(metric, look.est), lower=_in_unit(metric, lower), upper=_in_unit(metric, upper)
        )
        return PairedValue(
            metric=metric.name, kind=metric.kind, pairs=look.pairs, units=look.units, value=value, side=side
        )

    def _reach(self, number: int, look: PairedLook) -> Slack:
        """What the copies that failed allow for: each may have had any value that was seen."""
        failed = self.failed.total()
        share = failed / (failed + look.pairs / self._cells.share)
        return Slack(share * (look.est - float(self._least[number])), share * (float(self._most[number]) - look.est))


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
        log_e_value, (primary, shadow) = self._evidence.log_e_value, self._evidence.units
        side: Side = "undecided"
        if log_e_value >= math.log(1 / ALPHA):
            side = "higher" if shadow > primary else "lower"
        return PairedEvent(
            event=name,
            pairs=self.pairs,
            both=self._both,
            shadow_only=self._shadow_only,
            primary_only=self._primary_only,
            log_e_value=log_e_value,
            side=side,
        )


def _numbers(pairs: PairColumns, metric: PairMetric) -> Values:
    """The values on the scale of the mean; NaN where there is none."""
    values = getattr(pairs, metric.column).astype(np.float64)
    if metric.kind != "ratio":
        return np.asarray(values)
    return np.asarray(np.log(values, out=np.full(len(values), np.nan), where=values > 0))


def _events(pairs: PairColumns, name: str) -> tuple[NDArray[np.bool_], Values, Values]:
    """The mask of pairs in which the event is known, and whether the shadow's and the primary's answers have it."""
    if name == "truncated":
        known = (pairs.finish != FinishCode.NONE) & (pairs.primary_finish != FinishCode.NONE)
        return known, *(
            (finish == FinishCode.LENGTH).astype(np.float64) for finish in (pairs.finish, pairs.primary_finish)
        )
    good, primary = (
        (pairs.valid, pairs.primary_valid) if name == "invalid_output" else (pairs.visible, pairs.primary_visible)
    )
    return ~(np.isnan(good) | np.isnan(primary)), 1 - good, 1 - primary


def _in_unit(metric: PairMetric, value: float | None) -> float | None:
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
    return next((failure.name.lower() for failure in Failure if failure == code), "other")


_TITLES: Mapping[str, str] = {
    "ttft": "first token",
    "duration": "whole answer",
    "tokens_per_second": "tokens per second",
    "length": "length",
    "equal": "same characters",
    "equal_words": "same words",
    "same_finish": "same finish reason",
    "same_tools": "same tool calls",
    "cosine": "cosine",
    "invalid_output": "form not kept",
    "truncated": "cut off by the length",
    "empty": "nothing to see",
}
_SKIPPED: Mapping[str, str] = {
    "budget": "budget",
    "queue_full": "queue full",
    "request_too_large": "request too large",
    "answer_too_large": "answer too large",
    "several_requests": "several engine calls",
    "bound_to_model": "made for the primary's tokenizer",
    "primary_failed": "primary failed",
    "carried": "began under other weights",
    "stopped": "shadow stopped",
    "breaker_open": "shadow fails",
    "shutdown": "router ended",
}
_NO_PAIRS = "no copy has been compared yet"


def headline(report: ShadowReport) -> str:
    """The sentence."""
    first = next((primary for primary in report.primaries if primary.compared), None)
    parts = [_NO_PAIRS] if first is None else [_of_copies(report, first)]
    if first is not None and (value := _value(first, "ttft")) is not None:
        could_change = value.side == "undecided" != _side(value.value.lower, value.value.upper)
        parts.append(f"first token {_late(value.value)}" + (", which the failed ones could change" * could_change))
    failed: dict[str, int] = {}
    for primary in report.primaries:
        for why, count in primary.failed.items():
            failed[why] = failed.get(why, 0) + count
    if failed:
        parts.append(f"{words.count(sum(failed.values()))} failed")
    if report.skipped:
        why = ", ".join(_SKIPPED.get(reason, reason) for reason in report.skipped)
        parts.append(f"{words.count(sum(report.skipped.values()))} skipped: {why}")
    return f"{report.shadow} as the shadow of {report.endpoint}: {'; '.join(parts)}"


def document(report: ShadowReport) -> Iterator[Block]:
    """The whole report as blocks."""
    yield Heading(report.headline, level=1)
    yield Paragraph(
        [
            f"{report.percent:g} % of the units, since {words.moment(report.since, report.at)}; as of "
            f"{words.moment(report.at, report.at)} UTC.",
            f"{words.count(report.copies)} copies cost {words.count(report.tokens)} tokens.",
        ]
    )
    if report.warnings:
        yield Heading("Warnings")
        yield Bullets(report.warnings)
    for primary in report.primaries:
        yield from _beside(primary)
    if report.skipped:
        yield Heading("Not copied")
        rows = [[_SKIPPED.get(why, why), words.count(count)] for why, count in report.skipped.items()]
        yield Table(["why", "requests"], rows, right=(1,))


def _of_copies(report: ShadowReport, first: ShadowOf) -> str:
    text = f"of {words.count(first.compared)} copies"
    if len(report.primaries) > 1:
        text += f" beside {first.primary}"
    if (cosine := _value(first, "cosine")) is not None:
        return f"{text} the mean cosine is {cosine.value.estimate:.4f}"
    if (same := _value(first, "equal_words")) is None or same.value.estimate is None:
        return f"{text} none could be compared by words"
    return f"{text} {words.percent(same.value.estimate)} gave the same words"


def _late(value: Effect) -> str:
    """12 ms later [8, 17]"""
    assert value.estimate is not None
    text = f"{words.seconds(abs(value.estimate))} {'later' if value.estimate >= 0 else 'earlier'}"
    if value.lower is None or value.upper is None:
        return text
    lower, upper = sorted((value.lower, value.upper) if value.estimate >= 0 else (-value.lower, -value.upper))
    return f"{text} [{words.seconds(lower)}, {words.seconds(upper)}]"


def _beside(primary: ShadowOf) -> Iterator[Block]:
    yield Heading(f"Beside {primary.primary}")
    failed = ", ".join(f"{words.count(count)} {why.replace('_', ' ')}" for why, count in primary.failed.items())
    sides = " A side is one that these cannot have changed, with any values that were seen." if failed else ""
    yield Paragraph([f"{words.count(primary.compared)} compared; failed: {failed or 'none'}.{sides}"])
    if primary.values:
        rows = [
            [
                _TITLES.get(value.metric, value.metric),
                _formatted(value, value.value.estimate),
                _between(value),
                value.side or words.MISSING,
                words.count(value.pairs),
                words.count(value.units),
            ]
            for value in primary.values
        ]
        yield Table(["shadow minus primary", "mean", "between", "side", "pairs", "units"], rows, right=(1, 2, 4, 5))
    if primary.events:
        counts = [
            [_TITLES.get(event.event, event.event), *_counts(event), f"{event.log_e_value:.2f}", event.side]
            for event in primary.events
        ]
        header = ["event", "shadow alone", "primary alone", "both", "pairs", "ln e", "shadow"]
        yield Table(header, counts, right=(1, 2, 3, 4, 5))


def _counts(event: PairedEvent) -> list[str]:
    return [words.count(count) for count in (event.shadow_only, event.primary_only, event.both, event.pairs)]


def _between(value: PairedValue) -> str:
    effect = value.value
    if effect.lower is None or effect.upper is None:
        return words.MISSING
    return f"{_formatted(value, effect.lower)} to {_formatted(value, effect.upper)}"


def _formatted(value: PairedValue, number: float | None) -> str:
    if number is None:
        return words.MISSING
    if value.kind == "mean":
        return f"{number:.4f}"
    if value.kind in ("share", "ratio"):
        return words.percent(number, signed=value.kind == "ratio")
    return f"{words.significant(number, signed=True)}/s" if value.metric == "tokens_per_second" else _seconds(number)


def _seconds(number: float) -> str:
    return words.seconds(number, signed=True)


def _value(primary: ShadowOf, metric: str) -> PairedValue | None:
    return next((value for value in primary.values if value.metric == metric), None)


BEGUN, ENDED = "mirror_begun", "mirror_ended"


@dataclass(frozen=True, slots=True)
class MirrorPeriod:
    """The time since which a deployment is an endpoint's shadow, in Unix seconds: earlier pairs are no evidence about
    it.
    """

    shadow: str
    since: float


@dataclass(slots=True)
class _Judged:
    mirror: Mirror
    period: MirrorPeriod
    evidence: dict[str, ShadowEvidence] = field(default_factory=dict)
    """The evidence by primary."""
    skipped: Counter[str] = field(default_factory=Counter)


class ShadowJudge:
    """Judges mirrors' pairs. Not thread-safe. Every pair may be counted once."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._judged: dict[str, _Judged] = {}

    @property
    def since(self) -> float | None:
        """The start of the oldest shadow, in Unix seconds; None: there is none."""
        return min((judged.period.since for judged in self._judged.values()), default=None)

    def adopt(self, config: Config, journal: Iterable[JournalEntry] | None, now: float) -> list[JournalEntry]:
        """Takes the mirrors of a configuration. Returns new entries for the journal.

        `journal` None: it has not been read yet, and a shadow may be older than it seems.
        """
        known = {name: judged.period for name, judged in self._judged.items()}
        said = periods_of(journal) if journal is not None else known
        entries: list[JournalEntry] = []
        mirrors = {name: endpoint.mirror for name, endpoint in config.endpoints.items() if endpoint.mirror is not None}
        for name in said.keys() - mirrors.keys():
            entries.append(JournalEntry(now, ENDED, None, {"endpoint": name, "shadow": said[name].shadow}))
        judged: dict[str, _Judged] = {}
        for name, mirror in mirrors.items():
            period = said.get(name)
            if period is None or period.shadow != mirror.deployment:
                period = known.get(name)
                if period is None or period.shadow != mirror.deployment:
                    period = MirrorPeriod(mirror.deployment, now)
                detail = {"endpoint": name, "shadow": period.shadow, "since": period.since}
                entries.append(JournalEntry(now, BEGUN, None, detail))
            former = self._judged.get(name)
            if former is not None and former.period == period:
                former.mirror = mirror
                judged[name] = former
            else:
                judged[name] = _Judged(mirror, period)
        self._judged = judged
        return entries

    def forget(self) -> None:
        """Forgets all pairs: they are counted again."""
        for judged in self._judged.values():
            judged.evidence, judged.skipped = {}, Counter()

    def count(self, pairs: PairColumns) -> None:
        """Pairs of any endpoint."""
        if not len(pairs) or not self._judged:
            return
        plans, names = self._tables.plans, self._tables.names
        endpoints = np.array([plan.endpoint for plan in plans])[pairs.plan]
        for name, judged in self._judged.items():
            shadow = np.array([name == judged.period.shadow for name in names])[pairs.shadow]
            own = pairs.take((endpoints == name) & shadow & (pairs.at >= judged.period.since))
            codes, counts = np.unique(own.skipped[own.skipped > 0], return_counts=True)
            for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
                judged.skipped[_reason(code)] += count
            for code in np.unique(own.primary).tolist():
                sent = own.take((own.primary == code) & (own.skipped == 0))
                if len(sent):
                    judged.evidence.setdefault(names[code], ShadowEvidence()).add(sent)

    def report(self, endpoint: str, now: float, warnings: Sequence[str] = ()) -> ShadowReport | None:
        """The report on an endpoint's shadow; None if it has no mirror."""
        if (judged := self._judged.get(endpoint)) is None:
            return None
        evidence = sorted(judged.evidence.items(), key=lambda item: -item[1].copies)
        report = ShadowReport(
            endpoint=endpoint,
            shadow=judged.period.shadow,
            percent=judged.mirror.percent,
            since=judged.period.since,
            at=now,
            alpha=ALPHA,
            copies=sum(side.copies for _, side in evidence),
            tokens=sum(side.tokens for _, side in evidence),
            skipped=dict(judged.skipped.most_common()),
            primaries=[side.report(primary) for primary, side in evidence],
            headline="",
            warnings=list(warnings),
        )
        return msgspec.structs.replace(report, headline=headline(report))

    def endpoints(self) -> list[str]:
        """Endpoints with a mirror."""
        return list(self._judged)


def _reason(code: int) -> str:
    return next((skip.name.lower() for skip in Skip if skip == code), "other")


def periods_of(entries: Iterable[JournalEntry]) -> Mapping[str, MirrorPeriod]:
    """The periods by endpoint, as of the end of the journal."""
    periods: dict[str, MirrorPeriod] = {}
    for entry in entries:
        try:
            if entry.kind == BEGUN:
                periods[entry.detail["endpoint"]] = MirrorPeriod(entry.detail["shadow"], float(entry.detail["since"]))
            elif entry.kind == ENDED:
                periods.pop(entry.detail["endpoint"], None)
        except (KeyError, TypeError, ValueError):
            continue
    return periods


MIRROR_VALUE = "switchyard_mirror_value"


def shadow_series(report: ShadowReport) -> Iterator[Series]:
    """One sample for each number of each primary and bound; none for what has no value yet."""
    common = {"endpoint": report.endpoint, "deployment": report.shadow}
    for primary in report.primaries:
        for interval in primary.values:
            for bound in ("estimate", "lower", "upper"):
                if (value := getattr(interval.value, bound)) is not None:
                    labels = {"primary": primary.primary, "metric": interval.metric, "bound": bound}
                    yield Series(MIRROR_VALUE, {**common, **labels}, value)
