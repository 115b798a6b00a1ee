"""The overview as a document: pure functions of the configuration and of the counts."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from app.config.experiments import is_active
from app.config.schema import Config, Endpoint
from app.control_plane import Replicas
from app.exposures.plans import plan_of
from app.telemetry.recent import Arm, Counts, Distribution, Window


class Present(NamedTuple):
    """The present state. `stops`: the stopped deployments of each endpoint. `replicas`: None if unknown."""

    in_flight: Mapping[Arm, int]
    queued: Mapping[str, int]
    open_breakers: Collection[str]
    stops: Mapping[str, Collection[str]]
    replicas: Replicas | None


def endpoints_document(
    config: Config, window: Window, present: Present, operated: Collection[str]
) -> list[dict[str, Any]]:
    """Every endpoint of `config`, which is what the caller may see. `operated`: those that it may operate."""
    return [
        {**_endpoint(name, endpoint, config, window, present), "may_operate": name in operated}
        for name, endpoint in config.endpoints.items()
    ]


def _endpoint(name: str, endpoint: Endpoint, config: Config, window: Window, present: Present) -> dict[str, Any]:
    shadow = [endpoint.mirror.deployment] if endpoint.mirror is not None else []
    arms = [
        it for it in dict.fromkeys([*endpoint.traffic, *(endpoint.fallback or ()), *shadow]) if it in config.deployments
    ]
    counted = {arm: window.counts.get((name, arm), Counts()) for arm in arms}
    drawn = sum(it.drawn for it in counted.values())
    experiments = [it for it, section in config.experiments.items() if section.endpoint == name and is_active(section)]
    unanswered = window.counts.get((name, ""), Counts())
    return {
        "endpoint": name,
        "tasks": list(endpoint.tasks),
        "sticky": endpoint.sticky.model_dump(exclude_none=True) if endpoint.sticky is not None else None,
        "plan": plan_of(name, endpoint).id,
        "generation": endpoint.plan.generation,
        "experiment": experiments[0] if experiments else None,
        "requests_per_s": _rate(sum(it.requests for it in counted.values()) + unanswered.requests, window),
        "refused": int(unanswered.refused),
        "queued": present.queued.get(name, 0),
        "deployments": [
            {
                **_deployment(counted[arm], drawn, window),
                "deployment": arm,
                "model": config.deployments[arm].model,
                "role": _role(arm, endpoint),
                "weight": endpoint.traffic.get(arm, 0),
                "in_flight": present.in_flight.get((name, arm), 0),
                "breaker": "open" if arm in present.open_breakers else "closed",
                "stopped": arm in present.stops.get(name, ()),
                "replicas": _replicas(arm, config, present.replicas),
            }
            for arm in arms
        ],
    }


def _role(name: str, endpoint: Endpoint) -> str:
    if name in endpoint.traffic:
        return "traffic"
    return "fallback" if name in (endpoint.fallback or ()) else "mirror"


def _deployment(counts: Counts, drawn: float, window: Window) -> dict[str, Any]:
    return {
        "share": round(counts.drawn / drawn, 4) if drawn > 0 else None,
        "diverted": int(counts.diverted),
        "requests": int(counts.requests),
        "requests_per_s": _rate(counts.requests, window),
        "errors": int(counts.errors),
        "refused": int(counts.refused),
        "first_token_s": _quantiles(counts.first_token),
        "inter_token_s": _quantiles(counts.inter_token),
        "output_tokens_per_s": _rate(counts.output_tokens, window),
    }


def _rate(count: float, window: Window) -> float | None:
    return round(count / window.seconds, 3) if window.seconds > 0 else None


def _quantiles(found: Distribution) -> dict[str, float] | None:
    median, high = found.quantile(0.5), found.quantile(0.95)
    return None if median is None or high is None else {"p50": round(median, 4), "p95": round(high, 4)}


def _replicas(name: str, config: Config, found: Replicas | None) -> dict[str, int] | None:
    """The states of a deployment's replicas; None if it is served elsewhere, or if they are unknown."""
    app = config.deployments[name].app
    return dict(found.applications.get(app, {})) if found is not None and app is not None else None
