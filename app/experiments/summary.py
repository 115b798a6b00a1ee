"""An experiment in one line."""

from typing import Literal

import msgspec

from app.config.experiments import Experiment
from app.experiments.report import Better, Decision, Effect, Report, Scale, Verdict

Cause = Literal[
    "",
    "alarm",
    "worse",
    "decision",
    "superseded",
    "harm",
    "ended",
    "promoted",
    "sample_ratio",
    "rows_lost",
    "incomplete",
    "completeness",
    "effect_changed",
    "returns",
    "file",
]
"""The reason why an experiment is paused, stopped or held."""


class Acting(msgspec.Struct, frozen=True, kw_only=True):
    """The state of acting on the evidence. Times are Unix seconds."""

    state: Literal["running", "paused", "stopped"]
    revision: int
    """Rises with every step, decision and stop: the experiment's ETag."""
    cause: Cause = ""
    """The reason why it is paused, stopped or held."""
    text: str = ""
    """The same in a sentence."""
    by: str | None = None
    """The author of the decision."""
    step: int | None = None
    """Index into `ramp.steps`; None without a ramp."""
    share: int = 0
    """Percent of the traffic that treatments have."""
    next_share: int | None = None
    """Their share at the ramp's next step; None: it is at its end."""
    waits_for: list[str] = []
    """The conditions that the next step waits for, a sentence each."""
    until: float | None = None
    """The time at which a cooldown ends."""
    stopped: list[str] = []
    """Deployments whose stop is in force."""


class PrimaryEffect(msgspec.Struct, frozen=True, kw_only=True):
    """A primary metric of one treatment against control, as a list shows it."""

    metric: str
    treatment: str
    better: Better
    scale: Scale
    minimal_effect: float
    effect: Effect
    verdict: Verdict


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """The consequences of a decision, if it were made now."""

    revision: int
    """The present revision: `Acting.revision`."""
    state: Literal["running", "paused", "stopped"]
    """The experiment's state after it."""
    before: dict[str, int]
    """The arms' weights, in percent of the endpoint's traffic."""
    after: dict[str, int]
    """The same, once the control plane has made the change."""
    stopped: list[str]
    """Deployments that get nothing at once, before that."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of `GET /api/experiments`. Without evidence, there is neither a decision nor a plan."""

    experiment: str
    endpoint: str
    mode: str
    state: str
    control: str
    treatments: list[str]
    headline: str
    decision: Decision | None = None
    decisions: dict[str, Decision] = {}
    """The decision on each treatment."""
    next: str = ""
    started_at: float | None = None
    plan: str | None = None
    """The plan of the latest first exposures."""
    weights: dict[str, int] = {}
    units: dict[str, int] = {}
    requests: dict[str, int] = {}
    alarms: int = 0
    alarm_kinds: list[str] = []
    """The kinds of its alarms: sample_ratio, guardrail …"""
    primary: list[PrimaryEffect] = []
    acting: Acting | None = None
    """None in mode `aa`, and for experiments without evidence."""


def summary_of(report: Report, acting: Acting | None = None) -> Summary:
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
        decisions=report.decisions,
        next=report.next,
        started_at=report.started_at,
        plan=plans[-1].plan if plans else None,
        weights=report.weights,
        units=report.units,
        requests=report.requests,
        alarms=len(report.alarms),
        alarm_kinds=sorted({it.kind for it in report.alarms}),
        primary=[
            PrimaryEffect(
                metric=it.metric,
                treatment=it.treatment,
                better=it.better,
                scale=it.scale,
                minimal_effect=it.minimal_effect,
                effect=it.effect,
                verdict=it.verdict,
            )
            for it in report.primary
        ],
        acting=acting,
    )


def summary_without_evidence(name: str, experiment: Experiment) -> Summary:
    """The line of an experiment that has not started."""
    return Summary(
        experiment=name,
        endpoint=experiment.endpoint,
        mode=experiment.mode,
        state=experiment.state,
        control=experiment.control,
        treatments=list(experiment.treatments),
        headline=f"{name} on {experiment.endpoint}: no evidence, {experiment.state}.",
    )
