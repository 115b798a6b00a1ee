"""READ THIS FIRST. One request's journey, top to bottom:

    authenticate -> read -> parse -> route -> reserve, queue -> forward -> write

`handle` is the journey. `forward.py` calls the deployment, `failures.py` renders errors. What they guarantee:

- an error before the first byte is a real HTTP status in the dialect's own form; after it, the stream ends with the
  dialect's error event, never in silence;
- for every body, however malicious, the event loop serves others within 50 ms: what is long is parsed and written in a
  thread and in pieces (`app/long_json.py`), after its size and the number of its values have been checked; rights come
  first, and invalid requests count;
- a deployment that fails before the first byte is replaced once: by another of the endpoint, else by another of its
  replicas, as long as retries make no more than a tenth of the load;
- the engine stops working for a client that disconnects;
- every response names the deployment that produced it, the endpoint's plan, and the request's id.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from app.access.caller import UNAUTHENTICATED, Caller, credentials
from app.config.schema import Config, Sticky, Timeouts
from app.dialects.base import Call, Dialect, ParseContext, Request, Route
from app.dialects.bodies import model_in, peek
from app.dialects.unserved import of_other_methods
from app.errors import BadRequest, ClientError, LimitExceeded, NotFound, SwitchyardError, Unauthorized, Unavailable
from app.exchange.affinity import Place
from app.exchange.deadlines import Receive, while_connected
from app.exchange.failures import errors_rendered
from app.exchange.forward import Forwarder
from app.exchange.observers import begin, end
from app.exchange.request import (
    check_body_size,
    check_choices,
    check_constraints,
    check_headers,
    check_length,
    headers_of,
    read_json,
    request_id,
)
from app.exchange.response import ResponseWriter, Send
from app.exchange.snapshot import Snapshot
from app.exchange.state import RouterState
from app.exposures.conversation import CONVERSATIONS, SESSION_HEADER, conversation_key, has_previous_turns
from app.exposures.identity import unit_key
from app.limits.bodies import LONG_BODY, Room
from app.limits.limiter import estimate
from app.long_json import size_of
from app.routing.content_filter import check_content
from app.routing.rules import NO_CONVERSATION, ConversationTurn
from app.routing.traffic import DEPLOYMENT_HEADER, Assignment, Decision, assign, check_names
from app.telemetry.logs import Record
from app.telemetry.request_trace import TRACEPARENT, Trace
from app.telemetry.tracing import passed_on

TIMEOUT_HEADER = "x-request-timeout-s"
"""The request header with the client's timeout for the whole answer, in seconds."""

Candidates = Sequence[tuple[Dialect, Route]]
"""The dialects that share a method and path. The first that claims a request serves it, otherwise the last one."""


async def handle(
    state: RouterState,
    candidates: Candidates,
    scope: Mapping[str, Any],
    receive: Receive,
    send: Send,
    *,
    refusal: SwitchyardError | None = None,
) -> None:
    """Serves one HTTP request (ASGI): authenticate, read, parse, route, reserve and queue, forward, write.

    With a `refusal` it answers that, in the dialect's form, and does nothing else.
    """
    headers = headers_of(scope)
    dialect, route = candidates[-1]
    snapshot = state.snapshot
    request = _request(scope, headers, configured_at=snapshot.applied_at if snapshot is not None else 0)
    record = Record(dialect.name, route.operation, request.id)
    writer = ResponseWriter(send, record)
    trace = _trace(state, headers, record)
    forwarder: Forwarder | None = None
    room: Room | None = None
    is_admitted = False
    try:
        async with errors_rendered(writer, lambda error: dialect.render_error(error, route.operation, request)):
            if snapshot is None:
                raise Unavailable("The router has no configuration yet", retry_after=1)
            writer.plans = snapshot.plans
            check_headers(scope, snapshot.config.max_header_bytes)
            dialect, route = _claimed(candidates, request, record)
            if refusal is not None:
                raise refusal
            caller = UNAUTHENTICATED
            room = Room(state.access.bodies, snapshot.config.max_bodies_bytes)
            try:
                if not route.open:
                    caller = await state.access.caller(headers, scope.get("client"))
                    record.caller = caller.name
                    room.holder = caller.id if snapshot.knows_callers else ""
                    limit = await _admissible(state, snapshot, caller, route, request, writer)
                    body = await read_json(receive, headers, snapshot.config, limit, state.access.bodies, room)
                    request = request.with_body(body)
                    dialect, route = await state.access.bodies.work(len(body), _claimed, candidates, request, record)
                if route.local:
                    await writer.send(dialect.answer(route.operation, request, snapshot.views.of(caller)))
                    return
                call = await _parsed(state, snapshot, dialect, route, request, record, caller)
                async with while_connected(receive, lambda: writer.finished):
                    time_allowed = _time_allowed(snapshot.config.timeouts, call, headers)
                    deadline = asyncio.get_running_loop().time() + time_allowed
                    choose = partial(_route, state, snapshot, caller, call, headers, writer)
                    assignment = await _routed(state, choose)
                    size = size_of(request.body)
                    limits, slot = await _reserve(state, snapshot, caller, call, assignment, writer, trace, size)
                    async with limits, slot:
                        is_admitted = True
                        place = Place(snapshot, assignment, caller.id, call, headers)
                        observation = begin(state, snapshot, caller, call, assignment, writer, size, trace)
                        forwarder = Forwarder(
                            state, snapshot, caller.id, call, writer, observation, place, deadline, size
                        )
                        await forwarder.forward(assignment)
            except ClientError as error:
                if not (is_admitted or route.open or route.local or isinstance(error, LimitExceeded | Unauthorized)):
                    endpoint = record.endpoint or _endpoint_in(request.body, snapshot.config)
                    await state.access.count_invalid(caller, endpoint, writer)
                raise (of_other_methods(error, request) or error) from None
    finally:
        if room is not None:
            room.give_back()
        state.telemetry.finish(record)
        if forwarder is not None:
            end(forwarder.observation, state, forwarder.snapshot, forwarder.call, writer, forwarder.place)
        if trace is not None:
            trace.end(route.method, route.path, writer.plans.get(record.endpoint, ""))


def _trace(state: RouterState, headers: Mapping[str, str], record: Record) -> Trace | None:
    """The request's trace: its own spans, or the client's context to pass on."""
    tracer = state.tracing.tracer
    if tracer is not None:
        return tracer.begin(headers, record)
    return passed_on(headers) if TRACEPARENT in headers else None


def _request(scope: Mapping[str, Any], headers: Mapping[str, str], *, configured_at: int) -> Request:
    """The request, without its body."""
    return Request(
        method=scope["method"],
        path=scope["path"],
        params=scope.get("path_params", {}),
        query=_query(scope.get("query_string", b"")),
        headers=headers,
        id=request_id(headers),
        configured_at=configured_at,
        received_at=int(time.time()),
    )


def _claimed(candidates: Candidates, request: Request, record: Record) -> tuple[Dialect, Route]:
    for dialect, route in candidates:
        if dialect.claims(route, request):
            break
    record.dialect, record.operation = dialect.name, route.operation
    return dialect, route


async def _admissible(
    state: RouterState, snapshot: Snapshot, caller: Caller, route: Route, request: Request, writer: ResponseWriter
) -> int:
    """The largest body of the request, in bytes, as far as that is known before the body.

    Raises Forbidden, NotFound and LimitExceeded: a caller without rights to what the path or header names, or without a
    request left, sends no body, and neither does one that names what there is not.
    """
    if route.local:
        return snapshot.largest_body
    access = state.access
    name = writer.record.endpoint = _addressed(route, request, snapshot.config)
    model, deployment = _named(request)
    if caller.endpoints is not None:
        for named in (model, deployment, name or None):
            snapshot.views.require_access(caller, named)
    if model is not None or deployment is not None:
        check_names(snapshot.views.of(caller), model, deployment)
    # To ask a store elsewhere takes longer than to read a short body.
    if access.counts_requests(caller, name) and not (access.limits_are_shared and _is_short(request.headers)):
        await access.check_requests(caller, name, writer)
    return snapshot.config.body_limit(name) if name else snapshot.largest_body


def _is_short(headers: Mapping[str, str]) -> bool:
    length = headers.get("content-length", "")
    return length.isdecimal() and len(length) < 9 and int(length) <= LONG_BODY


async def _parsed(
    state: RouterState,
    snapshot: Snapshot,
    dialect: Dialect,
    route: Route,
    request: Request,
    record: Record,
    caller: Caller,
) -> Call:
    """The call, checked against the configuration. Raises ClientError."""
    size = size_of(request.body)
    record.endpoint = _addressed(route, request, snapshot.config)
    if not record.endpoint and request.body and (caller.endpoints is not None or size > LONG_BODY):
        # Rights and the endpoint's own bound come before the body is checked in full.
        name = await state.access.bodies.work(size, model_in, request.body)
        snapshot.views.require_access(caller, name)
        if name in snapshot.config.endpoints:
            check_body_size(size, snapshot.config.body_limit(name))
    if size <= LONG_BODY:
        return _parse(state, snapshot.config, dialect, route, request)
    return await state.access.bodies.work(size, _parse, state, snapshot.config, dialect, route, request)


def _endpoint_in(body: bytes, config: Config) -> str:
    """The endpoint that the body names, or ""."""
    name = model_in(body)
    return name if name is not None and name in config.endpoints else ""


def _parse(state: RouterState, config: Config, dialect: Dialect, route: Route, request: Request) -> Call:
    if request.body.count(b",") >= config.max_messages:
        check_length(peek(request.body), config.max_messages)
    call = dialect.parse(route.operation, request, ParseContext(config, state.random))
    check_length(call.body, config.max_messages)  # a list may have been a string, with its commas escaped
    check_choices(call, config.max_messages)
    check_constraints(call, size_of(request.body))
    return call


def _addressed(route: Route, request: Request, config: Config) -> str:
    """The endpoint that the path alone names, or "": a request with an unreadable body counts for it."""
    name = config.defaults.get(route.default) if route.default else None
    if params := request.params:
        name = params.get("endpoint") or params.get("name") or params.get("deployment") or name
    return name if name is not None and name in config.endpoints else ""


def _named(request: Request) -> tuple[str | None, str | None]:
    """The endpoint, deployment or model that the path names, and the deployment that the path or a header names."""
    params, deployment = request.params, request.headers.get(DEPLOYMENT_HEADER)
    if not params:
        return None, deployment
    endpoint = params.get("endpoint") or params.get("name")
    if endpoint is None:
        return params.get("deployment"), deployment
    return endpoint, deployment or params.get("deployment")


async def _routed(state: RouterState, route: Callable[..., Assignment]) -> Assignment:
    """The result of a `_route`, after the other routers' pins have been read if the deployment depends on them."""
    assignment = route(may_ask=True)
    if assignment.unknown:
        await state.exchange_pins()
        assignment = route(may_ask=False)
    return assignment


def _route(
    state: RouterState,
    snapshot: Snapshot,
    caller: Caller,
    call: Call,
    headers: Mapping[str, str],
    writer: ResponseWriter,
    *,
    may_ask: bool,
) -> Assignment:
    """The deployment for the call. `may_ask`: see `ConversationTurn`.

    Raises Forbidden, NotFound, WrongTask and BadRequest.
    """
    snapshot.views.require_access(caller, call.model or snapshot.config.defaults.get(call.task))
    named = headers.get(DEPLOYMENT_HEADER)
    try:
        assignment = assign(
            snapshot.views.of(caller),
            task=call.task,
            model=call.model,
            deployment=named or call.deployment,
            named_in=DEPLOYMENT_HEADER if named else "model",
            sticky_key=lambda sticky: _sticky_key(sticky, caller, call, headers),
            random=state.random,
            decide=partial(_decided, state, snapshot, caller, call, headers, may_ask) if snapshot.rules else None,
        )
    except NotFound as error:
        if snapshot.knows_callers and caller is UNAUTHENTICATED:  # who may ask about every endpoint, and list none
            raise NotFound(f"There is no endpoint '{call.model}'", param=error.param) from None
        raise
    if assignment.key is not None and not assignment.unknown:
        state.recent_keys.saw(assignment.endpoint, assignment.key)
    writer.record.endpoint, writer.record.reason = assignment.endpoint, assignment.reason
    if assignment.unstopped:
        writer.plans = {**snapshot.plans, assignment.endpoint: snapshot.unstopped[assignment.endpoint].plan}
    return assignment


def _decided(
    state: RouterState,
    snapshot: Snapshot,
    caller: Caller,
    call: Call,
    headers: Mapping[str, str],
    may_ask: bool,
    endpoint: str,
    key: str | None,
) -> Decision | None:
    """The decision of the endpoint's rules; None without rules."""
    if (rules := snapshot.rules.get(endpoint)) is None:
        return None

    def is_open(deployment: str) -> bool:
        return state.health.is_open(deployment, snapshot)

    def turn() -> ConversationTurn:
        return _turn(state, caller, call, headers)._replace(may_ask=may_ask)

    return rules.decide(key, state.random, is_open, turn)


def _turn(state: RouterState, caller: Caller, call: Call, headers: Mapping[str, str]) -> ConversationTurn:
    """The conversation of a request, regardless of the endpoint's sticky key."""
    if call.task not in CONVERSATIONS:
        return NO_CONVERSATION
    if session := headers.get(SESSION_HEADER):
        key: str | None = f"session:{session}"
    else:
        key = conversation_key(caller.name, call.task, call.body)
    if key is None:
        return NO_CONVERSATION
    return ConversationTurn(has_previous_turns(call.task, call.body), state.ledger.conversation(caller.id, key))


def _sticky_key(sticky: Sticky, caller: Caller, call: Call, headers: Mapping[str, str]) -> str | None:
    match sticky.by:
        case "header":
            value = headers.get((sticky.name or "").lower())
        case "user":
            value = call.user
        case "api_key":
            value = next(iter(credentials(headers)), None)
        case "conversation":
            value = headers.get(SESSION_HEADER) or conversation_key(caller.name, call.task, call.body)
    return unit_key(sticky, caller.id, value) if value is not None else None


async def _reserve(
    state: RouterState,
    snapshot: Snapshot,
    caller: Caller,
    call: Call,
    assignment: Assignment,
    writer: ResponseWriter,
    trace: Trace | None,
    size: int,
) -> tuple[AbstractAsyncContextManager[object], AbstractAsyncContextManager[object]]:
    """The contexts that hold the caller's limits, and then a slot of the endpoint, while the request runs.

    Entering them raises LimitExceeded, TooLarge and Unavailable. Checks the body's `size`, and applies the content
    filter: raises TooLarge and BadRequest.
    """
    if trace is not None:
        trace.queued(call.task if call.translation.generates else "")
    name = assignment.endpoint
    endpoint = snapshot.config.endpoints.get(name)
    if size > snapshot.config.max_body_bytes:
        check_body_size(size, snapshot.config.body_limit(name))
    if endpoint is not None and endpoint.content_filter is not None:
        await state.access.bodies.work(size, check_content, endpoint.content_filter, call.body)
    tokens = partial(estimate, call.body)
    if size > LONG_BODY and state.access.counts_tokens(caller, name):
        estimated = await state.access.bodies.work(size, tokens)
        limits = state.access.admit(caller, name, lambda: estimated, writer)
    else:
        limits = state.access.admit(caller, name, tokens, writer)
    if call.translation.is_shared:
        return limits, nullcontext()  # clients without a key take no slot from those that have one
    admission = endpoint.admission if endpoint is not None else None
    return limits, state.queues[name].slot(name, admission, assignment.deployment, state.unserved)


def _time_allowed(timeouts: Timeouts, call: Call, headers: Mapping[str, str]) -> float:
    """Seconds for the whole exchange: the configuration's, unless the client wants to wait less."""
    allowed = min(timeouts.total_s, call.timeout_s or timeouts.total_s)
    if (wish := headers.get(TIMEOUT_HEADER)) is None:
        return allowed
    try:
        seconds = float(wish)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise BadRequest(f"{TIMEOUT_HEADER}: must be a number of seconds above 0", param=TIMEOUT_HEADER)
    return min(allowed, seconds)


def _query(raw: bytes) -> dict[str, str]:
    return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True)) if raw else {}
