"""A router that notes its answers' statuses, before an engine of the tests."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.agents.scripted_engine import talking
from tests.support.engine.fake_engine import FakeEngine
from tests.support.processes.servers import serve


class Site(NamedTuple):
    """A router at `url`, the engine behind it, and the paths and statuses of its answers."""

    url: str
    engine: FakeEngine
    answers: list[tuple[str, int]]


@pytest.fixture
def site() -> Iterator[Site]:
    engine, answers = FakeEngine(), list[tuple[str, int]]()
    engine.answer = talking(engine)
    router = Router(RuntimeEnvironment())

    async def noted(scope: Any, receive: Any, send: Any) -> None:
        async def note(message: Any) -> None:
            if message["type"] == "http.response.start":
                answers.append((scope["path"], message["status"]))
            await send(message)

        await router.app(scope, receive, note)

    with serve(engine.app) as engine_url, serve(noted) as url:
        router.reconfigure(
            {
                "endpoints": {
                    "chat": {"tasks": ["chat", "completions", "responses"], "traffic": {"smollm2-blue": 100}}
                },
                "deployments": {"smollm2-blue": {"url": engine_url, "model": "m"}},
            }
        )
        yield Site(url, engine, answers)
