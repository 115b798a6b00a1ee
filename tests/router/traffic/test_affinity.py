"""The affinity key that the ingress gets: one for each conversation, regardless of the client's own header."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount

from app.internal_api import AFFINITY_HEADER, APP_PREFIX
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.support.engine.fake_engine import FakeEngine, chat, refuse
from tests.support.engine.other_answers import every_route
from tests.support.experiments.recording_controller import Keeper
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

ASKS = {"role": "user", "content": "What is rain?"}
TURNS: list[list[dict[str, str]]] = [
    [ASKS],
    [ASKS, {"role": "assistant", "content": "Water."}, {"role": "user", "content": "And snow?"}],
]


@contextmanager
def router(servers: ServerPool, applications: Mapping[str, FakeEngine], **endpoint: Any) -> Iterator[httpx.Client]:
    """A client of a router in front of applications, behind a stand-in for Serve's ingress."""
    mounts = [Mount(f"{APP_PREFIX}{name}", engine.app) for name, engine in applications.items()]
    with servers.host(Starlette(routes=mounts)) as ingress:
        router = Router(RuntimeEnvironment(ingress, internal_key="internal"), controller=Keeper(), send_every_s=0.02)
        router.reconfigure(
            {
                "endpoints": {
                    "chat": {"tasks": ["chat", "completions", "responses"], "traffic": {"blue": 100}, **endpoint}
                },
                "deployments": {name: {"app": name, "model": "m"} for name in applications},
            }
        )
        with servers.host(router.app) as url, httpx.Client(base_url=url, timeout=30) as client:
            yield client


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine, servers: ServerPool) -> Iterator[httpx.Client]:
    with router(servers, {"blue": engine}) as client:
        yield client


def ask(client: httpx.Client, messages: Any, **headers: str) -> httpx.Response:
    return client.post("/v1/chat/completions", json={"model": "chat", "messages": messages}, headers=headers)


def test_the_turns_of_a_conversation_have_one_key(client: httpx.Client, engine: FakeEngine) -> None:
    for messages in (*TURNS, [{"role": "user", "content": "Something else"}]):
        assert ask(client, messages).status_code == 200
    first, second, other = (headers[AFFINITY_HEADER].split(" ")[0] for headers in engine.headers)
    assert first == second != other


def test_a_clients_own_header_does_not_pass(client: httpx.Client, engine: FakeEngine) -> None:
    ask(client, TURNS[0])
    ask(client, TURNS[0], **{AFFINITY_HEADER: "0000000000000001 16"})
    assert engine.headers[0][AFFINITY_HEADER] == engine.headers[1][AFFINITY_HEADER] != "0000000000000001 16"


def test_streams_completions_and_other_dialects_have_keys(client: httpx.Client, engine: FakeEngine) -> None:
    engine.answer = every_route(engine)
    client.post("/v1/chat/completions", json={"model": "chat", "messages": TURNS[0], "stream": True})
    client.post("/v1/completions", json={"model": "chat", "prompt": "Once"})
    client.post("/v1/messages", json={"model": "chat", "messages": TURNS[0], "max_tokens": 5})
    assert len(engine.headers) == 3
    assert all(AFFINITY_HEADER in headers for headers in engine.headers)
    assert engine.headers[0][AFFINITY_HEADER] == engine.headers[2][AFFINITY_HEADER]


ROUTES: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURNS[0]},
    "/v1/completions": {"prompt": "Once"},
    "/v1/responses": {"input": "What is rain?"},
    "/serving-endpoints/chat/completions": {"messages": TURNS[0]},
    "/serving-endpoints/responses": {"input": "What is rain?"},
}


def test_a_prompt_cache_key_is_the_key_at_every_route_that_has_it(client: httpx.Client, engine: FakeEngine) -> None:
    engine.answer = every_route(engine)
    for path, body in ROUTES.items():
        for name in ("one", "one", "other"):
            sent = {"model": "chat", **body, "prompt_cache_key": name}
            client.post(path, json=sent).raise_for_status()
    keys = [headers[AFFINITY_HEADER].split(" ")[0] for headers in engine.headers]
    assert len(keys) == 3 * len(ROUTES)
    assert len(set(keys)) == 2
    assert all(keys[at] == keys[0] == keys[at + 1] != keys[at + 2] for at in range(0, len(keys), 3))


def test_a_retry_may_go_to_any_replica(client: httpx.Client, engine: FakeEngine) -> None:
    def fail_once(body: dict[str, Any]) -> Response:
        engine.answer = chat
        return refuse(500, "out of memory")(body)

    engine.answer = fail_once
    assert ask(client, TURNS[0]).status_code == 200
    assert [AFFINITY_HEADER in headers for headers in engine.headers] == [True, False]


def test_a_shadows_copy_has_the_key_of_its_original(servers: ServerPool, engine: FakeEngine) -> None:
    shadow = FakeEngine()
    mirror = {"deployment": "green", "percent": 100}
    with router(servers, {"blue": engine, "green": shadow}, mirror=mirror) as client:
        assert ask(client, TURNS[1]).status_code == 200
        wait_until(lambda: shadow.headers)
    assert shadow.headers[0][AFFINITY_HEADER] == engine.headers[0][AFFINITY_HEADER]
