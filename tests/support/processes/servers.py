"""Real servers for tests: ASGI applications on free loopback ports, each server in its own thread."""

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.local.processes import CLAIMS, claim, is_free
from tests.support.waiting import wait_until

_PORTS = range(10_000, 20_000)
"""Below the ports that local runs choose, and those that Linux gives to outgoing connections: an application listens
half a minute after a test has chosen its port, and until then an outgoing connection could take it."""

_START_WITHIN_S = 60.0
_KEEP_ALIVE_S = 3600


def free_port() -> int:
    """A free TCP port that no other process of the tests gets."""
    while True:
        if is_free(port := random.choice(_PORTS)) and claim(port, CLAIMS):
            return port


@contextmanager
def serve(app: Any, *, keep_alive_s: int = 5, http: str = "auto") -> Iterator[str]:
    """Serves `app` on a separate server and yields the base URL; afterwards nothing listens there.

    `http`: the server's protocol, as uvicorn names it.
    """
    port = free_port()
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
        http=http,
        log_level="warning",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=keep_alive_s,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, lambda: "the server did not start")
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


class ServerPool:
    """Servers that are reused, since starting and stopping one for each test would take longer than the tests."""

    def __init__(self) -> None:
        self._idle: list[_Server] = []
        self._all: list[_Server] = []

    @contextmanager
    def host(self, app: ASGIApp) -> Iterator[str]:
        """Runs `app` with its lifespan on an idle server, or a new one, and yields the base URL.

        On exit, requests still in flight are cancelled.
        """
        server = self._idle.pop() if self._idle else self._start()
        server.call(server.enter(app))
        try:
            yield server.url
        finally:
            server.call(server.leave())
            self._idle.append(server)

    def close(self) -> None:
        for server in self._all:
            server.stop()

    def _start(self) -> "_Server":
        server = _Server()
        self._all.append(server)
        return server


class _Server:
    """One running server, and the application that it serves at the moment."""

    def __init__(self) -> None:
        self._app: ASGIApp = PlainTextResponse("no application", 503)
        self._requests: set[asyncio.Task[None]] = set()
        self._lifespan: _Lifespan | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = serve(self, keep_alive_s=_KEEP_ALIVE_S)
        self.url = self._context.__enter__()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self._loop = asyncio.get_running_loop()
            await _acknowledge(receive, send)
            return
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        try:
            await self._app(scope, receive, send)
        finally:
            self._requests.discard(task)

    def call(self, coroutine: Any) -> None:
        """Runs it on the server's event loop."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_START_WITHIN_S)

    async def enter(self, app: ASGIApp) -> None:
        self._lifespan = _Lifespan(app)
        await self._lifespan.start()
        self._app = app

    async def leave(self) -> None:
        assert self._lifespan is not None
        self._app = PlainTextResponse("no application", 503)
        pending = list(self._requests)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await self._lifespan.stop()

    def stop(self) -> None:
        self._context.__exit__(None, None, None)


class _Lifespan:
    """Drives an application's lifespan by the ASGI protocol."""

    def __init__(self, app: ASGIApp) -> None:
        self._events: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        self._task = asyncio.ensure_future(app(scope, self._events.get, self._answers.put))

    async def start(self) -> None:
        await self._exchange("lifespan.startup")

    async def stop(self) -> None:
        await self._exchange("lifespan.shutdown")
        await self._task

    async def _exchange(self, event: str) -> None:
        await self._events.put({"type": event})
        answer = await self._answers.get()
        assert answer == {"type": f"{event}.complete"}, answer


async def _acknowledge(receive: Receive, send: Send) -> None:
    """The server's own lifespan, which does nothing."""
    for event in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{event}.complete"})
