"""`GET /api/requests`: the requests that run and the last ones, of all routers; `GET /api/texts/{id}`: the
recorded text of one of them; `GET /api/history`: the counts over time.

Managers and viewers see everybody's requests at the endpoints that they may use, operators those at the endpoints that
they operate, and others their own. A history counts all
requests of an endpoint, so that everyone who may use the endpoint sees it. While the controller of experiments does not
answer, and where there is none, both are this router's alone, and say so.

Texts are there only where `record: {text: full}` says so, and for managers alone: others see requests without them.
Each reading leaves a record in the audit log. The message of a failed request is ours, and quotes no prompt; an
engine's own may (`engine_message`, and those of `is_engines`), and is a text in this sense, but for the record.

Requests without valid credentials have no caller, nor have those for routes that there are not. They are counted by
minute and reason, for whoever has a role.
"""

import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request as HTTPRequest
from starlette.routing import BaseRoute

from app.access.caller import ANONYMOUS_CALLER, Caller
from app.activity.board import RANGES, Board
from app.activity.request_list import MOST_REQUESTS, NOT_ANSWERED, OUTCOMES, RUNNING, Wanted
from app.dialects.base import Reply
from app.dialects.bodies import dump
from app.dialects.schemas import Schema
from app.errors import BadRequest, Forbidden, NotFound
from app.exposures.identity import request_hash
from app.server.openapi import Operation
from app.server.operations import Api, ApiRoute, OperationContext, Services, ask, ask_in_time, openai_words, seconds_in

NOWHERE = "-"
"""In place of an endpoint's name: requests that reached none."""
ALL, ALONE = "all routers", "this router alone"
_FAILED = "failed"
"""As the page calls `errors`."""
_STATUSES = (RUNNING, *OUTCOMES, NOT_ANSWERED)
_STATUS = re.compile(rf"{_FAILED}|{'|'.join(_STATUSES)}|[1-5]\d\d|[1-5]xx")
_NEVER_CACHED = {"cache-control": "no-store"}


class ActivityApi:
    """The routes. `own`: what this router alone has done."""

    def __init__(self, services: Services, *, own: Board) -> None:
        self._services, self._own = services, own
        self._api = Api("switchyard", services, openai_words, is_audited=False)
        self._audited_api = Api("switchyard", services, openai_words)
        self._text_entry = ApiRoute("GET", "/api/texts/{id:path}", "recorded_text", self._text, audited=True)
        query: dict[str, Schema] = {
            "id": {"description": "The request's id: x-request-id, or the id in its answer"},
            "endpoint": {"description": f"A name, or {NOWHERE} for requests that reached none"},
            "deployment": {},
            "caller": {},
            "status": {
                "description": f"{', '.join(_STATUSES)}, a status, or a class of them: 5xx. {_FAILED} is errors, and"
                f" {NOT_ANSWERED} is errors, refused and left"
            },
            "error": {"description": "The kind of error, as in the access log"},
            "slower_than_s": {"type": "number", "minimum": 0},
            "last_s": {"type": "number", "minimum": 0, "description": "Those that ended in the last seconds, or run"},
            "limit": {"type": "integer", "minimum": 1, "maximum": MOST_REQUESTS},
        }
        self._entries = [
            ApiRoute("GET", "/api/requests", "list_requests", self._requests, query),
            ApiRoute("GET", "/api/history", "request_history", self._history, {"range": {"enum": list(RANGES)}}),
        ]

    def operations(self) -> list[Operation]:
        """The operations for the OpenAPI document."""
        return [entry.operation(self._api.dialect) for entry in (*self._entries, self._text_entry)]

    def routes(self) -> list[BaseRoute]:
        """The routes of the API."""
        return [self._text_entry.route(self._audited_api), *(entry.route(self._api) for entry in self._entries)]

    async def _requests(self, request: HTTPRequest, context: OperationContext) -> Reply:
        config = self._services.views().config
        roles, visible = self._services.access.roles, self._visible(context.caller)
        sees_all = roles.may_view(context.caller)
        operated = roles.operated(context.caller, config.endpoints if visible is None else visible)
        wanted = wanted_requests(request.query_params, context.caller, visible, sees_all=sees_all, operated=operated)
        if wanted is None:
            nothing = {**Board().requests(Wanted(), time.time()), "no_such_endpoint": None}
            return _reply(nothing, "nobody: without credentials you have no requests of your own")
        controller = self._services.controller
        found = await ask_in_time(controller, "POST", "/activity/requests", body=msgspec.json.encode(wanted))
        view = ALL if found is not None else ALONE
        content = found if found is not None else self._own.requests(wanted, time.time())
        texts = self._with_texts(context.caller)
        for item in (*content["requests"], *content["groups"]):
            if item["endpoint"] not in texts:
                item |= {"message": "" if item["is_engines"] else item["message"], "engine_message": ""}
                for said in item.get("said", ()):
                    said["message"] = "" if said["is_engines"] else said["message"]
        if roles.role(context.caller) == "caller":
            for counted in ("unauthorized", "unknown_routes"):
                content.pop(counted, None)  # an older controller lacks one
        is_known = (
            wanted.endpoint in ("", None) or wanted.endpoint in self._services.views().of(context.caller).endpoints
        )
        content["no_such_endpoint"] = None if is_known else wanted.endpoint
        whose = {"everyones": sees_all, "operated": operated}
        return _reply({**content, **whose, "trace_url": config.console.trace_url, "texts": texts}, view)

    def _with_texts(self, caller: Caller) -> list[str]:
        """The endpoints whose recorded texts the caller may read."""
        if not self._services.access.roles.may_manage(caller):
            return []
        endpoints = self._services.views().of(caller).endpoints
        return [name for name, one in endpoints.items() if one.records_texts]

    async def _text(self, request: HTTPRequest, context: OperationContext) -> Reply:
        services, id = self._services, request.path_params["id"]
        if not services.access.roles.may_manage(context.caller):
            raise Forbidden(
                f"'{context.caller.name}' may not read recorded texts: it is not listed in `access.managers`"
            )
        wanted = Wanted(endpoints=self._visible(context.caller), id=id, limit=1)
        answer = await ask(services.controller, "POST", "/activity/requests", body=msgspec.json.encode(wanted))
        found = msgspec.json.decode(answer.body)["requests"]
        if not found:
            raise NotFound(f"The request '{id}' is none of the last ones", param="id")
        if (endpoint := found[0]["endpoint"]) not in self._with_texts(context.caller):
            raise NotFound(f"'{endpoint}' records no texts: `record: {{text: full}}` would", param="id")
        path = f"/recordings/{request_hash(id):016x}"
        text = await ask(services.controller, "GET", path, {"at": str(found[0]["at"])})
        content = {"request_id": id, "endpoint": endpoint, **msgspec.json.decode(text.body)}
        return Reply(dump(content), headers=_NEVER_CACHED)

    async def _history(self, request: HTTPRequest, context: OperationContext) -> Reply:
        name = request.query_params.get("range", "1h")
        if name not in RANGES:
            raise BadRequest(f"range: must be one of {', '.join(RANGES)}, not '{name}'", param="range")
        config, endpoints = self._services.views().config, self._visible(context.caller)
        controller, body = self._services.controller, msgspec.json.encode(endpoints)
        found = await ask_in_time(controller, "POST", "/activity/history", {"range": name}, body)
        view = ALL if found is not None else ALONE
        content = found if found is not None else self._own.history(name, time.time(), endpoints)
        return _reply({**content, "grafana_url": config.console.grafana_url}, view)

    def _visible(self, caller: Caller) -> list[str] | None:
        """The endpoints that the caller may use; None: all."""
        views = self._services.views()
        return None if caller.endpoints is None else list(views.of(caller).endpoints)


def _reply(content: Mapping[str, Any], view: str) -> Reply:
    return Reply(dump({"at": time.time(), "view": view, **content}), headers=_NEVER_CACHED)


def wanted_requests(
    query: Mapping[str, str], caller: Caller, endpoints: list[str] | None, *, sees_all: bool, operated: list[str]
) -> Wanted | None:
    """What the caller asks for; None if nothing can be its own. `endpoints`: those that it may use, None for all.
    `operated`: those that it operates.

    Raises BadRequest.
    """
    if not sees_all and caller is ANONYMOUS_CALLER:  # all callers without credentials together are one
        return None
    status = query.get("status")
    if status is not None and _STATUS.fullmatch(status) is None:
        raise BadRequest(
            f"status: '{status}' is neither {', '.join(_STATUSES)}, a status nor 4xx or 5xx", param="status"
        )
    last_s = seconds_in(query, "last_s")
    return Wanted(
        endpoints=endpoints,
        caller_id=None if sees_all else caller.id,
        operated=[] if sees_all else operated,
        id=query.get("id"),
        endpoint="" if query.get("endpoint") == NOWHERE else query.get("endpoint"),
        deployment=query.get("deployment"),
        caller=query.get("caller"),
        status="errors" if status == _FAILED else status,
        error=query.get("error"),
        slower_than_s=seconds_in(query, "slower_than_s"),
        ended_since=None if last_s is None else time.time() - last_s,
        limit=_limit(query),
    )


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", str(MOST_REQUESTS))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MOST_REQUESTS:
        raise BadRequest(f"limit: '{text}' must be a whole number from 1 to {MOST_REQUESTS}", param="limit")
    return int(text)
