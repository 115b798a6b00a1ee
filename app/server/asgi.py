"""The ASGI layers between the server and the exchange.

They return the inner application's awaitable instead of awaiting it: Python passes every chunk of a stream through each
coroutine that waits.
"""

from collections.abc import Awaitable, Callable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from app.dialects.base import Dialect, Route
from app.dialects.registry import DIALECTS
from app.exchange.handler import Candidates

Exchange = Callable[[Candidates, Scope, Receive, Send], Awaitable[None]]


class RouteApp:
    """One method and path and the dialects that serve it, as an ASGI application."""

    def __init__(self, exchange: Exchange, candidates: Candidates) -> None:
        self._exchange, self._candidates = exchange, candidates

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._exchange(self._candidates, scope, receive, send)


RouteApps = Mapping[tuple[str, str], RouteApp]
"""The handlers by method and path."""


def route_apps(exchange: Exchange) -> RouteApps:
    shared: dict[tuple[str, str], list[tuple[Dialect, Route]]] = {}
    for dialect in DIALECTS:
        for route in dialect.routes:
            shared.setdefault((route.method, route.path), []).append((dialect, route))
    return {where: RouteApp(exchange, candidates) for where, candidates in shared.items()}


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
