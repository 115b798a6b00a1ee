"""The ASGI layers between the server and the exchange.

They return the inner application's awaitable instead of awaiting it: Python passes every chunk of a stream through each
coroutine that waits.

Cross-origin requests from browsers, if the configuration allows some origins (`cors`).
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.config.schema import Config, Cors
from app.dialects.base import Dialect, Route
from app.dialects.registry import DIALECTS
from app.errors import SwitchyardError
from app.exchange.exchange import Candidates
from app.exchange.response import NO_SNIFFING


class Handle(Protocol):
    """Serves a request by its candidates, or refuses it in their form (`exchange.handler.handle`)."""

    def __call__(
        self,
        candidates: Candidates,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        refusal: SwitchyardError | None = None,
    ) -> Awaitable[None]: ...


class RouteApp:
    """One method and path and the dialects that serve it, as an ASGI application."""

    def __init__(self, handle: Handle, candidates: Candidates) -> None:
        self._handle, self._candidates = handle, candidates

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._handle(self._candidates, scope, receive, send)

    def refuse(self, error: SwitchyardError, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._handle(self._candidates, scope, receive, send, refusal=error)


RouteApps = Mapping[tuple[str, str], RouteApp]
"""The handlers by method and path."""


def route_apps(handle: Handle) -> RouteApps:
    shared: dict[tuple[str, str], list[tuple[Dialect, Route]]] = {}
    for dialect in DIALECTS:
        for route in dialect.routes:
            shared.setdefault((route.method, route.path), []).append((dialect, route))
    return {where: RouteApp(handle, candidates) for where, candidates in shared.items()}


class ExactPathRouter:
    """Looks up paths without parameters: Starlette tries its routes one by one and wraps every chunk twice."""

    def __init__(self, endpoints: RouteApps, otherwise: ASGIApp) -> None:
        self._endpoints = {where: endpoint for where, endpoint in endpoints.items() if "{" not in where[1]}
        self._otherwise = otherwise

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        known = self._endpoints.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        return (known or self._otherwise)(scope, receive, send)


class StripTrailingSlash:
    """Serves `/v1/models/` as `/v1/models`: some clients drop the body of a redirected POST."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and len(path := scope["path"]) > 1 and path.endswith("/"):
            scope = {**scope, "path": path.rstrip("/") or "/"}
        return self._app(scope, receive, send)


class NoSniffing:
    """Adds NO_SNIFFING to the answers that `ResponseWriter` does not write."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        def sent(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start" and NO_SNIFFING not in message["headers"]:
                message = {**message, "headers": [*message["headers"], NO_SNIFFING]}
            return send(message)

        return self._app(scope, receive, sent)


class HTTP10:
    """Collects what would be streamed to an HTTP/1.0 client, and sends it with its length: that protocol has no chunked
    transfer coding (RFC 9112, 7)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        is_old = scope["type"] == "http" and scope["http_version"] == "1.0"
        return self._app(scope, receive, _Whole(send).send if is_old else send)


class _Whole:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: MutableMapping[str, Any] = {}
        self._parts: list[bytes] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._parts.append(message.get("body", b""))
        if message.get("more_body", False):
            return
        body = b"".join(self._parts)
        headers = [pair for pair in self._start["headers"] if pair[0].lower() != b"content-length"]
        await self._send({**self._start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await self._send({"type": "http.response.body", "body": body})


EXPOSED_HEADERS = (
    "allow",
    "azureml-model-deployment",
    "etag",
    "request-id",
    "retry-after",
    "served-model-name",
    "www-authenticate",
    "x-compute-characters",
    "x-compute-time",
    "x-compute-type",
    "x-generated-tokens",
    "x-inference-time",
    "x-ms-error-code",
    "x-prompt-tokens",
    "x-queue-time",
    "x-ratelimit-limit-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
    "x-request-id",
    "x-should-retry",
    "x-switchyard-plan",
    "x-switchyard-reason",
    "x-time-per-token",
    "x-total-time",
    "x-validation-time",
)
"""Response headers that scripts may read, in addition to those that browsers always show."""


class LiveCORS:
    """Starlette's CORSMiddleware, rebuilt when the configuration's `cors` changes. Off without that section."""

    def __init__(self, app: ASGIApp, config: Callable[[], Config | None]) -> None:
        """`config` returns the configuration in force, None before the first."""
        self._app, self._config = app, config
        self._built: tuple[Cors, ASGIApp] | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        config = self._config()
        settings = config.cors if config is not None else None
        return (self._app if settings is None else self._middleware(settings))(scope, receive, send)

    def _middleware(self, settings: Cors) -> ASGIApp:
        if self._built is None or self._built[0] != settings:
            middleware = CORSMiddleware(
                self._app,
                allow_origins=settings.origins,
                allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
                allow_headers=("*",),  # each SDK sends its own headers; a preflight's are echoed
                expose_headers=EXPOSED_HEADERS,
                max_age=settings.max_age_s,
            )
            self._built = settings, middleware
        return self._built[1]
