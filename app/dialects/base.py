"""What a dialect is: pure functions between a client's words and vLLM's.

    Request ──parse──► Call ──(exchange, upstream)──► answer bytes ──render──► Reply
                                                     stream bytes ──Stream.feed/close/fail──► bytes
    any SwitchyardError ──render_error──► Reply

A dialect object holds no state; what one request needs to remember travels in its `Call`, what it may know beside the
request comes as `Context` (before a deployment is chosen) and `Served` (after).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from app.config.schema import Config, Deployment, Task
from app.dialects.openapi_schemas import Body
from app.engine.model import Model
from app.engine.usage import Usage
from app.errors import SwitchyardError
from app.routing.traffic import Random

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """What a dialect sees of an HTTP request. Header names are lower-case; `params` are the path's."""

    method: str
    path: str
    body: bytes = b""
    params: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """What `parse` may know beside the request: the configuration in force, and where seeds are drawn."""

    config: Config
    random: Random


@dataclass(frozen=True, slots=True)
class Served:
    """The deployment that works on a call.

    `model` is there when the call said `needs_model`. Times are in seconds: since the request's arrival, and of these
    waiting for the deployment; 0 until the answer is there.
    """

    deployment: str
    settings: Deployment
    model: Model | None = None
    total_s: float = 0.0
    engine_s: float = 0.0

    @property
    def known_model(self) -> Model:
        """The model of a call that needs it."""
        assert self.model is not None, "the call said needs_model"
        return self.model


@dataclass(frozen=True, slots=True)
class Call:
    """One question to a deployment, in vLLM's words.

    `path` None asks the engine nothing: `render` answers from `Served` and the body as JSON. `model` is the endpoint or
    deployment that the client named, None for the task's default; the exchange writes the deployment's own model name
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
    fit: Callable[[dict[str, Any], Served], dict[str, Any]] | None = None
    lookup: "Lookup | None" = None
    fan_out: "Callable[[dict[str, Any]], Lookup] | None" = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """Small unary questions (path, body), and what their answers make of the body of the call that waits for them.

    `then` gets the answers (JSON objects) in the questions' order; it raises ClientError where they show that the call
    cannot be served.
    """

    questions: Sequence[tuple[str, dict[str, Any]]]
    then: Callable[[dict[str, Any], Sequence[dict[str, Any]]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole HTTP response."""

    body: bytes
    status: int = 200
    media_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


class Stream(Protocol):
    """Turns the upstream's event stream into the client's, for one request.

    Legal calls: `feed` any number of times, then exactly one of `close` (the upstream ended in order) and `fail`
    (it did not). What these return, joined, ends in exactly one terminal frame.
    """

    aborts: bool
    """Whether a failure can only be told by breaking the connection: the format's clients skip error events."""

    headers: Mapping[str, str]
    """What the answer's head says beside what every stream's says."""

    @property
    def usage(self) -> Usage | None:
        """The counts, once the stream has told them."""

    def feed(self, chunk: bytes) -> bytes: ...

    def close(self) -> bytes: ...

    def fail(self, error: SwitchyardError) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Route:
    """A method and path (Starlette's syntax), and the dialect's name for what it does.

    `local` ones are answered from the configuration (`Dialect.answer`), the others by a deployment. `open` ones are
    answered to everybody, and without their body. `default` is set where the body names no model: the task whose
    default endpoint is asked, unless the path has an `{endpoint}`.
    """

    method: str
    path: str
    operation: str
    local: bool = False
    open: bool = False
    default: Task | None = None


class Dialect(Protocol):
    """One provider's wire format."""

    name: ClassVar[str]
    routes: ClassVar[Sequence[Route]]
    bodies: ClassVar[Mapping[str, Sequence[Body]]]
    """What an operation's body may be; one that is not here takes none."""

    def claims(self, route: Route, request: Request) -> bool:
        """Whether `request`, on a path that other dialects have too, is this one's.

        Asked twice: before the body is read (it is empty then), for those that are refused unread, and after.
        """

    def parse(self, operation: str, request: Request, context: Context) -> Call:
        """The question behind `request`. Raises ClientError, and nothing else, on any bytes."""

    def render(self, call: Call, body: bytes, served: Served) -> Reply:
        """The upstream's whole answer (status 200) in the client's words. Raises Broken on nonsense."""

    def stream(self, call: Call, served: Served) -> Stream: ...

    def render_error(self, error: SwitchyardError, operation: str, request: Request) -> Reply:
        """The answer to a request that failed before its first byte; its body is empty if it could not be read."""

    def answer(self, operation: str, request: Request, config: Config) -> Reply:
        """A local route's reply; `config` is what the caller may know of it. Raises ClientError."""
