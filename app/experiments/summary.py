"""An experiment in one line."""

import msgspec

from app.config.experiments import Experiment
from app.experiments.report import Decision, Report


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What `GET /api/experiments` lists. Without evidence, there is neither a decision nor a plan."""

    experiment: str
    endpoint: str
    mode: str
    state: str
    control: str
    treatments: list[str]
    headline: str
    decision: Decision | None = None
    next: str = ""
    started_at: float | None = None
    plan: str | None = None
    """The plan of the latest first exposures."""
    weights: dict[str, int] = {}
    units: dict[str, int] = {}
    requests: dict[str, int] = {}
    alarms: int = 0


def summary_of(report: Report) -> Summary:
    """The line of a running experiment."""
    plans = report.sample_ratio.plans
    return Summary(
        experiment=report.experiment,
        endpoint=report.endpoint,
        mode=report.mode,
        state=report.state,
        control=report.control,
        treatments=report.treatments,
        headline=report.headline,
        decision=report.decision,
        next=report.next,
        started_at=report.started_at,
        plan=plans[-1].plan if plans else None,
        weights=report.weights,
        units=report.units,
        requests=report.requests,
        alarms=len(report.alarms),
    )


def summary_without_evidence(name: str, experiment: Experiment) -> Summary:
    """The line of an experiment that has not begun."""
    return Summary(
        experiment=name,
        endpoint=experiment.endpoint,
        mode=experiment.mode,
        state=experiment.state,
        control=experiment.control,
        treatments=list(experiment.treatments),
        headline=f"{name} on {experiment.endpoint}: no evidence, {experiment.state}.",
    )
