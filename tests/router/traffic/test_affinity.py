"""The keys that decide on the replica: one for each conversation. Requests reach replicas at their own ports."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount

from app.internal_api import APP_PREFIX
from app.server.application import Router
from app.upstream.balancer import Address
from app.upstream.target import RuntimeEnvironment
from tests.support.engine.fake_engine import FakeEngine, chat, refuse
from tests.support.engine.other_answers import every_route
from tests.support.engine.recording_balancer import RecordingBalancer
from tests.support.experiments.recording_controller import Keeper
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

ASKS = {"role": "user", "content": "What is rain?"}
TURNS: list[list[dict[str, str]]] = [
    [ASKS],
    [ASKS, {"role": "assistant", "content": "Water."}, {"role": "user", "content": "And snow?"}],
]


@contextmanager
def router(
    servers: ServerPool, applications: Mapping[str, FakeEngine], balancer: RecordingBalancer, **endpoint: Any
) -> Iterator[httpx.Client]:
    """A client of a router in front of applications, behind a stand-in for Serve's ingress."""
    mounts = [Mount(f"{APP_PREFIX}{name}", engine.app) for name, engine in applications.items()]
    with servers.host(Starlette(routes=mounts)) as ingress:
        environment = RuntimeEnvironment(ingress, internal_key="internal")
        router = Router(environment, controller=Keeper(), send_every_s=0.02, balancer=balancer)
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
def balancer() -> RecordingBalancer:
    return RecordingBalancer()


@pytest.fixture
def client(engine: FakeEngine, servers: ServerPool, balancer: RecordingBalancer) -> Iterator[httpx.Client]:
    with router(servers, {"blue": engine}, balancer) as client:
        yield client


def ask(client: httpx.Client, messages: Any, **headers: str) -> httpx.Response:
    return client.post("/v1/chat/completions", json={"model": "chat", "messages": messages}, headers=headers)


def test_the_turns_of_a_conversation_have_one_key(client: httpx.Client, balancer: RecordingBalancer) -> None:
    for messages in (*TURNS, [{"role": "user", "content": "Something else"}]):
        assert ask(client, messages).status_code == 200
    first, second, other = balancer.keys
    assert first == second != other


def test_a_later_turn_needs_less_work_at_its_replica_than_elsewhere(
    client: httpx.Client, balancer: RecordingBalancer
) -> None:
    long = {"role": "user", "content": "What is rain? " * 100}
    ask(client, [long])
    ask(client, [long, *TURNS[1][1:]])
    first, later = (placement for _, placement in balancer.placements)
    assert first.uncached == first.prompt > 300
    assert later.prompt > first.prompt > 10 * later.uncached


def test_streams_completions_and_other_dialects_have_keys(
    client: httpx.Client, engine: FakeEngine, balancer: RecordingBalancer
) -> None:
    engine.answer = every_route(engine)
    client.post("/v1/chat/completions", json={"model": "chat", "messages": TURNS[0], "stream": True})
    client.post("/v1/completions", json={"model": "chat", "prompt": "Once"})
    client.post("/v1/messages", json={"model": "chat", "messages": TURNS[0], "max_tokens": 5})
    keys = [key for key in balancer.keys if key is not None]  # the model's card has none
    assert len(keys) == 3
    assert keys[0] == keys[2] != keys[1]


ROUTES: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURNS[0]},
    "/v1/completions": {"prompt": "Once"},
    "/v1/responses": {"input": "What is rain?"},
    "/serving-endpoints/chat/completions": {"messages": TURNS[0]},
    "/serving-endpoints/responses": {"input": "What is rain?"},
}


def test_a_prompt_cache_key_is_the_key_at_every_route_that_has_it(
    client: httpx.Client, engine: FakeEngine, balancer: RecordingBalancer
) -> None:
    engine.answer = every_route(engine)
    for path, body in ROUTES.items():
        for name in ("one", "one", "other"):
            sent = {"model": "chat", **body, "prompt_cache_key": name}
            client.post(path, json=sent).raise_for_status()
    keys = [key for key in balancer.keys if key is not None]
    assert len(keys) == 3 * len(ROUTES)
    assert len(set(keys)) == 2
    assert all(keys[at] == keys[0] == keys[at + 1] != keys[at + 2] for at in range(0, len(keys), 3))


def test_a_shadows_copy_has_the_key_of_its_original(
    servers: ServerPool, engine: FakeEngine, balancer: RecordingBalancer
) -> None:
    shadow = FakeEngine()
    mirror = {"deployment": "green", "percent": 100}
    with router(servers, {"blue": engine, "green": shadow}, balancer, mirror=mirror) as client:
        assert ask(client, TURNS[1]).status_code == 200
        wait_until(lambda: shadow.headers)
    (_, original), (application, copy) = balancer.placements
    assert application == "green"
    assert (copy.key, copy.prompt, copy.uncached) == (original.key, original.prompt, original.uncached)


@pytest.fixture
def two(servers: ServerPool, balancer: RecordingBalancer) -> Iterator[tuple[httpx.Client, dict[str, FakeEngine]]]:
    """Two replicas, and an ingress in front of neither: it has engines of its own."""
    engines = {name: FakeEngine() for name in ("a", "b", "ingress")}
    prefix = f"{APP_PREFIX}blue"
    with ExitStack() as stack:
        client = stack.enter_context(router(servers, {"blue": engines["ingress"]}, balancer))
        origins = {
            name: stack.enter_context(servers.host(Starlette(routes=[Mount(prefix, engines[name].app)])))
            for name in ("a", "b")
        }
        balancer.update({"blue": [Address(name, origin, prefix) for name, origin in origins.items()]})
        yield client, engines


def served(engines: Mapping[str, FakeEngine]) -> dict[str, int]:
    return {name: len(engine.headers) for name, engine in engines.items()}


def test_a_conversation_goes_to_one_replica_and_not_through_the_ingress(
    two: tuple[httpx.Client, dict[str, FakeEngine]],
) -> None:
    client, engines = two
    for messages in (*TURNS, *TURNS):
        assert ask(client, messages).status_code == 200
    assert sorted(served(engines).values()) == [0, 0, 4]
    assert served(engines)["ingress"] == 0


def test_a_retry_goes_to_another_replica(two: tuple[httpx.Client, dict[str, FakeEngine]]) -> None:
    client, engines = two

    def fail_once(body: dict[str, Any]) -> Response:
        for engine in engines.values():
            engine.answer = chat
        return refuse(500, "out of memory")(body)

    for engine in engines.values():
        engine.answer = fail_once
    assert ask(client, TURNS[0]).status_code == 200
    assert served(engines) == {"a": 1, "b": 1, "ingress": 0}


def test_where_no_replica_is_known_the_ingress_has_the_request_wait(
    two: tuple[httpx.Client, dict[str, FakeEngine]], balancer: RecordingBalancer
) -> None:
    client, engines = two
    balancer.update({"blue": []})
    assert ask(client, TURNS[0]).status_code == 200
    assert served(engines) == {"a": 0, "b": 0, "ingress": 1}
