"""Refuses what a browser sends for a page that is not this server's: an ASGI layer, and its rules as a pure function.

A server without keys knows its callers by the way they come: the loopback interface. A browser on that machine comes
the same way, whatever page it shows, so a page could call this server in its reader's name:

- **Cross-site requests.** Forms and simple requests need nobody's consent. Browsers say where they come from:
  `Sec-Fetch-Site`, and `Origin` (Go's `http.CrossOriginProtection` decides by the same two).
- **DNS rebinding.** A name of the page's owner that now leads to this machine makes the page this server's own, for the
  browser. So `Host` must be a name that nobody else owns: an address, localhost, or one of the configured `hosts`.

Programs send no `Origin` and no `Sec-Fetch-Site`, and are not concerned. Where keys are required a page has none to
send, since browsers keep no key of this server's; so nothing is checked there but `hosts`, if they are configured.
"""

import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.config.schema import Config
from app.errors import BadRequest, ClientError, Forbidden

_OF_PAGES = frozenset({b"origin", b"sec-fetch-site"})
_CREDENTIALS = frozenset({b"authorization", b"api-key", b"x-api-key"})

RawHeaders = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class BrowserPolicy:
    """`hosts`: names of this server besides addresses and localhost; None: any `Host` is right. `origins`: the pages
    that may call it, `*` for all. `pages`: whose requests must not come from other pages: everyone's, only those
    without a credential, or nobody's."""

    hosts: frozenset[str] | None
    origins: frozenset[str]
    pages: str

    @classmethod
    def of(cls, config: Config) -> Self:
        """The rules of a configuration."""
        access = config.access
        named = frozenset(name.lower() for name in config.hosts)
        hosts = named if named or not access.may_be_exposed else None
        pages = "all" if not access.knows_callers else "anonymous" if access.allow_anonymous else "none"
        return cls(hosts, frozenset(config.cors.origins if config.cors is not None else ()), pages)

    def check(self, method: str, headers: RawHeaders) -> None:
        """Raises Forbidden if a browser sends the request for another page, or under a name that is not this server's.

        `headers` have lower-case names, as ASGI gives them.
        """
        fields = dict(headers)
        host = fields.get(b"host", b"")
        if self.hosts is not None and host and not _is_own(host) and _name(host) not in self.hosts:
            raise Forbidden(
                f"Host: '{_printable(host)}' is no name of this server: list it under `hosts` in the configuration",
                param="Host",
                code="foreign_host",
            )
        if self.pages == "none" or _OF_PAGES.isdisjoint(fields):  # nearly always
            return
        if not (self.pages == "anonymous" and fields.keys() & _CREDENTIALS):
            self._check_page(method, host, fields)

    def _check_page(self, method: str, host: bytes, fields: dict[bytes, bytes]) -> None:
        site, origin = fields.get(b"sec-fetch-site"), fields.get(b"origin")
        if site in (b"same-origin", b"none") or "*" in self.origins:
            return
        if origin is not None:
            page = origin.decode("latin-1")
            if page not in self.origins and page.partition("://")[2] != host.decode("latin-1").lower():
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


def _check_host(scope: Scope) -> None:
    """Raises BadRequest unless the request says once for which host it is (RFC 9112, 3.2): a proxy may have read the
    other one."""
    headers = scope["headers"]
    fields = dict(headers)
    if len(fields) < len(headers) and sum(name == b"host" for name, _ in headers) > 1:
        raise BadRequest("Host: must not be repeated", param="Host")
    if scope["http_version"] == "1.1" and not fields.get(b"host"):
        raise BadRequest("Host: missing", param="Host")


def _opens_a_page(method: str, fields: dict[bytes, bytes]) -> bool:
    """Whether the browser's window goes there, as by a link: the page before then reads and sends nothing."""
    is_document = fields.get(b"sec-fetch-mode") == b"navigate" and fields.get(b"sec-fetch-dest") == b"document"
    return is_document and method in ("GET", "HEAD")


@lru_cache(maxsize=256)
def _is_own(host: bytes) -> bool:
    """Whether a `Host` is an address, or localhost. No page's owner can let an address lead elsewhere, and localhost
    and the names below it belong to every machine itself (RFC 6761, 6.3)."""
    name = _name(host)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return True


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
        self, app: ASGIApp, config: Callable[[], Config | None], routes: Sequence[BaseRoute], otherwise: Refuse
    ) -> None:
        self._app, self._config, self._routes, self._otherwise = app, config, routes, otherwise
        self._rules: tuple[Config, BrowserPolicy] | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http" or (config := self._config()) is None:
            return self._app(scope, receive, send)
        if self._rules is None or self._rules[0] is not config:
            self._rules = config, BrowserPolicy.of(config)
        try:
            _check_host(scope)
            self._rules[1].check(scope["method"], scope["headers"])
        except ClientError as error:
            return self._refused(error, scope, receive, send)
        return self._app(scope, receive, send)

    def _refused(self, error: ClientError, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        for route in self._routes:
            match, child = route.matches(scope)
            if match is Match.FULL and isinstance(route, Route):
                refuse: Refuse = getattr(route.endpoint, "refuse", self._otherwise)
                return refuse(error, {**scope, **child}, receive, send)
        return self._otherwise(error, scope, receive, send)
