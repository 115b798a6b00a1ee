"""The real router on uvicorn, in front of fake deployments `blue`, `green` (chat) and `mini` (embeddings)."""

import time
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from ssl import SSLContext
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from app.access.guard import AccessTiming
from app.exposures.controller_client import ControllerClient, RecordingClient
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.support.engine.fake_engine import FakeEngine
from tests.support.experiments.recording_controller import Keeper
from tests.support.processes.servers import ServerPool, serve

PROMPT = AccessTiming(refresh_every_s=0.05)
"""A changed keys file takes effect almost at once instead of after a second or two."""


class Rig:
    """A router, the deployments behind it, and the keeper of its exposures."""

    def __init__(
        self,
        engines: dict[str, FakeEngine],
        engines_url: str,
        access_timing: AccessTiming,
        controller: ControllerClient | None = None,
        recordings: RecordingClient | None = None,
    ) -> None:
        """`controller` replaces `keeper`."""
        self.blue, self.green, self.mini = engines["blue"], engines["green"], engines["mini"]
        self.config: dict[str, Any] = {
            "endpoints": {
                "chat": {"tasks": ["chat", "completions", "responses"], "traffic": {"blue": 100, "green": 0}},
                "embed": {"tasks": ["embeddings"], "traffic": {"mini": 100}},
            },
            "deployments": {
                "blue": {"url": f"{engines_url}/blue", "model": "blue-model"},
                "green": {"url": f"{engines_url}/green", "model": "green-model"},
                "mini": {"url": f"{engines_url}/mini", "model": "mini-model", "tasks": ["embeddings"]},
            },
        }
        self.keeper = Keeper()
        self.router = Router(
            RuntimeEnvironment(internal_key="internal"),
            random=Random(7),
            controller=controller or self.keeper,
            recordings=recordings,
            access_timing=access_timing,
            send_every_s=0.02,
            recording_file_s=0.1,
        )
        self.router.reconfigure(self.config)
        self.url = ""

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


@pytest.fixture(scope="session", autouse=True)
def _trusts_one_authority(private_authority: SSLContext) -> None:
    """Everything here."""


@pytest.fixture(scope="session")
def servers() -> Iterator[ServerPool]:
    """Running servers for the routers of the tests."""
    pool = ServerPool()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def engines() -> Iterator[tuple[dict[str, FakeEngine], str]]:
    """The fake deployments, each under its name at one URL, for the whole run."""
    fakes = {name: FakeEngine() for name in ("blue", "green", "mini")}
    with serve(Starlette(routes=[Mount(f"/{name}", fake.app) for name, fake in fakes.items()])) as url:
        yield fakes, url


@pytest.fixture
def access_timing() -> AccessTiming:
    """The rig's clock and times. A test that needs others parametrizes this fixture.

    Limits are counted at one moment, 30 s into a minute, so that a slow machine returns nothing to them.
    """
    now = time.time() // 60 * 60 + 30
    return replace(PROMPT, clock=lambda: now)


@pytest.fixture
def rig(engines: tuple[dict[str, FakeEngine], str], servers: ServerPool, access_timing: AccessTiming) -> Iterator[Rig]:
    """A fresh router in front of freshly reset deployments."""
    fakes, url = engines
    for fake in fakes.values():
        fake.reset()
    rig = Rig(fakes, url, access_timing)
    with servers.host(rig.router.app) as rig.url:
        yield rig
