"""An endpoint's plan over HTTP: read it, change it as a whole, roll it back, read its history.

Callers of an endpoint may read; managers and its operators may change. Changes go through the control plane by
compare-and-set: `If-Match` names the plan that the caller saw. Errors have OpenAI's form.

A plan's author and its number: one more than every plan that the controller of experiments knows.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request as HTTPRequest

from app.access.caller import ConfigViews
from app.config.schema import Config, Endpoint
from app.control_plane import (
    CHANGED_MEANWHILE,
    IN_THE_FILE,
    Applied,
    Authorship,
    ControlPlane,
    Delivery,
    WantedPlan,
    applied_or_none,
    change_plan,
    delivery_seen,
    in_use,
    is_present,
    planned,
)
from app.dialects.base import Reply
from app.dialects.bodies import dump, json_object_with_nulls, validated
from app.dialects.schemas import Body
from app.errors import (
    BadRequest,
    Conflict,
    NotFound,
    SwitchyardError,
    Unavailable,
)
from app.experiments.contract.journal import PlanEntry
from app.experiments.contract.query import is_dry_run
from app.exposures.controller_client import ControllerClient
from app.exposures.plans import plan_of
from app.server.operations import Api, ApiRoute, OperationContext, RoutedApi, Services, ask, read_json
from app.server.traffic_document import (
    RollbackRequest,
    TrafficDocument,
    check_match,
    dry_run,
    error_words,
    plan_view,
    require_match,
    wanted_plan,
)
from app.telemetry.logs import event

NOTE_PATIENCE_S = 1.0
"""Seconds that a change waits for the controller if it can do without the answer."""
TEMPORARY_S = 10.0
"""Seconds that a temporary plan waits: the controller ends it, and answers late while it computes a report."""


def authorship(caller: str, last: int | None) -> Authorship:
    """The author of a change now. `last`: the `last_generation`.

    If it is not known, the number is one more than the present plan's. That may have been given before, to a plan that
    a file has replaced since; the controller then counts on by itself.
    """
    return Authorship(caller, time.time(), (last or 0) + 1)


async def last_generation(controller: ControllerClient | None, endpoint: str, *, temporary: bool = False) -> int | None:
    """The highest number of the endpoint's plans; None if the controller does not answer.

    `temporary`: for a plan that the controller will end.
    """
    try:
        async with asyncio.timeout(TEMPORARY_S if temporary else NOTE_PATIENCE_S):
            return max((plan.generation for plan in await history(controller, endpoint)), default=0)
    except (SwitchyardError, TimeoutError):
        return None


async def history(controller: ControllerClient | None, endpoint: str) -> list[PlanEntry]:
    """The endpoint's plans, the latest first. Raises Unavailable."""
    answer = await ask(controller, "GET", f"/endpoints/{endpoint}/plans")
    return msgspec.json.decode(answer.body, type=dict[str, list[PlanEntry]])["plans"]


_PATH = "/api/endpoints/{endpoint}/traffic"
DELIVERY_PATIENCE_S = 10.0
"""The time that a change waits for the delivery of the one before: Serve's usually takes a second."""
_NO_CONTROLLER = (
    "ttl_s: the controller of experiments ends temporary plans, and it does not answer; start the application "
    "`experiments`, or leave `ttl_s` out"
)
_log = logging.getLogger("switchyard")


class TrafficApi(RoutedApi):
    """The routes. Without a control plane nothing is changed, without a controller there is no history. `patience_s`:
    the time that a change waits for the delivery of the one before.
    """

    def __init__(self, services: Services, *, patience_s: float = DELIVERY_PATIENCE_S) -> None:
        self._services, self._patience_s = services, patience_s
        self._api = Api("switchyard", services, error_words)

    def _table(self) -> list[ApiRoute]:
        is_dry, match = {"dry_run": {"enum": ["true", "false"]}}, {"If-Match": "The ETag of the plan that was seen"}
        back = [Body(RollbackRequest)]
        return [
            ApiRoute("GET", _PATH, "get_traffic", self._get),
            ApiRoute("PUT", _PATH, "put_traffic", self._put, is_dry, [Body(TrafficDocument)], 200, match, True),
            ApiRoute("GET", f"{_PATH}/history", "traffic_history", self._history),
            ApiRoute("POST", f"{_PATH}/rollback", "roll_back_traffic", self._roll_back, {}, back, 200, match, True),
        ]

    async def _get(self, request: HTTPRequest, context: OperationContext) -> Reply:
        """The plan that is applied, even if routers are still loading it; without a control plane, this router's."""
        name, views = self._endpoint(request, context)
        before, applied = views.config, await applied_or_none(self._services.control)
        config = applied.parsed() if applied is not None else None
        shown = config if config is not None and name in config.endpoints else self._services.views().config
        return self._plan_reply(name, shown.endpoints.get(name, before.endpoints[name]), context, before, applied)

    async def _put(self, request: HTTPRequest, context: OperationContext) -> Reply:
        is_dry = context.change.is_dry = is_dry_run(request.query_params)
        name, control, body = await self._change(request, context)
        if_match = request.headers.get("if-match")
        if not is_dry:
            require_match(if_match)
        content = json_object_with_nulls(body)
        last = await last_generation(self._services.controller, name, temporary=content.get("ttl_s") is not None)

        def check(config: Config) -> WantedPlan:
            check_match(if_match, self._view(name, config.endpoints[name], context))
            unit, id_of = self._services.ledger.unit, self._services.access.id_of
            wanted = wanted_plan(content, name, config, unit, id_of, time.time())
            ConfigViews(config).require_deployments(context.caller, wanted.weights)
            if wanted.ttl_s is not None and last is None:
                raise Unavailable(_NO_CONTROLLER)
            context.change.reason = wanted.reason
            return wanted

        author = authorship(context.caller.name, last)
        if not is_dry:
            return await self._make(control, name, check, author, context)
        config = in_use(await control.applied())
        if (before := config.endpoints.get(name)) is None:
            raise Conflict(CHANGED_MEANWHILE)
        wanted = check(config)
        after = before if is_present(wanted, before) else planned(before, wanted, author)
        recent, now = self._services.recent_keys.of(name), self._services.live_routing(name)
        moves = await asyncio.to_thread(dry_run, name, before, after, recent, self._services.ledger.unit, now)
        return Reply(dump(moves))

    async def _roll_back(self, request: HTTPRequest, context: OperationContext) -> Reply:
        """Restores the weights of an earlier generation, as a new one. Overrides stay as they are."""
        name, control, body = await self._change(request, context)
        if_match = request.headers.get("if-match")
        require_match(if_match)
        target = validated(
            RollbackRequest,
            json_object_with_nulls(body),
            lambda problem: BadRequest(problem.message, param=problem.path),
        )
        plans = await history(self._services.controller, name)
        former = next((plan for plan in plans if plan.generation == target.generation), None)
        if former is None:
            known = ", ".join(str(number) for number in dict.fromkeys(plan.generation for plan in plans[:20]))
            message = f"generation: '{name}' has had no generation {target.generation}; the latest: {known or 'none'}"
            raise NotFound(message, param="generation")

        def check(config: Config) -> WantedPlan:
            endpoint = config.endpoints[name]
            check_match(if_match, self._view(name, endpoint, context))
            if undeclared := [deployment for deployment in former.weights if deployment not in config.deployments]:
                raise Conflict(f"'{undeclared[0]}' of generation {target.generation} is not declared any more")
            weights = {**dict.fromkeys(endpoint.traffic, 0), **former.weights}
            ConfigViews(config).require_deployments(context.caller, weights)
            reason = context.change.reason = target.reason or f"back to generation {target.generation}"
            return WantedPlan(weights, endpoint.plan.overrides, reason=reason)

        author = authorship(context.caller.name, max(plan.generation for plan in plans))
        return await self._make(control, name, check, author, context)

    async def _history(self, request: HTTPRequest, context: OperationContext) -> Reply:
        name, _ = self._endpoint(request, context)
        plans = await history(self._services.controller, name)
        return Reply(msgspec.json.encode({"endpoint": name, "plans": plans}))

    async def _change(self, request: HTTPRequest, context: OperationContext) -> tuple[str, ControlPlane, bytes]:
        """The endpoint to change, the control plane, and the body. Raises Forbidden, NotFound and BadRequest."""
        name, views = self._endpoint(request, context)
        self._services.access.roles.require_operator(context.caller, name, f"change the traffic of '{name}'")
        if self._services.control is None:
            raise BadRequest(IN_THE_FILE, code="feature_disabled")
        return name, self._services.control, await read_json(request, context, views.config)

    async def _make(
        self,
        control: ControlPlane,
        name: str,
        check: Callable[[Config], WantedPlan],
        author: Authorship,
        context: OperationContext,
    ) -> Reply:
        config = self._services.views().config
        before, after = await change_plan(control, name, check=check, author=author, patience_s=self._patience_s)
        context.change.before, context.change.after = _audited(name, before), _audited(name, after)
        if before is not after:
            change = event(
                "traffic_changed",
                request_id=context.record.request_id,
                caller=context.caller.name,
                endpoint=name,
                before=dict(before.traffic),
                after=dict(after.traffic),
                plan=plan_of(name, after).id,
            )
            _log.info("Traffic changed", extra=change)
        return self._plan_reply(name, after, context, config, await applied_or_none(self._services.control))

    def _plan_reply(
        self, name: str, endpoint: Endpoint, context: OperationContext, before: Config, applied: Applied | None
    ) -> Reply:
        """The plan of `endpoint`, and its progress. `before`: the configuration served before `applied` was read."""
        view = self._view(name, endpoint, context)
        after = self._services.views().config
        present = plan_of(name, after.endpoints.get(name, endpoint)).id
        if applied is not None:
            delivery = delivery_seen(applied, before, after)
        else:
            delivery = Delivery.SETTLED if self._services.control is None else Delivery.UNSETTLED
        content = {**view, "served": present, "delivery": delivery.name.lower()}
        return Reply(dump(content), headers={"etag": f'"{view["plan"]}"'})

    def _view(self, name: str, endpoint: Endpoint, context: OperationContext) -> dict[str, Any]:
        return plan_view(name, endpoint, with_units=self._sees_units(name, context))

    def _sees_units(self, name: str, context: OperationContext) -> bool:
        """An operator repeats the overrides that it keeps, and names them by their units."""
        roles = self._services.access.roles
        return roles.may_operate(context.caller, name) or roles.may_view(context.caller)

    def _endpoint(self, request: HTTPRequest, context: OperationContext) -> tuple[str, ConfigViews]:
        """The endpoint in the path. Raises NotFound, and Forbidden if the caller may not use it."""
        name, views = request.path_params["endpoint"], self._services.views()
        views.endpoint(context.caller, name)
        context.record.manage(name)
        return name, views


def _audited(name: str, endpoint: Endpoint) -> dict[str, Any]:
    """A plan in the audit log: the units of its overrides are persons."""
    return {
        "plan": plan_of(name, endpoint).id,
        "weights": dict(endpoint.traffic),
        "overrides": len(endpoint.plan.overrides),
        "expires": endpoint.plan.expires.at if endpoint.plan.expires is not None else None,
    }
