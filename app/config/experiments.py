"""The sections below `experiments`: arms, metrics, guardrails, ramps, ends.

The checks at the end need the endpoints, the deployments and the other experiments, too.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from app.config.base import DeploymentFields, EndpointFields, MetricName, Name, Section, renamed
from app.config.meant import nearest

State = Literal["draft", "running", "paused", "stopped"]
Mode = Literal["ab", "aa"]
Action = Literal["alert", "pause", "rollback"]
Statistic = Literal["geometric_mean", "mean", "p50", "p90", "p95", "p99", "ratio", "proportion"]
Event = Literal["error", "slow", "empty", "truncated", "stalled", "invalid_output", "client_gone", "unfinished"]
EVENTS: tuple[Event, ...] = get_args(Event)
Stratum = Literal["prompt_bytes", "hour", "dialect", "stream", "group"]
Covariate = Literal["history", "first_prompt"]

Fraction = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Percent = Annotated[int, Field(strict=True, ge=0, le=100)]

LATENCIES = ("ttft", "itl", "itl_max", "duration")
TOKEN_COUNTS = ("output_tokens", "prompt_tokens")

STATISTICS: dict[str, tuple[Statistic, ...]] = {
    **{name: ("geometric_mean", "mean", "p50", "p90", "p95", "p99") for name in LATENCIES},
    "tokens_per_second": ("ratio",),
    **{name: ("mean",) for name in TOKEN_COUNTS},
    "cost": ("mean",),
    "goodput": ("proportion",),
    **{name: ("proportion",) for name in EVENTS},
}
"""Every built-in metric's statistics, the default first. The others are the names below `feedback`."""


class Within(Section):
    """The limits within which an answer counts for `goodput`: answered, and both times within these limits."""

    ttft_s: Positive = Field(description="Seconds to the first token.")
    itl_s: Positive = Field(description="Mean seconds between tokens.")


class Metric(Section):
    """A metric, the statistic that is compared, and the smallest effect that matters."""

    metric: MetricName = Field(description="A built-in metric, or a name below `feedback`.")
    statistic: Statistic | None = Field(default=None, description="Default: the first that the metric has.")
    minimal_effect: Fraction = Field(description="Relative: 0.05 is 5 %. For feedback numbers, absolute.")
    within: Within | None = Field(default=None, description="For `goodput`.")
    better: Literal["higher", "lower"] | None = Field(
        default=None, description="For numbers of tokens: which direction is better. Default: neither."
    )

    @model_validator(mode="after")
    def _goodput_has_limits(self) -> Self:
        if (self.metric == "goodput") != (self.within is not None):
            raise ValueError("`goodput` needs `within: {ttft_s, itl_s}`; other metrics take none")
        return self

    @model_validator(mode="after")
    def _only_lengths_have_no_direction(self) -> Self:
        if self.better is not None and self.metric not in TOKEN_COUNTS:
            raise ValueError(f"`better` is for {' and '.join(f'`{name}`' for name in TOKEN_COUNTS)}")
        return self

    @property
    def key(self) -> str:
        """Its name in reports: ``ttft``, or with a statistic that is not the default, ``ttft.p95``."""
        default = STATISTICS.get(self.metric, (None,))[0]
        return self.metric if self.statistic in (None, default) else f"{self.metric}.{self.statistic}"


class FeedbackSettings(Section):
    """A score that callers send for an answer, to `/api/feedback`."""

    type: Literal["boolean", "number"] = Field(default="boolean", description="`number` needs `min` and `max`.")
    min: float | None = Field(default=None, description="The smallest number.")
    max: float | None = Field(default=None, description="The largest number.")
    better: Literal["higher", "lower"] = Field(default="higher", description="Which scores are better.")
    window_s: Positive = Field(
        default=3600.0,
        description="Seconds after a request in which its feedback counts; it counts once they are over.",
    )

    @model_validator(mode="after")
    def _a_number_has_bounds(self) -> Self:
        if self.type == "number" and (self.min is None or self.max is None or not self.min < self.max):
            raise ValueError("`type: number` needs `min` and `max`, with min below max")
        if self.type == "boolean" and (self.min is not None or self.max is not None):
            raise ValueError("`min` and `max` need `type: number`")
        return self


class Guardrail(Section):
    """An event whose rate must not rise, relative to control's (`tolerance`) or absolutely (`max_rate`)."""

    event: Event = Field(description="What is counted, once per unit.")
    tolerance: float = Field(default=1.5, ge=1.0, description="The largest rate allowed, as a multiple of control's.")
    max_rate: Fraction | None = Field(default=None, description="Instead of `tolerance`: the largest rate allowed.")
    ttft_above_s: Positive | None = Field(
        default=None, description="For `slow`: a stream without a first token within these seconds."
    )
    answer_above_s: Positive = Field(
        default=20.0, description="For `slow`: an answer that is not streamed and takes longer than these seconds."
    )
    gap_above_s: Positive = Field(default=5.0, description="For `stalled`: a longer gap between two chunks.")
    unfinished_above_s: Positive = Field(default=600.0, description="For `unfinished`: not ended within these seconds.")
    action: Action = Field(
        default="alert",
        description="What an alarm does: `pause` keeps the weights as they are, `rollback` gives control the "
        "treatment's traffic.",
    )
    one_caller: Literal["alert", "act"] = Field(
        default="alert",
        description="What is done if, among several callers, one alone may have brought about all that was found: "
        "`alert`, or `act` as on any alarm.",
    )

    @model_validator(mode="before")
    @classmethod
    def _counts_events_and_not_a_metric(cls, section: Any) -> Any:
        if isinstance(section, Mapping) and "metric" in section and "event" not in section:
            raise ValueError(f"a guardrail counts an event, and takes no metric; write {_event_meant(section)}")
        return section

    @model_validator(mode="after")
    def _slow_has_a_limit(self) -> Self:
        if (self.event == "slow") != (self.ttft_above_s is not None):
            raise ValueError("`slow` needs `ttft_above_s`; other events take none")
        return self


_LIMITS = {
    "ttft": ("slow", "ttft_above_s"),
    "slow": ("slow", "ttft_above_s"),
    "itl": ("stalled", "gap_above_s"),
    "itl_max": ("stalled", "gap_above_s"),
    "duration": ("unfinished", "unfinished_above_s"),
}
"""The event that a limit on a metric is, and the key of its limit, in seconds."""


def _event_meant(section: Mapping[str, Any]) -> str:
    """The guardrail that one with a `metric` is meant to be, with its first number as the limit."""
    name = str(section["metric"])
    metric = nearest(name, STATISTICS).removeprefix("; did you mean ").removesuffix("?") or name.partition(".")[0]
    event, key = _LIMITS.get(metric, (metric if metric in EVENTS else "error", "max_rate"))
    most = 1 if key == "max_rate" else math.inf
    limits = [limit for limit in section.values() if type(limit) in (int, float) and 0 < limit < most]
    return f"{{event: {event}, {key}: {limits[0] if limits else '…'}}}"


DEFAULT_GUARDRAILS = (
    Guardrail(event="error", action="rollback"),
    Guardrail(event="slow", ttft_above_s=10.0, action="rollback"),
    Guardrail(event="empty", action="rollback"),
    Guardrail(event="unfinished", unfinished_above_s=120.0, action="rollback"),
    Guardrail(event="stalled"),
)


class Ramp(Section):
    """The steps by which the treatments' share grows. Several treatments share a step equally."""

    steps: tuple[Percent, ...] = Field(
        default=(1, 5, 25, 50, 100),
        min_length=1,
        description="Rising percentages of the endpoint's traffic. 100 waits for the decision to ship, too.",
    )
    min_step_s: Positive = Field(default=600.0, description="The shortest time at a step.")
    min_units: int = Field(
        default=100, ge=1, description="The fewest units on each treatment at a step before the next one."
    )
    advance: Literal["quiet", "non_inferior", "better", "manual"] = Field(
        default="quiet", description="What the next step waits for: no alarm, a verdict, or a person."
    )
    cooldown_s: Positive = Field(
        default=86400.0,
        description="The pause after a guardrail's rollback. Then the ramp begins again, at its first step.",
    )

    @model_validator(mode="before")
    @classmethod
    def _takes_former_names(cls, section: Any) -> Any:
        section = renamed(section, {"hold_s": "min_step_s", "freeze_s": "cooldown_s"})
        if isinstance(section, dict) and section.get("advance") == "not_worse":
            section = {**section, "advance": "non_inferior"}
        return section

    @model_validator(mode="after")
    def _steps_rise(self) -> Self:
        if any(after <= before for before, after in zip(self.steps, self.steps[1:], strict=False)):
            raise ValueError("`steps` must rise")
        return self


class HarmBudget(Section):
    """What treatments may cost. At the first limit that is reached, control gets their traffic, and the experiment
    ends.
    """

    units: int | None = Field(default=None, ge=1, description="Units on treatments.")
    errors: int | None = Field(default=None, ge=1, description="Requests that failed on treatments.")
    tokens: int | None = Field(default=None, ge=1, description="Tokens on treatments, of prompts and answers.")


class Experiment(Section):
    """A comparison of an endpoint's deployments."""

    endpoint: str = Field(description="The endpoint whose deployments are compared.")
    control: str = Field(description="The deployment that the others are compared with.")
    treatments: tuple[Name, ...] = Field(min_length=1, description="Deployments, or in mode `aa` labels.")
    state: State = Field(default="running", description="`draft` and `stopped` record and compare nothing.")
    mode: Mode = Field(default="ab", description="`aa` labels units of control's own traffic and routes nothing.")
    alpha: Fraction = Field(default=0.05, description="The chance of any false primary verdict.")
    primary: tuple[Metric, ...] = Field(min_length=1, description="The metrics that decide.")
    secondary: tuple[Metric, ...] = Field(default=(), description="Metrics that are reported but do not decide.")
    feedback: dict[MetricName, FeedbackSettings] = Field(default_factory=dict, description="Scores that callers send.")
    guardrails: tuple[Guardrail, ...] = Field(
        default=DEFAULT_GUARDRAILS,
        description="Events whose rate must not rise. Default: `error`, `slow` (10 s; whole answers 20 s), `empty` and "
        "`unfinished` (120 s) with `rollback`, and `stalled` with `alert`.",
    )
    alpha_guardrails: Fraction = Field(default=0.02, description="The chance of any false guardrail alarm.")
    on_worse: Literal["pause", "rollback"] = Field(
        default="pause", description="The action once a primary metric is worse."
    )
    ramp: Ramp | None = Field(default=None, description="How the treatments' share grows. Default: by hand.")
    holdout: Percent = Field(
        default=0, description="Percent of the endpoint's traffic that keeps control after the last step of `ramp`."
    )
    starts_at: float | None = Field(default=None, description="Unix seconds; earlier requests do not count.")
    max_duration_s: Positive | None = Field(
        default=1209600.0,
        description="The experiment ends after this time, and leaves the traffic as it is. null: it does not.",
    )
    harm_budget: HarmBudget = Field(default=HarmBudget(), description="What treatments may cost.")
    strata: tuple[Stratum, ...] = Field(
        default=("prompt_bytes",),
        description="Strata within which requests are compared, besides the plan's shares. For a unit that comes back: "
        "those of its first request.",
    )
    covariates: tuple[Covariate, ...] = Field(
        default=("history",),
        description="What adjusts results for differences between units that were known before they met their arm: "
        "`history`, the same metric's values of a unit in the week before the run; `first_prompt`, the size of its "
        "first prompt. []: nothing.",
    )
    min_duration_s: Positive = Field(
        default=86400.0,
        description="The earliest promotion, after the start. For nine tenths of it, both arms must have had traffic.",
    )

    @model_validator(mode="before")
    @classmethod
    def _takes_former_names(cls, section: Any) -> Any:
        """`ends` held the duration and the budget."""
        if not isinstance(section, dict) or not isinstance(section.get("ends"), dict):
            return section
        if both := {"max_duration_s", "harm_budget"} & section.keys():
            raise ValueError(f"`ends` is the former name of `max_duration_s` and `harm_budget`; keep only {min(both)}")
        rest, budget = {name: value for name, value in section.items() if name != "ends"}, dict(section["ends"])
        duration = {"max_duration_s": budget.pop("after_s")} if "after_s" in budget else {}
        return {**rest, **duration, "harm_budget": budget}

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """Control first."""
        return (self.control, *self.treatments)


class LedgerSettings(Section):
    """The storage of exposures."""

    url: str = Field(default=".run/ledger", description="A directory, or s3://, gs:// or abfs://.")
    buffer_bytes: int = Field(
        default=64 * 1024 * 1024, ge=64 * 1024, description="What a router buffers while the controller is unreachable."
    )
    retention_days: int = Field(default=30, ge=1, description="Older exposures are deleted.")
    audit_days: int = Field(
        default=400,
        ge=1,
        le=36_500,
        description="Older records of the audit log are deleted, and the oldest above 1 GiB.",
    )


# Problems refuse a configuration; warnings are printed by `switchyard check`. Both are lines, ``path: what; the fix``.

_OF_STREAMS = frozenset({"ttft", "itl", "itl_max", "tokens_per_second", "goodput", "stalled"})
"""Metrics that have values for streamed answers only."""

_EMBEDDINGS = "embeddings"
_NEVER_STREAMED: Mapping[str, str] = {_EMBEDDINGS: "embeddings", "rerank": "scores", "classify": "classes"}
"""Task to the name of its answers."""

ALL = 100
"""The step of a ramp that is a promotion."""


def is_active(experiment: Experiment) -> bool:
    """Whether the experiment occupies its endpoint: it is neither a draft nor stopped."""
    return experiment.state not in ("draft", "stopped")


def experiment_problems(
    experiments: Mapping[str, Experiment],
    endpoints: Mapping[str, EndpointFields],
    deployments: Mapping[str, DeploymentFields],
) -> list[str]:
    """Every reason to refuse the experiments."""
    problems = list(_one_per_endpoint(experiments))
    for name, experiment in experiments.items():
        path = f"experiments.{name}"
        problems += _arm_problems(path, experiment, endpoints, deployments)
        problems += _metric_problems(path, experiment)
        endpoint = endpoints.get(experiment.endpoint)
        if endpoint is not None and _NEVER_STREAMED.keys() >= set(endpoint.tasks):
            problems += _stream_problems(path, experiment, endpoint)
        problems += _price_problems(path, experiment, deployments)
    return problems


def experiment_warnings(experiments: Mapping[str, Experiment], endpoints: Mapping[str, EndpointFields]) -> list[str]:
    """Warnings about settings of active experiments that are valid but rarely intended."""
    warnings: list[str] = []
    for name, experiment in experiments.items():
        endpoint = endpoints[experiment.endpoint]
        if not is_active(experiment):
            continue
        path = f"experiments.{name}"
        warnings += _acting_warnings(path, experiment, endpoint)
        if endpoint.sticky is None and not _NEVER_STREAMED.keys() >= set(endpoint.tasks):
            moved = ", with every step of the ramp, too" if experiment.ramp is not None else ""
            warnings.append(
                f"{path}: '{experiment.endpoint}' has no `sticky`, so that the unit is the request, and a chat's turns "
                f"will change model{moved}; add `sticky: {{by: conversation}}` to the endpoint"
            )
        routed = experiment.arms if experiment.mode == "ab" else (experiment.control,)
        for arm in routed:
            if endpoint.traffic[arm] == 0 and (experiment.ramp is None or arm == experiment.control):
                warnings.append(
                    f"{path}: '{arm}' has 0 % of the traffic of '{experiment.endpoint}', and nothing is compared; "
                    "raise its share, or set `state: draft`"
                )
    return warnings


def _acting_warnings(path: str, experiment: Experiment, endpoint: EndpointFields) -> Iterator[str]:
    """Warnings about automatic actions that cannot happen, or not as the configuration reads."""
    if experiment.mode == "aa":
        if any(
            guardrail.action != "alert"
            for guardrail in experiment.guardrails
            if "guardrails" in experiment.model_fields_set
        ):
            yield f"{path}.guardrails: mode aa routes nothing, so that an alarm is only shown; use `action: alert`"
    elif experiment.ramp is not None:
        yield from _ramp_warnings(path, experiment, experiment.ramp, endpoint)


def _ramp_warnings(path: str, experiment: Experiment, ramp: Ramp, endpoint: EndpointFields) -> Iterator[str]:
    arms = sum(endpoint.traffic[arm] for arm in experiment.arms)
    treated = arms - endpoint.traffic[experiment.control]
    if passed := [step for step in ramp.steps if step < treated]:
        yield (
            f"{path}.ramp.steps: '{experiment.endpoint}' begins with {treated} % on the treatments, so that there are "
            f"no steps to {_listed(passed)} %; lower their `traffic` to {ramp.steps[0]} % or less"
        )
    most = arms - experiment.holdout
    same = [step for step in ramp.steps if step >= most]
    if len(same) > 1:
        yield (
            f"{path}.ramp.steps: treatments get at most {most} % ({arms} % of the traffic is the arms', `holdout` is "
            f"{experiment.holdout}), so that the steps to {_listed(same)} % are the same; keep one of them"
        )
    longest = experiment.max_duration_s
    if longest is None:
        return
    shortest = ramp.min_step_s * (len(ramp.steps) - 1)
    if shortest >= longest:
        yield (
            f"{path}.ramp.min_step_s: the steps take {shortest:g} s at least, and `max_duration_s` ends the experiment "
            f"after {longest:g} s; shorten `min_step_s` or raise `max_duration_s`"
        )
    elif ramp.steps[-1] == ALL and experiment.min_duration_s >= longest:
        yield (
            f"{path}.min_duration_s: all traffic waits for {experiment.min_duration_s:g} s, and `max_duration_s` ends "
            f"the experiment after {longest:g} s; raise `max_duration_s`"
        )


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(str(step) for step in steps)


def _one_per_endpoint(experiments: Mapping[str, Experiment]) -> Iterator[str]:
    active: dict[str, str] = {}
    for name, experiment in experiments.items():
        if not is_active(experiment):
            continue
        first = active.setdefault(experiment.endpoint, name)
        if first != name:
            yield (
                f"experiments.{name}.endpoint: '{experiment.endpoint}' already has the experiment '{first}'; set the "
                "state of one of them to draft or stopped"
            )


def _arm_problems(
    path: str,
    experiment: Experiment,
    endpoints: Mapping[str, EndpointFields],
    deployments: Mapping[str, DeploymentFields],
) -> list[str]:
    """Problems with the endpoint and the arms, which must exist and differ. Their tasks: see `Config`."""
    problems: list[str] = []
    seen = {experiment.control}
    for number, arm in enumerate(experiment.treatments):
        if arm in seen:
            problems.append(f"{path}.treatments[{number}]: '{arm}' is listed twice or is the control; remove it")
        seen.add(arm)
    endpoint = endpoints.get(experiment.endpoint)
    if endpoint is None:
        meant = nearest(experiment.endpoint, endpoints) or f"; known: {', '.join(endpoints)}"
        return [*problems, f"{path}.endpoint: unknown endpoint '{experiment.endpoint}'{meant}"]
    if any(name not in deployments for name in endpoint.traffic):  # which is reported, and may be what an arm means
        return problems
    problems += _outside(f"{path}.control", experiment.control, experiment, endpoint, deployments)
    if experiment.mode == "aa":
        problems += _label_problems(path, experiment, deployments)
        return problems
    for number, arm in enumerate(experiment.treatments):
        problems += _outside(f"{path}.treatments[{number}]", arm, experiment, endpoint, deployments)
    if _EMBEDDINGS in endpoint.tasks:
        problems += _space_problems(path, experiment, deployments)
    return problems


def _outside(
    where: str, arm: str, experiment: Experiment, endpoint: EndpointFields, deployments: Mapping[str, DeploymentFields]
) -> list[str]:
    if arm in endpoint.traffic:
        return []
    behind, meant = ", ".join(endpoint.traffic), "" if arm in deployments else nearest(arm, endpoint.traffic)
    fix = meant or "; add it there, with 0 if it gets none yet"
    return [f"{where}: '{arm}' is not in the traffic of '{experiment.endpoint}' ({behind}){fix}"]


def _label_problems(path: str, experiment: Experiment, deployments: Mapping[str, DeploymentFields]) -> list[str]:
    problems = [
        f"{path}.treatments[{number}]: '{arm}' is a deployment; in mode aa a treatment is a label: choose a new word"
        for number, arm in enumerate(experiment.treatments)
        if arm in deployments
    ]
    if experiment.ramp is not None:
        problems.append(f"{path}.ramp: mode aa routes nothing; remove the ramp")
    return problems


def _space_problems(path: str, experiment: Experiment, deployments: Mapping[str, DeploymentFields]) -> list[str]:
    """Vectors of different spaces must not meet in one index: a share of the queries would find nothing."""
    spaces = {arm: deployments[arm].space_id for arm in experiment.arms if arm in deployments}
    if len(set(spaces.values())) == 1 and None not in spaces.values():
        return []
    named = ", ".join(f"{arm}: {space or 'none'}" for arm, space in spaces.items())
    return [
        f"{path}: the arms of an embeddings endpoint need the same `space_id` ({named}); declare it if they embed into "
        "the same space, or use `mode: aa`"
    ]


def _metrics(experiment: Experiment) -> Iterator[tuple[str, Metric]]:
    """Every metric with its place below the experiment."""
    for role, metrics in (("primary", experiment.primary), ("secondary", experiment.secondary)):
        for number, metric in enumerate(metrics):
            yield f"{role}[{number}]", metric


def _metric_problems(path: str, experiment: Experiment) -> Iterator[str]:
    for name in experiment.feedback:
        if name in STATISTICS:
            yield f"{path}.feedback.{name}: there is a built-in metric of this name; choose another"
    events = {guardrail.event for guardrail in experiment.guardrails}
    seen: dict[tuple[str, str], str] = {}
    for where, metric in _metrics(experiment):
        fits = statistics_of(metric.metric, experiment)
        if metric.metric == "slow" and "slow" not in events:
            yield f"{path}.{where}: `slow` needs a limit; declare the guardrail `{{event: slow, ttft_above_s: …}}`"
        if not fits:
            yield f"{path}.{where}.metric: {_unknown(metric.metric, experiment.feedback)}"
        elif metric.statistic is not None and metric.statistic not in fits:
            yield f"{path}.{where}.statistic: '{metric.metric}' has {', '.join(fits)}; choose one of them"
        else:
            first = seen.setdefault((metric.metric, metric.statistic or fits[0]), where)
            if first != where:
                yield f"{path}.{where}: the same metric and statistic as {first}; remove one"


def _unknown(metric: str, feedback: Iterable[str]) -> str:
    known = [*STATISTICS, *feedback]
    fix = nearest(metric, known) or f"; declare it under feedback (known: {', '.join(known)})"
    return f"unknown metric '{metric}'{fix}"


def unknown_metrics(section: Mapping[str, Any]) -> Iterator[str]:
    """The problems with the names of a section's metrics, where other problems keep it from being an experiment."""
    feedback = section.get("feedback")
    declared = list(feedback) if isinstance(feedback, Mapping) else []
    for role in ("primary", "secondary"):
        metrics = section.get(role)
        for number, metric in enumerate(metrics if isinstance(metrics, list) else ()):
            name = metric.get("metric") if isinstance(metric, Mapping) else None
            if isinstance(name, str) and name not in (*STATISTICS, *declared):
                yield f"{role}[{number}].metric: {_unknown(name, declared)}"


def statistics_of(metric: str, experiment: Experiment) -> Sequence[Statistic]:
    """The statistics that a metric of the experiment has, the default first; none if there is no such metric."""
    if metric in STATISTICS:
        return STATISTICS[metric]
    if (feedback := experiment.feedback.get(metric)) is None:
        return ()
    return ("proportion",) if feedback.type == "boolean" else ("mean",)


def _stream_problems(path: str, experiment: Experiment, endpoint: EndpointFields) -> list[str]:
    answers = " and ".join(_NEVER_STREAMED[task] for task in endpoint.tasks)
    return [
        f"{path}.{where}: '{metric.metric}' has values for streams only, and {answers} are never streamed; use "
        "`duration` or `error`"
        for where, metric in _metrics(experiment)
        if metric.metric in _OF_STREAMS
    ]


def _price_problems(path: str, experiment: Experiment, deployments: Mapping[str, DeploymentFields]) -> Iterator[str]:
    if not any(metric.metric == "cost" for _, metric in _metrics(experiment)):
        return
    for arm in experiment.arms:
        if arm in deployments and deployments[arm].price is None:
            yield (
                f"deployments.{arm}.price: '{path}' compares `cost`; declare "
                "`price: {input_per_million, output_per_million}`"
            )
