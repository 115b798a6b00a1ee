"""The report of an experiment, returned as JSON by the API, rendered as Markdown and as words.

An experiment in one line.
"""

from typing import Any, Literal

import msgspec
from msgspec.structs import force_setattr

from app.config.experiments import Experiment, Stratum

Verdict = Literal["better", "worse", "different", "equivalent", "undecided", "too_early", "invalid"]
"""`different`: of a metric of which neither direction is better."""
Decision = Literal["ship", "do_not_ship", "keep_going", "invalid"]
Better = Literal["higher", "lower", "neither"]
Scale = Literal["relative", "absolute"]
"""Whether an effect is a lift (0.05: 5 % more than control) or a difference in the metric's own unit."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """A treatment against control: the estimate and its confidence sequence; None where there is none yet."""

    estimate: float | None = None
    lower: float | None = None
    upper: float | None = None


def _set_former_name(of: msgspec.Struct) -> None:
    """JSON has the former names for one more version."""
    force_setattr(of, "ln_e", of.log_e_value)  # type: ignore[attr-defined]


class ArmValue(msgspec.Struct, frozen=True, kw_only=True):
    """A metric in one arm, unadjusted: the statistic over its requests, in the metric's own unit."""

    arm: str
    value: float | None
    units: int
    requests: int
    response_rate: float | None = None
    """The share of matured exposures that have any feedback; for feedback only."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one treatment against control."""

    metric: str
    """`app.config.experiments.Metric.key`"""
    statistic: str
    role: Literal["primary", "secondary"]
    treatment: str
    better: Better
    scale: Scale
    minimal_effect: float
    alpha: float
    effect: Effect
    log_e_value: float | None = None
    """The evidence against no difference: the natural logarithm of the e-value."""
    ln_e: float | None = None
    """Deprecated: `log_e_value`."""
    p: float | None = None
    """The always-valid p-value of the latest look: min(1, exp(-log_e_value))."""
    verdict: Verdict
    withheld: Verdict | None = None
    """The verdict on what was measured, where a `doubt` withholds it."""
    doubt: str = ""
    """What else could explain what was measured, in words; empty if nothing could."""
    measured_on: str = ""
    """With a `doubt`, what the effect is about: the requests that have a value."""
    non_inferior: bool = False
    """Whether what was measured is worse by less than the minimal effect, if at all."""
    not_worse: bool = False
    """Deprecated: `non_inferior`."""
    since: float | None = None
    """The time since which every look has had this verdict, a difference or equivalence, in Unix seconds."""
    no_longer: Verdict | None = None
    """The word that an event has told last, where none holds now."""
    looked_at: float | None = None
    """The time whose records the interval and the verdict rest on, in Unix seconds: the report's, unless `outdated`."""
    outdated: bool = False
    """Whether there is more to look at since. Quantiles are looked at once a minute, and a busy controller falls
    behind."""
    reason: str = ""
    """The reason why it is invalid, or why there is no interval."""
    discovery: bool | None = None
    """Whether e-BH keeps it, for secondary metrics: `alpha` and the interval allow for their number, and one that it
    does not keep has no direction."""
    units_needed: int | None = None
    """While undecided: units still needed for 80 % power at the minimal effect; None if requests without an end or a
    value could explain as much."""
    days_needed: float | None = None
    """How long these take at the rate of the run's last quarter, but at most a day and at least ten minutes."""
    design_effect: float | None = None
    """Clustered by unclustered variance; above 2, units and not requests carry the information."""
    variance_ratio: float | None = None
    """The variance of the estimate by what it would be without covariates; None if none adjusts it."""
    event_test: Effect | None = None
    events: dict[str, int] | None = None
    """The events per arm, instead of an interval, for proportions with fewer than 10 events in an arm."""
    without_cold: Effect | None = None
    """The result without the minutes, of both arms, in which any arm had a cold replica."""
    values: list[ArmValue] = []

    def __post_init__(self) -> None:
        _set_former_name(self)
        force_setattr(self, "not_worse", self.non_inferior)

    @property
    def measured(self) -> Verdict:
        """The verdict on what was measured."""
        return self.withheld or self.verdict

    @property
    def counts(self) -> bool:
        """Whether its interval covers the true effect, as certainly as it says: nothing else could explain it."""
        return self.verdict != "invalid" and not self.doubt

    @property
    def key(self) -> str:
        """The key in the journal: the metric and the treatment."""
        return f"{self.metric} {self.treatment}"


class GuardrailStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One guardrail for one treatment."""

    event: str
    treatment: str
    limit: str
    """The limit in words: at most 1.5 times control's rate."""
    action: str
    log_e_value: float
    ln_e: float | None = None
    """Deprecated: `log_e_value`."""
    threshold: float
    detector: float
    """ln of the evidence since a late start, less what the number of starts costs; it alarms at `threshold`, too."""
    alarm: bool
    alarmed_at: float | None = None
    unhealthy: bool = False
    """Control itself exceeds an absolute limit: nothing is to be moved."""
    one_caller: bool = False
    """There is enough evidence, but one caller may have brought it about: it alerts, and moves nothing."""
    events: dict[str, int]
    """The number of distinct units per arm."""
    requests: dict[str, int] = {}
    """The number of requests with the event per arm, of those that have ended."""
    of_requests: dict[str, int] = {}
    """The number of requests per arm that have ended, and that count: the event can happen to them, and they cannot
    have decided about it themselves.
    """
    blind: str = ""
    """How few requests count, in words, if nearly all of them may have decided about the event; empty if enough do."""
    always: int = 0
    """The number of the treatment's units whose first three requests had the event."""
    log_e_value_always: float | None = None
    """ln of the evidence that units always fail because of their arm, from three such units on; it alarms at
    ln(1 / (0.06 alpha_guardrails)), for one treatment.
    """
    detectable: float | None = None
    """The smallest ratio to control that would have raised the alarm by now, in four of five runs."""

    def __post_init__(self) -> None:
        _set_former_name(self)

    @property
    def evidence(self) -> float:
        """The evidence as a share of what raises the alarm. An alarm stays, and so does its evidence: at least 1."""
        return max(self.log_e_value / self.threshold, self.detector / self.threshold, 1.0 if self.alarm else 0.0)


class PlanCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Units by the plan of their first exposure."""

    plan: str
    weights: dict[str, int]
    units: dict[str, int]


class SampleRatio(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the arms' units contradict the weights."""

    log_e_value: float
    ln_e: float | None = None
    """Deprecated: `log_e_value`."""
    alarm: bool
    alarmed_at: float | None = None
    plans: list[PlanCounts]
    attribution: list[str] = []
    """The differences between arms, in words."""
    returns: str = ""
    """How the arms' units differ in how many requests they make, in words; empty without an alarm."""
    returns_compared_at: float | None = None
    """When these numbers were compared, in Unix seconds, if there have been more requests since: they are compared
    again once there are a fiftieth more."""

    def __post_init__(self) -> None:
        _set_former_name(self)


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """Anything that makes verdicts invalid or needs attention; `metric` is set if only that one is invalid,
    `changed_at` if an effect has changed, which was some time before that was found."""

    kind: Literal[
        "sample_ratio",
        "completeness",
        "rows_lost",
        "incomplete",
        "guardrail",
        "standing",
        "endpoint_unhealthy",
        "one_caller",
        "aa",
        "effect_changed",
        "returns",
    ]
    at: float
    text: str
    metric: str | None = None
    changed_at: float | None = None


class ArmDistribution(msgspec.Struct, frozen=True, kw_only=True):
    """`values[i]` is what `shares[i]` of the arm's requests do not exceed, in the metric's own unit and within 2 %;
    empty without requests."""

    arm: str
    requests: int
    values: list[float]


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """A metric over the requests of each arm, unadjusted. It shows where an effect lies, and decides nothing."""

    metric: str
    """ttft, itl, duration (seconds) or output_tokens."""
    shares: list[float]
    """Rising, between 0 and 1."""
    arms: list[ArmDistribution]


class Treated(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic of all treatments together since the run's start: `harm_budget` limits it."""

    units: int = 0
    """Distinct ones; counted up to `harm_budget.units` only."""
    errors: int = 0
    """Requests."""
    tokens: int = 0


class SubgroupEffect(msgspec.Struct, frozen=True, kw_only=True):
    """A primary metric of one treatment against control in one subgroup, and whether that differs from the others."""

    attribute: Stratum
    """What is known of a unit's first request."""
    name: str
    """The subgroup: a dialect, a size, streams or whole answers, a group of callers."""
    metric: str
    treatment: str
    scale: Scale
    units: dict[str, int]
    """Of each arm in the subgroup."""
    effect: Effect
    """In the subgroup."""
    difference: Effect
    """The effect against that in all other units: by how much it is larger, relative for relative effects."""
    log_e_value: float
    """The evidence against the same effect in all other units."""
    differs: bool
    """Whether e-BH keeps it among all subgroups; then the interval of `difference` excludes 0, and else not."""


class Subgroups(msgspec.Struct, frozen=True, kw_only=True):
    """For whom the effect differs. A unit belongs to the subgroups of its first request."""

    looked_at: float
    """The time whose records they rest on, in Unix seconds: the report's, unless `outdated`."""
    outdated: bool
    """Whether there is more to look at since."""
    alpha: float
    """All intervals of effects in subgroups hold together with 1 - alpha, and of the named differences at most the
    share alpha is wrong in the mean."""
    effects: list[SubgroupEffect]
    """Those with enough units; none while requests have no end."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment at one moment. Times are Unix seconds."""

    experiment: str
    endpoint: str
    mode: str
    state: str
    control: str
    treatments: list[str]
    at: float
    started_at: float | None
    decision: Decision
    decisions: dict[str, Decision] = {}
    """The decision on each treatment."""
    withheld: dict[str, list[str]] = {}
    """Per treatment, why it is not shipped: what else could explain what was measured, in words."""
    headline: str
    """One sentence: no-prefix-cache on chat: green is better than blue."""
    details: list[str]
    """The following sentences."""
    next: str
    """The next event, or what to do."""
    plan: str | None = None
    """The endpoint's plan in force; None if it has none any more."""
    weights: dict[str, int]
    """The arms' percentages of the endpoint's traffic now, also after the run's end."""
    units: dict[str, int]
    """Distinct units that have begun: of requests, each is one of `requests`, `running` and `waiting`."""
    requests: dict[str, int]
    """Analysed requests that have ended, and have no earlier one to wait for."""
    running: dict[str, int] = {}
    """Analysed requests that have started and not ended, as far as is known."""
    unknown: dict[str, int] = {}
    """Those of them that may never end: of a router that is gone, or from long ago."""
    waiting: int = 0
    """Analysed requests of all arms that have ended, and wait for an earlier one."""
    treated: Treated = Treated()
    step_units: dict[str, int] = {}
    """Distinct units on each treatment since the present step of `ramp` began; counted up to `ramp.min_units` only."""
    served: dict[str, dict[str, int]]
    """Assigned arm to the deployments that answered, requests each."""
    forced: dict[str, int]
    carried: dict[str, int]
    rows_lost: dict[str, int]
    incomplete: list[str] = []
    """Files of the ledger with records of the run that cannot be read, each with the reason."""
    in_flight: dict[str, float | None]
    """Mean requests in flight on the arm's deployment when one of its requests arrived, on all routers together."""
    replicas: dict[str, float | None] = {}
    """Mean replicas of the arm's deployment; None where they are not known."""
    primary: list[Comparison]
    secondary: list[Comparison]
    subgroups: Subgroups | None = None
    """None before the first look."""
    guardrails: list[GuardrailStatus]
    sample_ratio: SampleRatio
    alarms: list[Alarm]
    warnings: list[str]
    service: list[str] = []
    """What troubles the service that made the report: routers' clocks, its directory. Not about the experiment, and
    known only while it lasts."""
    strata: int
    thinned: float = 1.0
    """The share of units that is kept, below 1 with more than two million lines."""
    distributions: list[Distribution] = []

    @property
    def is_empty(self) -> bool:
        """Whether no request has come yet."""
        return not any(sum(counts.values()) for counts in (self.units, self.requests, self.running, self.rows_lost))


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One stored look."""

    at: float
    effect: Effect
    log_e_value: float | None
    ln_e: float | None = None
    """Deprecated: `log_e_value`."""
    verdict: Verdict

    def __post_init__(self) -> None:
        _set_former_name(self)


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """The sample size for an effect with some power, from the exposures recorded so far."""

    metric: str
    effect: float
    """Relative, or for absolute metrics in their own unit."""
    power: float
    alpha: float
    treatment_share: float
    """The share of this treatment among its units and control's."""
    units: int
    """Units of both arms together, from the start."""
    units_so_far: int
    """Those in strata that both arms have."""
    units_per_day: float | None = None
    days: float | None = None
    """The time from now, at the rate of new units of late, as `days_needed`; 0 if there are enough."""
    design_effect: float | None = None


class FalseVerdicts(msgspec.Struct, frozen=True, kw_only=True):
    """One metric's share of verdicts where there is no difference: recorded units with random labels, many times."""

    metric: str
    runs: int
    looks: int
    """The number in each run."""
    units: int
    sequences: float
    """Share of runs in which a confidence sequence excluded 0 at any look."""
    peeked: float
    """Share of runs in which a t-test, repeated at every look, found p < 0.05."""


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an analysis reports once, for the journal: a verdict that is reached, an alarm."""

    at: float
    kind: str
    """verdict, alarm …"""
    text: str
    detail: dict[str, Any] = {}
    """Further facts, as plain data."""


WORDS: tuple[Verdict, ...] = ("better", "worse", "different", "equivalent")
"""Verdicts that say something about the effect."""

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

HARMS: tuple[Cause, ...] = ("alarm", "worse")
"""The causes that say that a treatment does harm: a guardrail, or a worse primary metric."""


class AutomationStatus(msgspec.Struct, frozen=True, kw_only=True):
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
    """The present revision: `AutomationStatus.revision`."""
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
    """The endpoint's plan in force, of which the arms have the `weights`."""
    weights: dict[str, int] = {}
    units: dict[str, int] = {}
    requests: dict[str, int] = {}
    alarms: int = 0
    alarm_kinds: list[str] = []
    """The kinds of its alarms: sample_ratio, guardrail …"""
    primary: list[PrimaryEffect] = []
    acting: AutomationStatus | None = None
    """None in mode `aa`, and for experiments without evidence."""
    service: list[str] = []
    """What troubles the controller's service, as `Report.service`."""


def summary_of(report: Report, acting: AutomationStatus | None = None) -> Summary:
    """The line of a running experiment."""
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
        plan=report.plan,
        weights=report.weights,
        units=report.units,
        requests=report.requests,
        alarms=len(report.alarms),
        alarm_kinds=sorted({alarm.kind for alarm in report.alarms}),
        primary=[
            PrimaryEffect(
                metric=comparison.metric,
                treatment=comparison.treatment,
                better=comparison.better,
                scale=comparison.scale,
                minimal_effect=comparison.minimal_effect,
                effect=comparison.event_test or comparison.effect,
                verdict=comparison.verdict,
            )
            for comparison in report.primary
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
