"""Outcomes of a request, as 0 or 1: the events of guardrails and proportions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.config.experiments import Event, Experiment, Guardrail
from app.experiments.analysis.evidence.arrays import Mask
from app.experiments.columns import LateColumns, RowColumns
from app.exposures.wire import Finish, Flag, LateKind

CLIENT_CLOSED_REQUEST = 499

STREAMS_ONLY = ("stalled",)
"""Events that cannot happen to whole answers."""


@dataclass(frozen=True)
class Limits:
    """The limits in seconds that make an event of a time."""

    ttft_above_s: float = 10.0
    answer_above_s: float = 20.0
    gap_above_s: float = 5.0
    unfinished_above_s: float = 600.0


def limits_of(guardrail: Guardrail) -> Limits:
    """A guardrail's own limits."""
    ttft = guardrail.ttft_above_s or Limits.ttft_above_s
    return Limits(ttft, guardrail.answer_above_s, guardrail.gap_above_s, guardrail.unfinished_above_s)


def limits_for_metrics(event: str, experiment: Experiment) -> Limits:
    """The limits of the guardrail on the same event, so that a metric counts what the guardrail counts."""
    return next((limits_of(rail) for rail in experiment.guardrails if rail.event == event), Limits())


def client_gone(rows: RowColumns) -> Mask:
    """The client disconnected before the end."""
    return _mask(((rows.flags & Flag.CLIENT_GONE) != 0) | (rows.status == CLIENT_CLOSED_REQUEST))


def answered(rows: RowColumns) -> Mask:
    """A successful answer to its end, from the assigned deployment or from a fallback."""
    success = (rows.status >= 200) & (rows.status < 300) & (rows.served >= 0) & ~client_gone(rows)
    return _mask(success & ((rows.error == 0) | (rows.served != rows.assigned)))


def _slow(rows: RowColumns, limits: Limits) -> Mask:
    without = np.isnan(rows.ttft_s) & (rows.duration_s > limits.ttft_above_s)
    late = without | (rows.ttft_s > limits.ttft_above_s)
    return _mask(np.where(rows.stream, late, rows.duration_s > limits.answer_above_s))


_EVENTS: dict[Event, Callable[[RowColumns, Limits], Mask]] = {
    "error": lambda rows, _: rows.error != 0,
    "slow": _slow,
    "empty": lambda rows, _: (rows.flags & Flag.EMPTY) != 0,
    "truncated": lambda rows, _: rows.finish == Finish.LENGTH,
    "stalled": lambda rows, limits: rows.stream & (rows.itl_max_s > limits.gap_above_s),
    "invalid_output": lambda rows, _: (rows.flags & Flag.INVALID_OUTPUT) != 0,
    "client_gone": lambda rows, _: client_gone(rows),
    "unfinished": lambda rows, limits: rows.duration_s > limits.unfinished_above_s,
}


def happened(event: Event, rows: RowColumns, limits: Limits) -> Mask:
    """Whether the event happened to each request. Times that are missing (NaN) are above no limit."""
    return _mask(_EVENTS[event](rows, limits))


def late_events(event: Event, late: LateColumns, limits: Limits) -> Mask:
    """Whether a late record of a running request is the event: `slow` and `unfinished` happen by the clock."""
    if event == "slow":
        stream = (late.kind == LateKind.SLOW) & (late.above_s >= limits.ttft_above_s - 1e-9)
        return _mask(stream | ((late.kind == LateKind.SLOW_ANSWER) & (late.above_s >= limits.answer_above_s - 1e-9)))
    if event == "unfinished":
        return _mask((late.kind == LateKind.UNFINISHED) & (late.above_s >= limits.unfinished_above_s - 1e-9))
    return np.zeros(len(late), np.bool_)


def _mask(values: Any) -> Mask:
    return np.asarray(values, np.bool_)
