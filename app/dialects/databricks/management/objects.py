"""Databricks' management API: its objects for endpoints, and the calls that are not offered.

Contract: https://docs.databricks.com/api/workspace/servingendpoints, and the dataclasses of `databricks.sdk`. An
endpoint's deployments are its served entities. They are declared in serve_config.yaml, so only an endpoint's traffic
can be changed over HTTP (`traffic_update`).
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.config.schema import Config, Endpoint
from app.control_plane import Delivery
from app.dialects.databricks.dialect import TASKS
from app.dialects.databricks.errors import NO_SUCH_RESOURCE, NOT_OFFERED
from app.dialects.json_body import dump
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
