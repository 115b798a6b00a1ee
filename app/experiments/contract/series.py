"""An experiment's numbers for Prometheus."""

from collections.abc import Iterator
from typing import get_args

import msgspec

from app.experiments.contract.report import AutomationStatus, Comparison, Report, Verdict

METRICS = {
    "switchyard_experiment_lift": "A treatment's effect on a metric: relative, or in the metric's own unit; bound is "
    "estimate, lower or upper",
    "switchyard_experiment_log_e_value": "The evidence against no difference: the logarithm of the e-value",
    "switchyard_experiment_units": "Units with an exposure, by arm",
    "switchyard_experiment_verdict": "1 for the verdict that holds, 0 for the others",
    "switchyard_experiment_state": "1 for what the experiment is, running, paused or stopped, 0 for the others",
    "switchyard_experiment_step": "The step of its ramp: 1 is the first one, 0 is below it",
    "switchyard_experiment_share": "The percentage of the traffic that its treatments have",
    "switchyard_mirror_value": "An endpoint's shadow compared with a primary: the mean over pairs; bound is "
    "estimate, lower or upper",
    "switchyard_guardrail_log_e_value": "The evidence that a guardrail's limit is exceeded",
    "switchyard_sample_ratio_log_e_value": "The evidence that the units contradict the weights",
}
"""Every metric and its help."""

_SUFFIX, _FORMER_SUFFIX = "_log_e_value", "_ln_e"
METRICS |= {
    name.removesuffix(_SUFFIX) + _FORMER_SUFFIX: f"Deprecated: {name}" for name in METRICS if name.endswith(_SUFFIX)
}

_STATES = ("running", "paused", "stopped")


class Series(msgspec.Struct, frozen=True):
    """One sample of a gauge. `labels` always has `endpoint`."""

    metric: str
    labels: dict[str, str]
    value: float


def series_of(report: Report, acting: AutomationStatus | None) -> list[Series]:
    """The samples of one experiment; none for what has no value yet."""
    common = {"endpoint": report.endpoint, "experiment": report.experiment}
    series = [
        Series(f"switchyard_{name}", {**common, **labels}, float(value))
        for name, labels, value in (*_samples(report), *_acting(acting))
        if value is not None
    ]
    former = [one for one in series if one.metric.endswith(_SUFFIX)]
    return series + [Series(one.metric.removesuffix(_SUFFIX) + _FORMER_SUFFIX, one.labels, one.value) for one in former]


def _samples(report: Report) -> Iterator[tuple[str, dict[str, str], float | None]]:
    for comparison in (*report.primary, *report.secondary):
        yield from _comparison(comparison)
    for arm, units in report.units.items():
        yield "experiment_units", {"arm": arm}, units
    for guardrail in report.guardrails:
        yield (
            "guardrail_log_e_value",
            {"event": guardrail.event, "treatment": guardrail.treatment},
            guardrail.log_e_value,
        )
    yield "sample_ratio_log_e_value", {}, report.sample_ratio.log_e_value


def _acting(acting: AutomationStatus | None) -> Iterator[tuple[str, dict[str, str], float | None]]:
    if acting is None:
        return
    for state in _STATES:
        yield "experiment_state", {"state": state}, state == acting.state
    if acting.step is not None or acting.next_share is not None:  # else there is no ramp
        yield "experiment_step", {}, acting.step + 1 if acting.step is not None else 0
    yield "experiment_share", {}, acting.share


def _comparison(comparison: Comparison) -> Iterator[tuple[str, dict[str, str], float | None]]:
    labels = {"metric": comparison.metric, "treatment": comparison.treatment}
    for bound in ("estimate", "lower", "upper"):
        yield "experiment_lift", {**labels, "bound": bound}, getattr(comparison.effect, bound)
    yield "experiment_log_e_value", labels, comparison.log_e_value
    for verdict in get_args(Verdict):
        yield "experiment_verdict", {**labels, "verdict": verdict}, verdict == comparison.verdict
