"""`PUT /api/2.0/serving-endpoints/{name}/config`: the traffic that its body requests.

Contract: https://docs.databricks.com/api/workspace/servingendpoints/updateconfig. Every field of the body takes effect
or is rejected: served entities are declared in serve_config.yaml, so a body may only repeat them.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from app.config.schema import Config, Endpoint
from app.dialects.databricks.fields import StrictModel
from app.dialects.databricks.management.objects import DECLARED, find_endpoint, identity
from app.dialects.json_body import json_object
from app.dialects.validation import Problem, validated
from app.errors import BadRequest


class _Route(StrictModel):
    traffic_percentage: Annotated[int, Field(ge=0, le=100)]
    served_entity_name: str | None = None
    served_model_name: str | None = None


class _Traffic(StrictModel):
    routes: Annotated[list[_Route], Field(min_length=1)]


class _Entity(StrictModel):
    name: str
    entity_name: str | None = None
    entity_version: str | None = None


class _Model(StrictModel):
    name: str
    model_name: str | None = None
    model_version: str | None = None


class Update(StrictModel):
    """The body."""

    name: str | None = None
    traffic_config: _Traffic | None = None
    served_entities: list[_Entity] | None = None
    served_models: list[_Model] | None = None


def requested_traffic(name: str, body: bytes, config: Config) -> dict[str, int]:
    """The endpoint's whole traffic, deployment to percentage, that `body` requests.

    Percentages are whole and sum to 100; a deployment without a route gets 0 and can still be named by the header.
    Routes may name any declared deployment that has all of the endpoint's tasks. Served entities must be the declared
    ones. Without routes the percentages stay. Raises BadRequest, which names the field, and NotFound.
    """
    endpoint = find_endpoint(name, config)
    update = _update(name, json_object(body))
    named: set[str] = set()
    for field, entities in (("served_entities", update.served_entities), ("served_models", update.served_models)):
        if entities is not None:
            named |= _declared_names(field, entities, endpoint, config)
    shares = endpoint.traffic if update.traffic_config is None else _shares(update.traffic_config, endpoint, config)
    if named and (unnamed := next((it for it in shares if it not in named), None)) is not None:
        raise _wrong("traffic_config.routes", f"'{unnamed}' is not among the served entities of this request")
    known = dict.fromkeys([*endpoint.traffic, *sorted(named)], 0)
    return {**known, **shares}


def _update(name: str, body: Mapping[str, Any]) -> Update:
    if "auto_capture_config" in body:
        raise _wrong("auto_capture_config", "requests are not captured; leave it out")
    update = validated(Update, body, _invalid)
    if update.name not in (None, name):
        raise _wrong("name", f"the path names the endpoint '{name}'")
    if update.traffic_config is None and update.served_entities is None and update.served_models is None:
        raise _wrong("traffic_config", "missing; only the traffic can be changed")
    return update


def _invalid(problem: Problem) -> BadRequest:
    message = problem.message.removeprefix(f"{problem.path}: ")
    if problem.unknown or problem.missing:
        message = "unknown field" if problem.unknown else "missing"
    return _wrong(problem.path, f"{message} ({DECLARED})" if problem.path.startswith("served_") else message)


def _declared_names(field: str, entities: Sequence[_Entity | _Model], endpoint: Endpoint, config: Config) -> set[str]:
    """The entities' names. Raises BadRequest unless each equals its declaration and the endpoint's are all there."""
    names: set[str] = set()
    for index, entity in enumerate(entities):
        path = f"{field}[{index}]"
        _check_tasks(f"{path}.name", entity.name, endpoint, config)
        if entity.name in names:
            raise _wrong(f"{path}.name", f"'{entity.name}' is listed twice")
        names.add(entity.name)
        declared = identity(entity.name, config)
        given = entity.model_dump(exclude_none=True)
        for key, value in zip(type(entity).model_fields, declared.values(), strict=True):
            if given.get(key, value) != value:
                raise _wrong(f"{path}.{key}", f"must be '{value}' for '{entity.name}' ({DECLARED})")
    if missing := [name for name in endpoint.traffic if name not in names]:
        raise _wrong(field, f"'{missing[0]}' is missing; for no traffic set its percentage to 0 ({DECLARED})")
    return names


def _shares(traffic: _Traffic, endpoint: Endpoint, config: Config) -> dict[str, int]:
    shares: dict[str, int] = {}
    for index, route in enumerate(traffic.routes):
        path = f"traffic_config.routes[{index}]"
        field = "served_model_name" if route.served_entity_name is None else "served_entity_name"
        name = getattr(route, field)
        if name is None:
            raise _wrong(f"{path}.served_entity_name", "missing")
        if route.served_model_name not in (None, name):
            raise _wrong(f"{path}.served_model_name", f"must equal served_entity_name, '{name}'")
        _check_tasks(f"{path}.{field}", name, endpoint, config)
        if name in shares:
            raise _wrong(f"{path}.{field}", f"'{name}' has a route already")
        shares[name] = route.traffic_percentage
    if (total := sum(shares.values())) != 100:
        raise _wrong("traffic_config.routes", f"the percentages sum to {total}, but must sum to 100")
    return shares


def _check_tasks(path: str, name: str, endpoint: Endpoint, config: Config) -> None:
    able = [known for known, it in config.deployments.items() if set(endpoint.tasks) <= set(it.tasks)]
    if name in able:
        return
    found = config.deployments.get(name)
    problem = (
        f"no deployment '{name}' is declared"
        if found is None
        else f"'{name}' serves {', '.join(found.tasks)}, but the endpoint serves {', '.join(endpoint.tasks)}"
    )
    raise _wrong(path, f"{problem}; it can be: {', '.join(able)}")


def _wrong(path: str, message: str) -> BadRequest:
    return BadRequest(f"{path}: {message}", param=path)
