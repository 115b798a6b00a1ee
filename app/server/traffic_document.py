"""A plan as the traffic API accepts and returns it.

- Reasons to refuse a change of a plan, and their error bodies.
- Computes the keys that a change of an endpoint's plan would move.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import Request as HTTPRequest

from app.config.access import ANONYMOUS
from app.config.base import MOST_PROBLEMS, problems_of
from app.config.endpoints import MAX_OVERRIDES, MAX_REASON, Generation, Override, UnitHash, UnixTime
from app.config.experiments import Percent
from app.config.meant import nearest
from app.config.schema import Config, Endpoint
from app.control_plane import WantedPlan
from app.dialects.base import Reply
from app.dialects.bodies import dump, validator
from app.errors import BadRequest, PreconditionFailed, PreconditionRequired, SwitchyardError
from app.exchange.snapshot import LiveRouting
from app.exposures.identity import unit_key
from app.exposures.plans import plan_of
from app.routing.rules import NO_STOPS, Choice, Moved, Overrides, choice, made_up_keys, moved
from app.server.operations import openai_words


class InvalidDocument(BadRequest):
    """An invalid document. `problems` lists every fault, one line each: ``path: what is wrong; the fix``."""

    longest_message = 4096

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems), param=problems[0].partition(":")[0])
        self.problems = problems


def require_match(if_match: str | None) -> None:
    """Raises PreconditionRequired without the header."""
    if if_match is None:
        raise PreconditionRequired(
            "If-Match: missing; send the ETag of the plan that you saw, so that no other change is lost",
            param="If-Match",
        )


def check_match(if_match: str | None, present: Mapping[str, Any]) -> None:
    """Raises PreconditionFailed if the header names other plans than the present one (RFC 9110, section 13.1.1)."""
    if if_match is None or if_match.strip() == "*":
        return
    if f'"{present["plan"]}"' not in [tag.strip() for tag in if_match.split(",")]:
        message = f"If-Match: the plan is {present['plan']} now; look at it, then repeat the request with its ETag"
        raise PreconditionFailed(message, current=present)


def error_words(error: SwitchyardError, request: HTTPRequest, request_id: str) -> Reply:
    """OpenAI's form, with all problems of a document or the present plan added."""
    reply = openai_words(error, request, request_id)
    if isinstance(error, InvalidDocument):
        return replace(reply, body=dump({**json.loads(reply.body), "problems": error.problems}))
    if isinstance(error, PreconditionFailed):
        headers = {**reply.headers, "etag": f'"{error.current["plan"]}"'}
        return replace(reply, body=dump({**json.loads(reply.body), "current": error.current}), headers=headers)
    return reply


MAX_TTL_S = 90 * 86400
MAX_WEIGHTS = 1000

_Reason = Annotated[str, Field(min_length=1, max_length=MAX_REASON)]


def _few(weights: Any) -> Any:
    """pydantic counts an object's members last, after it has made an error for each."""
    if isinstance(weights, dict) and len(weights) > MAX_WEIGHTS:
        raise ValueError(f"at most {MAX_WEIGHTS} deployments, not {len(weights)}")
    return weights


class _Document(BaseModel):
    """A plan, or a part of one: few fields, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, value: Any) -> Any:
        """pydantic makes an error for each unknown field."""
        if isinstance(value, dict) and len(value) > MOST_PROBLEMS:
            raise ValueError(f"has the fields {', '.join(cls.model_fields)} and no others, not {len(value)}")
        return value


class OverrideRequest(_Document):
    """One unit and the deployment that answers it."""

    unit_key: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        default=None,
        description="The unit's sticky key. On an endpoint that is sticky by `api_key`, where callers have "
        "credentials: the caller's name. Only its hash is kept.",
    )
    caller: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None,
        description="Whose key it is: the name of an API key, or a token's principal. Required with `unit_key` where "
        "callers have credentials, unless the endpoint is sticky by `api_key`.",
    )
    unit: UnitHash | None = Field(default=None, description="Its hash instead, as `GET` returns it.")
    deployment: str = Field(description="A deployment of the endpoint's traffic.")
    until: UnixTime | None = Field(default=None, description="Unix seconds. Default: as long as the plan.")


class TrafficDocument(_Document):
    """A whole plan."""

    weights: Annotated[dict[str, Percent], Field(min_length=1, max_length=MAX_WEIGHTS), BeforeValidator(_few)] = Field(
        description="Percentages that sum to 100. A deployment that is left out gets 0."
    )
    overrides: Annotated[list[OverrideRequest], Field(max_length=MAX_OVERRIDES)] = Field(
        default=[], description="Units with a deployment of their own. Default: none."
    )
    ttl_s: Annotated[float, Field(gt=0, le=MAX_TTL_S)] | None = Field(
        default=None, description="The time in seconds after which the last lasting plan is restored."
    )
    reason: _Reason | None = Field(default=None, description="Why, for the history.")


class RollbackRequest(BaseModel):
    """The generation whose weights are to be restored."""

    model_config = ConfigDict(extra="forbid", strict=True)

    generation: Generation = Field(description="Its number in the history.")
    reason: _Reason | None = Field(default=None, description="Why, for the history.")


def wanted_plan(
    content: Mapping[str, Any],
    name: str,
    config: Config,
    unit: Callable[[str], int],
    caller_id: Callable[[str], str | None],
    now: float,
) -> WantedPlan:
    """The plan that a TrafficDocument requests for the endpoint `name`. Raises InvalidDocument with every problem.

    `unit` hashes a sticky key; `caller_id` returns the id of a caller by its name, None if there is none; `now` is in
    Unix seconds.
    """
    problems: list[str] = []
    wrong: set[str] = set()
    try:
        document = validator(TrafficDocument).validate_python(content)
    except ValidationError as error:
        problems += problems_of(error, TrafficDocument)
        items = error.errors(include_url=False, include_context=False, include_input=False)
        if not items[0]["loc"]:
            raise InvalidDocument(problems) from None
        wrong = {str(item["loc"][0]) for item in items}
        rest = {key: value for key, value in content.items() if key not in wrong}
        stand_in = {"weights": {"": 0}} if "weights" in wrong else {}
        document = TrafficDocument.model_validate({**rest, **stand_in})
    endpoint = config.endpoints[name]
    weights = dict.fromkeys(endpoint.traffic, 0)
    if "weights" not in wrong:
        weights |= document.weights
        problems += _weight_problems(document.weights, endpoint, config)
        problems += _override_problems(document.overrides, name, endpoint, weights, now)
    problems += _caller_problems(document.overrides, endpoint, config, caller_id)
    named = all((override.unit_key is None) != (override.unit is None) for override in document.overrides)
    units = (
        [override.unit or f"{unit(_key(override, endpoint, caller_id)):016x}" for override in document.overrides]
        if named
        else []
    )
    problems += _repeated(units)
    if problems:
        raise InvalidDocument(problems)
    overrides = [
        Override(unit=hash, deployment=override.deployment, until=override.until)
        for hash, override in zip(units, document.overrides, strict=True)
    ]
    return WantedPlan(
        weights, tuple(sorted(overrides, key=lambda override: override.unit)), document.ttl_s, document.reason
    )


def plan_view(name: str, endpoint: Endpoint, *, with_units: bool) -> dict[str, Any]:
    """An endpoint's plan. Without `with_units` overrides lack their unit: its hash identifies a person."""
    plan = endpoint.plan
    overrides = [
        {"unit": override.unit if with_units else None, "deployment": override.deployment, "until": override.until}
        for override in plan.overrides
    ]
    expires = None
    if plan.expires is not None:
        restores = {"generation": plan.expires.generation, "weights": dict(plan.expires.weights)}
        expires = {"at": plan.expires.at, "restores": restores}
    return {
        "endpoint": name,
        "plan": plan_of(name, endpoint).id,
        "generation": plan.generation,
        "sticky": endpoint.sticky.model_dump(exclude_none=True) if endpoint.sticky is not None else None,
        "weights": dict(endpoint.traffic),
        "overrides": overrides,
        "expires": expires,
        "by": plan.by,
        "reason": plan.reason,
        "since": plan.since,
        "pin_s": endpoint.pin_s,
        "earlier": [{"weights": dict(former.weights), "until": former.until} for former in plan.earlier],
    }


def _weight_problems(weights: Mapping[str, int], endpoint: Endpoint, config: Config) -> Iterator[str]:
    able = [known for known, other in config.deployments.items() if set(endpoint.tasks) <= set(other.tasks)]
    for name in weights:
        deployment = config.deployments.get(name)
        if deployment is None:
            meant = nearest(name, able) or f"; it can be: {', '.join(able)}"
            yield f"weights.{name}: no deployment '{name}' is declared{meant}"
        elif missing := [task for task in endpoint.tasks if task not in deployment.tasks]:
            yield f"weights.{name}: '{name}' does not do {', '.join(missing)}, which the endpoint does; leave it out"
    if (total := sum(weights.values())) != 100:
        fix = f"add {100 - total}" if total < 100 else f"take away {total - 100}"
        yield f"weights: the percentages sum to {total}, they must sum to 100: {fix}"


def _override_problems(
    overrides: list[OverrideRequest], name: str, endpoint: Endpoint, weights: Mapping[str, int], now: float
) -> Iterator[str]:
    if overrides and endpoint.sticky is None:
        yield f"overrides: '{name}' is not sticky, so that its requests have no unit; add `sticky` to the endpoint"
    for number, override in enumerate(overrides):
        path = f"overrides[{number}]"
        if (override.unit_key is None) == (override.unit is None):
            yield f"{path}: name either `unit_key` or `unit`"
        if override.deployment not in weights:
            unknown = f"'{override.deployment}' is not in the weights"
            yield f"{path}.deployment: {unknown}; add it there, with 0 if it gets no more"
        if override.until is not None and override.until <= now:
            yield f"{path}.until: is over; remove the override"


def _caller_problems(
    overrides: list[OverrideRequest], endpoint: Endpoint, config: Config, caller_id: Callable[[str], str | None]
) -> Iterator[str]:
    """A key belongs to a caller, where there are several."""
    is_callers = config.access.knows_callers and endpoint.sticky is not None and endpoint.sticky.by != "api_key"
    is_caller = config.access.knows_callers and endpoint.sticky is not None and not is_callers
    for number, override in enumerate(overrides):
        if is_caller and override.unit_key is not None and caller_id(override.unit_key) is None:
            yield f"overrides[{number}].unit_key: is no name of an API key, and no token's principal"
        path, is_needed = f"overrides[{number}].caller", is_callers and override.unit_key is not None
        if is_needed and override.caller is None:
            yield f"{path}: missing; name the caller whose key it is: the name of its API key, or its tokens' principal"
        elif override.caller is not None and not is_needed:
            yield f"{path}: leave it out: this unit is not named by one of a caller's keys"
        elif override.caller is not None and caller_id(override.caller) is None:
            yield f"{path}: no key has the name '{override.caller}'"


def _key(override: OverrideRequest, endpoint: Endpoint, caller_id: Callable[[str], str | None]) -> str:
    """The sticky key that an override names; problems are reported elsewhere."""
    value = override.unit_key or ""
    if endpoint.sticky is not None and endpoint.sticky.by == "api_key":
        return unit_key(endpoint.sticky, caller_id(value) or ANONYMOUS, value)
    if endpoint.sticky is None or override.caller is None:
        return value
    return unit_key(endpoint.sticky, caller_id(override.caller) or "", value)


def _repeated(units: list[str]) -> list[str]:
    first: dict[str, int] = {}
    return [
        f"overrides[{number}]: the same unit as overrides[{first[unit]}]; remove one"
        for number, unit in enumerate(units)
        if first.setdefault(unit, number) != number
    ]


def dry_run(
    name: str,
    before: Endpoint,
    after: Endpoint,
    recent_keys: Sequence[str],
    unit: Callable[[str], int],
    now: LiveRouting,
) -> dict[str, Any]:
    """Both plans, the share of keys that would move for each pair of deployments, and the overrides, stops and pins
    that the change touches.

    Takes about 0.2 s of CPU: for a thread. `recent_keys` are those that this router saw; `unit` hashes one; `now` is
    this router's state that decides apart from the weights.
    """
    return {
        "before": plan_view(name, before, with_units=True),
        "after": plan_view(name, after, with_units=True),
        "moves": moves(before, after, recent_keys, unit, now.stops),
        "overrides": _overrides(before, after),
        "stops": [
            {
                "deployment": deployment,
                "control": control,
                "before": before.traffic.get(deployment, 0),
                "after": after.traffic.get(deployment, 0),
            }
            for deployment, control in now.stops.items()
            if before.traffic.get(deployment, 0) != after.traffic.get(deployment, 0)
        ],
        "pins": [
            {"deployment": deployment, "conversations": count}
            for deployment, count in now.pins.items()
            if before.traffic.get(deployment, 0) != after.traffic.get(deployment, 0)
        ],
    }


def moves(
    before: Endpoint,
    after: Endpoint,
    recent_keys: Sequence[str],
    unit: Callable[[str], int],
    stops: Mapping[str, str] = NO_STOPS,
) -> dict[str, Any]:
    """The share of keys that would move, for each pair of deployments: among made-up keys, and among `recent_keys`.
    `stops`: the endpoint's stopped deployments, each with the one that gets its share.
    """
    still = {
        deployment: control for deployment, control in stops.items() if {deployment, control} <= after.traffic.keys()
    }
    keys = made_up_keys(max(len(before.traffic), len(after.traffic)))
    made_up = moved(keys, choice(before.traffic, stops=stops), choice(after.traffic, stops=still))
    recent = moved(recent_keys, _choice(before, unit, stops), _choice(after, unit, still))
    return {"made_up_keys": _view(made_up), "recent_keys": _view(recent)}


def _choice(endpoint: Endpoint, unit: Callable[[str], int], stops: Mapping[str, str]) -> Choice:
    return choice(endpoint.traffic, Overrides(endpoint.plan.overrides, unit, time.time), stops)


def _view(moved: Moved) -> dict[str, Any]:
    return {
        "keys": moved.keys,
        "share": moved.share,
        "pairs": [{"from": a, "to": b, "share": count / moved.keys} for (a, b), count in moved.pairs.items()],
    }


def _overrides(before: Endpoint, after: Endpoint) -> dict[str, list[str]]:
    """Units whose override is new, removed, or changed."""
    old = {override.unit: override for override in before.plan.overrides}
    new = {override.unit: override for override in after.plan.overrides}
    return {
        "added": [unit for unit in new if unit not in old],
        "removed": [unit for unit in old if unit not in new],
        "changed": [unit for unit in new if unit in old and new[unit] != old[unit]],
    }
