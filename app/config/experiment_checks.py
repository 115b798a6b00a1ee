"""Checks of experiments that need the endpoints, the deployments and the other experiments.

Problems refuse a configuration; warnings are printed by `switchyard check`. Both are lines, ``path: what; the fix``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from app.config.experiments import STATISTICS, Experiment, Metric, Ramp, Statistic

_OF_STREAMS = frozenset({"ttft", "itl", "itl_max", "tokens_per_second", "goodput", "stalled"})
"""Metrics that have values for streamed answers only."""

_EMBEDDINGS = "embeddings"
_NEVER_STREAMED: Mapping[str, str] = {_EMBEDDINGS: "embeddings", "rerank": "scores", "classify": "classes"}
"""Task to the name of its answers."""

ALL = 100
"""The step of a ramp that is a promotion."""


class Endpoint(Protocol):
    """The part of `schema.Endpoint` that the checks read."""

    @property
    def tasks(self) -> Sequence[str]: ...
    @property
    def traffic(self) -> Mapping[str, int]: ...
    @property
    def sticky(self) -> object: ...


class Deployment(Protocol):
    """The part of `schema.Deployment` that the checks read."""

    @property
    def price(self) -> object: ...
    @property
    def space_id(self) -> str | None: ...


def is_active(experiment: Experiment) -> bool:
    """Whether the experiment occupies its endpoint: it is neither a draft nor stopped."""
    return experiment.state not in ("draft", "stopped")


def experiment_problems(
    experiments: Mapping[str, Experiment], endpoints: Mapping[str, Endpoint], deployments: Mapping[str, Deployment]
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


def experiment_warnings(experiments: Mapping[str, Experiment], endpoints: Mapping[str, Endpoint]) -> list[str]:
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


def _acting_warnings(path: str, experiment: Experiment, endpoint: Endpoint) -> Iterator[str]:
    """Warnings about automatic actions that cannot happen, or not as the configuration reads."""
    if experiment.mode == "aa":
        if any(it.action != "alert" for it in experiment.guardrails if "guardrails" in experiment.model_fields_set):
            yield f"{path}.guardrails: mode aa routes nothing, so that an alarm is only shown; use `action: alert`"
    elif experiment.ramp is not None:
        yield from _ramp_warnings(path, experiment, experiment.ramp, endpoint)


def _ramp_warnings(path: str, experiment: Experiment, ramp: Ramp, endpoint: Endpoint) -> Iterator[str]:
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
    path: str, experiment: Experiment, endpoints: Mapping[str, Endpoint], deployments: Mapping[str, Deployment]
) -> list[str]:
    """Problems with the endpoint and the arms, which must exist and differ. Their tasks: see `Config`."""
    problems: list[str] = []
    seen = {experiment.control}
    for number, arm in enumerate(experiment.treatments):
        if arm in seen:
            problems.append(f"{path}.treatments.{number}: '{arm}' is listed twice or is the control; remove it")
        seen.add(arm)
    endpoint = endpoints.get(experiment.endpoint)
    if endpoint is None:
        known = ", ".join(endpoints)
        return [*problems, f"{path}.endpoint: unknown endpoint '{experiment.endpoint}'; known: {known}"]
    problems += _outside(f"{path}.control", experiment.control, experiment.endpoint, endpoint)
    if experiment.mode == "aa":
        problems += _label_problems(path, experiment, deployments)
        return problems
    for number, arm in enumerate(experiment.treatments):
        problems += _outside(f"{path}.treatments.{number}", arm, experiment.endpoint, endpoint)
    if _EMBEDDINGS in endpoint.tasks:
        problems += _space_problems(path, experiment, deployments)
    return problems


def _outside(where: str, arm: str, name: str, endpoint: Endpoint) -> list[str]:
    if arm in endpoint.traffic:
        return []
    behind = ", ".join(endpoint.traffic)
    return [f"{where}: '{arm}' is not in the traffic of '{name}' ({behind}); add it there, with 0 if it gets none yet"]


def _label_problems(path: str, experiment: Experiment, deployments: Mapping[str, Deployment]) -> list[str]:
    problems = [
        f"{path}.treatments.{number}: '{arm}' is a deployment, and in mode aa a treatment is a label; choose a new word"
        for number, arm in enumerate(experiment.treatments)
        if arm in deployments
    ]
    if experiment.ramp is not None:
        problems.append(f"{path}.ramp: mode aa routes nothing; remove the ramp")
    return problems


def _space_problems(path: str, experiment: Experiment, deployments: Mapping[str, Deployment]) -> list[str]:
    """Vectors of different spaces must not meet in one index: a share of the queries would find nothing."""
    spaces = {arm: deployments[arm].space_id for arm in experiment.arms if arm in deployments}
    if len(set(spaces.values())) == 1 and None not in spaces.values():
        return []
    found = ", ".join(f"{arm}: {space or 'none'}" for arm, space in spaces.items())
    return [
        f"{path}: the arms of an embeddings endpoint need the same `space_id` ({found}); declare it if they embed into "
        "the same space, or use `mode: aa`"
    ]


def _metrics(experiment: Experiment) -> Iterator[tuple[str, Metric]]:
    """Every metric with its place below the experiment."""
    for role, metrics in (("primary", experiment.primary), ("secondary", experiment.secondary)):
        for number, metric in enumerate(metrics):
            yield f"{role}.{number}", metric


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
            known = ", ".join([*STATISTICS, *experiment.feedback])
            yield f"{path}.{where}.metric: unknown metric '{metric.metric}'; declare it under feedback (known: {known})"
        elif metric.statistic is not None and metric.statistic not in fits:
            yield f"{path}.{where}.statistic: '{metric.metric}' has {', '.join(fits)}; choose one of them"
        else:
            first = seen.setdefault((metric.metric, metric.statistic or fits[0]), where)
            if first != where:
                yield f"{path}.{where}: the same metric and statistic as {first}; remove one"


def statistics_of(metric: str, experiment: Experiment) -> Sequence[Statistic]:
    """The statistics that a metric of the experiment has, the default first; none if there is no such metric."""
    if metric in STATISTICS:
        return STATISTICS[metric]
    if (feedback := experiment.feedback.get(metric)) is None:
        return ()
    return ("proportion",) if feedback.type == "boolean" else ("mean",)


def _stream_problems(path: str, experiment: Experiment, endpoint: Endpoint) -> list[str]:
    answers = " and ".join(_NEVER_STREAMED[task] for task in endpoint.tasks)
    return [
        f"{path}.{where}: '{metric.metric}' has values for streams only, and {answers} are never streamed; use "
        "`duration` or `error`"
        for where, metric in _metrics(experiment)
        if metric.metric in _OF_STREAMS
    ]


def _price_problems(path: str, experiment: Experiment, deployments: Mapping[str, Deployment]) -> Iterator[str]:
    if not any(metric.metric == "cost" for _, metric in _metrics(experiment)):
        return
    for arm in experiment.arms:
        if arm in deployments and deployments[arm].price is None:
            yield (
                f"deployments.{arm}.price: '{path}' compares `cost`; declare "
                "`price: {input_per_million, output_per_million}`"
            )
