"""Plans, and what is recorded of which endpoint. Pure functions of the configuration."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from app.config.experiment_checks import is_active
from app.config.experiments import Experiment, Guardrail
from app.config.schema import Config, Endpoint
from app.ledger.wire import Plan

NEVER = float("inf")


def plan_of(name: str, endpoint: Endpoint) -> Plan:
    """The plan of an endpoint: its weights, and under an id everything that decides who is assigned, and until when.

    The id is ``<generation>-<8 hex digits>``, of a hash of the canonical JSON: the same on every router.
    """
    generation = endpoint.plan.generation
    content = {"endpoint": name, "generation": generation, **content_of(endpoint)}
    return Plan(name, f"{generation}-{digest_of(content)}", dict(endpoint.traffic))


def content_of(endpoint: Endpoint) -> dict[str, Any]:
    """What a plan says, whichever generation it is, as plain data."""
    plan = endpoint.plan.model_dump(mode="json", include={"overrides", "expires"}, exclude_defaults=True)
    sticky = endpoint.sticky.model_dump(exclude_none=True) if endpoint.sticky is not None else None
    mirror = {"mirror": endpoint.mirror.model_dump(mode="json")} if endpoint.mirror is not None else {}
    return {"sticky": sticky, "weights": dict(endpoint.traffic), **mirror, **plan}


def digest_of(content: Mapping[str, Any]) -> str:
    """8 hex digits of a hash of the canonical JSON."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return hashlib.blake2b(canonical, digest_size=4).hexdigest()


@dataclass(frozen=True)
class Scope:
    """What is recorded of an endpoint's requests.

    `slow` and `unfinished` are the limits, in seconds and rising, at which a request is reported while it runs.
    `changed_at` is when its plan replaced another one here, on the monotonic clock.
    """

    plan: Plan
    slow: tuple[float, ...] = ()
    unfinished: tuple[float, ...] = ()
    changed_at: float | None = None

    @cached_property
    def first_due(self) -> tuple[float, float]:
        """The age at which a whole answer is late first, and a stream."""
        unfinished = min(self.unfinished, default=NEVER)
        return unfinished, min((*self.slow, unfinished))


def scopes(config: Config, changed_at: Mapping[str, float]) -> dict[str, Scope]:
    """By endpoint: those with an active experiment or a mirror, and those with `ledger: always`."""
    active = {it.endpoint: it for it in config.experiments.values() if is_active(it)}
    return {
        name: Scope(plan_of(name, endpoint), *_limits(active.get(name)), changed_at.get(name))
        for name, endpoint in config.endpoints.items()
        if name in active or endpoint.mirror is not None or endpoint.ledger == "always"
    }


def _limits(experiment: Experiment | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if experiment is None:
        return (), ()
    slow = {it.ttft_above_s for it in experiment.guardrails if it.ttft_above_s is not None}
    unfinished = {it.unfinished_above_s for it in experiment.guardrails if it.event == "unfinished"}
    if not unfinished and any(it.metric == "unfinished" for it in (*experiment.primary, *experiment.secondary)):
        unfinished = {Guardrail(event="unfinished").unfinished_above_s}
    return tuple(sorted(slow)), tuple(sorted(unfinished))
