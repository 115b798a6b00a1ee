"""The interface of dialects: pure functions and objects that translate between a client's format and vLLM's. No I/O.

    Request ── parse ──► Call, which holds a Translation
    Translation.engine_requests ──► small requests, then the main one ──► (exchange, upstream)
    the whole answer ── Translation.reply ──► Reply
    the event stream ── Translation.open_stream: feed, close, fail ──► bytes
    any SwitchyardError ── render_error ──► Reply

A dialect object holds no state. Its other input comes as `ParseContext` before a deployment is
chosen, and as `ServingContext` after.

Also what several dialects share of their clients: base paths, whose SDK sent a request, and what it names.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, dataclass_transform
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from app.config.schema import Config, Deployment, Task
from app.dialects.schemas import Body
from app.engine.answers import EventCheck
from app.engine.collectors import StreamCollector, forced_call_collector
from app.engine.context import counting
from app.engine.model import Model
from app.engine.output import Usage
from app.errors import SwitchyardError
from app.routing.traffic import Random

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"

MALFORMED_ANSWER_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that translations may raise on a malformed answer of the engine."""


class Request(msgspec.Struct, frozen=True):
    """An HTTP request as dialects see it. Header names are lower-case; `params` are the path's.

    In Unix seconds: `configured_at` is when the configuration in force was applied here, 0 for requests without one;
    `received_at` is when the request came.
    """

    method: str
    path: str
    body: bytes = b""
    params: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    id: str = ""
    configured_at: int = 0
    received_at: int = 0

    def with_body(self, body: bytes) -> "Request":
        """The same request, after its body has been read."""
        return replace(self, body=body)


class ParseContext(msgspec.Struct, frozen=True):
    """The input of `parse` besides the request: the configuration in force, and the source of random seeds."""

    config: Config
    random: Random


class ServingContext(msgspec.Struct, frozen=True):
    """The deployment that serves a call.

    `model` is set if the translation `needs_model`. `total_s` are the seconds since the request's arrival, `engine_s`
    those spent waiting for the deployment; both are 0 until the answer has arrived.
    """

    deployment: str
    settings: Deployment
    model: Model | None = None
    total_s: float = 0.0
    engine_s: float = 0.0

    @property
    def known_model(self) -> Model:
        """The model, for translations that need it."""
        assert self.model is not None, "the translation has needs_model"
        return self.model


class EngineRequest(msgspec.Struct, frozen=True):
    """A POST to a deployment: path below its base URL, and body. The upstream client sets the body's `model`.

    `app.engine.answers.QUESTIONS` are GETs, without the body.
    """

    path: str
    body: Mapping[str, Any]


class Reply(msgspec.Struct, frozen=True):
    """A whole HTTP response."""

    body: bytes
    status: int = 200
    media_type: str = JSON
    headers: Mapping[str, str] = {}
    usage: Usage | None = None
    """The usage for replies of `Translation.engine_requests`: no engine answer reports their tokens."""


class Stream(Protocol):
    """Translates the engine's event stream into the client's, for one request.

    Legal calls: `feed` any number of times, then exactly one of `close` (the engine's stream ended) and `fail` (it
    broke, or `failure` says so). The joined results end in exactly one terminal frame, or in an error's.
    """

    failure: SwitchyardError | None
    """The engine's error event, or what is wrong with its events. `feed` has returned what came before."""

    aborts: bool
    """Whether a failure must break the connection, because the format's clients ignore error events."""

    headers: Mapping[str, str]
    """Response headers in addition to those of every stream."""

    @property
    def keep_alive(self) -> bytes:
        """What shows a client that a silent stream is alive: a frame of which the format's clients make nothing."""

    @property
    def check(self) -> EventCheck | None:
        """What checks the engine's events, if the stream passes on any as they are."""

    @property
    def usage(self) -> Usage | None:
        """The token counts, once the stream has reported them."""

    @property
    def has_ended(self) -> bool:
        """Whether the terminal frame has been returned. A client may hang up once it has that."""

    def feed(self, chunk: bytes) -> bytes: ...

    def close(self) -> bytes: ...

    def fail(self, error: SwitchyardError) -> bytes: ...


Flow = Generator[Sequence[EngineRequest], Sequence[Any], EngineRequest | Reply]
"""The engine's side of one request. It may yield batches of small requests and is sent their JSON answers, in order; it
returns the main request, or the finished reply if there is none.

It yields an empty batch between two steps of long work, which run in a thread and end at the request's deadline."""


def no_lookups(result: EngineRequest | Reply) -> Flow:
    """A flow that needs no answers before `result`."""
    yield from ()
    return result


class Translation(ABC):
    """One request between the client's format and vLLM's. Created by `Dialect.parse`, driven by `exchange.handler`.

    Immutable: after a failure before the first byte, the same object serves another deployment.

    `stream`: the client asked for an event stream. `needs_model`: every `ServingContext` has a model. `generates`: the
    model works on an answer; what only counts tokens or describes the deployment is no exposure of an experiment.
    `is_shared`: the deployment alone determines the answer, which is reused for a second, since anybody may ask.
    `resumed`: the tokens of a stream that its client has already, from another router.
    """

    stream: bool = False
    resumed: Sequence[int] = ()
    needs_model: bool = False
    generates: bool = True
    is_shared: bool = False

    @abstractmethod
    def engine_requests(self, serving: ServingContext) -> Flow:
        """The requests to the deployment. Raises ClientError where this deployment cannot serve the request."""

    def counting(self, request: EngineRequest) -> EngineRequest | None:
        """What asks the engine for the length of the main request's prompt (`app.engine.context.counted`)."""
        counted = counting(request.path, request.body)
        return None if counted is None else EngineRequest(*counted)

    def collector(self, request: EngineRequest) -> StreamCollector | None:
        """Collects the whole answer to the main request from a stream; None if the engine sends it whole."""
        return forced_call_collector(request.path, request.body)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        """The main request's whole answer (status 200) in the client's format: unchanged, unless overridden.

        May raise any of `MALFORMED_ANSWER_ERRORS`, which the exchange reports as the deployment's failure.
        """
        return Reply(answer)

    def open_stream(self, serving: ServingContext) -> Stream:
        """The translator of the main request's event stream."""
        raise AssertionError("this operation does not stream")


AnyTranslation = TypeVar("AnyTranslation", bound=Translation)


@dataclass_transform(frozen_default=True)
def immutable(cls: type[AnyTranslation]) -> type[AnyTranslation]:
    """The decorator of translations: a dataclass that mypy takes for a frozen one. Python's own would set each field
    with a call, which takes as long as to parse a short body."""
    return dataclass(cls)


class Call(msgspec.Struct, frozen=True):
    """A parsed request: what routing, limits and filters need, and its translation.

    `body` is the request in vLLM's fields as far as it is known before a deployment is chosen; limits, content filters
    and errors use it. `model` is the endpoint or deployment that the client named, None for the task's default.
    `deployment` is a variant of the endpoint that the client chose by other means than the routing header. `user` is a
    candidate for the sticky key. `cache_key` is the client's name for requests whose prompts have much in common.
    `timeout_s` is the client's timeout for the whole answer. `field_names` are the client's paths of those of vLLM's
    fields whose names differ, for errors.
    """

    task: Task
    body: Mapping[str, Any]
    translation: Translation
    model: str | None = None
    deployment: str | None = None
    user: str | None = None
    cache_key: str | None = None
    timeout_s: float | None = None
    field_names: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Route:
    """A method and path (Starlette's syntax), and the dialect's name for the operation. `local`: answered from the
    configuration (`Dialect.answer`), not by a deployment. `open`: answered without authentication, and without reading
    the body. `default` is set if the body names no model: the task whose default endpoint serves the request, unless
    the path has an `{endpoint}`.
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
    """Operation to the bodies it accepts, in the order of the documentation's table; others have no body."""

    unknown_fields: ClassVar[str]
    unknown_nested: ClassVar[str]
    """The treatment of a request's unknown fields, and of those of the objects in it, for the docs."""

    def claims(self, route: Route, request: Request) -> bool:
        """Whether `request`, on a path that several dialects have, belongs to this one.

        Called before the body is read (it is empty then), for requests that are rejected unread, and again after.
        """

    def parse(self, operation: str, request: Request, context: ParseContext) -> Call:
        """Raises ClientError, and nothing else, on any bytes."""

    def render_error(self, error: SwitchyardError, operation: str, request: Request) -> Reply:
        """The response to a request that failed before its first byte; its body is empty if it could not be read."""

    def answer(self, operation: str, request: Request, config: Config) -> Reply:
        """A local route's reply; `config` is the part of it that the caller may see. Raises ClientError."""


# Besides its own API, Friendli has OpenAI's Responses and Anthropic's Messages there, which those dialects serve.

AZURE_MOUNTS = ("", "/azure", "/models", "/endpoints/{endpoint}")
"""The base paths of Azure's clients. Newer ones are the OpenAI SDK, so OpenAI's dialect has these paths too."""

INFO_PATHS = ("/info", "/endpoints/{endpoint}/info")
"""The base paths of Azure and TGI. The first is the default endpoint's."""

MOUNTS = ("/serverless/v1", "/dedicated/v1")
"""Friendli's base paths for serverless and dedicated endpoints."""

_OPENAI_SDKS = ("OpenAI/", "AsyncOpenAI/", "DatabricksOpenAI/")

_BELOW = tuple(f"{mount}/" for mount in MOUNTS)


def openai_routes(prefix: str) -> tuple[Route, ...]:
    """OpenAI's chat, completions and embeddings below a base path."""
    return (
        Route("POST", f"{prefix}/chat/completions", "chat"),
        Route("POST", f"{prefix}/completions", "completions"),
        Route("POST", f"{prefix}/embeddings", "embeddings"),
    )


def is_below(request: Request) -> bool:
    """Whether a request is below one of Friendli's base paths."""
    return request.path.startswith(_BELOW)


def addressed(call: Call, request: Request) -> Call:
    """The call with Friendli's naming: the model ``endpoint:adapter`` is the endpoint's deployment of that name.

    The team header replaces an absent user.
    """
    call = replace(call, user=call.user or request.headers.get("x-friendli-team"))
    if call.model is None or ":" not in call.model:
        return call
    endpoint, _, adapter = call.model.partition(":")
    return replace(call, model=endpoint, deployment=adapter)


def is_openais_sdk(headers: Mapping[str, str]) -> bool:
    """Whether the client is the OpenAI SDK, or is built on it."""
    return "x-stainless-lang" in headers or headers.get("user-agent", "").startswith(_OPENAI_SDKS)


def is_own_url(model: object, path: str) -> bool:
    """Whether `model` is the base URL of a request to `path`, under any host: `path` begins with the URL's.

    Hugging Face's JavaScript client sends it where it knows no model's name.
    """
    if not isinstance(model, str) or not model.startswith(("http://", "https://")):
        return False
    try:
        base = urlsplit(model).path.rstrip("/")
    except ValueError:
        return False
    return f"{path}/".startswith(f"{base}/")


_NO_MODEL = (None, "tgi", "dummy")


def names_no_model(name: object, request: Request) -> bool:
    """Whether this `model` means the server's only model. Hugging Face's clients send "tgi", "dummy" or their URL."""
    return name in _NO_MODEL or is_own_url(name, request.path)
