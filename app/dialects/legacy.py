"""Bridge: calls of dialects that have no `Translation` yet. It goes with the last of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.config.schema import Task
from app.dialects.base import Call as ModernCall
from app.dialects.base import EngineRequest, Flow, Reply, ServingContext, Stream, Translation
from app.dialects.json_body import dump
from app.engine.usage import find_usage


class _Renders(Protocol):
    def render(self, call: "Call", body: bytes, served: ServingContext) -> Reply: ...

    def stream(self, call: "Call", served: ServingContext) -> Stream: ...


@dataclass(frozen=True, slots=True)
class Call:
    """One question to a deployment, in vLLM's words.

    `path` None asks the engine nothing: `render` answers from `ServingContext` and the body. `model` is the endpoint
    or deployment that the client named; the exchange writes the deployment name
    into `body`. `deployment` is a variant of the endpoint that the client chose by other means than the routing header.
    `user` is a sticky key candidate. `timeout_s` is how long the client will wait for the whole answer. `note` is the
    dialect's own memory.

    Two steps may come between, in this order, where the question depends on the deployment: `fit` rewrites the body for
    it (pure; raises ClientError where this deployment cannot serve the call), `lookup` asks its engine; `fan_out` is a
    lookup whose questions are in the fitted body.

    `partial`: when time is up, what a completion has by then is the answer. Whole ones are folded from a stream for
    that (`app.engine.completion_collector`); in streamed ones it is the `Stream` that ends in order (`fail` with
    TimedOut).
    """

    task: Task
    path: str | None
    body: dict[str, Any]
    model: str | None = None
    deployment: str | None = None
    stream: bool = False
    user: str | None = None
    timeout_s: float | None = None
    note: Any = None
    needs_model: bool = False
    partial: bool = False
    fit: Callable[[dict[str, Any], ServingContext], dict[str, Any]] | None = None
    lookup: "Lookup | None" = None
    fan_out: "Callable[[dict[str, Any]], Lookup] | None" = None

    def modern(self, dialect: Any) -> ModernCall:
        bridged = Bridged(self, dialect)
        bridged.stream, bridged.needs_model = self.stream, self.needs_model
        bridged.truncate_on_timeout = self.partial
        return ModernCall(self.task, self.body, bridged, self.model, self.deployment, self.user, self.timeout_s)


@dataclass(frozen=True, slots=True)
class Lookup:
    """Small unary questions (path, body), and what their answers make of the body of the call that waits for them.

    `then` gets the answers (JSON objects) in the questions' order; it raises ClientError where they show that the call
    cannot be served.
    """

    questions: Sequence[tuple[str, dict[str, Any]]]
    then: Callable[[dict[str, Any], Sequence[dict[str, Any]]], dict[str, Any]]


class Bridged(Translation):
    def __init__(self, call: Call, dialect: _Renders) -> None:
        self._call, self._dialect = call, dialect

    def engine_requests(self, serving: ServingContext) -> Flow:
        call = self._call
        body = call.fit(call.body, serving) if call.fit is not None else call.body
        lookup = call.fan_out(body) if call.fan_out else call.lookup
        if lookup is not None:
            answers = yield [EngineRequest(path, asked) for path, asked in lookup.questions]
            body = lookup.then(body, answers)
        if call.path is None:
            answer = dump(body)
            reply = self._dialect.render(call, answer, serving)
            return Reply(reply.body, reply.status, reply.media_type, reply.headers, find_usage(answer))
        return EngineRequest(call.path, body)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return self._dialect.render(self._call, answer, serving)

    def open_stream(self, serving: ServingContext) -> Stream:
        return self._dialect.stream(self._call, serving)
