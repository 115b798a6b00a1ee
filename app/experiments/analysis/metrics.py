"""Each metric's value for a request: a numerator x and a denominator d, or none.

A mean or a proportion has d = 1; a geometric mean x = ln(value), d = 1; a ratio of sums its two sums; a quantile
x = ln(value), kept one by one. A request to which a metric does not apply (a whole answer has no time to its first
token) is not missing: nothing that the arm does decides it. Nor does an event apply to a request that decides it.

Outcomes of a request, as 0 or 1: the events of guardrails and proportions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np

from app.config.experiments import (
    EVENTS,
    LATENCIES,
    STATISTICS,
    Event,
    Experiment,
    Guardrail,
    Metric,
    Statistic,
    Within,
)
from app.config.schema import Config
from app.experiments.analysis.arrays import Floats, Mask
from app.experiments.contract.report import Better, Scale
from app.experiments.statistics.look import LookScale
from app.experiments.storage.columns import OverdueColumns, RowColumns, Tables
from app.exposures.wire import Failure, FinishCode, Flag, LateKind

CLIENT_CLOSED_REQUEST = 499

STREAMS_ONLY = ("stalled",)
"""Events that cannot happen to whole answers."""


@dataclass(frozen=True)
class EventThresholds:
    """The limits in seconds that make an event of a time."""

    ttft_above_s: float = 10.0
    answer_above_s: float = 20.0
    gap_above_s: float = 5.0
    unfinished_above_s: float = 600.0


def limits_of(guardrail: Guardrail) -> EventThresholds:
    """A guardrail's own limits."""
    ttft = guardrail.ttft_above_s or EventThresholds.ttft_above_s
    return EventThresholds(ttft, guardrail.answer_above_s, guardrail.gap_above_s, guardrail.unfinished_above_s)


def limits_for_metrics(event: str, experiment: Experiment) -> EventThresholds:
    """The limits of the guardrail on the same event, so that a metric counts what the guardrail counts."""
    return next((limits_of(rail) for rail in experiment.guardrails if rail.event == event), EventThresholds())


def client_gone(rows: RowColumns) -> Mask:
    """The client disconnected before the end."""
    return _mask(((rows.flags & Flag.CLIENT_GONE) != 0) | (rows.status == CLIENT_CLOSED_REQUEST))


def answered(rows: RowColumns) -> Mask:
    """A successful answer to its end, from the assigned deployment or from a fallback."""
    success = (rows.status >= 200) & (rows.status < 300) & (rows.served >= 0) & ~client_gone(rows)
    return _mask(success & ((rows.error == 0) | (rows.served != rows.assigned)))


def _slow(rows: RowColumns, limits: EventThresholds) -> Mask:
    without = np.isnan(rows.ttft_s) & (rows.duration_s > limits.ttft_above_s)
    late = without | (rows.ttft_s > limits.ttft_above_s)
    return _mask(np.where(rows.stream, late, rows.duration_s > limits.answer_above_s))


_EVENTS: dict[Event, Callable[[RowColumns, EventThresholds], Mask]] = {
    "error": lambda rows, _: rows.error != 0,
    "slow": _slow,
    "empty": lambda rows, _: (rows.flags & Flag.EMPTY) != 0,
    "truncated": lambda rows, _: rows.finish == FinishCode.LENGTH,
    "stalled": lambda rows, limits: rows.stream & (rows.itl_max_s > limits.gap_above_s),
    "invalid_output": lambda rows, _: (rows.flags & Flag.INVALID_OUTPUT) != 0,
    "client_gone": lambda rows, _: client_gone(rows),
    "unfinished": lambda rows, limits: rows.duration_s > limits.unfinished_above_s,
}


def happened(event: Event, rows: RowColumns, limits: EventThresholds) -> Mask:
    """Whether the event happened to each request. Times that are missing (NaN) are above no limit."""
    return _mask(_EVENTS[event](rows, limits))


def late_events(event: Event, late: OverdueColumns, limits: EventThresholds) -> Mask:
    """Whether a late record of a running request is the event: `slow` and `unfinished` happen by the clock."""
    if event == "slow":
        stream = (late.kind == LateKind.SLOW) & (late.above_s >= limits.ttft_above_s - 1e-9)
        return _mask(stream | ((late.kind == LateKind.SLOW_ANSWER) & (late.above_s >= limits.answer_above_s - 1e-9)))
    if event == "unfinished":
        return _mask((late.kind == LateKind.UNFINISHED) & (late.above_s >= limits.unfinished_above_s - 1e-9))
    return np.zeros(len(late), np.bool_)


_OWN: Mapping[Event, Flag] = {
    "error": Flag.OWN_FAILURE,
    "slow": Flag.OWN_TIME,
    "empty": Flag.OWN_EMPTY,
    "truncated": Flag.OWN_LENGTH,
    "stalled": Flag.OWN_GAPS,
    "invalid_output": Flag.OWN_FORM,
    "unfinished": Flag.OWN_TIME,
}


def decided(event: Event, columns: RowColumns | OverdueColumns) -> Mask:
    """Whether the request itself may have decided about the event: it says nothing about its arm."""
    return _mask((columns.flags & _OWN.get(event, 0)) != 0)


def gave_up(rows: RowColumns) -> Mask:
    """The client allows less than a second, and that was over: which says little about a failure's cause."""
    return _mask(((rows.flags & Flag.OWN_FAILURE) != 0) & (rows.error == Failure.TIMEOUT))


def _mask(values: Any) -> Mask:
    return np.asarray(values, np.bool_)


Kind = Literal["geometric_mean", "mean", "ratio", "proportion", "quantile"]
Role = Literal["primary", "secondary"]

SHORTEST_S = 1e-4
"""Shorter times count as this long: below, a logarithm measures the clock and not the server."""

LENGTH = "output_tokens"
LENGTH_EFFECT = 0.1
"""The smallest effect on the answers' length that matters where none is declared."""

RESPONSE_RATE = "response_rate"
"""The statistic of a feedback metric that counts the users who answer at all."""

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_STREAMS_ONLY: Mapping[str, str] = {
    "ttft": "a first token",
    "itl": "a time between tokens",
    "itl_max": "a longest gap between tokens",
    "tokens_per_second": "a rate of tokens",
    **dict.fromkeys(STREAMS_ONLY, "gaps between tokens"),
}
"""Metrics of streamed answers alone, and what whole answers lack."""
_HIGHER = {"tokens_per_second", "goodput"}
_NEITHER = {"output_tokens", "prompt_tokens"}


@dataclass(frozen=True)
class Measure:
    """A metric with its statistic, as one experiment compares it."""

    key: str
    metric: str
    statistic: str
    kind: Kind
    better: Better
    scale: Scale
    minimal_effect: float
    role: Role
    quantile: float = 0.0
    within: Within | None = None
    limits: EventThresholds = field(default_factory=EventThresholds)
    feedback: bool = False
    guard: bool = False
    """Not declared: compared so that nothing ships that differs in it."""
    look_scale: LookScale = field(init=False)
    """The scale of its looks: differences are those of means of logarithms, or of feedback numbers."""

    def __post_init__(self) -> None:
        on_differences = self.kind == "geometric_mean" or self.scale == "absolute"
        object.__setattr__(self, "look_scale", "difference" if on_differences else "ratio")

    @property
    def on_logarithms(self) -> bool:
        """Whether each request's numerator is the ln of its value."""
        return self.kind in ("geometric_mean", "quantile")


class Values(NamedTuple):
    """One measure's values, for each row. `x` and `d` are 0 where there is no value."""

    x: Floats
    d: Floats
    valid: Mask
    missing: Mask
    """The metric applies and there is no value. Whoever caused that, the value may have been any."""
    unprovoked: Mask
    """Those of the missing ones that the request itself cannot have caused: more of them on one arm is an alarm."""


@dataclass(frozen=True)
class MetricContext:
    """Inputs of a value besides its row."""

    total_s: float
    prices: Mapping[str, tuple[float, float]]
    """The prices of a prompt token and of a completion token, by deployment."""
    tables: Tables


def facts_of(config: Config, tables: Tables) -> MetricContext:
    """The facts from the configuration."""
    prices = {
        name: (deployment.price.input_per_million / 1e6, deployment.price.output_per_million / 1e6)
        for name, deployment in config.deployments.items()
        if deployment.price
    }
    return MetricContext(config.timeouts.total_s, prices, tables)


def measures_of(experiment: Experiment) -> list[Measure]:
    """The primary metrics first. A feedback metric adds the response rate as a secondary metric, and every comparison
    that may lead to a promotion the answers' length.
    """
    measures = [_measure(metric, "primary", experiment) for metric in experiment.primary]
    measures += [_measure(metric, "secondary", experiment) for metric in experiment.secondary]
    rates = dict[str, Measure]()
    for measure in measures:
        if measure.feedback:
            rates.setdefault(measure.metric, _response_rate(measure))
    guards = (
        []
        if experiment.mode == "aa" or any(measure.metric == LENGTH for measure in measures)
        else [_length(experiment)]
    )
    return [*measures, *rates.values(), *guards]


def _measure(metric: Metric, role: Role, experiment: Experiment) -> Measure:
    name = metric.metric
    if feedback := experiment.feedback.get(name):
        number = feedback.type == "number"
        return Measure(
            key=metric.key,
            metric=name,
            statistic="mean" if number else "proportion",
            kind="mean" if number else "proportion",
            better=feedback.better,
            scale="absolute" if number else "relative",
            minimal_effect=metric.minimal_effect,
            role=role,
            feedback=True,
        )
    statistic: Statistic = metric.statistic or STATISTICS[name][0]
    return Measure(
        key=metric.key,
        metric=name,
        statistic=statistic,
        kind="quantile" if statistic in _QUANTILES else cast(Kind, statistic),
        better=metric.better or ("higher" if name in _HIGHER else "neither" if name in _NEITHER else "lower"),
        scale="relative",
        minimal_effect=metric.minimal_effect,
        role=role,
        quantile=_QUANTILES.get(statistic, 0.0),
        within=metric.within,
        limits=limits_for_metrics(name, experiment),
    )


def _length(experiment: Experiment) -> Measure:
    """The guard of the answers' length, for experiments that do not compare it."""
    guard = Metric(metric=LENGTH, minimal_effect=LENGTH_EFFECT)
    return replace(_measure(guard, "secondary", experiment), guard=True)


def _response_rate(measure: Measure) -> Measure:
    return Measure(
        key=f"{measure.metric}.{RESPONSE_RATE}",
        metric=measure.metric,
        statistic=RESPONSE_RATE,
        kind="proportion",
        better="neither",
        scale="relative",
        minimal_effect=measure.minimal_effect if measure.scale == "relative" else 0.05,
        role="secondary",
        feedback=True,
    )


def values_of(measure: Measure, rows: RowColumns, facts: MetricContext) -> Values:
    """Values of a measure that is not feedback."""
    applies = rows.stream if measure.metric in _STREAMS_ONLY else np.ones(len(rows), np.bool_)
    if measure.metric in _OWN and measure.metric != "error":  # who does not wait shares a failure with its arm
        applies = applies & ~decided(cast(Event, measure.metric), rows)
    if measure.kind == "ratio":
        x, d = _tokens_and_seconds(rows)
    else:
        x, d = _value(measure, rows, facts), np.ones(len(rows))
    valid = applies & np.isfinite(x) & np.isfinite(d)
    missing = applies & ~valid
    provoked = (answered(rows) & ((rows.flags & Flag.OWN_EMPTY) != 0)) | gave_up(rows)
    return Values(np.where(valid, x, 0.0), np.where(valid, d, 0.0), valid, missing, missing & ~provoked)


def numbers_of(metric: str, rows: RowColumns, facts: MetricContext) -> Floats:
    """A metric's number of each request, in its own unit; NaN where it has none, or does not apply."""
    value = _NUMBERS[metric](rows, facts)
    return np.where(rows.stream, value, np.nan) if metric in _STREAMS_ONLY else value


def why_without_value(measure: Measure) -> str:
    """Why requests that were answered may all be without a value, to be read after a colon; empty if none may."""
    if measure.feedback:
        return "" if measure.statistic == RESPONSE_RATE else "only answers with a score count"
    lacked = _STREAMS_ONLY.get(measure.metric)
    return f"only streamed answers have {lacked}" if lacked is not None else ""


def can_be_missing(measure: Measure) -> bool:
    """Whether an arm can cause that a request has no value."""
    return not measure.feedback and measure.kind != "proportion"


def _value(measure: Measure, rows: RowColumns, facts: MetricContext) -> Floats:
    """One number per row, NaN where there is none."""
    if measure.metric in get_args(Event):
        event = EVENTS[EVENTS.index(cast(Event, measure.metric))]
        return happened(event, rows, measure.limits).astype(np.float64)
    if measure.metric == "goodput":
        return _good(rows, measure.within).astype(np.float64)
    value = _NUMBERS[measure.metric](rows, facts)
    if measure.on_logarithms:
        return np.asarray(np.log(np.maximum(value, SHORTEST_S)), np.float64)
    return np.minimum(value, facts.total_s) if measure.metric in LATENCIES else value


def _duration(rows: RowColumns, _: MetricContext) -> Floats:
    return np.where(answered(rows), rows.duration_s.astype(np.float64), np.nan)


def _cost(rows: RowColumns, facts: MetricContext) -> Floats:
    """The cost at the prices of the deployment that answered. Embeddings have no completion tokens."""
    prices = np.array([facts.prices.get(name, (np.nan, np.nan)) for name in (*facts.tables.names, "")])
    price = prices[rows.served]  # -1, no deployment answered, is the last one
    return np.asarray(rows.prompt_tokens * price[:, 0] + np.nan_to_num(rows.completion_tokens) * price[:, 1])


_NUMBERS: dict[str, Callable[[RowColumns, MetricContext], Floats]] = {
    "ttft": lambda rows, _: rows.ttft_s.astype(np.float64),
    "itl": lambda rows, _: rows.itl_mean_s.astype(np.float64),
    "itl_max": lambda rows, _: rows.itl_max_s.astype(np.float64),
    "duration": _duration,
    "output_tokens": lambda rows, _: rows.completion_tokens,
    "prompt_tokens": lambda rows, _: rows.prompt_tokens,
    "cost": _cost,
}


def _tokens_and_seconds(rows: RowColumns) -> tuple[Floats, Floats]:
    """Tokens after the first, and the seconds after the first, of streams that ended."""
    seconds = rows.duration_s.astype(np.float64) - rows.ttft_s
    known = (seconds > 0) & ~client_gone(rows)
    return np.where(known, np.maximum(rows.completion_tokens - 1, 0), np.nan), np.where(known, seconds, np.nan)


def _good(rows: RowColumns, within: Within | None) -> Mask:
    """Answered, and a stream in time. A whole answer has neither of the two times; a stream of one chunk has no gap."""
    if within is None:
        raise ValueError("goodput without limits")
    late = ~(rows.ttft_s <= within.ttft_s) | (rows.itl_mean_s > within.itl_s)
    return answered(rows) & ~(rows.stream & late)
