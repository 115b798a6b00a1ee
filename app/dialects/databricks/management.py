"""Databricks' management API: its objects for endpoints, and the calls that are not offered.

Contract: https://docs.databricks.com/api/workspace/servingendpoints, and the dataclasses of `databricks.sdk`. An
endpoint's deployments are its served entities. They are declared in serve_config.yaml, so only an endpoint's traffic
can be changed over HTTP (`traffic_update`).

- An endpoint's requests and answers in OpenAPI 3.1: `GET /api/2.0/serving-endpoints/{name}/openapi`.
- `PUT /api/2.0/serving-endpoints/{name}/config`: the traffic that its body requests.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from app.config.schema import Config, Endpoint, Task
from app.control_plane import Delivery
from app.dialects.bodies import Problem, dump, json_object, validated
from app.dialects.databricks.dialect import BODIES, TASKS, Databricks
from app.dialects.databricks.errors import NO_SUCH_RESOURCE, NOT_OFFERED
from app.dialects.databricks.fields import StrictModel
from app.dialects.schemas import Schema, Schemas, content
from app.errors import BadRequest, NotFound
from app.misspellings import question

CREATOR = "serve_config.yaml"

VERSION = "1"
"""The version of every served entity: declarations have no history here."""

DECLARED = "endpoints and their served entities are declared in serve_config.yaml; change them there"
_CREATE = f"Creating an endpoint is not offered: {DECLARED}"
_PERMISSIONS = "Permissions are not kept per endpoint, and cannot be read or changed over HTTP"

NOT_OFFERED_CALLS: Mapping[tuple[str, str], str] = {
    ("POST", "/api/2.0/serving-endpoints"): _CREATE,
    ("POST", "/api/2.0/serving-endpoints/pt"): _CREATE,
    ("PUT", "/api/2.0/serving-endpoints/pt/{name}/config"): f"Provisioned throughput is not offered: {DECLARED}",
    ("DELETE", "/api/2.0/serving-endpoints/{name}"): f"Deleting an endpoint is not offered: {DECLARED}",
    ("PATCH", "/api/2.0/serving-endpoints/{name}/tags"): "Tags are not offered: an endpoint has none",
    ("PUT", "/api/2.0/serving-endpoints/{name}/rate-limits"): f"Changing rate limits is not offered: {DECLARED}",
    ("PUT", "/api/2.0/serving-endpoints/{name}/ai-gateway"): f"Changing the AI gateway is not offered: {DECLARED}",
    ("PATCH", "/api/2.0/serving-endpoints/{name}/notifications"): "Notifications are not offered: watch GET /metrics",
    (
        "PATCH",
        "/api/2.0/serving-endpoints/{name}/telemetry-config",
    ): "Telemetry tables are not offered: see GET /metrics",
    ("GET", "/api/2.0/serving-endpoints/{name}/served-models/{entity}/logs"): (
        "Logs are not offered over HTTP: they are in Ray's log folder"
    ),
    ("GET", "/api/2.0/serving-endpoints/{name}/served-models/{entity}/build-logs"): (
        "Build logs are not offered: nothing is built for a served entity"
    ),
    ("GET", "/api/2.0/permissions/serving-endpoints/{id}"): _PERMISSIONS,
    ("PUT", "/api/2.0/permissions/serving-endpoints/{id}"): _PERMISSIONS,
    ("PATCH", "/api/2.0/permissions/serving-endpoints/{id}"): _PERMISSIONS,
    ("GET", "/api/2.0/permissions/serving-endpoints/{id}/permissionLevels"): _PERMISSIONS,
}
"""Documented calls that are not offered, by method and path, each with the reason."""

_UPDATES: Mapping[Delivery, str] = {
    Delivery.DELIVERING: "IN_PROGRESS",
    Delivery.UNSETTLED: "IN_PROGRESS",  # a waiting client must not mistake silence for success
    Delivery.SETTLED: "NOT_UPDATING",
    Delivery.FAILED: "UPDATE_FAILED",
}


@dataclass(frozen=True, slots=True)
class View:
    """The content of a response: the configuration in force, the deployments' health, a pending change.

    `since_ms` is when the last configuration was applied (Unix time, ms), `created_ms` when each endpoint was first
    declared: its served entities are as old as it is. `url` is this server's base URL. `may_manage`: the caller may
    change the traffic.
    """

    config: Config
    healthy: Mapping[str, bool]
    since_ms: int
    created_ms: Mapping[str, int]
    url: str
    delivery: Delivery = Delivery.SETTLED
    pending: Config | None = None
    may_manage: bool = True


def find_endpoint(name: str, config: Config, visible: Iterable[str] = ()) -> Endpoint:
    """The endpoint; raises NotFound, which asks for the nearest of the names that the caller may see."""
    if (endpoint := config.endpoints.get(name)) is None:
        message = f"Endpoint with name '{name}' does not exist{question(name, visible)}."
        raise NotFound(message, param="name", code=NO_SUCH_RESOURCE)
    return endpoint


def not_offered(reason: str) -> BadRequest:
    """The error of a documented call that this server does not have."""
    return BadRequest(f"{reason}.", code=NOT_OFFERED)


def endpoint_list(view: View) -> dict[str, Any]:
    """Every endpoint, with its served entities' names: ``{"endpoints": [...]}``."""
    return {"endpoints": [_summary(name, endpoint, view) for name, endpoint in view.config.endpoints.items()]}


def endpoint_detail(name: str, view: View) -> dict[str, Any]:
    """One endpoint with its configuration, its state, and its pending configuration. Raises NotFound."""
    endpoint = find_endpoint(name, view.config)
    detail = {
        **_common(name, endpoint, view),
        "config": {"config_version": _version(name, view.config), **_config(name, view.config, view)},
        "permission_level": "CAN_MANAGE" if view.may_manage else "CAN_QUERY",
        "endpoint_url": f"{view.url.rstrip('/')}/serving-endpoints/{name}/invocations",
    }
    if view.pending is not None and name in view.pending.endpoints and view.delivery is not Delivery.SETTLED:
        detail["pending_config"] = {
            "config_version": _version(name, view.pending),
            "start_time": view.since_ms,
            **_config(name, view.pending, view),
        }
    return detail


def _common(name: str, endpoint: Endpoint, view: View) -> dict[str, Any]:
    active = [deployment for deployment, share in endpoint.traffic.items() if share > 0]
    return {
        "name": name,
        "id": hashlib.blake2b(name.encode(), digest_size=16).hexdigest(),
        "creator": CREATOR,
        "creation_timestamp": _created(name, view),
        "last_updated_timestamp": view.since_ms,
        "state": {
            "ready": "READY" if all(view.healthy.get(deployment) for deployment in active) else "NOT_READY",
            "config_update": _UPDATES[view.delivery],
        },
        # Databricks' endpoints have one task each: the most general one.
        "task": next((task_name for task, (task_name, _) in TASKS.items() if task in endpoint.tasks), None),
        "tags": [],
        "route_optimized": False,
    }


def _summary(name: str, endpoint: Endpoint, view: View) -> dict[str, Any]:
    entities = [identity(deployment, view.config) for deployment in endpoint.traffic]
    config = {"served_entities": entities, "served_models": [_as_served_model(entity) for entity in entities]}
    return {**_common(name, endpoint, view), "config": config}


def _created(name: str, view: View) -> int:
    return view.created_ms.get(name, view.since_ms)


def _config(name: str, config: Config, view: View) -> dict[str, Any]:
    endpoint, created_ms = config.endpoints[name], _created(name, view)
    entities = [_entity(deployment, config, view, created_ms) for deployment in endpoint.traffic]
    routes = [
        {"served_model_name": deployment, "served_entity_name": deployment, "traffic_percentage": share}
        for deployment, share in endpoint.traffic.items()
    ]
    return {
        "served_entities": entities,
        "served_models": [_as_served_model(entity) for entity in entities],
        "traffic_config": {"routes": routes},
    }


def identity(deployment: str, config: Config) -> dict[str, str]:
    """A served entity's name, model and version."""
    return {
        "name": deployment,
        "entity_name": config.deployments[deployment].model,
        "entity_version": VERSION,
    }


def _entity(deployment: str, config: Config, view: View, created_ms: int) -> dict[str, Any]:
    ready = view.healthy.get(deployment, False)
    state = {
        "deployment": "DEPLOYMENT_READY" if ready else "DEPLOYMENT_RECOVERING",
        "deployment_state_message": "" if ready else "The deployment does not report that it is healthy",
    }
    return {
        **identity(deployment, config),
        "creator": CREATOR,
        "creation_timestamp": created_ms,
        "state": state,
    }


def _as_served_model(entity: Mapping[str, Any]) -> dict[str, Any]:
    """A served entity as a served model, the deprecated form."""
    renamed = {"entity_name": "model_name", "entity_version": "model_version"}
    return {renamed.get(key, key): value for key, value in entity.items()}


def _version(name: str, config: Config) -> int:
    """A hash of an endpoint's configuration: the same on every router."""
    endpoint = config.endpoints[name]
    content = [endpoint.model_dump(mode="json"), [identity(deployment, config) for deployment in endpoint.traffic]]
    return int.from_bytes(hashlib.blake2b(dump(content), digest_size=4).digest()) >> 1


# Requests are described by the models that check them. The answers' schemas have what every answer has; the engine may
# add fields.


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer"}
_CHOSEN: Mapping[str, Schema] = {"index": _COUNT, "finish_reason": _TEXT}
_HEAD: Mapping[str, Schema] = {"id": _TEXT, "object": _TEXT, "created": _COUNT, "model": _TEXT}
_COUNTS = _object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)

_ANSWERS: Mapping[Task, Schema] = {
    "chat": _object(**_HEAD, choices=_list(_object(message=_object(role=_TEXT), **_CHOSEN)), usage=_COUNTS),
    "completions": _object(**_HEAD, choices=_list(_object(text=_TEXT, **_CHOSEN)), usage=_COUNTS),
    "embeddings": _object(
        object=_TEXT,
        model=_TEXT,
        data=_list(_object(object=_TEXT, index=_COUNT, embedding=_list({"type": "number"}))),
        usage=_object(prompt_tokens=_COUNT, total_tokens=_COUNT),
    ),
    "responses": _object(
        id=_TEXT, object=_TEXT, status=_TEXT, model=_TEXT, output=_list({"type": "object"}), usage={"type": "object"}
    ),
}


def openapi(name: str, endpoint: Endpoint, url: str) -> dict[str, Any]:
    """The document for the endpoint's route at the server `url`, with one schema per task."""
    tasks = tuple(task for task in endpoint.tasks if task in BODIES)  # reranking has no task there
    requests, components = _requests(tasks)
    answers = content([_ANSWERS[task] for task in tasks])
    invocation = {
        "requestBody": {"required": True, "content": requests},
        "responses": {"200": {"description": "The whole answer", "content": answers}},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": "1"},
        "servers": [{"url": f"{url.rstrip('/')}/serving-endpoints/{name}"}],
        "paths": {"/invocations": {"post": invocation}} if tasks else {},
        "components": {"schemas": components},
    }


@cache
def _requests(tasks: Sequence[Task]) -> tuple[Mapping[str, Schema], Mapping[str, Schema]]:
    """The bodies of these tasks' requests by media type, and the schemas that they name. Takes milliseconds."""
    schemas = Schemas()
    requests = content(schemas.references(Databricks.name, [BODIES[task] for task in tasks]))
    return requests, schemas.components


# Contract: https://docs.databricks.com/api/workspace/servingendpoints/updateconfig. Every field of the body takes
# effect or is rejected: served entities are declared in serve_config.yaml, so a body may only repeat them.


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
    if named and (unnamed := next((name for name in shares if name not in named), None)) is not None:
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
    able = [known for known, deployment in config.deployments.items() if set(endpoint.tasks) <= set(deployment.tasks)]
    if name in able:
        return
    deployment = config.deployments.get(name)
    problem = (
        f"no deployment '{name}' is declared"
        if deployment is None
        else f"'{name}' serves {', '.join(deployment.tasks)}, but the endpoint serves {', '.join(endpoint.tasks)}"
    )
    raise _wrong(path, f"{problem}; it can be: {', '.join(able)}")


def _wrong(path: str, message: str) -> BadRequest:
    return BadRequest(f"{path}: {message}", param=path)
