"""The real router on uvicorn, in front of fake deployments `blue`, `green` (chat) and `mini` (embeddings)."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest

from app.server import Router
from app.upstream import Surroundings
from tests.router.fake_engine import FakeEngine
from tests.serving import serve

Start = Callable[..., str]


class Rig:
    """A router and the deployments behind it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.blue, self.green, self.mini = FakeEngine(), FakeEngine(), FakeEngine()
        urls = {name: stack.enter_context(serve(getattr(self, name).app)) for name in ("blue", "green", "mini")}
        self.config: dict[str, Any] = {
            "endpoints": {
                "chat": {"tasks": ["chat", "completions", "responses"], "traffic": {"blue": 100, "green": 0}},
                "embed": {"tasks": ["embeddings"], "traffic": {"mini": 100}},
            },
            "deployments": {
                "blue": {"url": urls["blue"], "model": "blue-model"},
                "green": {"url": urls["green"], "model": "green-model"},
                "mini": {"url": urls["mini"], "model": "mini-model", "tasks": ["embeddings"]},
            },
        }
        self.router = Router(Surroundings(), random=Random(7))
        self.router.reconfigure(self.config)
        self.url = stack.enter_context(serve(self.router.app))

    def change(self, **sections: Any) -> None:
        """Merges sections into the configuration and delivers it."""
        for name, section in sections.items():
            merged = {**self.config.get(name, {}), **section} if isinstance(section, dict) else section
            self.config = {**self.config, name: merged}
        self.router.reconfigure(self.config)

    def chat_endpoint(self, **fields: Any) -> None:
        """Changes fields of the endpoint `chat`."""
        endpoints = self.config["endpoints"]
        self.change(endpoints={**endpoints, "chat": {**endpoints["chat"], **fields}})

    def add(self, name: str, url: str) -> None:
        """Adds a deployment at `url` that gets all the chat traffic."""
        self.change(deployments={name: {"url": url, "model": f"{name}-model"}})
        self.chat_endpoint(traffic={name: 100})


@pytest.fixture
def rig() -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack)
