"""The plans of endpoints, numbered and kept in the journal, including those that a file delivered."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from msgspec.structs import replace

from app.config.endpoints import MAX_EARLIER, PlanSettings
from app.config.schema import Config, Endpoint
from app.experiments.storage.entry import Entry
from app.exposures.plans import content_of, digest_of, plan_of
from app.exposures.wire import Replaced
from app.routing.rules import moved_on, same

KIND = "plan"


class PlanEntry(msgspec.Struct, frozen=True):
    """One plan in an endpoint's history."""

    endpoint: str
    generation: int
    """Its number. A plan that came with a file has the next one here, and 0 in its id."""
    plan: str
    """Its id, as `x-switchyard-plan` has it."""
    weights: dict[str, int]
    since: float
    """The time at which it was made, or first seen by the controller, in Unix seconds."""
    by: str | None = None
    """The caller who made it; None: it came with a file."""
    reason: str | None = None
    overrides: int = 0
    """The number of units with an override. The units themselves are not stored: the journal is never
    deleted.
    """
    expires: float | None = None
    """The time at which it ends, in Unix seconds."""
    content: str = ""
    """A hash of its content: equal for plans with the same content."""
    withdrawn: dict[str, str] = {}
    """Deployments that running conversations leave by it, each with the one that gets them."""


def new_plans(entries: Sequence[Entry], config: Config, now: float) -> list[Entry]:
    """Entries about the plans of `config` that the journal lacks.

    A plan with the same content as the last one keeps its number.
    """
    last = {it.endpoint: it for it in _plans(entries)}
    return [
        Entry(now, KIND, None, msgspec.to_builtins(new))
        for name, endpoint in config.endpoints.items()
        if (new := _next(name, endpoint, last.get(name), now)) is not None
    ]


def history(entries: Iterable[Entry], endpoint: str) -> list[PlanEntry]:
    """The endpoint's plans, the latest first."""
    return [it for it in _plans(entries) if it.endpoint == endpoint][::-1]


def replaced(entries: Iterable[Entry], config: Config) -> list[Replaced]:
    """Weights that running conversations follow by the journal, where the present plan does not list all of them: it
    came with a file, or after one. The journal must have the plans of `config`.

    As on routers that see the changes, the time starts again with each, for all weights that are still followed.
    """
    plans: dict[str, list[PlanEntry]] = {}
    for it in _plans(entries):
        plans.setdefault(it.endpoint, []).append(it)
    found: list[Replaced] = []
    for name, endpoint in config.endpoints.items():
        if endpoint.sticky is not None and endpoint.pin_s > 0:
            followed = _followed(name, plan_of(name, endpoint).id, plans.get(name, []), endpoint.pin_s)
            if not all(_is_listed(it, endpoint.plan) for it in followed):
                found += followed
    return found


def _is_listed(replaced: Replaced, plan: PlanSettings) -> bool:
    return any(
        same(it.weights, replaced.weights) and replaced.withdrawn.keys() <= {**it.withdrawn, **plan.withdrawn}.keys()
        for it in plan.earlier
    )


def _followed(name: str, id: str, plans: Sequence[PlanEntry], pin_s: float) -> list[Replaced]:
    """The weights before the last of an endpoint's plans that are followed when that is made, the oldest first."""
    found: list[Replaced] = []
    for before, plan in pairwise(plans):
        if not same(before.weights, plan.weights):
            until = plan.since + pin_s
            found = [replace(it, until=until) for it in found if it.until > plan.since]
            if not any(same(it.weights, before.weights) and not it.withdrawn for it in found):
                found.append(Replaced(name, id, before.weights, until))
        if plan.withdrawn:
            found = [replace(it, withdrawn=moved_on(it.withdrawn, plan.withdrawn)) for it in found]
    return found[-MAX_EARLIER:]


def _next(name: str, endpoint: Endpoint, last: PlanEntry | None, now: float) -> PlanEntry | None:
    id, plan, content = plan_of(name, endpoint).id, endpoint.plan, digest_of(content_of(endpoint))
    if last is not None and last.plan == id:
        return None
    generation = plan.generation
    if last is not None and last.content == content and plan.generation <= last.generation:
        generation = last.generation
    elif last is not None:
        generation = max(plan.generation, last.generation + 1)
    expires = plan.expires.at if plan.expires is not None else None
    since = plan.since if plan.since is not None else now
    weights, overrides = dict(endpoint.traffic), len(plan.overrides)
    by, reason, withdrawn = plan.by, plan.reason, dict(plan.withdrawn)
    return PlanEntry(name, generation, id, weights, since, by, reason, overrides, expires, content, withdrawn)


def _plans(entries: Iterable[Entry]) -> list[PlanEntry]:
    """Each plan once, though two controllers have seen it."""
    found: dict[tuple[str, int, str], PlanEntry] = {}
    for entry in entries:
        if entry.kind == KIND and (plan := _plan(entry.detail)) is not None:
            found.setdefault((plan.endpoint, plan.generation, plan.plan), plan)
    return list(found.values())


def _plan(detail: dict[str, Any]) -> PlanEntry | None:
    try:
        return msgspec.convert(detail, PlanEntry)
    except msgspec.ValidationError:
        return None
