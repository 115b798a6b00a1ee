"""The real router in front of a deployment that accepts everything, and the rules for every answer."""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from random import Random
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from app.server.application import Router
from app.server.http_protocol import PROTOCOL
from app.telemetry.logs import JsonFormatter
from app.upstream.target import RuntimeEnvironment
from tests.router.hostile.client import Client, Reply
from tests.router.hostile.engine import HostileEngine
from tests.router.hostile.errors import dialects
from tests.support.processes.fake_control_plane import MemoryControl
from tests.support.processes.servers import serve
from tests.support.waiting import wait_until


class Defects(logging.Handler):
    """Collects logged exceptions: each is a defect."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or getattr(record, "event", "") in ("request_failed", "access_refresh_failed"):
            self.found.append(self.format(record))


class _Loop:
    """An ASGI application that remembers the event loop that it runs on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.loop = asyncio.get_running_loop()
        await self._app(scope, receive, send)


class HostileRig:
    """A router whose chat endpoint supports everything, its deployment, and a client.

    Traffic may be moved between its two variants: whatever hostile requests do, both answer alike.
    """

    def __init__(self, engine: HostileEngine, engine_url: str) -> None:
        self.engine = engine
        generation = ["chat", "completions", "responses"]
        self.config: dict[str, Any] = {
            "endpoints": {
                "chat": {"tasks": generation, "traffic": {"blue": 100, "green": 0}},
                "embed": {"tasks": ["embeddings"], "traffic": {"mini": 100}},
            },
            "deployments": {
                "blue": {"url": engine_url, "model": "blue-model", "tasks": generation},
                "green": {"url": engine_url, "model": "green-model", "tasks": generation},
                "mini": {"url": engine_url, "model": "mini-model", "tasks": ["embeddings"]},
            },
            "defaults": {"chat": "chat", "completions": "chat", "responses": "chat", "embeddings": "embed"},
            "max_body_bytes": 256 * 1024,
            "timeouts": {"body_s": 5, "total_s": 20},
        }
        control = MemoryControl(self.config, lambda config: self.router.reconfigure(config))
        control.delivers_at_once = True
        self.router = Router(RuntimeEnvironment(), random=Random(7), control=control)
        self.router.reconfigure(self.config)
        self.app = _Loop(self.router.app)
        self.defects = Defects()
        self.url = ""

    @cached_property
    def client(self) -> Client:
        """One for all requests."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        return Client(host, int(port))

    def check(
        self, reply: Reply, allowed: set[str], *, impatient: bool = False, needs_controller: bool = False
    ) -> None:
        """Asserts the rules for every answer: it shows no fault of the router, and an error has a format of `allowed`.

        `impatient`: the client set a timeout, which may be over. `needs_controller`: it asks for what a controller of
        experiments knows, and there is none.
        """
        assert not self.defects.found, self.defects.found.pop()
        assert reply.complete
        assert reply.headers["x-content-type-options"] == "nosniff"
        excused = (impatient and reply.status == 504) or (needs_controller and reply.status == 503)
        assert reply.status < 500 or excused, (reply.status, reply.body)
        if reply.status >= 400:
            assert dialects(reply) & allowed, (reply.status, reply.body, allowed)

    def settled(self, tasks: int) -> None:
        """Waits until nothing is in flight and no more than `tasks` tasks run on the router's event loop."""
        wait_until(
            lambda: not self.in_flight() and self.tasks() <= tasks,
            lambda: f"{self.in_flight()} requests in flight, {self.tasks()} tasks instead of {tasks}",
        )

    def in_flight(self) -> float:
        """The requests that a deployment is working on, by the metrics."""
        text = self.client.request("GET", "/metrics").body.decode()
        return sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith("http_server_active_requests{")
        )

    def tasks(self) -> int:
        """The number of tasks on the router's event loop, without the one that counts them."""

        async def count() -> int:
            return len(asyncio.all_tasks()) - 1

        assert self.app.loop is not None, "the router has answered before"
        return asyncio.run_coroutine_threadsafe(count(), self.app.loop).result(timeout=10)

    def document(self) -> dict[str, Any]:
        """The router's OpenAPI document."""
        parsed: dict[str, Any] = json.loads(self.client.request("GET", "/openapi.json").body)
        return parsed

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Collects defects. Only while a test of this folder runs: other tests in this process log failures too."""
        # Here and not where the server starts, because a starting server removes handlers.
        loggers = [logging.getLogger(name) for name in ("switchyard", "uvicorn.error", "asyncio")]
        for logger in loggers:
            logger.addHandler(self.defects)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(self.defects)


@contextmanager
def hostile_rig() -> Iterator[HostileRig]:
    """A rig that serves."""
    engine = HostileEngine()
    with serve(Starlette(routes=[Mount("/e", engine.app)])) as engine_url:
        rig = HostileRig(engine, f"{engine_url}/e")
        with serve(rig.app, http=PROTOCOL) as rig.url:
            yield rig
            rig.client.close()
