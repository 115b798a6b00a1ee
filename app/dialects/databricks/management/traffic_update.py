"""`PUT /api/2.0/serving-endpoints/{name}/config`: the traffic that its body asks for.

Contract: https://docs.databricks.com/api/workspace/servingendpoints/updateconfig. Every field of the body is honoured
or refused: served entities are declared in serve_config.yaml, so a body may only repeat them.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.config.schema import Config, Endpoint
from app.dialects.databricks.management.objects import DECLARED, find, identity
from app.dialects.json_body import field_path, json_object
from app.errors import BadRequest


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Route(_StrictModel):
    traffic_percentage: Annotated[int, Field(ge=0, le=100)]
    served_entity_name: str | None = None
    served_model_name: str | None = None


class _Traffic(_StrictModel):
    routes: Annotated[list[_Route], Field(min_length=1)]


class _Entity(_StrictModel):
    name: str
    entity_name: str | None = None
    entity_version: str | None = None


class _Model(_StrictModel):
    name: str
    model_name: str | None = None
    model_version: str | None = None


class Update(_StrictModel):
    """The body."""

    name: str | None = None
    traffic_config: _Traffic | None = None
    served_entities: list[_Entity] | None = None
    served_models: list[_Model] | None = None


def traffic_asked(name: str, body: bytes, config: Config) -> dict[str, int]:
    """The endpoint's whole traffic, deployment to percentage, as `body` wants it.

    Percentages are whole and sum to 100; a deployment without a route gets 0 and can still be named by the header.
    Routes may name any declared deployment that does all of the endpoint's tasks. Served entities must be those that
    are declared, and without routes the percentages stay. Raises BadRequest, which names the field, and NotFound.
    """
    endpoint = find(name, config)
    update = _update(name, json_object(body))
    named: set[str] = set()
    for field, entities in (("served_entities", update.served_entities), ("served_models", update.served_models)):
        if entities is not None:
            named |= _as_declared(field, entities, endpoint, config)
    shares = endpoint.traffic if update.traffic_config is None else _shares(update.traffic_config, endpoint, config)
    if named and (stray := next((it for it in shares if it not in named), None)) is not None:
        raise _wrong("traffic_config.routes", f"'{stray}' is not among the served entities of this request")
    known = dict.fromkeys([*endpoint.traffic, *sorted(named)], 0)
    return {**known, **shares}


def _update(name: str, body: Mapping[str, Any]) -> Update:
    if "auto_capture_config" in body:
        raise _wrong("auto_capture_config", "requests are not captured here; leave it out")
    try:
        update = Update.model_validate(body)
    except ValidationError as error:
        raise _first_problem(error) from None
    if update.name not in (None, name):
        raise _wrong("name", f"the path names the endpoint '{name}'")
    if update.traffic_config is None and update.served_entities is None and update.served_models is None:
        raise _wrong("traffic_config", "missing; it is what can be changed")
    return update


def _first_problem(error: ValidationError) -> BadRequest:
    found = error.errors(include_url=False, include_input=False)[0]
    path = field_path(found["loc"])
    message = {"extra_forbidden": "unknown here", "missing": "missing"}.get(found["type"], found["msg"])
    return _wrong(path, f"{message} ({DECLARED})" if path.startswith("served_") else message)


def _as_declared(field: str, entities: Sequence[_Entity | _Model], endpoint: Endpoint, config: Config) -> set[str]:
    """The entities' names. Raises BadRequest unless each is as it is declared and the endpoint's are all there."""
    names: set[str] = set()
    for index, entity in enumerate(entities):
        path = f"{field}[{index}]"
        _must_serve(f"{path}.name", entity.name, endpoint, config)
        if entity.name in names:
            raise _wrong(f"{path}.name", f"'{entity.name}' comes twice")
        names.add(entity.name)
        declared = identity(entity.name, config)
        given = entity.model_dump(exclude_none=True)
        for key, value in zip(type(entity).model_fields, declared.values(), strict=True):
            if given.get(key, value) != value:
                raise _wrong(f"{path}.{key}", f"of '{entity.name}' it is '{value}' ({DECLARED})")
    if missing := [name for name in endpoint.traffic if name not in names]:
        raise _wrong(field, f"'{missing[0]}' is missing; to send it no traffic, give it the percentage 0 ({DECLARED})")
    return names


def _shares(asked: _Traffic, endpoint: Endpoint, config: Config) -> dict[str, int]:
    shares: dict[str, int] = {}
    for index, route in enumerate(asked.routes):
        path = f"traffic_config.routes[{index}]"
        field = "served_model_name" if route.served_entity_name is None else "served_entity_name"
        name = getattr(route, field)
        if name is None:
            raise _wrong(f"{path}.served_entity_name", "missing")
        if route.served_model_name not in (None, name):
            raise _wrong(f"{path}.served_model_name", f"it must be served_entity_name, which is '{name}'")
        _must_serve(f"{path}.{field}", name, endpoint, config)
        if name in shares:
            raise _wrong(f"{path}.{field}", f"'{name}' has a route already")
        shares[name] = route.traffic_percentage
    if (total := sum(shares.values())) != 100:
        raise _wrong("traffic_config.routes", f"the percentages sum to {total}, it must be 100")
    return shares


def _must_serve(path: str, name: str, endpoint: Endpoint, config: Config) -> None:
    able = [known for known, it in config.deployments.items() if set(endpoint.tasks) <= set(it.tasks)]
    if name in able:
        return
    found = config.deployments.get(name)
    problem = (
        f"no deployment '{name}' is declared"
        if found is None
        else f"'{name}' does {', '.join(found.tasks)}, and the endpoint {', '.join(endpoint.tasks)}"
    )
    raise _wrong(path, f"{problem}; it can be: {', '.join(able)}")


def _wrong(path: str, message: str) -> BadRequest:
    return BadRequest(f"{path}: {message}", param=path)
