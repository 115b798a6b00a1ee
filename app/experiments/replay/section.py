"""The experiment that judges a replay."""

from collections.abc import Mapping, Sequence

from app.config.experiments import DEFAULT_GUARDRAILS, STATISTICS, Experiment, Guardrail, Metric
from app.config.schema import Config
from app.experiments.stand_in import evenly, stand_in
from app.request_recordings.recorder import RecordedRequest

NAME = "replay"
"""The experiment's name, unless it is one of a configuration."""

PAIR_HEADER = "x-switchyard-pair"
"""The nominal `sticky` of a replay's endpoint: a unit is one recorded request, answered by every arm."""

_STREAMED = ("ttft", "itl", "tokens_per_second", "duration")
_WHOLE = ("duration",)
_AT_ONCE = 0.001
"""Seconds: a replay has no rhythm of days that a verdict would have to wait for."""


class NothingToCompare(ValueError):
    """The experiment has no metric that a replay can have."""


def section_of(arms: Sequence[str], requests: Sequence[RecordedRequest], declared: Experiment | None) -> Experiment:
    """The section for a replay on these arms, control first. `declared`: the experiment whose metrics it takes.

    Without one: the time to the first token, or of recordings without streams the duration, at 5 %. Users' feedback is
    left out, and guardrails only alert. Raises NothingToCompare.
    """
    endpoint = requests[0].endpoint
    common = {"endpoint": endpoint, "control": arms[0], "treatments": tuple(arms[1:]), "min_duration_s": _AT_ONCE}
    if declared is None:
        first, *others = _STREAMED if any(it.stream for it in requests) else _WHOLE
        secondary = tuple(_metric(name) for name in (*others, "error"))
        return Experiment(
            primary=(_metric(first),), secondary=secondary, guardrails=_alerts(DEFAULT_GUARDRAILS), **common
        )
    primary = tuple(it for it in declared.primary if it.metric in STATISTICS)
    if not primary:
        raise NothingToCompare("every primary metric is users' feedback, and a replay has no users")
    return Experiment(
        primary=primary,
        secondary=tuple(it for it in declared.secondary if it.metric in STATISTICS),
        alpha=declared.alpha,
        alpha_guardrails=declared.alpha_guardrails,
        guardrails=_alerts(declared.guardrails),
        strata=declared.strata,
        **common,
    )


def _alerts(guardrails: Sequence[Guardrail]) -> tuple[Guardrail, ...]:
    return tuple(it.model_copy(update={"action": "alert"}) for it in guardrails)


def config_of(
    name: str, experiment: Experiment, ledger: str, *, prices: Mapping[str, object] | None = None, total_s: float
) -> Config:
    """The configuration of the replay's router and controller. Raises ConfigError."""
    sticky = {"by": "header", "name": PAIR_HEADER}
    return stand_in(
        name,
        experiment,
        traffic=evenly(experiment.arms),
        sticky=sticky,
        prices=prices,
        ledger=ledger,
        total_s=total_s,
    )


def _metric(name: str) -> Metric:
    return Metric(metric=name, minimal_effect=0.05)
