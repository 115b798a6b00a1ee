"""The deployment that an endpoint's sticky key reaches, and the reason: `GET /api/endpoints/{endpoint}/assignment`."""

from collections.abc import Set as AbstractSet
from typing import Any

from app.config.schema import Endpoint, Sticky
from app.errors import BadRequest
from app.exchange.snapshot import LiveRouting
from app.exposures.plans import plan_of
from app.routing.rules import effective
from app.routing.traffic import alternatives_to, rendezvous, scores


def explain(
    name: str,
    endpoint: Endpoint,
    key: str | None,
    *,
    unit: int | None,
    failing: AbstractSet[str],
    override: str | None = None,
    now: LiveRouting = LiveRouting(),  # noqa: B008  it is not changed
) -> dict[str, Any]:
    """The deployment that would answer a request with the sticky key `key`, in the plan that is in force.

    `unit` is the key's hash in the ledger, None to leave it out. `failing` are the deployments whose breaker is open:
    they are assigned all the same, and replaced if another one can answer (`reason` is ``failover``). `override` is the
    deployment that the plan gives this key. `now` is this router's state that decides apart from the weights: a running
    conversation may keep another deployment than a new one.

    Raises BadRequest, naming ``key``, if a sticky endpoint gets no key, or one that is not sticky gets one.
    """
    traffic = endpoint.traffic
    stops = now.stops if failing.isdisjoint(now.stops.values()) else {}
    if endpoint.sticky is None:
        if key is not None:
            raise BadRequest(f"key: '{name}' is not sticky, so that no key decides who answers", param="key")
        why = "The endpoint is not sticky: every request is drawn by the weights, and is a separate unit."
        assigned, points = None, {}
    elif not key:
        raise BadRequest(f"key: name {_what(endpoint.sticky)}", param="key")
    else:
        points, assigned = scores(key, traffic), rendezvous(key, traffic)
        why = f"Of all deployments, {assigned} has the highest score for this key, weighted by its share."
        if override is not None:
            assigned, why = (
                override,
                f"The plan has an override: {override} answers this key, regardless of the weights.",
            )
    if assigned is not None and assigned in stops:
        why += f" But {assigned} is stopped: {stops[assigned]} answers in its place."
        assigned = stops[assigned]
    elif assigned is not None and assigned in now.stops:
        why += f" It is stopped, but answers until the circuit breaker of {now.stops[assigned]} has closed."
    if now.until is not None and assigned is not None:
        why += " A conversation that started before the last change of traffic keeps its deployment for now."
    reason = "override" if override is not None else "sticky" if assigned is not None else "traffic"
    if assigned is not None and assigned in failing:
        others = alternatives_to(endpoint.fallback, effective(traffic, stops), assigned, stops)
        if failing >= set(others):
            why += " Its circuit breaker is open, but no other deployment can answer."
        else:
            reason = "failover"
            why += " Its circuit breaker is open: until it closes, another deployment answers."
    return {
        "endpoint": name,
        "deployment": assigned,
        "reason": reason,
        "why": why,
        "plan": plan_of(name, endpoint, stops).id,
        "sticky": endpoint.sticky.model_dump(exclude_none=True) if endpoint.sticky is not None else None,
        "unit": f"{unit:016x}" if unit is not None else None,
        "stops": [{"deployment": it, "control": control, "applied": it in stops} for it, control in now.stops.items()],
        "pins": {"conversations": sum(now.pins.values()), "until": now.until} if now.until is not None else None,
        "deployments": [
            {"deployment": it, "weight": weight, "score": points.get(it), "breaker_open": it in failing}
            for it, weight in traffic.items()
        ],
    }


def _what(sticky: Sticky) -> str:
    """A description of the sticky key."""
    if sticky.by == "header":
        return f"a value of the header {sticky.name}"
    return {
        "user": "a user, as in the request's field",
        "api_key": "an API key",
        "conversation": "a conversation, as in the header x-session-id",
    }[sticky.by]
