"""One request and its answer: what is known of them, and the steps that find it out.

`handler.py` calls the steps in their order. Each reads what the earlier ones have set; what they share with other
requests is in `RouterState`.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from msgspec.structs import replace

from app.access.caller import UNAUTHENTICATED, credentials
from app.aio import Receive
from app.config.schema import Endpoint, Sticky
from app.dialects.base import Call, Dialect, ParseContext, Reply, Request, Route
from app.dialects.bodies import model_in
from app.dialects.unserved import of_other_methods
from app.errors import (
    CLIENT_GONE,
    CLIENT_TIMEOUT,
    NO_ENGINE,
    BadRequest,
    ClientError,
    DeadlinePassed,
    Forbidden,
    LimitExceeded,
    NotFound,
    Suspected,
    SwitchyardError,
    TimedOut,
    Unauthorized,
    Unavailable,
    UpstreamError,
    why_failed,
)
from app.exchange.affinity import Place
from app.exchange.request import (
    check_body_size,
    check_choices,
    check_constraints,
    check_length,
    check_lists,
    check_numbers,
    headers_of,
    read_json,
    request_id,
)
from app.exchange.response import ResponseWriter, Send
from app.exchange.snapshot import Snapshot
from app.exchange.state import RouterState
from app.exposures.identity import CONVERSATIONS, SESSION_HEADER, conversation_key, has_previous_turns, unit_key
from app.limits.bodies import Room
from app.limits.limiter import estimate
from app.long_json import LONG_BODY, size_of
from app.routing.content_filter import check_content
from app.routing.resilience import Suspicion
from app.routing.rules import NO_CONVERSATION, ConversationTurn
from app.routing.traffic import DEPLOYMENT_HEADER, Assignment, Decision, assign, check_names, endpoint_meant
from app.telemetry.logs import Record, Said
from app.telemetry.recent import DRAWN
from app.telemetry.request_trace import NO_TRACE, SAMPLED, TRACEPARENT, Trace
from app.telemetry.tracing import passed_on

TIMEOUT_HEADER = "x-request-timeout-s"
"""The request header with the client's timeout for the whole answer, in seconds."""

CLOCK_ERROR_S = 0.002
"""How early a timer may fire: uvloop counts in whole milliseconds, and fires up to one before its time."""

_UNLIMITED: AbstractAsyncContextManager[None] = nullcontext()

Candidates = Sequence[tuple[Dialect, Route]]
"""The dialects that share a method and path. The first that claims a request serves it, otherwise the last one."""


class Exchange:
    """One request on its way through the router.

    From the beginning: `headers` by lower-case name; `dialect` and `route`, the last candidate's before `claim`;
    `request`, without its body before `read`; `record` for metrics and the access log; `writer` of the response;
    `trace`. `served`: the deployment that has answered or rejected the request, "" while none has.

    Set by a step: `snapshot`, the configuration that the request keeps (`claim`); `caller` (`authenticate`); `call`,
    `size`, the body's bytes, `patience`, the seconds allowed, and `deadline`, in the event loop's time (`parse`);
    `assignment`, and its `endpoint`, None for a deployment that no endpoint lists (`assign`); `place`, which selects
    the replica (`admitted`).
    """

    __slots__ = (
        "_candidates",
        "_engines_lost",
        "_is_admitted",
        "_room",
        "_scope",
        "_unnamed_lost",
        "assignment",
        "call",
        "caller",
        "deadline",
        "dialect",
        "endpoint",
        "headers",
        "patience",
        "place",
        "receive",
        "record",
        "request",
        "route",
        "served",
        "size",
        "snapshot",
        "state",
        "trace",
        "writer",
    )

    snapshot: Snapshot
    call: Call
    size: int
    patience: float
    deadline: float
    assignment: Assignment
    endpoint: Endpoint | None
    place: Place

    def __init__(
        self, state: RouterState, candidates: Candidates, scope: Mapping[str, Any], receive: Receive, send: Send
    ) -> None:
        self.state, self._candidates, self._scope, self.receive = state, candidates, scope, receive
        headers = self.headers = headers_of(scope)
        self.dialect, self.route = candidates[-1]
        snapshot = state.snapshot
        self.request = Request(
            method=scope["method"],
            path=scope["path"],
            params=scope.get("path_params", {}),
            query=_query(scope.get("query_string", b"")),
            headers=headers,
            id=request_id(headers),
            configured_at=snapshot.applied_at if snapshot is not None else 0,
            received_at=int(time.time()),
        )
        record = self.record = Record(self.dialect.name, self.route.operation, self.request.id)
        self.writer = ResponseWriter(send, record)
        self.trace = self._traced()
        self.caller = UNAUTHENTICATED
        self.served = ""
        self._engines_lost: set[str] = set()
        self._unnamed_lost = 0
        self._room = Room(state.access.bodies, snapshot.config.max_bodies_bytes if snapshot is not None else 0)
        self._is_admitted = False

    # The steps

    def claim(self) -> None:
        """Finds the dialect of the request. Raises Unavailable without a configuration."""
        if self.state.snapshot is None:
            raise Unavailable("The router has no configuration yet", retry_after=1)
        self.snapshot = self.state.snapshot
        self.writer.plans = self.snapshot.plans
        self._claim()

    async def authenticate(self) -> None:
        """Finds the caller. Raises Unauthorized and TooManyRefusals."""
        if self.route.open:
            return
        self.caller = caller = await self.state.access.caller(self.headers, self._scope.get("client"))
        self.record.caller = caller.name
        self._room.holder = caller.id if self.snapshot.knows_callers else ""

    async def read(self) -> None:
        """Reads the body, and looks again whose request it is. Raises what `_body_limit` and `read_json` raise."""
        if self.route.open:
            return
        bodies, limit = self.state.access.bodies, await self._body_limit()
        body = await read_json(self.receive, self.headers, self.snapshot.config, limit, bodies, self._room)
        self.request = self.request.with_body(body)
        if len(body) <= LONG_BODY:  # nearly always: without a coroutine
            self._claim()
        else:
            await bodies.work(len(body), self._claim)

    async def answer(self) -> None:
        """Answers a local route, from the configuration. Raises ClientError."""
        visible = self.snapshot.views.of(self.caller)
        await self.writer.send(self.dialect.answer(self.route.operation, self.request, visible))

    async def parse(self) -> None:
        """Makes the call of the body, checked against the configuration. Raises ClientError."""
        if not self.route.open:
            plans, caller_id = self.writer.plans, self.caller.id
            self.state.requests.begin(
                self.record, self.writer.sent, plans, caller_id=caller_id, trace_id=self._trace_id()
            )
        request, config, bodies = self.request, self.snapshot.config, self.state.access.bodies
        self.size = size = size_of(request.body)
        self.record.endpoint = self._addressed()
        if not self.record.endpoint and request.body and (self.caller.endpoints is not None or size > LONG_BODY):
            # Rights and the endpoint's own bound come before the body is checked in full.
            name = await bodies.work(len(request.body), model_in, request.body)
            self.snapshot.views.require_access(self.caller, name)
            if name in config.endpoints:
                check_body_size(size, config.body_limit(name))
        self.call = self._parsed() if size <= LONG_BODY else await bodies.work(size, self._parsed)
        self.record.stream = self.call.translation.stream
        self.patience = self._time_allowed()
        self.deadline = asyncio.get_running_loop().time() + self.patience

    async def assign(self) -> None:
        """Chooses the deployment. Raises Forbidden, NotFound, WrongTask and BadRequest."""
        assignment = self._assigned(may_ask=True)
        if assignment.unknown:  # it depends on the other routers' pins
            await self.state.exchange_pins()
            assignment = self._assigned(may_ask=False)
        self.assignment = assignment
        self.endpoint = self.snapshot.config.endpoints.get(assignment.endpoint)

    async def check(self) -> None:
        """Checks the body against the endpoint's bound and content filter, and whether engines have just died of it.

        Raises TooLarge, BadRequest and Suspected.
        """
        self.trace.queued(self.call.task if self.call.translation.generates else "")
        if self.state.fuse.watches and (suspicion := await self.suspicion()) is not None:
            engines = "Two" if suspicion.engines == 2 else suspicion.engines
            refusal = Suspected(
                f"{engines} engines died while they worked on this request; it is refused for another "
                f"{suspicion.left_s:.0f} s"
            )
            refusal.retry_after = suspicion.left_s
            raise refusal
        if self.call.translation.resumed and self.assignment.alternatives:
            raise BadRequest(
                f"resume: name the deployment that began the stream, in `model` or in the header {DEPLOYMENT_HEADER}: "
                "the endpoint has several",
                param="resume",
            )
        if self.size > self.snapshot.config.max_body_bytes:
            check_body_size(self.size, self.snapshot.config.body_limit(self.assignment.endpoint))
        if self.endpoint is not None and self.endpoint.content_filter is not None:
            bodies = self.state.access.bodies
            checked = self.endpoint.content_filter, self.call.body, self.call.field_names
            await bodies.work(self.size, check_content, *checked)

    def limits(self) -> AbstractAsyncContextManager[object]:
        """Holds what the request takes of its caller's limits. Entering it raises LimitExceeded and Unavailable."""
        access, name = self.state.access, self.assignment.endpoint
        return access.admit(self.caller, name, lambda: _prompt_estimate(self.record, self.call), self.writer)

    def slot(self) -> AbstractAsyncContextManager[object]:
        """Holds a slot of an endpoint that has `admission`. Entering it waits in the queue, or raises Unavailable."""
        admission = self.endpoint.admission if self.endpoint is not None else None
        if admission is None or self.call.translation.is_shared:
            return _UNLIMITED  # clients without a key take no slot from those that have one
        name, state = self.assignment.endpoint, self.state
        return state.queues[name].slot(name, admission, self.assignment.deployment, state.unserved)

    def admitted(self) -> None:
        """Nothing but a deployment refuses the request any more."""
        self._is_admitted = True
        self.record.admitted = time.perf_counter()
        # Without this object, which has the place: a cycle would keep the request's body.
        estimate = partial(_prompt_estimate, self.record, self.call)
        self.place = Place(self.snapshot, self.assignment, self.caller.id, self.call, self.headers, estimate)

    def hold_answer(self, size: int) -> None:
        """Counts a whole answer of `size` bytes with the bodies, to the request's end. Raises LimitExceeded."""
        self._room.take_answer(size)

    def attempt_failed(self, error: SwitchyardError) -> None:
        """Notes that the call of a deployment has failed, for whoever looks at the request."""
        self.record.attempt_failed(why_failed(error), error.engine if isinstance(error, UpstreamError) else "")

    # Its end

    async def lost(self, deployment: str, engine: str, *, had_tokens: bool, is_certain: bool = True) -> None:
        """Notes that an engine of the deployment may have died of the request; "": one that has not told its name.

        `had_tokens`: the request had new tokens of it. `is_certain`: the fuse may suspect the request."""
        if engine:
            self._engines_lost.add(engine)
        else:
            self._unnamed_lost += 1
        if is_certain:
            self.state.fuse.died(deployment, engine, await self.fingerprint(), had_tokens=had_tokens)

    @property
    def deaths(self) -> int:
        """How many engines may have died of the request. One without a name may be one of the others."""
        named, unnamed = len(self._engines_lost), self._unnamed_lost
        return named + max(0, unnamed - 1) if named else unnamed

    async def suspicion(self) -> Suspicion | None:
        """Why the fuse suspects the request of engines' deaths; None if it does not."""
        return self.state.fuse.suspicion(await self.fingerprint())

    async def fingerprint(self) -> bytes:
        """The hash of the body as it came, and of whether an engine generates for it."""
        kind = b"generates" if self.call.translation.generates else b""
        return await self.state.access.bodies.work(self.size, _hash, self.request.body, kind)

    def is_answered(self) -> bool:
        """Whether the client has all that it waits for."""
        return self.writer.is_answered

    def render(self, error: SwitchyardError) -> Reply:
        """The error in the dialect's form."""
        return self.dialect.render_error(self.with_limit(error), self.route.operation, self.request)

    def with_limit(self, error: SwitchyardError) -> SwitchyardError:
        """The error, which says so if the limit that has passed is the client's own."""
        if isinstance(error, DeadlinePassed) and self._is_over_own_limit():
            return DeadlinePassed(f"The response took longer than the {self.patience:g} s that the request allows")
        return error

    async def refused(self, error: ClientError) -> ClientError:
        """The error to answer for an `error` of the request: invalid requests count against their caller's limits."""
        if isinstance(error, Forbidden):
            self.record.endpoint = ""  # the answer has no header of an endpoint that the caller may not use
        is_exempt = self._is_admitted or self.route.open or self.route.local
        if error.is_clients_fault and not (is_exempt or isinstance(error, LimitExceeded | Unauthorized)):
            if not isinstance(error, Forbidden):
                self.record.endpoint = self.record.endpoint or self._endpoint_in_body()
            await self.state.access.count_invalid(self.caller, self.record.endpoint, self.writer)
        return of_other_methods(error, self.request) or error

    def end(self) -> None:
        """The response is over, or the client is gone."""
        self._room.give_back()
        if self.record.streamed and self.record.usage is None:
            _prompt_estimate(self.record, self.call)
        self.record.manages = self.route.open  # probes of its health are none of an endpoint's requests
        if self.record.error == Forbidden.kind and self.caller.endpoints is not None:
            self.record.endpoint = self._endpoint_asked()
        if self.record.error == TimedOut.kind and self._is_over_own_limit():
            self.record.error, self.record.own_limit_s = CLIENT_TIMEOUT, self.patience
        if self.record.error in (CLIENT_GONE, CLIENT_TIMEOUT) and self._had_no_engine():
            self.record.error = NO_ENGINE
        self._learn_length()
        telemetry, plan = self.state.telemetry, self.writer.plans.get(self.record.endpoint, "")
        telemetry.finish(self.record)
        if self.record.reason in DRAWN and self.endpoint is not None:
            telemetry.period.drew(self.record.endpoint, plan, self.endpoint.traffic)
        if not (self.route.open or self.route.local):
            if self.record.said is not None:
                self._keep_what_was_said(self.record.said)
            self.state.requests.add(self.record, plan=plan, caller_id=self.caller.id, trace_id=self._trace_id())
        self.trace.end(self.route.method, self.route.path, plan)
        self.writer.forget_stream()

    # The parts of the steps

    def _learn_length(self) -> None:
        """Tells the replicas' balancing how long the answer was."""
        application = self.snapshot.targets[self.served].app if self.served else None
        usage = self.record.used
        if application is not None and usage is not None and self.call.translation.generates:
            self.state.balancer.answered(application, usage.completion_tokens)

    def _had_no_engine(self) -> bool:
        """Whether a client that waits no longer had waited for an engine where there is none."""
        record, assignment = self.record, getattr(self, "assignment", None)
        if assignment is None or record.first_byte is not None:
            return False
        deployment = record.deployment or assignment.deployment
        waited_s = time.perf_counter() - record.started
        return self.state.is_down(deployment) or (
            waited_s >= self.state.no_engine_s and self.state.has_no_engine(deployment)
        )

    def _trace_id(self) -> int:
        """The id of the request's trace if it is sampled, otherwise 0."""
        return self.trace.trace_id if self.trace.flags & SAMPLED else 0

    def _traced(self) -> Trace:
        """The request's trace: its own spans, or the client's context to pass on."""
        tracer = self.state.tracing.tracer
        if tracer is not None:
            return tracer.begin(self.headers, self.record)
        return passed_on(self.headers) if TRACEPARENT in self.headers else NO_TRACE

    def _claim(self) -> None:
        for dialect, route in self._candidates:
            if dialect.claims(route, self.request):
                break
        self.dialect, self.route = dialect, route
        self.record.dialect, self.record.operation = dialect.name, route.operation

    async def _body_limit(self) -> int:
        """The largest body of the request, in bytes, as far as that is known before the body.

        Raises Forbidden, NotFound and LimitExceeded: a caller without rights to what the path or header names, or
        without a request left, sends no body, and neither does one that names what there is not.
        """
        snapshot, caller, access = self.snapshot, self.caller, self.state.access
        if self.route.local:
            return snapshot.largest_body
        name = self.record.endpoint = self._addressed()
        model, deployment = self._named()
        if caller.endpoints is not None:
            for named in (model, deployment, name or None):
                snapshot.views.require_access(caller, named)
        if model is not None or deployment is not None:
            check_names(snapshot.views.of(caller), model, deployment)
        # To ask a store elsewhere takes longer than to read a short body.
        if access.counts_requests(caller, name) and not (access.limits_are_shared and _is_short(self.headers)):
            await access.check_requests(caller, name, self.writer)
        return snapshot.config.body_limit(name) if name else snapshot.largest_body

    def _addressed(self) -> str:
        """The endpoint that the path alone names, or "": a request with an unreadable body counts for it."""
        config, default = self.snapshot.config, self.route.default
        name = config.defaults.get(default) if default else None
        if params := self.request.params:
            name = params.get("endpoint") or params.get("name") or params.get("deployment") or name
        return name if name is not None and name in config.endpoints else ""

    def _named(self) -> tuple[str | None, str | None]:
        """The endpoint, deployment or model that the path names, and the deployment that path or header name."""
        params, deployment = self.request.params, self.headers.get(DEPLOYMENT_HEADER)
        if not params:
            return None, deployment
        endpoint = params.get("endpoint") or params.get("name")
        if endpoint is None:
            return params.get("deployment"), deployment
        return endpoint, deployment or params.get("deployment")

    def _endpoint_in_body(self) -> str:
        """The endpoint that the body names, or a deployment of which, if the caller may use it; else ""."""
        name = model_in(self.request.body)
        return endpoint_meant(self.snapshot.views.of(self.caller), name) if name is not None else ""

    def _endpoint_asked(self) -> str:
        """The endpoint at which a request counts that its caller may not make; "" if there is none."""
        model, deployment = self._named()
        name = model or model_in(self.request.body) or deployment
        return endpoint_meant(self.snapshot.config, name) if name is not None else ""

    def _keep_what_was_said(self, said: Said) -> None:
        """Takes out of the error's text what nobody else may read: an engine's message, which may quote the prompt,
        unless the endpoint records texts; and the client's own credentials, which it may have sent as a name."""
        if not self.records_texts:
            said = replace(said, text="" if said.is_engines else said.text, engine_message="")
        text, engine_message = map(self.without_credentials, (said.text, said.engine_message))
        self.record.said = replace(said, text=text, engine_message=engine_message)

    @property
    def records_texts(self) -> bool:
        """Whether prompts at the request's endpoint are recorded, so that what may quote them may be kept, too."""
        snapshot = getattr(self, "snapshot", None)
        endpoint = snapshot.config.endpoints.get(self.record.endpoint) if snapshot is not None else None
        return endpoint is not None and endpoint.records_texts

    def without_credentials(self, text: str) -> str:
        """The text without the client's own credentials, and whatever looks like one."""
        for credential in filter(_is_secret, credentials(self.headers)):
            text = text.replace(credential, "…")
        return _KEY.sub("…", text)

    def _parsed(self) -> Call:
        request, config = self.request, self.snapshot.config
        most = config.max_messages
        if request.body.count(b",") >= most:
            check_lists(request.body, most)
        call = self.dialect.parse(self.route.operation, request, ParseContext(config, self.state.random))
        # A list may have been a string, with its commas escaped.
        check_length(call.body, most, call.field_names)
        check_choices(call, most)
        check_numbers(call, request.body)
        check_constraints(call, self.size)
        if self.size > LONG_BODY:  # this is no work for the event loop
            _prompt_estimate(self.record, call)
        return call

    def _is_over_own_limit(self) -> bool:
        """Whether the time is over that the client allows, where that is less than this server does."""
        is_own = hasattr(self, "deadline") and self.patience < self.snapshot.config.timeouts.total_s
        return is_own and asyncio.get_running_loop().time() >= self.deadline - CLOCK_ERROR_S

    def _time_allowed(self) -> float:
        """Seconds for the whole exchange: the configuration's, unless the client wants to wait less."""
        total_s = self.snapshot.config.timeouts.total_s
        allowed = min(total_s, self.call.timeout_s or total_s)
        if (wish := self.headers.get(TIMEOUT_HEADER)) is None:
            return allowed
        try:
            seconds = float(wish)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            raise BadRequest(f"{TIMEOUT_HEADER}: must be a number of seconds above 0", param=TIMEOUT_HEADER)
        return min(allowed, seconds)

    def _assigned(self, *, may_ask: bool) -> Assignment:
        """The deployment for the call. `may_ask`: see `ConversationTurn`."""
        snapshot, caller, call, state = self.snapshot, self.caller, self.call, self.state
        snapshot.views.require_access(caller, call.model or snapshot.config.defaults.get(call.task))
        named = self.headers.get(DEPLOYMENT_HEADER)
        try:
            assignment = assign(
                snapshot.views.of(caller),
                task=call.task,
                model=call.model,
                deployment=named or call.deployment,
                named_in=DEPLOYMENT_HEADER if named else "model",
                sticky_key=self._sticky_key,
                random=state.random,
                decide=partial(self._decided, may_ask) if snapshot.rules else None,
            )
        except NotFound as error:
            if snapshot.knows_callers and caller is UNAUTHENTICATED:  # who may ask about every endpoint, and list none
                raise NotFound(f"There is no endpoint '{call.model}'", param=error.param) from None
            raise
        if assignment.key is not None and not assignment.unknown:
            state.recent_keys.saw(assignment.endpoint, assignment.key)
        self.record.endpoint, self.record.reason = assignment.endpoint, assignment.reason
        if assignment.unstopped:
            plan = snapshot.unstopped[assignment.endpoint].plan
            self.writer.plans = {**snapshot.plans, assignment.endpoint: plan}
        return assignment

    def _decided(self, may_ask: bool, endpoint: str, key: str | None) -> Decision | None:
        """The decision of the endpoint's rules; None without rules."""
        if (rules := self.snapshot.rules.get(endpoint)) is None:
            return None

        def is_open(deployment: str) -> bool:
            return self.state.health.is_open(deployment, self.snapshot)

        def turn() -> ConversationTurn:
            return self._turn()._replace(may_ask=may_ask)

        return rules.decide(key, self.state.random, is_open, turn)

    def _turn(self) -> ConversationTurn:
        """The conversation of the request, regardless of the endpoint's sticky key."""
        call, caller = self.call, self.caller
        if call.task not in CONVERSATIONS:
            return NO_CONVERSATION
        if session := self.headers.get(SESSION_HEADER):
            key: str | None = f"session:{session}"
        else:
            key = conversation_key(caller.name, call.task, call.body)
        if key is None:
            return NO_CONVERSATION
        return ConversationTurn(
            has_previous_turns(call.task, call.body), self.state.ledger.conversation(caller.id, key)
        )

    def _sticky_key(self, sticky: Sticky) -> str | None:
        call, caller, headers = self.call, self.caller, self.headers
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


_KEY = re.compile(r"\b(?:sk-|eyJ|hf_)[\w.-]{16,}")
"""The API keys and tokens of most providers."""


def _is_secret(credential: str) -> bool:
    """Whether it is longer than the words that clients send where no key is needed."""
    return len(credential) >= 16


def _hash(body: bytes, kind: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16, person=kind).digest()


def _is_short(headers: Mapping[str, str]) -> bool:
    length = headers.get("content-length", "")
    return length.isdecimal() and len(length) < 9 and int(length) <= LONG_BODY


def _prompt_estimate(record: Record, call: Call) -> int:
    """Counted once for each request."""
    if record.prompt_estimate is None:
        record.prompt_estimate = estimate(call.body)
    return record.prompt_estimate


def _query(raw: bytes) -> dict[str, str]:
    return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True)) if raw else {}
