"""Plans, and the scope of recording for each endpoint. Pure functions of the configuration."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from app.config.endpoints import Mirror
from app.config.experiments import Experiment, Guardrail, is_active
from app.config.schema import Config, Endpoint
from app.exposures.wire import Plan
from app.routing.rules import NO_STOPS, effective, with_share

NEVER = float("inf")


def plan_of(name: str, endpoint: Endpoint, stops: Mapping[str, str] = NO_STOPS) -> Plan:
    """The plan of an endpoint: its weights, and, identified by an id, everything that decides the assignment, and until
    when.

    The id is ``<generation>-<8 hex digits>``, of a hash of the canonical JSON: the same on every router. `stops`: the
    endpoint's stopped deployments, each with the one that gets its share; those without a share change nothing.
    """
    generation = endpoint.plan.generation
    content = {"endpoint": name, "generation": generation, **content_of(endpoint)}
    if biting := with_share(endpoint.traffic, stops):
        content["stops"] = dict(biting)
    return Plan(name, f"{generation}-{digest_of(content)}", effective(endpoint.traffic, stops))


def generation_of(id: str) -> int:
    """The generation in a plan's id; 0 if it has none."""
    generation = id.partition("-")[0]
    return int(generation) if generation.isdecimal() else 0


def content_of(endpoint: Endpoint) -> dict[str, Any]:
    """A plan's content without its generation, as plain data."""
    plan = endpoint.plan.model_dump(mode="json", include={"overrides", "expires"}, exclude_defaults=True)
    sticky = endpoint.sticky.model_dump(exclude_none=True) if endpoint.sticky is not None else None
    mirror = {"mirror": endpoint.mirror.model_dump(mode="json")} if endpoint.mirror is not None else {}
    return {"sticky": sticky, "weights": dict(endpoint.traffic), **mirror, **plan}


def digest_of(content: Mapping[str, Any]) -> str:
    """8 hex digits of a hash of the canonical JSON."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return hashlib.blake2b(canonical, digest_size=4).hexdigest()


@dataclass(frozen=True)
class RecordingScope:
    """The scope of recording for an endpoint's requests.

    `slow` (streams), `answers` (whole ones) and `unfinished` (both) are the limits, in seconds and rising, at which a
    request is reported while it runs.
    `carried_until` is the time until which its conversations may have started under another plan, in Unix seconds;
    None: no plan was replaced. Until `settles_at`, all of its requests may.
    """

    plan: Plan
    slow: tuple[float, ...] = ()
    answers: tuple[float, ...] = ()
    unfinished: tuple[float, ...] = ()
    carried_until: float | None = None
    mirror: Mirror | None = None
    settles_at: float = 0.0

    @cached_property
    def first_due(self) -> tuple[float, float]:
        """The age at which a whole answer is late first, and a stream."""
        unfinished = min(self.unfinished, default=NEVER)
        return min((*self.answers, unfinished)), min((*self.slow, unfinished))


def plans_of(config: Config, stops: Mapping[str, Mapping[str, str]] | None = None) -> dict[str, Plan]:
    """Every endpoint's plan. `stops`: by endpoint, where there are any."""
    return {
        name: plan_of(name, endpoint, (stops or {}).get(name, NO_STOPS)) for name, endpoint in config.endpoints.items()
    }


def scopes(
    config: Config, plans: Mapping[str, Plan], carried_until: Mapping[str, float], settles: Mapping[str, float] = {}
) -> dict[str, RecordingScope]:
    """The scopes of recorded endpoints, by endpoint: those with an active experiment or a mirror, and those with
    `ledger: always`. The arguments are by endpoint, too.
    """
    active = {experiment.endpoint: experiment for experiment in config.experiments.values() if is_active(experiment)}
    return {
        name: RecordingScope(
            plans[name],
            *_limits(active.get(name)),
            carried_until.get(name),
            endpoint.mirror,
            settles.get(name, 0.0),
        )
        for name, endpoint in config.endpoints.items()
        if name in active or endpoint.mirror is not None or endpoint.ledger == "always"
    }


def _limits(experiment: Experiment | None) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    if experiment is None:
        return (), (), ()
    slow = {guardrail.ttft_above_s for guardrail in experiment.guardrails if guardrail.ttft_above_s is not None}
    answers = {guardrail.answer_above_s for guardrail in experiment.guardrails if guardrail.event == "slow"}
    unfinished = {
        guardrail.unfinished_above_s for guardrail in experiment.guardrails if guardrail.event == "unfinished"
    }
    if not unfinished and any(metric.metric == "unfinished" for metric in (*experiment.primary, *experiment.secondary)):
        unfinished = {Guardrail(event="unfinished").unfinished_above_s}
    return tuple(sorted(slow)), tuple(sorted(answers)), tuple(sorted(unfinished))
