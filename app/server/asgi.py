"""The ASGI layers between the server and the exchange.

They return the inner application's awaitable instead of awaiting it: Python passes every chunk of a stream through each
coroutine that waits.

For browsers: answers cross-origin requests if the configuration allows some origins (`cors`), and refuses what comes
for a page that is not this server's. For operators: counts the requests for routes that there are not.
"""

import ipaddress
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, Self

from starlette import routing
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.caller import credentials
from app.config.schema import Config, Cors
from app.dialects.base import Dialect, Request, Route
from app.dialects.registry import DIALECTS
from app.errors import BadRequest, ClientError, Forbidden, MethodNotAllowed, SwitchyardError, UnsupportedRoute
from app.exchange.exchange import Candidates
from app.exchange.request import check_headers, headers_of
from app.exchange.response import NO_SNIFFING
from app.misspellings import Names
from app.telemetry.logs import event

_log = logging.getLogger("switchyard")


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


# A server without keys knows its callers by the way they come: the loopback interface. A browser on that machine comes
# the same way, whatever page it shows, so a page could call this server in its reader's name:
#
# - Cross-site requests. Forms and simple requests need nobody's consent. Browsers say where they come from:
#   `Sec-Fetch-Site`, and `Origin` (Go's `http.CrossOriginProtection` decides by the same two).
# - DNS rebinding. A name of the page's owner that now leads to this machine makes the page this server's own, for the
#   browser: it sends no `Origin` with a GET, and no `Sec-Fetch-Site` over plain HTTP. So `Host` must be a name that
#   nobody else owns: an address, localhost, or one of the configured `hosts`.
#
# A server that other machines reach is also called by names that the public DNS does not have, so that no page has them
# either: those of one word, and those of Kubernetes services. Callers without a credential (`allow_anonymous`) are
# known by the network that they are in, and so are a browser's pages there: they must use such a name, or one of
# `hosts`.
#
# Programs send no `Origin` and no `Sec-Fetch-Site`. Where keys are required a page has none to send, since browsers
# keep no key of this server's, and is a stranger; so nothing is checked there but `hosts`, if they are configured.

_OF_PAGES = frozenset({b"origin", b"sec-fetch-site"})

RawHeaders = Collection[tuple[bytes, bytes]]
Whose = Literal["all", "anonymous", "none"]


@dataclass(frozen=True, slots=True)
class BrowserPolicy:
    """`hosts`: names of this server besides addresses and localhost. `private`: whether names that no page can have are
    its own, too. `named` and `pages`: whose requests must use a name of its own, and must not come from other pages:
    everyone's, only those without a credential, or nobody's. `origins`: the pages that may call it, `*` for all."""

    hosts: frozenset[str]
    private: bool
    named: Whose
    pages: Whose
    origins: frozenset[str]

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """The rules of a configuration."""
        access = config.access
        pages: Whose = "all" if not access.knows_callers else "anonymous" if access.allow_anonymous else "none"
        return cls(
            frozenset(name.lower() for name in config.hosts),
            access.may_be_exposed,
            "all" if config.hosts else pages,
            pages,
            frozenset(config.cors.origins if config.cors is not None else ()),
        )

    def check(self, method: str, headers: RawHeaders, fields: Mapping[bytes, bytes]) -> None:
        """Raises Forbidden if a browser sends the request for another page, or under a name that is not this server's.

        `headers` have lower-case names, as ASGI gives them; `fields` are the same by name.
        """
        host = fields.get(b"host", b"")
        is_named = self.named == "none" or self._has(host)
        if is_named and (self.pages == "none" or _OF_PAGES.isdisjoint(fields)):  # nearly always
            return
        is_anonymous = not credentials(headers_of({"headers": headers}))
        if not is_named and (self.named == "all" or is_anonymous):
            raise Forbidden(
                f"Host: '{_printable(host)}' is no name of this server: list it under `hosts` in the configuration",
                param="Host",
                code="foreign_host",
            )
        if self.pages == "all" or (self.pages == "anonymous" and is_anonymous):
            self._check_page(method, host, fields)

    def _has(self, host: bytes) -> bool:
        """Whether a `Host` is this server's own."""
        return _is_own(host) or _name(host) in self.hosts or (self.private and _is_private(host))

    def _check_page(self, method: str, host: bytes, fields: Mapping[bytes, bytes]) -> None:
        site, origin = fields.get(b"sec-fetch-site"), fields.get(b"origin")
        if site in (b"same-origin", b"none") or "*" in self.origins:
            return
        if origin is not None:
            page = origin.decode("latin-1")
            is_own = bool(host) and page.partition("://")[2] == host.decode("latin-1").lower()
            if page not in self.origins and not is_own:
                raise Forbidden(
                    f"Origin: pages of '{_printable(origin)}' may not call this server: list it under `cors.origins` "
                    "in the configuration",
                    param="Origin",
                    code="foreign_origin",
                )
        elif site is not None and not _opens_a_page(method, fields):
            raise Forbidden(
                f"Sec-Fetch-Site: '{_printable(site)}': pages of other sites may not call this server",
                param="Sec-Fetch-Site",
                code="foreign_origin",
            )


def _check_host(scope: Scope, fields: Mapping[bytes, bytes]) -> None:
    """Raises BadRequest unless the request says once for which host it is (RFC 9112, 3.2): a proxy may have read the
    other one."""
    headers = scope["headers"]
    if len(fields) < len(headers) and sum(name == b"host" for name, _ in headers) > 1:
        raise BadRequest("Host: must not be repeated", param="Host")
    host = fields.get(b"host", b"")
    if not host:
        if scope["http_version"] == "1.1":
            raise BadRequest("Host: missing", param="Host")
    elif not _is_host(host):
        raise BadRequest(f"Host: '{_printable(host)}' is no name or address with a port", param="Host")


_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[^\x00-\x20\x7f:/?#@\\\[\]]+)(?::(\d{0,5}))?")


@lru_cache(maxsize=256)
def _is_host(host: bytes) -> bool:
    """Whether it is a host and perhaps a port, which may be empty (RFC 3986, 3.2.3)."""
    match = _HOST.fullmatch(host)
    return match is not None and int(match[1] or 0) < 65536


def _opens_a_page(method: str, fields: Mapping[bytes, bytes]) -> bool:
    """Whether the browser's window goes there, as by a link: the page before then reads and sends nothing."""
    is_document = fields.get(b"sec-fetch-mode") == b"navigate" and fields.get(b"sec-fetch-dest") == b"document"
    return is_document and method in ("GET", "HEAD")


@lru_cache(maxsize=256)
def _is_own(host: bytes) -> bool:
    """Whether a `Host` is an address, localhost, or missing. No page's owner can let an address lead elsewhere, and
    localhost and the names below it belong to every machine itself (RFC 6761, 6.3). 0.0.0.0, :: and IPv4 in IPv6 lead
    to this machine, too, but browsers do not trust them and send no `Sec-Fetch-Site` there."""
    if not host:
        return True
    name = _name(host)
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return not address.is_unspecified and getattr(address, "ipv4_mapped", None) is None


@lru_cache(maxsize=256)
def _is_private(host: bytes) -> bool:
    """Whether a `Host` is a name that the public DNS does not have: one word, or a Kubernetes service's long forms.
    `service.namespace` is none, since a namespace may have the name of a public domain."""
    name = _name(host)
    return ("." not in name and ":" not in name) or name.endswith((".svc", ".svc.cluster.local"))


def _name(host: bytes) -> str:
    """A `Host` without its port, in lower case."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].removesuffix(".")


def _printable(value: bytes) -> str:
    return value[:200].decode("ascii", "replace").encode("ascii", "backslashreplace").decode()


Refuse = Callable[[ClientError, Scope, Receive, Send], Awaitable[None]]
"""Answers a request with the error. The applications of routes have it as `refuse`: it words the error in their API's
form, counts and logs it."""


class BrowserGuard:
    """The layer. `config` returns the configuration in force, None before the first. `routes` are the inner
    application's; a route whose application cannot refuse is answered by `otherwise`."""

    def __init__(
        self, app: ASGIApp, config: Callable[[], Config | None], routes: Sequence[routing.BaseRoute], otherwise: Refuse
    ) -> None:
        self._app, self._config, self._routes, self._otherwise = app, config, routes, otherwise
        self._rules: tuple[Config, BrowserPolicy] | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http" or (config := self._config()) is None:
            return self._app(scope, receive, send)
        if self._rules is None or self._rules[0] is not config:
            self._rules = config, BrowserPolicy.from_config(config)
        fields = dict(scope["headers"])
        try:
            check_headers(scope, config.max_header_bytes)
            _check_host(scope, fields)
            self._rules[1].check(scope["method"], scope["headers"], fields)
        except ClientError as error:
            return self._refused(error, scope, receive, send)
        return self._app(scope, receive, send)

    def _refused(self, error: ClientError, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        for route in self._routes:
            match, child = route.matches(scope)
            if match is routing.Match.FULL and isinstance(route, routing.Route):
                refuse: Refuse = getattr(route.endpoint, "refuse", self._otherwise)
                return refuse(error, {**scope, **child}, receive, send)
        return self._otherwise(error, scope, receive, send)


# Requests for paths and methods that this server has not are counted in groups, so that no scanner fills a list. A
# group is a route of this server, or of a vendor's, that was probably meant, with the first path that was asked for;
# all other paths are one. So there are no more groups than routes.

_OTHERS = "other paths"


class UnknownRoutes:
    """The requests of one router since it started. `counted` is called with the status of each."""

    def __init__(self, paths: Iterable[str], counted: Callable[[int], None]) -> None:
        self.groups: Counter[str] = Counter()
        self._known = frozenset(path for path in paths if "{" not in path)
        self._names, self._counted = Names(self._known), counted
        self._meant: dict[str, str] = {}

    def count(self, request: Request, error: SwitchyardError) -> None:
        """Counts a request that got this error, and logs the first one of each group."""
        self._counted(error.status)
        group = self._group(request, error)
        if group not in self.groups:
            unknown = event("unknown_route", route=group, status=error.status, request_id=request.id)
            _log.warning("A request came for a route that this server has not", extra=unknown)
        self.groups[group] += 1

    def _group(self, request: Request, error: SwitchyardError) -> str:
        if isinstance(error, UnsupportedRoute):
            return error.missing
        if isinstance(error, MethodNotAllowed):
            return error.message if request.path in self._known else "a method that the path does not take"
        if not (meant := self._names.meant(request.path)):
            return _OTHERS
        return self._meant.setdefault(meant[0], f"{request.path} (did you mean {meant[0]}?)")
