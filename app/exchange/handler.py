"""READ THIS FIRST. One request's journey, top to bottom:

    read -> authenticate -> parse -> route -> reserve, queue -> forward -> write

`handle` is the journey. `forward.py` calls the deployment, `failures.py` renders errors. What they guarantee:

- an error before the first byte is a real HTTP status in the dialect's own form; after it, the stream ends with the
  dialect's error event, never in silence;
- a deployment that fails before the first byte is replaced once: by another of the endpoint, else by another of its
  replicas, as long as retries make no more than a tenth of the load;
- the engine stops working for a client that disconnects;
- every response names the deployment that produced it, the endpoint's plan, and the request's id.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from app.access.caller import UNAUTHENTICATED, Caller, credentials
from app.config.schema import Config, Sticky, Timeouts
from app.dialects.base import Call, Dialect, ParseContext, Request, Route
from app.errors import BadRequest, SwitchyardError, Unavailable
from app.exchange.affinity import Place
from app.exchange.deadlines import Receive, while_connected
from app.exchange.failures import errors_rendered
from app.exchange.forward import Forwarder
from app.exchange.observation import begin, end
from app.exchange.request import check_constraints, check_headers, check_length, headers_of, read_body, request_id
from app.exchange.response import ResponseWriter, Send
from app.exchange.snapshot import Snapshot
from app.exchange.state import RouterState
from app.ledger.conversation import CONVERSATIONS, SESSION_HEADER, conversation_key, is_running
from app.ledger.units import unit_key
from app.routing.content_filter import check_content
from app.routing.rules import NO_CONVERSATION, Turn
from app.routing.traffic import DEPLOYMENT_HEADER, Assignment, Decision, assign
from app.telemetry.access_log import Record
from app.telemetry.tracing.request import Trace
from app.telemetry.tracing.tracer import passed_on

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
    """Serves one HTTP request (ASGI): read, authenticate, parse, route, reserve and queue, forward, write.

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
            if not route.open:  # before the body is read: it costs memory
                caller = await state.access.caller(headers, scope.get("client"))
                request = request.with_body(await read_body(receive, headers, snapshot.config))
                dialect, route = _claimed(candidates, request, record)
            record.caller = caller.name
            if route.local:
                await writer.send(dialect.answer(route.operation, request, snapshot.views.of(caller)))
                return
            call = _parse(state, snapshot, dialect, route, request, record)
            async with while_connected(receive, lambda: writer.finished):
                deadline = asyncio.get_running_loop().time() + _time_allowed(snapshot.config.timeouts, call, headers)
                assignment = _route(state, snapshot, caller, call, headers, writer)
                limits, slot = _reserve(state, snapshot, caller, call, assignment, writer, trace)
                async with limits, slot:
                    size, place = len(request.body), Place(snapshot, assignment, caller.id, call, headers)
                    observation = begin(state, snapshot, caller, call, assignment, writer, size, trace)
                    forwarder = Forwarder(state, snapshot, caller.id, call, writer, observation, place, deadline, size)
                    await forwarder.forward(assignment)
    finally:
        state.telemetry.finish(record)
        if forwarder is not None:
            end(forwarder.observation, state, forwarder.snapshot, forwarder.call, writer, forwarder.place)
        if trace is not None:
            trace.end(route.method, route.path, writer.plans.get(record.endpoint, ""))


def _trace(state: RouterState, headers: Mapping[str, str], record: Record) -> Trace | None:
    """The request's trace: its own spans, or the client's context to pass on."""
    tracer = state.tracing.tracer
    return tracer.begin(headers, record) if tracer is not None else passed_on(headers)


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
    )


def _claimed(candidates: Candidates, request: Request, record: Record) -> tuple[Dialect, Route]:
    for dialect, route in candidates:
        if dialect.claims(route, request):
            break
    record.dialect, record.operation = dialect.name, route.operation
    return dialect, route


def _parse(
    state: RouterState, snapshot: Snapshot, dialect: Dialect, route: Route, request: Request, record: Record
) -> Call:
    """The call, checked against the configuration. Raises ClientError."""
    record.endpoint = _addressed(route, request, snapshot.config)
    call = dialect.parse(route.operation, request, ParseContext(snapshot.config, state.random))
    check_length(call.body, snapshot.config.max_messages)
    check_constraints(call)
    return call


def _addressed(route: Route, request: Request, config: Config) -> str:
    """The endpoint that the path alone names, or "": a request with an unreadable body counts for it."""
    default = config.defaults.get(route.default) if route.default else None
    name = request.params.get("endpoint", default)
    return name if name in config.endpoints else ""


def _route(
    state: RouterState,
    snapshot: Snapshot,
    caller: Caller,
    call: Call,
    headers: Mapping[str, str],
    writer: ResponseWriter,
) -> Assignment:
    """The deployment for the call. Raises Forbidden, NotFound, WrongTask and BadRequest."""
    snapshot.views.require_access(caller, call.model or snapshot.config.defaults.get(call.task))
    assignment = assign(
        snapshot.views.of(caller),
        task=call.task,
        model=call.model,
        header=headers.get(DEPLOYMENT_HEADER) or call.deployment,
        sticky_key=lambda sticky: _sticky_key(sticky, caller, call, headers),
        random=state.random,
        decide=partial(_decided, state, snapshot, caller, call, headers) if snapshot.rules else None,
    )
    if assignment.key is not None:
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
    endpoint: str,
    key: str | None,
) -> Decision | None:
    """The decision of the endpoint's rules; None without rules."""
    if (rules := snapshot.rules.get(endpoint)) is None:
        return None

    def is_open(deployment: str) -> bool:
        return state.health.is_open(deployment, snapshot)

    return rules.decide(key, state.random, is_open, lambda: _turn(state, caller, call, headers))


def _turn(state: RouterState, caller: Caller, call: Call, headers: Mapping[str, str]) -> Turn:
    """The conversation of a request, regardless of the endpoint's sticky key."""
    if call.task not in CONVERSATIONS:
        return NO_CONVERSATION
    if session := headers.get(SESSION_HEADER):
        key: str | None = f"session:{session}"
    else:
        key = conversation_key(caller.name, call.task, call.body)
    if key is None:
        return NO_CONVERSATION
    return Turn(is_running(call.task, call.body), state.ledger.conversation(caller.id, key))


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


def _reserve(
    state: RouterState,
    snapshot: Snapshot,
    caller: Caller,
    call: Call,
    assignment: Assignment,
    writer: ResponseWriter,
    trace: Trace | None,
) -> tuple[AbstractAsyncContextManager[object], AbstractAsyncContextManager[object]]:
    """The contexts that hold the caller's limits, and then a slot of the endpoint, while the request runs.

    Entering them raises LimitExceeded, TooLarge and Unavailable. Applies the content filter: raises BadRequest.
    """
    if trace is not None:
        trace.queued(call.task if call.translation.generates else "")
    name = assignment.endpoint
    endpoint = snapshot.config.endpoints.get(name)
    if endpoint is not None:
        check_content(endpoint.content_filter, call.body)
    admitted = state.access.admit(caller, name, call.body, writer)
    if call.translation.is_shared:
        return admitted, nullcontext()  # clients without a key take no slot from those that have one
    admission = endpoint.admission if endpoint is not None else None
    slot = state.queues[name].slot(name, admission, assignment.deployment, state.unserved)
    return admitted, slot


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
