"""The API of experiments, below `/api`: the controller's answers, for callers that may see them.

A caller sees experiments of the endpoints that it may use, and exposures of its own requests; managers and viewers see
everyone's. Managers and the endpoint's operators decide about experiments and start A/A runs. Errors have
OpenAI's form.

- The deployment that an endpoint's sticky key reaches, and the reason: `GET /api/endpoints/{endpoint}/assignment`.
- `GET /api/endpoints/{endpoint}/mirror`: the report on an endpoint's shadow, for callers of the endpoint.
- `GET /api/exposures`: the recorded exposures as a file, for managers and viewers. Hashes, times, sizes, outcomes; no
  text, no name.
"""

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request as HTTPRequest

from app.access.caller import credentials
from app.aio import while_connected
from app.config.access import ANONYMOUS
from app.config.schema import Config, Endpoint, Sticky
from app.dialects.base import Reply
from app.dialects.bodies import dump
from app.dialects.schemas import Body, Schema
from app.errors import BadRequest, Forbidden, NotFound, SwitchyardError, Unavailable
from app.exchange.request import headers_of
from app.exchange.snapshot import LiveRouting
from app.experiments.contract.journal import EXPOSURE_FORMATS
from app.experiments.contract.query import is_dry_run
from app.experiments.contract.report import Summary
from app.experiments.rendering import document
from app.experiments.rendering.reports import list_document
from app.exposures.controller_client import Answer, ExportClient
from app.exposures.identity import request_hash, unit_key
from app.exposures.plans import plan_of
from app.exposures.wire import FeedbackItem
from app.misspellings import question
from app.routing.rules import Overrides, effective
from app.routing.traffic import alternatives_to, rendezvous, scores
from app.server.experiment_requests import (
    CheckRequest,
    DecisionRequest,
    Feedback,
    FeedbackList,
    RunsRequest,
    automation_fields,
    check,
    checked,
    decide,
    error_words,
    etag,
    foresee,
    given_decision,
)
from app.server.operations import (
    Api,
    ApiRoute,
    OperationContext,
    RoutedApi,
    Services,
    ask,
    no_controller,
    openai_words,
    read_json,
    refusal,
)
from app.server.traffic_document import moves
from app.telemetry.logs import event


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
        "stops": [
            {"deployment": deployment, "control": control, "applied": deployment in stops}
            for deployment, control in now.stops.items()
        ],
        "pins": {"conversations": sum(now.pins.values()), "until": now.until} if now.until is not None else None,
        "deployments": [
            {
                "deployment": deployment,
                "weight": weight,
                "score": points.get(deployment),
                "breaker_open": deployment in failing,
            }
            for deployment, weight in traffic.items()
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


_FORMAT: Schema = {"enum": ["json", "markdown", "text"]}
_NUMBER: Schema = {"type": "number", "exclusiveMinimum": 0}
_TEXT: Schema = {}
_EXPERIMENT = "/api/experiments/{name}"

_MOST_VALUES_OF_A_SECTION = 5000
"""As `long_json.weight` counts them: an experiment with fifty metrics and as many guardrails has half as many."""
_log = logging.getLogger("switchyard")


class ExperimentsApi(RoutedApi):
    """The routes."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._api = Api("switchyard", services, error_words)

    def _table(self) -> list[ApiRoute]:
        form = {"format": _FORMAT}
        history, planner = {**form, "metric": _TEXT, "treatment": _TEXT}, {"effect": _NUMBER, "power": _NUMBER}
        forward, runs = self._forward, [Body(RunsRequest)]
        return [
            ApiRoute("GET", "/api/experiments", "list_experiments", self._list, form),
            ApiRoute("POST", "/api/experiments/check", "check_experiment", self._check, bodies=[Body(CheckRequest)]),
            ApiRoute("GET", _EXPERIMENT, "get_experiment", partial(forward, ""), form),
            ApiRoute("GET", f"{_EXPERIMENT}/report", "report", partial(forward, "/report"), form),
            ApiRoute("GET", f"{_EXPERIMENT}/history", "history", partial(forward, "/history"), history),
            ApiRoute("GET", f"{_EXPERIMENT}/planner", "planner", partial(forward, "/planner"), {**history, **planner}),
            ApiRoute("GET", f"{_EXPERIMENT}/aa", "aa_runs", partial(forward, "/aa"), form),
            ApiRoute("POST", f"{_EXPERIMENT}/aa", "start_aa_runs", self._start_runs, {}, runs, 202, {}, True),
            ApiRoute(
                "POST",
                f"{_EXPERIMENT}/decision",
                "decide",
                self._decide,
                {"dry_run": {"enum": ["true", "false"]}},
                [Body(DecisionRequest)],
                headers={"If-Match": "The ETag of the experiment that was seen"},
                audited=True,
            ),
            ApiRoute(
                "GET",
                "/api/endpoints/{endpoint}/assignment",
                "assignment",
                self._assignment,
                {"key": _TEXT, "caller": _TEXT},
            ),
            ApiRoute(
                "GET",
                "/api/requests/{id:path}",
                "get_request",
                self._request,
                {"missing": {"enum": ["empty"], "description": "No exposures are no error, but `why` there are none"}},
            ),
            ApiRoute(
                "POST",
                "/api/feedback",
                "feedback",
                self._feedback,
                bodies=[Body(Feedback), Body(FeedbackList)],
                status=202,
                counted=True,
            ),
        ]

    async def _list(self, request: HTTPRequest, context: OperationContext) -> Reply:
        views = self._services.views()
        seen = views.of(context.caller).endpoints
        visible: list[Summary] = []
        if any(experiment.endpoint in seen for experiment in views.config.experiments.values()):
            answer = await ask(self._services.controller, "GET", "/experiments")
            summaries = msgspec.json.decode(answer.body, type=dict[str, list[Summary]])["experiments"]
            visible = [summary for summary in summaries if summary.endpoint in seen]
        form = request.query_params.get("format", "json")
        if form not in _FORMAT["enum"]:
            raise BadRequest(f"format: '{form}' is none of {', '.join(_FORMAT['enum'])}", param="format")
        if form == "json":
            return Reply(msgspec.json.encode({"experiments": visible}))
        render = document.markdown if form == "markdown" else document.text
        return Reply(render(list_document(visible)).encode(), media_type=f"text/{_SUBTYPES[form]}")

    async def _forward(self, suffix: str, request: HTTPRequest, context: OperationContext) -> Reply:
        """Forwards the controller's answer at the same path."""
        name = self._experiment(request, context)
        answer = await ask(self._services.controller, "GET", f"/experiments/{name}{suffix}", dict(request.query_params))
        headers = etag(answer.body) if not suffix and request.query_params.get("format", "json") == "json" else {}
        return Reply(answer.body, answer.status, answer.media_type, headers)

    async def _decide(self, request: HTTPRequest, context: OperationContext) -> Reply:
        context.change.is_dry = is_dry_run(request.query_params)
        name = context.change.experiment = self._experiment(request, context)
        config = self._services.views().config
        self._require_operator(name, "decide about it", context)
        body = await read_json(request, context, config)
        if context.change.is_dry:
            return await self._foresee(name, body, config, context)
        if_match, given = request.headers.get("if-match"), given_decision(body)
        context.change.reason = given["reason"]
        present, summary = await decide(self._services.controller, name, if_match, given, context.caller.name)
        order = {"action": given["action"], **({"treatment": given["treatment"]} if "treatment" in given else {})}
        context.change.before, context.change.after = (
            automation_fields(present),
            {**order, **automation_fields(summary)},
        )
        _log.info(
            "An experiment was decided about",
            extra=event(
                "experiment_decided",
                request_id=context.record.request_id,
                caller=context.caller.name,
                experiment=name,
                action=given["action"],
            ),
        )
        return Reply(summary, headers=etag(summary))

    async def _foresee(self, name: str, body: bytes, config: Config, context: OperationContext) -> Reply:
        """The consequences of a decision, and the keys that it would move if every router had the present plan."""
        foreseen = await foresee(self._services.controller, name, body, context.caller.name)
        endpoint = config.experiments[name].endpoint
        plan = config.endpoints[endpoint]
        before, after = (
            plan.model_copy(update={"traffic": {**plan.traffic, **arms}}) for arms in (foreseen.before, foreseen.after)
        )
        keys = self._services.recent_keys.of(endpoint)
        moved = await asyncio.to_thread(moves, before, after, keys, self._services.ledger.unit)
        view = {**msgspec.to_builtins(foreseen), "moves": moved}
        return Reply(dump(view), headers={"etag": f'"{foreseen.revision}"'})

    async def _check(self, request: HTTPRequest, context: OperationContext) -> Reply:
        """Checks a section for an experiment. Nothing is changed: experiments are declared in the file."""
        views = self._services.views()
        body = await read_json(request, context, views.config, _MOST_VALUES_OF_A_SECTION)
        return Reply(dump(await asyncio.to_thread(check, body, views.of(context.caller))))

    async def _start_runs(self, request: HTTPRequest, context: OperationContext) -> Reply:
        name = context.change.experiment = self._experiment(request, context)
        self._require_operator(name, "start A/A runs", context)
        body = await read_json(request, context, self._services.views().config)
        answer = await ask(self._services.controller, "POST", f"/experiments/{name}/aa", body=body)
        context.change.after = {"runs": json.loads(body)["runs"]}
        return Reply(answer.body, answer.status)

    async def _assignment(self, request: HTTPRequest, context: OperationContext) -> Reply:
        name, views = request.path_params["endpoint"], self._services.views()
        endpoint = views.endpoint(context.caller, name)
        context.record.manage(name)
        # The hash of a key is its unit's name in the ledger: with it a person could be looked up.
        roles = self._services.access.roles
        sees_units = roles.may_view(context.caller) or roles.may_operate(context.caller, name)
        key = self._sticky_key(request, context, endpoint.sticky, asks_for_others=sees_units)
        hashes = self._services.ledger.hashes if sees_units else None
        unit = hashes.unit(key) if hashes is not None and key is not None else None
        override = None
        if key is not None and endpoint.plan.overrides:
            override = Overrides(endpoint.plan.overrides, self._services.ledger.unit, time.time).deployment(key)
        failing, now = frozenset(self._services.open_breakers()), self._services.live_routing(name)
        return Reply(dump(explain(name, endpoint, key, unit=unit, failing=failing, override=override, now=now)))

    def _sticky_key(
        self, request: HTTPRequest, context: OperationContext, sticky: Sticky | None, *, asks_for_others: bool
    ) -> str | None:
        """The key that the query asks about: one of the caller's own, or with a role, of the caller that it names."""
        given, name = request.query_params.get("key"), request.query_params.get("caller")
        if name is not None and not asks_for_others:
            raise Forbidden(
                f"'{context.caller.name}' may only ask about its own keys: leave out `caller`", param="caller"
            )
        if sticky is None or given == "":
            return given
        own = context.caller.id
        if sticky.by == "api_key":
            if given is None:
                given = next(iter(credentials(headers_of(request.scope))), None)
            elif own != ANONYMOUS:  # the unit is a caller, whom its name names
                return self._callers_unit(sticky, own, given, asks_for_others=asks_for_others)
        if given is None:
            return None
        caller = own if name is None else self._services.access.id_of(name)
        if caller is None:
            raise BadRequest(f"caller: no key has the name '{name}'", param="caller")
        return unit_key(sticky, caller, given)

    def _callers_unit(self, sticky: Sticky, own: str, name: str, *, asks_for_others: bool) -> str:
        """The sticky key of the caller with this name. Raises BadRequest and Forbidden, without the name: it may be a
        key.
        """
        caller = self._services.access.id_of(name)
        if caller != own and not asks_for_others:
            raise Forbidden("key: must be the name of your own API key, or be left out", param="key")
        if caller is None:
            raise BadRequest("key: is no name of an API key, and no token's principal", param="key")
        return unit_key(sticky, caller, "")

    async def _request(self, request: HTTPRequest, context: OperationContext) -> Reply:
        """The exposures of a request id: among the caller's own requests and all at the endpoints that it operates, for
        managers and viewers among all."""
        seen = self._services.views().of(context.caller)
        id = request.path_params["id"]
        visible = []
        if (hashes := self._services.ledger.hashes) is not None:
            answer = await ask(self._services.controller, "GET", f"/requests/{request_hash(id):016x}")
            roles = self._services.access.roles
            mine = None if roles.may_view(context.caller) else f"{hashes.caller(context.caller.id):016x}"
            operated = roles.operated(context.caller, seen.endpoints)
            visible = [
                exposure
                for exposure in json.loads(answer.body)["exposures"]
                if mine in (None, exposure["caller"]) or exposure["plan"]["endpoint"] in operated
            ]
        if not visible:
            why = (
                f"Nothing is recorded of a request with the id '{id}' that you may see. Either its endpoint has no "
                "experiment, mirror or `ledger: always`, or it is still running, or its record has expired "
                "(`ledger.retention_days`), or the id is another one: it is in the header x-request-id"
            )
            if request.query_params.get("missing") == "empty":
                return Reply(dump({"request_id": id, "exposures": [], "why": why}))
            raise NotFound(why, param="id")
        shown = [{name: value for name, value in exposure.items() if name != "caller"} for exposure in visible]
        return Reply(dump({"request_id": id, "exposures": shown}))

    async def _feedback(self, request: HTTPRequest, context: OperationContext) -> Reply:
        views = self._services.views()
        body = await read_json(request, context, views.config)
        hashes = self._services.ledger.hashes
        is_manager = self._services.access.roles.may_manage(context.caller)
        caller = 0 if hashes is None or is_manager else hashes.caller(context.caller.id)
        items, unknown = checked(body, views.of(context.caller), caller, time.time())
        if items:
            if hashes is None:
                raise Unavailable("Nothing is recorded on this router: no controller of experiments runs beside it")
            self._services.ledger.feedback(items)
        matches = await self._matches(items) if items else {"pending": 0, "late": 0}
        return Reply(dump({"accepted": len(items), **matches, "unknown_metric": unknown}), 202)

    async def _matches(self, items: Sequence[FeedbackItem]) -> Mapping[str, int | None]:
        """The numbers of items that match no known answer, and that come after their answer's window; None if the
        controller does not answer.
        """
        try:
            answer = await ask(self._services.controller, "POST", "/feedback/pending", body=msgspec.json.encode(items))
        except SwitchyardError:
            return {"pending": None, "late": None}
        counts: Mapping[str, int] = json.loads(answer.body)
        return {"pending": counts["pending"], "late": counts.get("late", 0)}

    def _require_operator(self, name: str, what: str, context: OperationContext) -> None:
        """Raises Forbidden if the caller may not do `what` with the experiment."""
        endpoint = self._services.views().config.experiments[name].endpoint
        self._services.access.roles.require_operator(context.caller, endpoint, f"{what}: '{name}'")

    def _experiment(self, request: HTTPRequest, context: OperationContext) -> str:
        """The experiment in the path. Raises NotFound, and Forbidden if the caller may not use its endpoint."""
        name, views = request.path_params["name"], self._services.views()
        seen = views.of(context.caller)
        if (experiment := views.config.experiments.get(name)) is None:
            known = _visible(views.config, seen)
            raise NotFound(
                f"No experiment '{name}'{question(name, known)}; known: {', '.join(known) or 'none'}", param="name"
            )
        if experiment.endpoint not in seen.endpoints:
            message = f"'{context.caller.name}' may not use the endpoint of the experiment '{name}'"
            raise Forbidden(message, param="name")
        context.record.manage(experiment.endpoint)
        return str(name)


_SUBTYPES = {"markdown": "markdown; charset=utf-8", "text": "plain; charset=utf-8"}


def _visible(config: Config, seen: Config) -> list[str]:
    return [name for name, experiment in config.experiments.items() if experiment.endpoint in seen.endpoints]


PATH = "/api/endpoints/{endpoint}/mirror"


class MirrorApi(RoutedApi):
    """The route."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._api = Api("switchyard", services, openai_words, is_audited=False)
        query = {"format": {"enum": ["json", "markdown", "text"]}}
        self._entry = ApiRoute("GET", PATH, "mirror", self._mirror, query)

    def _table(self) -> Sequence[ApiRoute]:
        return [self._entry]

    async def _mirror(self, request: HTTPRequest, context: OperationContext) -> Reply:
        name, views = request.path_params["endpoint"], self._services.views()
        views.endpoint(context.caller, name)
        context.record.manage(name)
        answer = await ask(self._services.controller, "GET", f"/endpoints/{name}/mirror", dict(request.query_params))
        return Reply(answer.body, answer.status, answer.media_type)


class ExportApi(RoutedApi):
    """The route. `exports` returns the recorded exposures, None if nothing does."""

    def __init__(self, services: Services, *, exports: ExportClient | None) -> None:
        self._services, self._exports = services, exports
        self._api = Api("switchyard", services, openai_words)
        query: dict[str, Schema] = {
            "experiment": {"description": "Only the exposures of its last run"},
            "endpoint": {"description": "Only this endpoint's requests"},
            "since": {"description": "Unix seconds, or ISO 8601 (UTC)"},
            "until": {"description": "The same; not included"},
            "format": {"enum": list(EXPOSURE_FORMATS)},
        }
        self._entry = ApiRoute("GET", "/api/exposures", "export_exposures", self._export, query, audited=True)

    def _table(self) -> Sequence[ApiRoute]:
        return [self._entry]

    async def _export(self, request: HTTPRequest, context: OperationContext) -> None:
        self._services.access.roles.require_viewer(context.caller, "export what was recorded")
        if self._exports is None:
            raise no_controller()
        writer = context.writer
        async with self._exports.export(dict(request.query_params)) as exported:
            with while_connected(request.receive):
                if isinstance(exported, Answer):
                    raise refusal(exported)
                context.change.after = dict(request.query_params)
                await writer.start_stream({}, exported.media_type)
                context.record.first_byte = None  # it is no model's first token
                async for piece in exported.pieces:
                    await writer.send_chunk(piece)
                await writer.end_stream()
