"""Callers' prompts are apart in the engines' caches: every request that computes something carries a caller's salt."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount

from app.access.keys import append, create
from app.config.base import ConfigError
from app.config.schema import parse
from app.dialects.base import EngineRequest
from app.dialects.registry import DIALECTS
from app.exchange.cache_salts import UNSALTED, CacheSalts
from app.internal_api import APP_PREFIX
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment, Target
from tests.router.hostile.engine import ANSWERS
from tests.support.engine.fake_engine import CARD, FakeEngine, refuse
from tests.support.engine.recording_balancer import RecordingBalancer
from tests.support.experiments.recording_controller import Keeper
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

HI = [{"role": "user", "content": "hi"}]
CHAT: dict[str, Any] = {"model": "chat", "messages": HI, "max_tokens": 3}
PROMPT: dict[str, Any] = {"model": "chat", "prompt": "hi", "max_tokens": 3}
EMBED: dict[str, Any] = {"model": "embed", "input": ["a"]}
RANK: dict[str, Any] = {"model": "embed", "query": "a", "documents": ["b"]}
SCORE: dict[str, Any] = {"model": "embed", "queries": "a", "documents": ["b"]}
INPUT: dict[str, Any] = {"model": "chat", "input": "hi"}
TEXT: dict[str, Any] = {"inputs": "hi", "parameters": {"max_new_tokens": 3}}
VERSION = "?api-version=2024-05-01-preview"

CALLS: Mapping[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {
    ("openai", "chat"): [("/v1/chat/completions", CHAT), ("/v1/chat/completions", {**CHAT, "stream": True})],
    ("openai", "completions"): [("/v1/completions", PROMPT), ("/v1/completions", {**PROMPT, "best_of": 2})],
    ("openai", "responses"): [("/v1/responses", INPUT), ("/v1/responses", {**INPUT, "stream": True})],
    ("openai", "embeddings"): [("/v1/embeddings", EMBED)],
    ("openai", "rerank"): [("/v1/rerank", RANK)],
    ("openai", "rerank_v2"): [("/v2/rerank", RANK)],
    ("openai", "score"): [("/score", SCORE)],
    ("openai", "pooling"): [("/pooling", EMBED)],
    ("openai", "cohere_embed"): [("/v2/embed", {"model": "embed", "texts": ["a"]})],
    ("openai", "classify"): [("/classify", {"model": "label", "input": ["a"]})],
    ("openai", "invocations"): [("/invocations", CHAT)],
    ("anthropic", "messages"): [("/v1/messages", CHAT), ("/v1/messages", {**CHAT, "stream": True})],
    ("azure", "chat"): [(f"/models/chat/completions{VERSION}", CHAT)],
    ("azure", "completions"): [(f"/models/completions{VERSION}", PROMPT)],
    ("azure", "embeddings"): [(f"/models/embeddings{VERSION}", EMBED)],
    ("databricks", "invocations"): [
        ("/serving-endpoints/chat/invocations", {"messages": HI}),
        ("/serving-endpoints/chat/invocations", {"prompt": ["a", "b"]}),
        ("/serving-endpoints/embed/invocations", {"input": "a"}),
    ],
    ("databricks", "chat"): [("/serving-endpoints/chat/completions", CHAT)],
    ("databricks", "completions"): [("/serving-endpoints/completions", PROMPT)],
    ("databricks", "embeddings"): [("/serving-endpoints/embeddings", EMBED)],
    ("databricks", "responses"): [("/serving-endpoints/responses", INPUT)],
    ("friendli", "chat"): [
        ("/dedicated/v1/chat/completions", CHAT),
        ("/dedicated/v1/chat/completions", {**CHAT, "seed": [9, 3], "n": 2}),
    ],
    ("friendli", "completions"): [
        ("/serverless/v1/completions", PROMPT),
        ("/serverless/v1/completions", {"model": "chat", "prompt": "hi", "num_beams": 2}),
        ("/serverless/v1/completions", {"model": "chat", "tokens": [5, 6], "seed": [7, 42], "n": 2}),
    ],
    ("friendli", "classify"): [("/dedicated/classify", {"model": "label", "input": ["a"]})],
    ("friendli", "embeddings"): [("/dedicated/v1/embeddings", EMBED)],
    ("tgi", "root"): [("/tgi/chat", TEXT)],
    ("tgi", "embed"): [("/tgi/embed/embed", {"inputs": "hi"}), ("/tgi/embed", {"inputs": ["hi"]})],
    ("tgi", "rerank"): [("/tgi/embed/rerank", {"query": "a", "texts": ["b"]})],
    ("tgi", "embed_all"): [("/tgi/embed/embed_all", {"inputs": "hi"})],
    ("tgi", "similarity"): [
        ("/tgi/embed/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    ],
    ("tgi", "predict"): [("/tgi/label/predict", {"inputs": "a"})],
    ("tgi", "generate"): [("/tgi/chat/generate", TEXT)],
    ("tgi", "generate_stream"): [("/tgi/chat/generate_stream", TEXT)],
    ("tgi", "invocations"): [("/tgi/chat/invocations", TEXT)],
    ("tgi", "vertex"): [("/tgi/chat/vertex", {"instances": [{"inputs": "hi"}, {"messages": HI}]})],
    ("tgi", "chat"): [("/tgi/chat/v1/chat/completions", {"messages": HI})],
    ("tgi", "completions"): [("/tgi/chat/v1/completions", {"prompt": ["a"], "stream": True})],
}
"""Each operation that makes an engine compute, and requests of it."""

ONLY_DESCRIBE = {
    *("count_tokens", "input_tokens", "tokenize", "detokenize", "chat_tokenize", "render"),
    *("health", "version", "tokenizer_info"),
}
"""The operations by which an engine computes nothing that it would keep."""


def engine() -> FakeEngine:
    """A deployment that answers every route."""
    fake = FakeEngine(card=CARD)
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    ranked = {"id": "r", "model": "m", "usage": usage, "results": [{"index": 0, "relevance_score": 0.5}]}
    more: dict[str, Callable[[dict[str, Any]], Response]] = {
        "/v1/rerank": lambda body: JSONResponse(ranked),
        "/pooling": lambda body: JSONResponse({"data": [{"index": 0, "data": [0.5]}], "usage": usage}),
        "/score": lambda body: JSONResponse(
            {"id": "s", "model": "m", "usage": usage, "data": [{"index": 0, "score": 0.5}]}
        ),
    }

    def answer(body: dict[str, Any]) -> Response:
        return (ANSWERS | more).get(fake.paths[-1], refuse(404, "no such route"))(body)

    fake.answer = answer
    return fake


class Callers:
    """A router with two callers, in front of the applications `blue` and `green` and the server `far`."""

    def __init__(
        self,
        engines: Mapping[str, FakeEngine],
        router: Router,
        config: dict[str, Any],
        client: httpx.Client,
        keys: Mapping[str, str],
    ) -> None:
        self.blue, self.green, self.far = (engines[name] for name in ("blue", "green", "far"))
        self.router, self.config, self._keys = router, config, keys
        self._client = client

    def configure(self, *, access: dict[str, Any] | None = None, **chat: Any) -> None:
        """Changes the endpoint `chat`, and the section `access`."""
        endpoints = self.config["endpoints"]
        self.config["endpoints"] = {**endpoints, "chat": {**endpoints["chat"], **chat}}
        self.config["access"] = self.config["access"] if access is None else access
        self.router.reconfigure(self.config)

    def ask(self, caller: str, path: str = "/v1/chat/completions", body: Any = CHAT, **headers: str) -> httpx.Response:
        key = self._keys[caller]
        return self._client.post(path, json=body, headers={"authorization": f"Bearer {key}", **headers})

    def sent(self, caller: str, path: str, body: Any) -> set[str | None]:
        """The salts of the engine's work for one request."""
        before = len(self.blue.requests)
        self.ask(caller, path, body)
        new = list(zip(self.blue.paths[before:], self.blue.requests[before:], strict=True))
        assert new, f"{path} reached no engine"
        return {request.get("cache_salt") for path, request in new if path not in UNSALTED}


@pytest.fixture
def callers(servers: ServerPool, tmp_path: Path) -> Iterator[Callers]:
    file, keys = tmp_path / "keys.yaml", dict[str, str]()
    for name in ("ann", "bob"):
        keys[name], record = create(name)
        append(file, record.line)
    with _running(servers, file, keys) as found:
        yield found


@contextmanager
def _running(servers: ServerPool, file: Path, keys: Mapping[str, str]) -> Iterator[Callers]:
    generation, pooling = ["chat", "completions", "responses"], ["embeddings", "rerank"]
    every = [*generation, *pooling, "classify"]
    engines = {"blue": engine(), "green": engine(), "far": engine()}
    mounts = [Mount(f"{APP_PREFIX}{name}", engine.app) for name, engine in engines.items()]
    with servers.host(Starlette(routes=mounts)) as ingress:
        config: dict[str, Any] = {
            "endpoints": {
                "chat": {"tasks": generation, "traffic": {"blue": 100}},
                "embed": {"tasks": pooling, "traffic": {"blue": 100}},
                "label": {"tasks": ["classify"], "traffic": {"blue": 100}},
            },
            "deployments": {
                "blue": {"app": "blue", "model": "m", "tasks": every},
                "green": {"app": "green", "model": "m", "tasks": every},
                "far": {"url": f"{ingress}{APP_PREFIX}far", "model": "m", "tasks": every},
            },
            "access": {"keys_file": str(file)},
        }
        environment = RuntimeEnvironment(ingress, internal_key="internal")
        router = Router(environment, controller=Keeper(), send_every_s=0.02, balancer=RecordingBalancer())
        router.reconfigure(config)
        with servers.host(router.app) as url, httpx.Client(base_url=url, timeout=30) as client:
            yield Callers(engines, router, config, client, keys)


def test_every_operation_is_listed() -> None:
    operations = {
        (dialect.name, route.operation)
        for dialect in DIALECTS
        for route in dialect.routes
        if not route.local and not route.open and route.operation not in ONLY_DESCRIBE
    }
    assert operations == set(CALLS)


@pytest.mark.parametrize(("dialect", "operation"), sorted(CALLS))
def test_two_callers_have_different_salts_and_one_caller_the_same(
    callers: Callers, dialect: str, operation: str
) -> None:
    for path, body in CALLS[dialect, operation]:
        first, second, other = (callers.sent(caller, path, body) for caller in ("ann", "ann", "bob"))
        assert first == second != other, path
        for (salt,) in (first, other):  # one for all of a request's work
            assert salt is not None
            assert 32 <= len(salt) <= 1024
            assert not any(name in salt for name in ("ann", "bob", "key-", "internal"))


def salt(engine: FakeEngine) -> str | None:
    return engine.requests[-1].get("cache_salt")


def test_a_clients_own_salt_divides_its_share_and_reaches_no_other_callers(callers: Callers) -> None:
    salts = set()
    for caller in ("ann", "bob"):
        for own in (None, "a", "b"):
            assert callers.ask(caller, body={**CHAT, "cache_salt": own}).status_code == 200
            salts.add(salt(callers.blue))
    assert len(salts) == 6
    assert not {None, "a", "b"} & salts
    callers.ask("bob", body={**CHAT, "cache_salt": salt(callers.blue)})
    assert salt(callers.blue) not in salts, "a salt that is known is no way into its caller's share"


@pytest.mark.parametrize("own", ["", 5, ["a"], "a" * 1025])
def test_a_salt_that_the_engine_would_reject_is_rejected_by_name(callers: Callers, own: Any) -> None:
    answer = callers.ask("ann", body={**CHAT, "cache_salt": own})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_salt")
    assert not callers.blue.requests


def test_isolation_follows_the_endpoint(callers: Callers) -> None:
    def salts() -> list[str | None]:
        found = []
        for caller, body in (("ann", CHAT), ("bob", CHAT), ("ann", {**CHAT, "model": "blue"})):
            callers.ask(caller, body=body)
            found.append(salt(callers.blue))
        return found

    callers.configure(isolate_cache="caller")
    ann, bob, _ = salts()
    assert ann != bob
    callers.configure(isolate_cache="endpoint")
    ann, bob, direct = salts()
    assert ann == bob == direct is not None
    callers.configure(isolate_cache="none")
    assert salts() == [None] * 3
    callers.ask("ann", body={**CHAT, "cache_salt": "mine"})
    assert salt(callers.blue) == "mine"


def test_without_callers_to_tell_apart_there_is_no_salt(callers: Callers) -> None:
    callers.configure(access={})
    callers.ask("ann")
    assert "cache_salt" not in callers.blue.requests[-1]


def test_a_shadow_gets_its_originals_salt(callers: Callers) -> None:
    callers.configure(mirror={"deployment": "green", "percent": 100})
    for caller in ("ann", "bob"):
        callers.ask(caller)
    wait_until(lambda: len(callers.green.requests) == 2)
    salts = {request["cache_salt"] for request in callers.blue.requests}
    assert {request["cache_salt"] for request in callers.green.requests} == salts
    assert len(salts) == 2


@pytest.mark.parametrize("primary", ["blue", "far"])
def test_a_server_elsewhere_gets_salts_only_as_declared(callers: Callers, primary: str) -> None:
    """OpenAI's own servers, for one, reject fields that they do not know."""
    callers.configure(
        traffic={primary: 100}, mirror={"deployment": "far" if primary == "blue" else "blue", "percent": 100}
    )
    callers.ask("ann")
    wait_until(lambda: callers.far.requests and callers.blue.requests)
    assert "cache_salt" not in callers.far.requests[-1]
    assert "cache_salt" in callers.blue.requests[-1]
    callers.config["deployments"]["far"] = {**callers.config["deployments"]["far"], "cache_salt": True}
    callers.configure()
    callers.ask("ann")
    wait_until(lambda: len(callers.far.requests) == len(callers.blue.requests) == 2)
    assert salt(callers.far) == salt(callers.blue) is not None


def test_a_promise_that_a_deployment_cannot_keep_is_refused() -> None:
    def config(deployment: dict[str, Any], **endpoint: Any) -> dict[str, Any]:
        return {
            "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"far": 100}, **endpoint}},
            "deployments": {"far": {"model": "m", **deployment}},
        }

    for isolate in ("caller", "endpoint"):
        with pytest.raises(ConfigError, match=r"endpoints.chat.isolate_cache: deployment 'far' .* `cache_salt: true`"):
            parse(config({"url": "http://far"}, isolate_cache=isolate))
        parse(config({"url": "http://far", "cache_salt": True}, isolate_cache=isolate))
        parse(config({"app": "far"}, isolate_cache=isolate))
    parse(config({"url": "http://far"}))
    parse(config({"url": "http://far"}, isolate_cache="none"))
    with pytest.raises(ConfigError, match="`cache_salt` needs `url`"):
        parse(config({"app": "far", "cache_salt": True}))


def test_routers_agree_on_salts_and_other_clusters_do_not() -> None:
    def made(internal_key: str) -> object:
        request = EngineRequest("/v1/completions", {"prompt": "a"})
        return (
            CacheSalts(internal_key).salted(request, Target("t", "http://t", "m", {}, takes_salt=True), "caller a").body
        )

    assert made("one") == made("one") != made("two")
    assert made("") != made(""), "without a key the secret is the process's own"


def test_affinity_follows_the_cache(callers: Callers) -> None:
    """Prompts that share no cache need no replica in common."""

    balancer = callers.router.state.balancer
    assert isinstance(balancer, RecordingBalancer)

    def keys(isolate: str) -> tuple[int | None, ...]:
        callers.configure(isolate_cache=isolate)
        found = []
        for caller in ("ann", "ann", "bob"):
            callers.ask(caller)
            found.append(balancer.keys[-1])
        return tuple(found)

    first, second, other = keys("caller")
    assert first == second != other
    assert len(set(keys("endpoint"))) == 1
    assert len(set(keys("none"))) == 1
