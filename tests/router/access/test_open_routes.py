"""Routes that need no key: whoever calls them, an engine is called once a second."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from math import floor

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from app.dialects.registry import DIALECTS
from app.exchange.state import SHARED_S
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.support.engine.fake_engine import CARD, FakeEngine
from tests.support.processes.servers import serve

REQUESTS = 40
PATHS = sorted(
    {route.path.replace("{endpoint}", "chat") for dialect in DIALECTS for route in dialect.routes if route.open}
    | {"/health", "/ready", "/docs", "/openapi.json", "/ui", "/ui/sign-in"}
)


class Counted:
    """A server that counts the requests for each deployment behind it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.calls: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.calls[scope["path"].split("/")[1]] += 1
        await self._app(scope, receive, send)


@pytest.fixture
def engines() -> dict[str, FakeEngine]:
    return {name: FakeEngine(card=CARD) for name in ("blue", "green", "mini")}


@pytest.fixture
def counted(engines: dict[str, FakeEngine]) -> Iterator[tuple[str, Counted]]:
    server = Counted(Starlette(routes=[Mount(f"/{name}", engine.app) for name, engine in engines.items()]))
    with serve(server) as engine:
        router = Router(RuntimeEnvironment())
        both = {"chat": {"tasks": ["chat", "completions"], "traffic": {"blue": 50, "green": 50}}}
        router.reconfigure(
            {
                "endpoints": {**both, "embed": {"tasks": ["embeddings"], "traffic": {"mini": 100}}},
                "deployments": {name: {"url": f"{engine}/{name}", "model": name} for name in ("blue", "green")}
                | {"mini": {"url": f"{engine}/mini", "model": "mini", "tasks": ["embeddings"]}},
                "defaults": {"chat": "chat", "completions": "chat"},
            }
        )
        with serve(router.app) as url:
            yield url, server


@pytest.mark.parametrize("state", ["healthy", "without a card", "failing"])
@pytest.mark.parametrize("path", PATHS)
async def test_many_requests_call_each_deployment_once_a_second(
    counted: tuple[str, Counted], engines: dict[str, FakeEngine], path: str, state: str
) -> None:
    url, server = counted
    for engine in engines.values():
        engine.healthy = state != "failing"
        engine.card = CARD if state == "healthy" else None
    began = time.monotonic()
    # On one event loop: threads that share a client of httpx may close each other's connections.
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=8)) as client:
        answers = await asyncio.gather(*(client.get(path) for _ in range(REQUESTS)))
    statuses = Counter(answer.status_code for answer in answers)
    seconds = 1 + floor((time.monotonic() - began) / SHARED_S)
    assert sum(statuses.values()) == REQUESTS
    assert len(statuses) == 1, statuses
    assert max(server.calls.values(), default=0) <= seconds, server.calls


def test_health_that_anybody_asks_for_changes_no_breaker(
    counted: tuple[str, Counted], engines: dict[str, FakeEngine]
) -> None:
    url, _ = counted
    for engine in engines.values():
        engine.healthy = False
    with httpx.Client(base_url=url, timeout=60) as client:
        for _ in range(REQUESTS):
            assert client.get("/tgi/chat/health").status_code == 503
        assert client.get("/ready").json()["open_breakers"] == []


def test_before_the_first_configuration_nobody_says_whether_a_key_is_required() -> None:
    """A console that believed that none is would send requests without one later, which are counted."""
    with serve(Router(RuntimeEnvironment()).app) as url:
        assert httpx.get(f"{url}/ui/sign-in").json() == {"credentials": False, "required": None, "oidc": None}
