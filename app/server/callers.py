"""The caller's own name, permissions and remaining limits; for managers and viewers, every caller's use.

No answer contains a key, or an endpoint that the caller may not use. Errors have OpenAI's form.

The answers of `/api/me` and `/api/callers`, as plain data. Pure.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from starlette.requests import Request as HTTPRequest

from app.access.caller import ANONYMOUS_CALLER, Caller, Roles
from app.access.keys import KeyUse
from app.activity.caller_use import CallerUse, Use
from app.config.experiments import is_active
from app.config.schema import Config
from app.dialects.base import Reply
from app.dialects.bodies import dump
from app.limits.limiter import Allowance
from app.server.colours import COLOURS, deployment_colours
from app.server.operations import Api, ApiRoute, OperationContext, RoutedApi, Services, openai_words
from app.version import own_version


def me_document(
    caller: Caller,
    visible: Config,
    limits: Mapping[str, Sequence[Allowance]],
    *,
    colours: Mapping[str, int],
    roles: Roles,
    limits_are_shared: bool,
) -> dict[str, Any]:
    """The caller's name, its roles, the server, the endpoints it may use, and its remaining limits there.

    `visible` is the part of the configuration that it may see, `limits` are its allowances by endpoint, `colours` those
    of deployments.
    """
    feedback = _feedback(visible)
    return {
        "caller": caller.name,
        "anonymous": caller is ANONYMOUS_CALLER,
        "role": roles.role(caller),
        "manages": roles.may_manage(caller),
        "operates": roles.operated(caller, visible.endpoints),
        "views": roles.may_view(caller),
        "limits_counted": "by all routers together" if limits_are_shared else "by this router alone",
        "colours": COLOURS,
        "server": {"version": own_version(), **visible.console.model_dump(include={"environment", "docs_url"})},
        "endpoints": [
            {
                "endpoint": name,
                "tasks": list(endpoint.tasks),
                "deployments": [
                    {
                        "deployment": deployment,
                        "weight": weight,
                        "images": visible.deployments[deployment].images,
                        "colour": colours[deployment],
                    }
                    for deployment, weight in endpoint.traffic.items()
                ],
                "feedback": feedback.get(name, []),
                "limits": [asdict(limit) for limit in limits[name]],
            }
            for name, endpoint in visible.endpoints.items()
        ],
    }


def callers_document(since: float, uses: Iterable[tuple[str, str, Use]], keys: Iterable[KeyUse]) -> dict[str, Any]:
    """Every caller's use since `since` (Unix seconds), and every API key's end and last use. The caller None represents
    all not counted separately, the endpoint None their requests that reached none."""
    return {
        "view": "this router alone: each router counts what it has answered since it started",
        "since": since,
        "callers": [
            {"caller": caller or None, "endpoint": endpoint or None, **asdict(use), "not_answered": use.failed}
            for caller, endpoint, use in uses
        ],
        "keys": [_key(key) for key in keys],
    }


def _key(key: KeyUse) -> dict[str, Any]:
    endpoints = None if key.caller.endpoints is None else sorted(key.caller.endpoints)
    previous = {"expires": key.previous[0], "last_used": key.previous[1]} if key.previous is not None else None
    return {
        "caller": key.caller.name,
        "endpoints": endpoints,
        "expires": key.expires,
        "last_used": key.last_used,
        "previous": previous,
    }


def _feedback(visible: Config) -> dict[str, list[dict[str, Any]]]:
    """The scores that running experiments take, by endpoint: two experiments may declare the same one."""
    declared: dict[str, dict[str, dict[str, Any]]] = {}
    for experiment in visible.experiments.values():
        if is_active(experiment):
            for metric, settings in experiment.feedback.items():
                shown = {"metric": metric, "type": settings.type, "min": settings.min, "max": settings.max}
                declared.setdefault(experiment.endpoint, {}).setdefault(metric, shown)
    return {endpoint: list(metrics.values()) for endpoint, metrics in declared.items()}


_NEVER_CACHED = {"cache-control": "no-store"}


class CallersApi(RoutedApi):
    """The routes. `use`: what callers have used on this router."""

    def __init__(self, services: Services, *, use: CallerUse) -> None:
        self._services, self._use = services, use
        self._api = Api("switchyard", services, openai_words)

    def _table(self) -> list[ApiRoute]:
        return [
            ApiRoute("GET", "/api/me", "me", self._me),
            ApiRoute("GET", "/api/callers", "callers", self._callers),
        ]

    async def _me(self, request: HTTPRequest, context: OperationContext) -> Reply:
        access, caller = self._services.access, context.caller
        visible = self._services.views().of(caller)
        left = await asyncio.gather(*(access.left(caller, name) for name in visible.endpoints))
        document = me_document(
            caller,
            visible,
            dict(zip(visible.endpoints, left, strict=True)),
            colours=deployment_colours(self._services.views().config),
            roles=access.roles,
            limits_are_shared=access.limits_are_shared,
        )
        return Reply(dump(document), headers=_NEVER_CACHED)

    async def _callers(self, request: HTTPRequest, context: OperationContext) -> Reply:
        self._services.views()  # before the first configuration, nobody has rights
        access, use = self._services.access, self._use
        access.roles.require_viewer(context.caller, "see what others use")
        return Reply(dump(callers_document(use.since, use.items(), access.key_uses())), headers=_NEVER_CACHED)
